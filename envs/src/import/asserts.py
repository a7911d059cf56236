"""Reads asserts that call a function on literals: texts as JSON on stdin, a line of JSON for each test."""

import ast
import json
import sys


def plain(value):
    """The value as JSON has it."""
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
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("set", "sorted") and len(node.args) == 1:
        return node.args[0]
    return None


def read(test):
    """Function, arguments, value, whether its order does not matter, and how near a value has to be."""
    tolerance = None
    if isinstance(test, ast.Call) and "isclose" in (getattr(test.func, "attr", None), getattr(test.func, "id", None)):
        call, value = test.args
        given = {word.arg: ast.literal_eval(word.value) for word in test.keywords}
        tolerance = [given.get("rel_tol", 1e-9), given.get("abs_tol", 0.0)]
    else:
        call, (value,), (sign,) = test.left, test.comparators, test.ops
        if isinstance(sign, (ast.Lt, ast.LtE)) and call.func.id == "abs":
            tolerance = [0.0, ast.literal_eval(value)]
            (difference,) = call.args
            call, value = difference.left, difference.right
        elif not isinstance(sign, ast.Eq):
            raise ValueError
    held, wanted = members(call), members(value)
    call, value = held or call, wanted or value
    if call.keywords:
        raise ValueError
    arguments = [plain(ast.literal_eval(argument)) for argument in call.args]
    return [call.func.id, arguments, plain(ast.literal_eval(value)), bool(held or wanted), tolerance]


for text in json.load(sys.stdin):
    try:
        asserts = [node for node in ast.walk(ast.parse(text.strip())) if isinstance(node, ast.Assert)]
    except (SyntaxError, ValueError):
        continue
    for node in sorted(asserts, key=lambda node: node.lineno):
        try:
            print(json.dumps(read(node.test), allow_nan=False))
        except Exception:
            pass
