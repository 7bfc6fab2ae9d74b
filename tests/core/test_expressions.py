"""Expressions: what they give, what they refuse, what they read, and that nothing an agent sends makes them lie or hang."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from immutables import Map

from gated.core.expressions import (
    BARRIER_NAMES,
    CALL_NAMES,
    ENSURE_NAMES,
    EvaluationError,
    Expression,
    ExpressionError,
    compile_expression,
)

ARGS: Final[dict[str, Any]] = {
    "amount": 900,
    "text": "900",
    "ratio": 1.5,
    "flag": True,
    "nothing": None,
    "most": 2**63 - 1,
    "list": [1, 2, 3],
    "map": {"a": 1},
    "env": ["prod"],
    "mixed": ["a", 1],
    "a-b": 1,
}
RUN: Final = {"phase": "ACTING", "step_count": 3, "cost_usd": 0.3, "task": None, "labels": {}, "failed": False}
VALUES: Final[dict[str, Any]] = {"args": ARGS, "tool": "refund", "agent": "payer", "run": RUN, "recent": [], "at": 1}


def made(text: str) -> Expression:
    return compile_expression(text, CALL_NAMES)


def gives(text: str) -> bool | str:
    try:
        return made(text).test(VALUES)
    except EvaluationError:
        return "error"


HOLDS: Final = """
args.amount > 100
args.amount > 100.5
args.amount == 900.0
double(args.amount) + 1.0 == 901.0
double(args.text) == 900.0
args.list[0] == 1
1 in args.list
'prod' in args.env
'amount' in args
args["a-b"] == 1
args.nothing == null
has(args.amount)
has(args.nothing)
!has(args.missing)
!has(args.map.b)
args.list.all(x, x > 0)
args.list.exists(x, x == 2)
args.list.exists_one(x, x == 2)
args.list.filter(x, x > 1) == [2, 3]
args.list.map(x, x * 2) == [2, 4, 6]
args.map.all(k, args.map[k] == 1)
args.mixed.exists(x, x == 1)
args.mixed.exists(x, x > 0)
args.text.startsWith("9") && args.text.endsWith("0") && args.text.contains("0")
args.text.matches("^[0-9]+$")
size("é€😀") == 3
args.list.size() == 3
type(args.flag) == bool && type(args.amount) == int && type(args.ratio) == double
run.task == null
run.cost_usd <= 0.3
run.cost_usd <= 1
tool == "refund" && agent == "payer"
args.missing == 1 || true
true || args.missing == 1
!(args.missing == 1 && false)
args.amount == 900 // a comment
"""

HOLDS_NOT: Final = """
args.flag == 1
args.text == 900
args.amount in ["prod"]
args.env in ["prod"]
args.env == "prod"
"1" in args.list
args.amount == null
run.failed
"""

ERRORS: Final = """
args.text > 100
"900" > 100
args.amount + 1.0 == 901.0
args.most + 1 > 0
args.most * 2 > 0
-9223372036854775808 - args.amount < 0
1 / 0 == 1
args.missing == 1
args["missing"] == 1
args.missing == 1 || false
args.missing == 1 && true
args.amount.x == 1
args.list[5] == 1
args.list[-1] == 1
args.list.x == 1
args.list.all(x, x > "a")
args.amount.startsWith("9")
args.text.matches("[")
args.text.matches("(?=a)")
size(args.amount) == 3
args.text + 1 == "9001"
args.nothing > 1
!args.amount
args.amount && true
args.text ? true : false
int(args.env[0]) == 1
args
1
args.amount
"yes"
null
args.list
"""


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.mark.parametrize("text", lines(HOLDS))
def test_holds(text: str) -> None:
    assert gives(text) is True


@pytest.mark.parametrize("text", lines(HOLDS_NOT))
def test_does_not_hold(text: str) -> None:
    assert gives(text) is False


@pytest.mark.parametrize("text", lines(ERRORS))
def test_is_an_error_and_no_answer(text: str) -> None:
    assert gives(text) == "error"


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run.stepcount > 1", "`run.stepcount`, which does not exist; did you mean `step_count`"),
        ('run["phse"] == "ACTING"', "`run.phse`"),
        ("arg.x == 1", "`arg.x`, which does not exist; did you mean `args`"),
        ("result.status == 'success'", "`result.status`"),
        ("nope", "`nope`"),
        ("lower(args.x) == 'a'", "`lower`"),
        ("args.x.lower() == 'a'", "`lower`"),
        ("args.list.all(x, x > 0) && x", "`x`"),
        ("args.amount >", "Syntax error"),
        ("has(args)", "has"),
        ("'open", "Syntax error|string"),
        ("", "Syntax error"),
        ("Foo{a: 1}", "`Foo`"),
    ],
)
def test_a_mistake_in_the_text_is_a_load_error(text: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=said.replace("?", r"\?")):
        made(text)


def test_each_place_has_its_own_names() -> None:
    assert compile_expression("result.content == 'x'", ENSURE_NAMES).uses == ("result.content",)
    with pytest.raises(ExpressionError, match=r"result\.text"):
        compile_expression("result.text == 'x'", ENSURE_NAMES)
    for text in ("args.x == 1", "tool == 'x'"):
        with pytest.raises(ExpressionError, match="does not exist"):
            compile_expression(text, BARRIER_NAMES)


@pytest.mark.parametrize("text", ["'900' > 100", "1", "1 == true", "'a' + 1 == 'a1'"])
def test_what_can_never_hold_loads_with_a_doubt(text: str) -> None:
    expression = made(text)
    assert expression.doubt
    assert gives(text) in ("error", False)


def test_what_can_hold_has_no_doubt() -> None:
    assert made("args.amount > 1").doubt is None
    assert made("args.flag").doubt is None


# --- what is handed over ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("args.amount <= 1", ("args.amount",)),
        ("args['amount'] <= 1 && has(args.to)", ("args.amount", "args.to")),
        ("'x' in args", ("args",)),
        ("args.exists(k, k == 'x') || args.y", ("args",)),
        ("run.counts.pay < 3 && run.phase != 'IDLE'", ("run.counts", "run.phase")),
        ("recent.exists(r, r.tool == tool)", ("recent", "tool")),
        ("at > 0", ("at",)),
        ("true", ()),
    ],
)
def test_uses(text: str, uses: tuple[str, ...]) -> None:
    assert made(text).uses == uses


@pytest.mark.parametrize(
    ("text", "below"),
    [
        ("run.counts.pay < 3 && run.counts['a-b'] < 2", (("a-b", "pay"), False)),
        ("run.counts.pay < 3 && run.counts[tool] < 2", (("pay",), True)),
        ("run.counts.pay < 3 && size(run) > 0", (("pay",), True)),
        ("run.counts.exists(t, t == 'x')", ((), True)),
    ],
)
def test_below(text: str, below: tuple[tuple[str, ...], bool]) -> None:
    assert made(text).below("run", "counts") == below


def test_what_is_not_named_is_not_looked_at() -> None:
    assert made("args.ok == 1").test({"args": {"ok": 1, "bad": "a\0b", "worse": object()}})


# --- values that a library may take for others -------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["ok\0evil", ["ok\0"], {"ok\0": 1}, {"a": ["\0"]}])
def test_text_with_a_nul_is_never_cut(value: Any) -> None:
    for text in ("args.x == 'ok'", "args.x != 'ok'", "args == args", "size(args.x) >= 0"):
        with pytest.raises(EvaluationError, match="NUL"):
            made(text).test({"args": {"x": value}})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, "\ud800", object(), b"x", {1: 2}])
def test_what_is_not_json_is_an_error(value: Any) -> None:
    with pytest.raises(EvaluationError):
        made("args.x == args.x && args.x[1] == 2").test({"args": {"x": value}})


def test_what_is_nested_too_deep_is_an_error() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    with pytest.raises(EvaluationError, match="deeper"):
        made("args.x == args.x").test({"args": {"x": deep}})


def test_large_integers_become_doubles() -> None:
    assert made("args.x > 9223372036854775807 && type(args.x) == double").test({"args": {"x": 2**70}})
    assert made("args.x < 0 && type(args.x) == int").test({"args": {"x": -(2**63)}})


def test_maps_of_the_state_are_maps() -> None:
    values = {"run": {"counts": Map({"pay": 2})}}
    assert made("run.counts.pay == 2").test(values)


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
@example(2**63 + 1)
@example([{"a": -(2**63) - 1}])
def test_data_goes_in_and_comes_out(value: Any) -> None:
    try:
        found = made("args.x").evaluate({"args": {"x": value}})
    except EvaluationError:
        assert "\\u0000" in json.dumps(value) or "\\ud" in json.dumps(value) or _huge(value)
    else:
        assert found == _rounded(value)
        assert _huge(value) or type(found) is type(value)


def _rounded(value: Any) -> Any:
    """Integers beyond 2^63 become the nearest double."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    beyond = isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63
    return float(value) if beyond else value


def _huge(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_huge, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and abs(value) >= 2**63 - 1


@given(st.sampled_from(lines(HOLDS) + lines(HOLDS_NOT) + lines(ERRORS)), st.dictionaries(st.sampled_from(sorted(ARGS)), JSON))
def test_whatever_the_arguments_an_answer_is_a_boolean_or_an_error(text: str, args: dict[str, Any]) -> None:
    try:
        found: bool | str = made(text).test({**VALUES, "args": args})
    except EvaluationError as error:
        found = str(error)
    assert isinstance(found, bool) or (len(found) < 600 and found.isascii())


def test_numbers() -> None:
    number = compile_expression("run.failed ? -1.0 : 1.0", BARRIER_NAMES).number
    assert number({"run": {"failed": True}}) == -1.0
    assert compile_expression("run.step_count", BARRIER_NAMES).number({"run": {"step_count": 3}}) == 3.0
    for text in ("run.failed", "'1'", "1.0 / 0.0", "null", "run.labels"):
        with pytest.raises(EvaluationError):
            compile_expression(text, BARRIER_NAMES).number({"run": RUN})


# --- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("args.x.all(a, args.x.all(b, args.x.all(c, a + b + c >= 0)))", list(range(200))),
        ("args.x.all(a, a >= 0)", list(range(20_000))),
        ("args.x.map(a, args.x.map(b, args.x)).size() > 0", list(range(200))),
        ("(args.x + args.x).all(a, args.x.all(b, a + b >= 0))", list(range(90))),
        ("args.x.all(a, !args.x[0].contains(a))", ["x" * 1_000_000] * 1_000),
        ("args.x.all(a, args.x[a] == 1)", {str(n): 1 for n in range(20_000)}),
    ],
)
def test_macros_over_too_much_are_an_error_before_they_run(text: str, value: Any) -> None:
    expression, started = made(text), time.process_time()
    with pytest.raises(EvaluationError, match="too long for macros"):
        expression.test({"args": {"x": value}})
    assert time.process_time() - started < 2


def test_ordinary_macros_are_within_the_bound() -> None:
    assert made("args.to.all(a, a.endsWith('@ours.example'))").test({"args": {"to": ["b@ours.example"] * 4_000}})
    assert made("args.x.all(a, args.x.exists(b, a == b))").test({"args": {"x": list(range(60))}})
    words = "['rm -rf', 'mkfs'].exists(w, args.x.contains(w))"
    assert made(words).test({"args": {"x": "a" * 1_000_000 + "mkfs"}})


def test_regexes_on_attacker_text_are_linear() -> None:
    started = time.process_time()
    assert not made("args.x.matches('^(a+)+$')").test({"args": {"x": "a" * 500_000 + "b"}})
    assert time.process_time() - started < 2


@pytest.mark.parametrize("unit", ["(", "[", "!", "-", "true?", "size(", "[1].all(x,", "{1:", "a.", "1+", "1<", "a||", "'"])
def test_deep_text_never_ends_the_process(unit: str) -> None:
    """Each is tried in a process of its own at the longest length that is taken, and far beyond it."""
    code = (
        "import sys\n"
        "from gated.core.expressions import CALL_NAMES, ExpressionError, compile_expression\n"
        "for length in (33, 1000, 4096, 100_000):\n"
        "    text = (sys.argv[1] * length)[:length]\n"
        "    for whole in (text, text + '1' + ')' * (length // 2)):\n"
        "        try: compile_expression(whole[:4096] if length < 100_000 else whole, CALL_NAMES)\n"
        "        except ExpressionError: print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, unit], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout


def test_the_reason_of_an_error_does_not_depend_on_the_order_of_a_map() -> None:
    code = (
        "from gated.core.expressions import *\n"
        "for text in ('args.all(k, args[k] > 0)', 'args.exists(k, args[k] > 5)', 'args.map(k, args[k] + 1) == []'):\n"
        "    try: print(compile_expression(text, CALL_NAMES).test({'args': {'a': 1, 'b': 'x', 'c': True, 'd': None}}))\n"
        "    except EvaluationError as error: print(error)\n"
    )
    said = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(6)}
    assert said == {"a value is missing or has the wrong type\n" * 3}


def test_an_error_shows_the_agents_text_escaped_and_short() -> None:
    with pytest.raises(EvaluationError) as caught:
        made("run.labels[args.x] == 1").test({**VALUES, "args": {"x": "\x1b[2Jé" + "x" * 1000}})
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600
