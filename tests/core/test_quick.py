"""The shortcut against the library, on plain expressions and whatever an agent may write."""

from __future__ import annotations

from typing import Any, Final

import pytest
from cel_expr_python import cel
from hypothesis import example, given
from hypothesis import strategies as st

from gated.core.expressions import CALL_NAMES, EvaluationError, compile_expression
from gated.core.quick import shortcut
from gated.core.typed import DOUBTS

PLAIN: Final = """
args.x == "prod"
args.x != "prod" && args.y != 5
args.x in ["prod", "dev"] || args.y in [1, 5]
args.x in args.y
!(args.x in args)
args.x < 1000
args.x >= 0.5
args.x <= args.y
args.x > "b"
args.x.k == args.y[args.x]
args["x"] == null || args.y != null
has(args.x) && !has(args.x.k)
size(args.x) < 3
args.x.size() == size(args.y)
args.x.startsWith("pr") || args.x.endsWith("d")
args.x.contains(args.y)
args.x.all(a, a == "prod" || a < 5)
args.x.exists(a, a.k == args.y)
args.x.all(a, args.y.exists(b, a == b))
args.x ? args.y : args.x == args.y
type(args.x) == string && args.x == "prod"
type(args.x) == int || type(args.x) == double || type(args.x) == map
run.counts[tool] < 3 && run.counts.pay == 0
run.task == "dev" || run.task == args.x
true || args.x == 1
args.x
args.x == true
""".strip().splitlines()

NUMBERS: Final = [2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2.0**53, 1e300, -0.0, 0, 1, 5, 0.5, 1.0]
SCALARS: Final = st.sampled_from([None, True, False, "prod", "dev", "p", "", "é€😀", "a\0b", "\ud800", *NUMBERS])
KEYS: Final = st.sampled_from(["k", "x", "prod", "é", "a\0"])
JSON: Final = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


@pytest.mark.parametrize("text", PLAIN)
@given(args=st.fixed_dictionaries({}, optional={"x": JSON, "y": JSON}), task=st.sampled_from([None, "dev"]))
@example(args={"x": "prod", "y": 5}, task=None)
def test_what_it_says_is_what_the_library_says(text: str, args: dict[str, Any], task: str | None) -> None:
    expression = compile_expression(text, CALL_NAMES)
    quick = shortcut(expression._program.serialize())
    assert quick is not None
    values = {"args": args, "tool": "pay", "run": {"counts": {"pay": 0}, "task": task}}
    try:
        handed = expression._taken(values)
        found = quick(handed)
    except (*DOUBTS, EvaluationError):
        return
    said = expression._asked(expression._program, handed)
    assert (found, type(found)) == (said, type(said))


@pytest.mark.parametrize(("text", "args"), [(text, {"x": "prod", "y": "dev"}) for text in PLAIN[:2]] + [(PLAIN[5], {"x": 9.5})])
def test_the_plain_case_is_not_left_to_the_library(text: str, args: dict[str, Any]) -> None:
    quick = shortcut(compile_expression(text, CALL_NAMES)._program.serialize())
    assert quick is not None
    assert quick({"args": args}) in (True, False)


@pytest.mark.parametrize(
    "text",
    ["args.x + 1 < 5", "args.x.matches('a')", "args.x == 5u", "args.x == 'a\\u0000'", "args.l.map(a, a) == []", "args.x == {}"],
)
def test_what_is_not_plain_is_left_to_the_library(text: str) -> None:
    assert shortcut(cel.NewEnv(variables={"args": cel.Type.DYN}).compile(text).serialize()) is None
