"""Layouts of public data sets: how records are recognized and converted. `records.py` follows in the same program.

A converted record has a `spec` and what `judge.rs` decides with: `worked`, `tests`, `solutions`, `wrong`.
"""
import ast
import base64
import io
import itertools
import json
import pickle
import re
import zlib


class LeftOut(Exception):
    """Why a record is not used."""


class Failure(Exception):
    """Why the program ends: kind, message, and perhaps a hint."""


def finite(digits):
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError("number out of range")
    return value


def constant(name):
    raise ValueError(f"{name} is no JSON")


DECODER = json.JSONDecoder(parse_float=finite, parse_constant=constant)
load = DECODER.decode


def number(value):
    """A float as serde_json writes it: 1e-7, 0.00001 and 1e+16, not 1e-07 and 1e-05."""
    mantissa, _, exponent = repr(value).partition("e")
    if "n" in mantissa:
        raise ValueError("no number")
    if exponent == "-05":
        return f"{'-' * (value < 0)}0.0000{mantissa.lstrip('-').replace('.', '')}"
    return f"{mantissa}e{int(exponent):+}" if exponent else mantissa


def compact(value):
    """A value as JSON without spaces."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, list):
        return f"[{','.join(map(compact, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{compact(key)}:{compact(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def field(record, *names):
    """The value of the first of these fields, ignoring case."""
    found = (value for name in names for key, value in record.items() if key.lower() == name)
    return next(found, None)


def text(record, *names):
    """The value of such a field, if it is text that is not blank."""
    value = field(record, *names)
    return value if isinstance(value, str) and value.strip() else None


def need(value, reason):
    if not value:
        raise LeftOut(reason)
    return value


def unpacked(record, name):
    """A field that holds JSON as a string, or the value itself."""
    value = record.get(name)
    try:
        return load(value) if isinstance(value, str) else value
    except ValueError:
        return None


def pairs(inputs, outputs):
    return list(zip(*(values if isinstance(values, list) else [] for values in (inputs, outputs))))


def strings(values):
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


# Mathematics: the reference answer is a field of the record, or what a worked solution ends with. Proofs and answers in
# prose are left out by judge.rs.

PROBLEM = ("problem", "question")
REFERENCE = ("answer", "expected_answer", "final_answer")
# Other fields that are copied, for people and filters.
EXTRA = ("level", "difficulty", "type", "subject", "id", "year")


def reference(value):
    """An answer: a string, a number, or a list of them, which may itself be a string (`["34"]`)."""
    if isinstance(value, str):
        inside = value.strip()[1:-1].strip() if re.fullmatch(r"\s*\[.*\]\s*", value, re.S) else ""
        items = None
        if len(inside) > 1 and inside[0] == inside[-1] == '"':
            items = unpacked({"list": f"[{inside}]"}, "list")
        elif len(inside) > 1 and inside[0] == inside[-1] == "'":
            items = [item.replace("\\\\", "\\") for item in inside[1:-1].split("', '")]
        return reference(items) or (value if value.strip() else None)
    if is_number(value):
        return compact(value)
    if isinstance(value, list) and value:
        parts = [reference(item) for item in value]
        return None if None in parts else ", ".join(parts)
    return None


def math(record, question, answer, worked=None):
    """A problem with an answer, or with a worked solution that ends with one, which comes first."""
    spec = {"problem": need(question, "no problem").strip(), "answer": answer, "encoding": "full"}
    spec.update((name, field(record, name)) for name in EXTRA if any(key.lower() == name for key in record))
    return {"spec": spec, "worked": worked}


def gsm8k(record):
    return math(record, text(record, "question"), need(text(record, "answer"), "no answer").split("####")[-1])


def olympiadbench(record):
    if text(record, "error"):
        raise LeftOut("an answer with a tolerance of its own")
    answer = need(reference(record.get("final_answer")), "no answer")
    parts = [part.strip() for part in (text(record, "context"), text(record, "question")) if part]
    if text(record, "unit"):
        parts.append(f"The unit of the answer is {text(record, 'unit').strip()}.")
    return math(record, "\n\n".join(parts), answer)


def verl(record):
    """A chat or its text, and the reference under `reward_model`."""
    question = record.get("prompt")
    if isinstance(question, list):
        said = [message.get("content") for message in question if isinstance(message, dict) and message.get("role") == "user"]
        question = said[-1] if said else None
    model = record.get("reward_model")
    answer = reference(model.get("ground_truth")) if isinstance(model, dict) else None
    return math({}, text({"problem": question}, "problem"), need(answer, "no answer"))


def answer(record):
    found = need(reference(field(record, *REFERENCE)), "no answer")
    # Some records have the whole solution in this field.
    return math(record, text(record, *PROBLEM), found, found if "\\boxed" in found else None)


def conversation(record):
    """The user's last question before the assistant answers, and that answer, if there is one."""
    def said(message, *roles):
        if not isinstance(message, dict):
            return None
        role, content = ([message[key] for key in keys if isinstance(message.get(key), str)][:1] for keys in (("role", "from"), ("content", "value")))
        return content[0] if content and role and role[0] in roles else None

    messages = field(record, "messages", "conversations", "prompt")
    if not isinstance(messages, list):
        return None
    replies = [message for message in messages if said(message, "assistant", "gpt") is not None]
    before = itertools.takewhile(lambda message: said(message, "assistant", "gpt") is None, messages)
    asked = [said(message, "user", "human") for message in before]
    asked = [question for question in asked if question is not None]
    completion = field(record, "completion")
    replies += completion[:1] if isinstance(completion, list) else []
    return (asked[-1], said(replies[0], "assistant", "gpt") if replies else None) if asked else None


def messages(record):
    """A conversation, as in sets for fine-tuning; the reference is a field of the record, or is taken from the answer."""
    question, reply = need(conversation(record), "no problem")
    told = reference(field(record, "answer", "expected_answer", "final_answer", "ground_truth"))
    worked = text(record, "solution") or reply or ""
    if told is None and "####" in worked:
        told = worked.split("####")[-1]
    elif told is None and "\\boxed" not in worked:
        raise LeftOut("no answer")
    return math({}, text({"problem": question}, "problem"), told, worked if told is None else None)


# Programs: judge.rs keeps the first solution that passes the tests, and wrong programs that fail one. Left out: problems
# with a special checker, and solutions in languages other than Python 3.

def code(record, statement, function, tests, examples, solutions, wrong=(), **more):
    """A problem. Each of `tests` is a way to read its tests: the first counts that a solution passes."""
    starter = text(record, "starter_code")
    if starter and function:
        statement += f"\n\nStart with this:\n{starter}"
    spec = {"problem": statement, "style": "function" if function else "stdin", "function": function, "tests": [], "examples": examples}
    return {"spec": spec, "tests": tests, "solutions": solutions, "wrong": list(wrong), **more}


def test(given, wanted):
    return {"input": given, "output": wanted}


def printed(value):
    """A test's text: a string, a number or a list of lines."""
    if isinstance(value, list):
        rows = [item if isinstance(item, str) else compact(item) if is_number(item) else None for item in value]
        return None if None in rows else "\n".join(rows) + "\n"
    return value if isinstance(value, str) else f"{compact(value)}\n" if is_number(value) else None


def printed_tests(inputs, outputs):
    texts = [(printed(given), printed(wanted)) for given, wanted in pairs(inputs, outputs)]
    return [test(*both) for both in texts if None not in both]


def apps(record):
    """An output is a text, a function's value, or a list that contains the value. A list of one may be either."""
    tests = unpacked(record, "input_output")
    if tests is None:
        raise LeftOut("no tests")
    tests = tests if isinstance(tests, dict) else {}
    name = tests.get("fn_name") if isinstance(tests.get("fn_name"), str) else None
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    ways = [printed_tests(inputs, outputs)]
    if name is not None:
        values = [(given, wanted) for given, wanted in pairs(inputs, outputs)]
        held = [(given, wanted[0] if isinstance(wanted, list) and len(wanted) == 1 else wanted) for given, wanted in values]
        ways = [[test(compact(given), compact(wanted)) for given, wanted in way if isinstance(given, list)]
                for way in ([values] if held == values else [held, values])]
    question = need(text(record, "question"), "no problem")
    return code(record, question, name, ways, 1, strings(unpacked(record, "solutions")))


def code_contests(record):
    def group(name):
        given = record.get(name) if isinstance(record.get(name), dict) else {}
        return printed_tests(given.get("input"), given.get("output"))

    def python(name):
        given = record.get(name) if isinstance(record.get(name), dict) else {}
        return strings([program for language, program in pairs(given.get("language"), given.get("solution")) if language in (3, "PYTHON3")])

    shown = group("public_tests")
    tests = shown + group("private_tests") + group("generated_tests")
    description = need(text(record, "description"), "no problem")
    return code(record, description, None, [tests], min(len(shown), 3), python("solutions"), python("incorrect_solutions"))


class Texts(pickle.Unpickler):
    """A pickle of plain values: names of classes and functions, which could run anything, are refused."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError


def livecodebench(record):
    """It has no solutions, so its problems are kept without one, unless the record has a `solution`."""
    metadata = unpacked(record, "metadata")
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    private = record.get("private_test_cases")
    hidden = unpacked(record, "private_test_cases")
    if isinstance(private, str) and private.strip() and hidden is None:
        try:
            packed = zlib.decompressobj().decompress(base64.b64decode(private), 1 << 30)
            hidden = load(Texts(io.BytesIO(packed)).load())
        except Exception:
            raise LeftOut("private tests that cannot be unpacked") from None

    def arguments(case):
        """A test: strings, or one argument per line."""
        given, wanted = (case.get(key) for key in ("input", "output"))
        if not (isinstance(given, str) and isinstance(wanted, str)):
            return []
        try:
            rows = [compact(load(row)) for row in given.split("\n") if row.strip()]
            return [test(f"[{','.join(rows)}]", compact(load(wanted)))] if name else [test(given, wanted)]
        except ValueError:
            return [] if name else [test(given, wanted)]

    def cases(given):
        return [case for item in (given if isinstance(given, list) else []) if isinstance(item, dict) for case in arguments(item)]

    shown, solution = cases(unpacked(record, "public_test_cases")), text(record, "solution")
    content = need(text(record, "question_content"), "no problem")
    return code(record, content, name, [shown + cases(hidden)], min(len(shown), 3), [solution] if solution else None)


def problem(record):
    """The project's own layout."""
    names = ("name", "problem", "style", "function", "tests", "examples", "solution", "wrong")
    return {"spec": {name: record[name] for name in names if name in record}}


def plain(value):
    """A literal as JSON has it."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError


def members(node):
    """What `set(…)` or `sorted(…)` holds."""
    is_call = isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("set", "sorted") and len(node.args) == 1
    return node.args[0] if is_call else None


def read_assert(node):
    """The function of an assert on literals, and its test, with how near a value has to be: relative and absolute."""
    tolerance = None
    if isinstance(node, ast.Call) and "isclose" in (getattr(node.func, "attr", None), getattr(node.func, "id", None)):
        call, value = node.args
        given = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
        tolerance = [float(given.get("rel_tol", 1e-9)), float(given.get("abs_tol", 0.0))]
    else:
        call, (value,), (sign,) = node.left, node.comparators, node.ops
        if isinstance(sign, (ast.Lt, ast.LtE)) and call.func.id == "abs":
            tolerance = [0.0, float(ast.literal_eval(value))]
            (difference,) = call.args
            call, value = difference.left, difference.right
        elif not isinstance(sign, ast.Eq):
            raise ValueError
    held, wanted = members(call), members(value)
    call, value = held or call, wanted or value
    if call.keywords:
        raise ValueError
    given = test(*(compact(plain(found)) for found in ([ast.literal_eval(argument) for argument in call.args], ast.literal_eval(value))))
    return call.func.id, given | {"any_order": bool(held or wanted), "tolerance": tolerance}


def asserts(texts):
    """The function that the first assert calls, and its tests. Left out: all other asserts, as on random values."""
    found = []
    for source in texts:
        try:
            nodes = [node for node in ast.walk(ast.parse(source.strip())) if isinstance(node, ast.Assert)]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in sorted(nodes, key=lambda node: node.lineno):
            try:
                found.append(read_assert(node.test))
            except Exception:
                pass
    name = need(found, "no tests")[0][0]
    return name, [given for function, given in found if function == name]


def solution_of(*parts):
    return ["".join(parts).strip().replace("\r\n", "\n") + "\n"]


def mbpp(record):
    texts = strings(record.get("test_list")) + strings(record.get("challenge_test_list"))
    name, tests = asserts(texts)
    statement = need(text(record, "text", "prompt"), "no problem")
    # The text does not name the function, so the first assert is added, as in MBPP's own prompt.
    statement += f"\n\nThe function is called {name}. For example: {texts[0].strip()}"
    return code(record, statement, name, [tests], 1, solution_of(text(record, "test_setup_code") or "", "\n", text(record, "code") or ""))


def human_eval_code(record):
    prompt, name = need(text(record, "prompt"), "no problem"), need(text(record, "entry_point"), "no function")
    called, tests = asserts([need(text(record, "test"), "no tests")])
    if called not in ("candidate", name):
        raise LeftOut("no tests")
    body = need(text(record, "canonical_solution"), "no solution in Python")
    statement = f"Complete this function:\n```python\n{prompt.strip()}\n```"
    return code(record, statement, name, [tests], 0, solution_of(prompt, body))


# Joint rewards. Reference summaries and HumanEval's solutions are not kept: rewards read none, and one function shows no
# helper.

def prose(record, body, reason):
    spec = {"problem": need(body.strip(), reason)}
    return {"spec": spec | ({"title": text(record, "title").strip()} if text(record, "title") else {})}


def human_eval(record):
    return {"spec": {"problem": record.get("prompt"), **{name: record[name] for name in ("entry_point", "test", "aux", "main") if name in record}}}


# The first layout that recognizes a record is used: name, environment, data sets with their fields, a test and a conversion.
LAYOUTS = [
    ("problem", "code", "the project's own: problem, style, function, tests, examples, solution, wrong",
     lambda record: "style" in record and "tests" in record, problem),
    ("apps", "code", "APPS: question, solutions and input_output (JSON as text), starter_code",
     lambda record: "input_output" in record and "question" in record, apps),
    ("code-contests", "code", "CodeContests: description, public_tests, private_tests, generated_tests, solutions, incorrect_solutions",
     lambda record: "public_tests" in record and "description" in record, code_contests),
    ("livecodebench", "code",
     "LiveCodeBench: question_content, public_test_cases, private_test_cases (JSON as text, or packed), metadata",
     lambda record: "question_content" in record, livecodebench),
    ("mbpp", "code", "MBPP: text or prompt, code, test_list (asserts), challenge_test_list, test_setup_code",
     lambda record: "test_list" in record and "code" in record, mbpp),
    ("human-eval-code", "code",
     "HumanEval for one coder, if named by --layout: prompt, entry_point, canonical_solution, test (asserts)",
     lambda record: False, human_eval_code),
    ("human-eval", "coop-code", "HumanEval, CoopHumanEval: prompt, entry_point, test (with check(candidate))",
     lambda record: all(text(record, name) for name in ("prompt", "entry_point", "test")), human_eval),
    ("tldr", "tldr", "TL;DR: prompt (a post that ends with TL;DR:), completion",
     lambda record: (text(record, "prompt") or "").rstrip().endswith("TL;DR:"),
     lambda record: prose(record, need(text(record, "prompt"), "no post").rstrip().removesuffix("TL;DR:"), "no post")),
    ("arxiv", "arxiv", "abstracts of papers: abstract_text or abstract, perhaps title",
     lambda record: text(record, "abstract_text", "abstract"),
     lambda record: prose(record, need(text(record, "abstract_text", "abstract"), "no abstract"), "no abstract")),
    ("gsm8k", "math", "GSM8K: question, answer (with ####)",
     lambda record: text(record, "question") and "####" in (text(record, "answer") or ""), gsm8k),
    ("olympiadbench", "math", "OlympiadBench: question, final_answer (a list), perhaps context and unit",
     lambda record: text(record, "question") and "final_answer" in record, olympiadbench),
    ("verl", "math", "DAPO-Math and others prepared for verl: prompt (a chat or text), reward_model.ground_truth",
     lambda record: isinstance(record.get("prompt"), (list, str)) and "reward_model" in record, verl),
    ("answer", "math", "AIME, Polaris and most others: problem or question, answer",
     lambda record: text(record, *PROBLEM) and reference(field(record, *REFERENCE)), answer),
    ("solution", "math", "MATH: problem, solution (with \\boxed)",
     lambda record: text(record, *PROBLEM) and text(record, "solution"),
     lambda record: math(record, text(record, *PROBLEM), None, need(text(record, "solution"), "no solution"))),
    ("messages", "math", "chats for fine-tuning: messages, conversations or prompt (a chat), with the answer in a field or in the chat",
     conversation, messages),
]


def recognize(record):
    return next((layout for layout in LAYOUTS if layout[3](record)), None)


def convert(record, layout):
    """What to print for a record of this layout, or of the one that recognizes it."""
    if record is None:
        raise LeftOut("null")
    if not isinstance(record, dict):
        raise Failure("data", "a record is no JSON object")
    layout = layout or recognize(record)
    if layout is None:
        filled = {name: value if value is not None and str(value).strip() else [] if name == "prompt" else "?" for name, value in record.items()}
        if recognize(filled):
            raise LeftOut("a field without a value")
        raise Failure("data", f"no layout has the fields {', '.join(list(record)[:12])}",
                      "`envs import --layouts` says which fields each layout is recognized by")
    return {"env": layout[1], **layout[4](record)}
