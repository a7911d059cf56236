"""Examples in a run's pipe: a judge between `rollout` and `group`, and a rollout by an OpenAI-compatible server."""
import json
import re

import pytest
from conftest import ROOT, Server, closed_port, lines, must, run

TASKS = "envs tasks plan-path --count {} --seed 5"


def judged(sample, score, weight):
    """True if the reward is the environment's plus the judge's."""
    paid = sample["rewards"]["team"] + sample["rewards"]["local"]
    return abs(sample["reward"] - paid - weight * score) < 1e-9 and abs(sample["reward_components"]["judge"] - score) < 1e-9


def test_judge_changes_the_rewards_of_a_run(tmp_path):
    must(f"./pipeline.sh --run {tmp_path}/run --stage 'reward=JUDGE_WEIGHT=0.5 python3 {ROOT}/examples/judge.py' --warmup 30 "
         "--steps 1 --tasks 2 --eval-every 0")
    samples = lines((tmp_path / "run/steps/000001/samples.jsonl").read_text(), "sample")
    assert len(samples) >= 32
    assert all(judged(sample, 1 - (len(sample["completion_ids"]) - 1) / 100, 0.5) for sample in samples)
    # It also decides the training: candidates that otherwise earn the same differ in length.
    metrics = json.loads((tmp_path / "run/steps/000001/metrics.jsonl").read_text().splitlines()[0])
    assert metrics["flat_groups"] < metrics["groups"]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A folder with `played`, a rollout's lines."""
    folder = tmp_path_factory.mktemp("played")
    must(f"policy init policy --preset tiny --seed 3 2>&1; {TASKS.format(3)} | "
         "rollout --policy policy --branches 4 --turns 2 --max-tokens 8 --seed 7 --quiet > played", folder)
    return folder


def judge(folder, url, behind="", **variables):
    return run(f"python3 {ROOT}/examples/judge.py < played {behind}", folder, OPENAI_API_KEY="secret", JUDGE_MODEL="large", JUDGE_URL=url, **variables)


def scores(body):
    """A reply with the score of each answer that a question shows: its length in characters, at most 10."""
    answers = re.split(r"\n\nAnswer \d+:\n", body["messages"][0]["content"])[1:]
    return f"Longer is better.\n{[min(len(answer), 10) for answer in answers]}"


def test_served_judge_compares_siblings(played):
    server = Server(scores)
    code, printed, said = judge(played, server.url)
    assert code == 0, said
    samples, groups = lines(printed, "sample"), {}
    for sample in samples:
        groups.setdefault((sample["agent"], sample["turn"], json.dumps(sample["prompt"])), set()).add(sample["completion"])
        sample["group_texts"] = groups[sample["agent"], sample["turn"], json.dumps(sample["prompt"])]
    assert samples and all(judged(sample, min(len(sample["completion"]), 10) / 10 if len(sample["group_texts"]) > 1 else 0.5, 0.1)
                           for sample in samples)
    # Lines of other types pass byte for byte, and a sample keeps all that the judge does not write.
    for before, after in zip((played / "played").read_text().splitlines(), printed.splitlines(), strict=True):
        old, new = json.loads(before), json.loads(after)
        assert old["type"] == "sample" or before == after
        for line in (old, new):
            line.pop("reward", None), line.pop("reward_components", None)
        assert old == new
    # A question for each set of siblings, which has each text once.
    (key, body), *_ = server.asked
    assert len(server.asked) == sum(len(texts) > 1 for texts in groups.values()) and key == "Bearer secret" and body["model"] == "large"
    shown = body["messages"][0]["content"]
    assert any(all(shown.count(f":\n{text}") for text in texts) for texts in groups.values()) and samples[0]["prompt"][0]["content"][:20] in shown
    # Several at a time, in the same order.
    assert judge(played, server.url, JUDGE_CALLS="1")[1] == printed


def test_judge_asks_again_what_failed_for_now(played):
    asked = []

    def reply(body):
        asked.append(body)
        question = [old["messages"] for old in asked].count(body["messages"])
        return ((429, "slow down"), (503, "busy"), "no list")[question - 1] if question < 4 else scores(body)

    code, printed, said = judge(played, Server(reply).url)
    assert code == 0 and all(sample["reward"] is not None for sample in lines(printed, "sample")), said


def test_candidate_without_a_rating_is_unscored(played):
    """`group` asks what null means."""
    code, printed, said = judge(played, Server(lambda body: "no idea").url)
    assert code == 0 and all(sample["reward"] is None for sample in lines(printed, "sample")), said
    (played / "unscored").write_text(printed)
    code, _, said = run("group < unscored", played)
    assert code == 65 and "--unscored drop-group" in said


def test_judge_reports_errors_without_an_end_line(played):
    for url, variables, code, cause in (
        (f"http://127.0.0.1:{closed_port()}/v1", {}, 69, "judge.py: http://127.0.0.1:"),
        (Server(lambda body: (401, "bad key")).url, {}, 69, "HTTPError: HTTP Error 401"),
        (Server(lambda body: (200, "<html>")).url, {}, 69, "/v1: JSONDecodeError: "),
        (Server(lambda body: (500, "broken")).url, {}, 69, "HTTP Error 500"),
        (Server(lambda body: "7").url, {"JUDGE_WEIGHT": "much"}, 2, "judge.py: JUDGE_WEIGHT or JUDGE_CALLS: could not convert"),
    ):
        found, printed, said = judge(played, url, **variables)
        assert found == code and len(said.splitlines()) == 2 and cause in said and "\nhint: " in said, said
        assert '"type":"end"' not in printed
    # If the reader is gone it exits with success, like every stage: `group` has already reported the error.
    _, ended, said = judge(played, Server(lambda body: "7").url, "| false; echo ${PIPESTATUS[0]}")
    assert (ended, said) == ("0\n", "")
    code, _, said = run("echo '{\"type\":' | python3 examples/judge.py")
    assert code == 65 and said.startswith("judge.py: stdin:1: ") and len(said.splitlines()) == 2


def player(body):
    """Moves that bring a planner on, and what a tool may propose; in every fourth case something else."""
    prompt = body["messages"][0]["content"]
    return ("nothing of use", "R D", "D R D", "D R D")[len(prompt.encode()) % 4]


def test_rollout_by_a_server_writes_the_lines_of_rollout(tmp_path):
    server = Server(player)
    must(f"{TASKS.format(12)} > tasks; OPENAI_API_KEY=secret python3 {ROOT}/examples/rollout_openai.py {server.url} large 'envs step plan-path' "
         f"< tasks > example; rollout --policy {server.url} --branches 1 --turns 4 --quiet < tasks > program", tmp_path)
    example, program = ((tmp_path / name).read_text() for name in ("example", "program"))
    served = [lines(text, "served") for text in (example, program)]
    assert len(served[0]) >= 24
    for ours, theirs in zip(*served, strict=True):
        assert {**ours, "policy": theirs["policy"]} == theirs  # a label
    assert lines(example, "episode") == lines(program, "episode")
    assert any(line["reward"] > 0 for line in lines(example, "episode"))
    evaluated = [must(f"report evaluate --format line --quiet {name}", tmp_path) for name in ("example", "program")]
    assert evaluated[0] == evaluated[1]
    # The stages after it let its lines pass, and nothing is trained on them.
    passed = must("group --quiet < example | advantage --quiet | tee passed", tmp_path)
    assert [line for line in passed.splitlines() if '"end"' not in line] == [line for line in example.splitlines() if '"end"' not in line]
    must("policy init policy --preset tiny --seed 1 2>&1", tmp_path)
    code, _, said = run("update --policy policy --quiet < passed", tmp_path)
    assert code == 65 and said.startswith("update: the stream holds no samples\nhint: "), said
    assert any(key == "Bearer secret" for key, _ in server.asked)


def test_rollout_by_a_server_reports_its_errors():
    fine, step = Server(player).url, "large 'envs step plan-path'"
    for arguments, code, cause in (
        (f"http://127.0.0.1:{closed_port()}/v1 {step}", 69, "rollout_openai.py: http://127.0.0.1:"),
        (f"{Server(lambda body: (500, 'busy')).url} {step}", 69, "HTTPError: HTTP Error 500"),
        (f"{Server(lambda body: (200, '{}')).url} {step}", 69, "KeyError: 'choices'"),
        (f"{fine} large true", 1, "rollout_openai.py: `true` did not answer: "),
        (f"{fine} large 'envs step sudoku'", 1, "rollout_openai.py: `envs step sudoku`: "),
        (fine, 2, "rollout_openai.py: three arguments are needed, not 1"),
    ):
        found, printed, said = run(f"envs tasks plan-path --count 1 | python3 examples/rollout_openai.py {arguments}")
        ours = said[said.find("rollout_openai.py: "):].splitlines()
        assert found == code and len(ours) == 2 and cause in ours[0] and ours[1].startswith("hint: "), said
        assert "Traceback" not in said and '"type": "end"' not in printed


@pytest.mark.parametrize("command", ["kuhn_poker.py tasks --count 2000", "kuhn_poker.py demo --count 400", "tic_tac_toe.py positions",
                                     "toy_credit.py lines stag parallel 2000"])
def test_closed_pipe_ends_an_example_quietly(command):
    """`| head` ends it without a traceback; it prints more than a pipe holds."""
    assert must(f"set +o pipefail; {{ python3 examples/{command} | head -1 >/dev/null; }} 2>&1") == ""
