"""What docs/decisions/cel.md says of the two CEL libraries, asked of both as they are installed."""

from __future__ import annotations

from typing import Any

import cel as rust
import pytest
from cel_expr_python import cel as reference

from gated.core.expressions import CALL_NAMES, MAX_ITERATIONS, MAX_VALUE_DEPTH, MAX_WORK, EvaluationError, compile_expression
from gated.core.tokens import MAX_LENGTH, MAX_MACRO_DEPTH, MAX_NESTING

ERROR = "an error"


def by_reference(text: str, values: dict[str, Any]) -> Any:
    """`cel-expr-python` as it comes, without the guards of `gated.core.expressions`."""
    env = reference.NewEnv(variables=dict.fromkeys(values, reference.Type.DYN))
    found = env.compile(text, disable_check=True).eval(data=values)
    return ERROR if found.type() in (reference.Type.ERROR, reference.Type.UNKNOWN) else found.plain_value()


def by_rust(text: str, values: dict[str, Any]) -> Any:
    """`common-expression-language`."""
    try:
        return rust.evaluate(text, values)
    except Exception:  # it raises whatever Python class is nearest
        return ERROR


ROWS: list[tuple[str, dict[str, Any], Any, Any]] = [
    ('"900" > 100', {}, ERROR, ERROR),
    ("1 + 1.0", {}, ERROR, ERROR),
    ("args.flag ? 1 : 2", {"args": {"flag": "yes"}}, ERROR, ERROR),
    ("args.n == true", {"args": {"n": 1}}, False, False),
    ("9007199254740993 == 9007199254740992.0", {}, True, True),
    ("9223372036854775807 + 1", {}, ERROR, ERROR),
    ("-(-9223372036854775808)", {}, ERROR, -(2**63)),
    ("args.a > 1 || true", {"args": {}}, True, True),
    ("args.a > 1 && false", {"args": {}}, False, False),
    ("[1, 2].exists(x, x == 2 || args.y > x)", {"args": {}}, True, ERROR),
    ('["a", 0].all(x, x > 1)', {}, False, ERROR),
    ('size("é")', {}, 1, 2),
    ('args.t == "x"', {"args": {"t": "x\0y"}}, True, False),
    ("args.k", {"args": {}}, ERROR, ERROR),
    ("1 / 0", {}, ERROR, ERROR),
]


@pytest.mark.parametrize(("text", "values", "ours", "theirs"), ROWS, ids=[row[0] for row in ROWS])
def test_the_two_libraries_are_as_the_page_says(text: str, values: dict[str, Any], ours: Any, theirs: Any) -> None:
    assert by_reference(text, values) == ours
    assert by_rust(text, values) == theirs


def test_its_two_faults_are_guarded_from_outside() -> None:
    """Text with a NUL is an error and not cut; an error is raised and not a value."""
    for text, args in (('args.t == "x"', {"t": "x\0y"}), ("args.k", {})):
        expression = compile_expression(text, CALL_NAMES)
        with pytest.raises(EvaluationError):
            expression.evaluate({"args": args})


def test_the_limits_are_those_of_the_page() -> None:
    assert (MAX_LENGTH, MAX_NESTING, MAX_MACRO_DEPTH, MAX_VALUE_DEPTH) == (4096, 32, 3, 100)
    assert (MAX_ITERATIONS, MAX_WORK) == (10_000, 256 * 1024 * 1024)
