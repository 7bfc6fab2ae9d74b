"""Comparisons of two types, against an evaluator that is obvious and slow, and against the library itself.

Random expressions are trees of tuples here: written as text for the gate, and evaluated as they stand by `evaluate`, once as CEL
says (values of two types are unequal) and once strictly (to compare them is an error).
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from cel_expr_python import cel
from hypothesis import example, given
from hypothesis import strategies as st

from gated.core.comparing import strictly
from gated.core.expressions import CALL_NAMES, EvaluationError, MismatchError, compile_expression
from gated.core.quick import shortcut
from gated.core.syntax import read_tree, write_tree
from gated.core.typed import DOUBTS

NAMES: Final = tuple(sorted(CALL_NAMES))
LIBRARY: Final = cel.NewEnv(variables=dict.fromkeys(NAMES, cel.Type.DYN))

# --- the obvious evaluator -------------------------------------------------------------------------------------------


class CelError(Exception):
    pass


Values = dict[str, Any]
WRITTEN: Final = "#written"  # beside the values: which names hold what an agent wrote


def evaluate(tree: Any, values: Values, strict: bool) -> Any:
    operator, *parts = tree
    if operator in ("&&", "||"):
        return logic(operator, [lambda part=part: evaluate(part, values, strict) for part in parts])
    if operator in ("all", "exists"):
        of, condition = parts
        elements = evaluate(of, values, strict)
        need(isinstance(elements, list | dict))
        written = values[WRITTEN] - {"x"} if written_by_author(of, values) else values[WRITTEN] | {"x"}
        each = [lambda e=e: evaluate(condition, {**values, "x": e, WRITTEN: written}, strict) for e in elements]
        return logic("&&" if operator == "all" else "||", each)
    if operator == "const":
        return parts[0]
    if operator == "path":
        return path(parts[0], values)
    if operator == "has":
        *above, last = parts[0]
        of = path(above, values)
        need(isinstance(of, dict))
        return last in of
    if operator == "?":
        return evaluate(parts[1 if truth(evaluate(parts[0], values, strict)) else 2], values, strict)
    found = [evaluate(part, values, strict) for part in parts]
    if operator == "!":
        return not truth(found[0])
    if operator == "size":
        need(isinstance(found[0], str | list | dict))
        return len(found[0])
    if operator == "<":
        need(kind(found[0]) == kind(found[1]) and kind(found[0]) in ("number", "str", "bool"))
        return found[0] < found[1]
    if operator == "in":
        need(isinstance(found[1], list | dict))
        need(isinstance(found[1], list) or kind(found[0]) in ("str", "number", "bool"))
        return among(found[0], found[1], author=written_by_author(parts[1], values), strict=strict and doubtful(parts, values))
    assert operator in ("==", "!=")
    equal = same(*found)
    if strict and doubtful(parts, values) and not gate_null(parts, found, values):
        need(equal is not None)
    return bool(equal) is (operator == "==")


def logic(operator: str, parts: list[Any]) -> bool:
    seen: list[bool | None] = []
    for part in parts:
        try:
            seen.append(truth(part()))
        except CelError:
            seen.append(None)
    decisive = operator == "||"
    need(decisive in seen or None not in seen)
    return decisive if decisive in seen else not decisive


def path(names: Any, values: Values) -> Any:
    found: Any = values
    for name in names:
        need(isinstance(found, dict) and name in found)
        found = found[name]
    return found


def need(holds: bool) -> None:
    if not holds:
        raise CelError


def truth(value: Any) -> bool:
    need(isinstance(value, bool))
    return bool(value)


def kind(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def same(one: Any, other: Any) -> bool | None:
    if kind(one) != kind(other):
        return None
    if isinstance(one, list):
        inside = [same(a, b) for a, b in zip(one, other, strict=True)] if len(one) == len(other) else [False]
    elif isinstance(one, dict):
        inside = [same(one[key], other[key]) for key in one] if set(one) == set(other) else [False]
    else:
        return bool(one == other)
    return False if False in inside else None if None in inside else True


def among(value: Any, of: Any, *, author: bool, strict: bool) -> bool:
    found = [same(value, element) for element in of]
    if strict and True not in found:
        need(not found or False in found if author else None not in found)
    return True in found


def written_by_author(tree: Any, values: Values) -> bool:
    """Constants, and what the gate itself says of a run; `x` is whose the list is that it runs over."""
    operator, *parts = tree
    if operator in ("path", "has"):
        return parts[0][0] not in values[WRITTEN]
    if operator in ("all", "exists"):
        inside = values[WRITTEN] - {"x"} if written_by_author(parts[0], values) else values[WRITTEN] | {"x"}
        return written_by_author(parts[0], values) and written_by_author(parts[1], {**values, WRITTEN: inside})
    return operator in ("const", "size") or all(written_by_author(part, values) for part in parts)


def doubtful(parts: Any, values: Values) -> bool:
    return not all(written_by_author(part, values) for part in parts) and ("const", None) not in parts


def gate_null(parts: Any, found: Any, values: Values) -> bool:
    return any(value is None and written_by_author(part, values) for part, value in zip(parts, found, strict=True))


# --- random expressions ----------------------------------------------------------------------------------------------


def text(tree: Any) -> str:
    operator, *parts = tree
    match operator:
        case "const":
            return json.dumps(parts[0])
        case "path":
            return ".".join(parts[0])
        case "has":
            return f"has({'.'.join(parts[0])})"
        case "!":
            return f"!({text(parts[0])})"
        case "size":
            return f"size({text(parts[0])})"
        case "?":
            return "({} ? {} : {})".format(*map(text, parts))
        case "all" | "exists":
            return f"{text(parts[0])}.{operator}(x, {text(parts[1])})"
    return f"({text(parts[0])} {operator} {text(parts[1])})"


SAMPLES: Final = ("prod", "dev", 5, 1, 1.5, True, None, ["prod"], ["prod", "dev"], [5, "dev"], {"a": 1})
CONSTANTS: Final = [("const", value) for value in SAMPLES]
PATHS: Final = [("path", names.split(".")) for names in ("args.env", "args.l", "args.m", "args.m.a", "run.task", "tool")]
LISTS: Final = st.sampled_from([*PATHS[:3], ("const", ["prod", 5])])


def trees(depth: int, inside: bool) -> st.SearchStrategy[Any]:
    """`inside` a macro there is an `x`."""
    atoms = st.sampled_from(CONSTANTS + (PATHS + [("path", ["x"])] * 3 * inside) * 2)
    plain = st.one_of(
        st.tuples(st.sampled_from(["==", "!=", "in", "<"]), atoms, atoms),
        st.tuples(st.just("has"), st.sampled_from([["args", "env"], ["args", "x"], ["args", "m", "a"]])),
        st.tuples(st.just("=="), st.tuples(st.just("size"), atoms), st.just(("const", 1))),
    )
    if not depth:
        return st.one_of(plain, plain, plain, atoms)
    inner = trees(depth - 1, inside)
    return st.one_of(
        plain,
        st.tuples(st.sampled_from(["==", "!=", "in"]), st.just(("path", ["args", "env"])), st.sampled_from(CONSTANTS)),
        st.tuples(st.sampled_from(["&&", "||"]), inner, inner),
        st.tuples(st.just("!"), inner),
        st.tuples(st.just("?"), inner, inner, inner),
        st.tuples(st.just("=="), inner, st.just(("const", True))),
        st.tuples(st.sampled_from(["all", "exists"]), LISTS, trees(depth - 1, True)),
    )


SCALARS: Final = st.sampled_from(["prod", "dev", "", 5, 1, 1.5, 1.0, True, False, None])
MAPS: Final = st.dictionaries(st.sampled_from("ab"), SCALARS)
JSON: Final = SCALARS | st.lists(SCALARS, max_size=3) | st.lists(st.just(["prod"]), max_size=2) | MAPS
VALUES: Final = st.builds(
    lambda args, task: {"args": args, "run": {"task": task}, "tool": "dev"},
    st.fixed_dictionaries({"env": JSON, "l": st.lists(SCALARS, max_size=3) | JSON, "m": MAPS}, optional={"x": JSON}),
    st.sampled_from([None, "dev"]),
)


def outcome(ask: Any) -> Any:
    try:
        found = ask()
    except (CelError, EvaluationError, *DOUBTS):
        return "error"
    return found if isinstance(found, bool) else "error"


def of_library(program: Any, values: Values) -> Any:
    found = program.eval(data=values).value()
    return found if isinstance(found, bool) else "error"


NOT_PROD: Final = ("!=", ("path", ["args", "env"]), ("const", "prod"))


@given(trees(3, False), VALUES)
@example(NOT_PROD, {"args": {"env": ["prod"]}, "run": {"task": None}, "tool": "dev"})
def test_both_readings_are_those_of_the_obvious_evaluator(tree: Any, values: Values) -> None:
    program = LIBRARY.compile(text(tree), disable_check=True)
    known = {**values, WRITTEN: frozenset({"args"})}
    plain, strict = (outcome(lambda way=way: evaluate(tree, known, way)) for way in (False, True))
    assert of_library(program, values) == plain
    second = strictly(program.serialize(), NAMES)
    assert (plain if second is None else of_library(second, values)) == strict
    assert strict in (plain, "error")
    quick = shortcut(program.serialize())
    if quick is not None and (found := outcome(lambda: quick(values))) != "error":
        assert found == plain == strict


@given(trees(3, False), VALUES)
def test_what_is_true_only_since_types_differ_is_an_error(tree: Any, values: Values) -> None:
    """And what is false is false, whatever it compares."""
    known = {**values, WRITTEN: frozenset({"args"})}
    plain, strict = (outcome(lambda way=way: evaluate(tree, known, way)) for way in (False, True))
    expression = compile_expression(text(tree), CALL_NAMES)
    if (plain, strict) == (True, "error"):
        with pytest.raises(MismatchError):
            expression.test(values)
    else:
        assert outcome(lambda: expression.test(values)) == plain
    assert outcome(lambda: expression.test(values, either=True)) == strict


@pytest.mark.parametrize(
    ("source", "args", "said"),
    [
        ("args.env != 'prod'", {"env": ["prod"]}, "`args.env` is a list, and is compared with a text"),
        ("!(args['env'] in ['prod', 5])", {"env": None}, "`args['env']` is null, and is compared with a number and a text"),
        ("!('prod' in args.envs)", {"envs": [["prod"]]}, "`args.envs` is a list, and is compared with a text"),
        ("args.a.b != ['x']", {"a": {"b": [1]}}, "`args.a.b` is a list of other things, and is compared with a list"),
        ("'x' != args.a", {"a": 1}, "`args.a` is a number, and is compared with a text"),
        ("!args.l.exists(a, a == 'x')", {"l": [1]}, "a value is missing or has the wrong type"),
    ],
)
def test_an_error_says_what_was_compared_with_what(source: str, args: Values, said: str) -> None:
    with pytest.raises(MismatchError) as caught:
        compile_expression(source, CALL_NAMES).test({"args": args})
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "source",
    ["args.x != null", "run.phase != 'IDLE'", "!(tool in ['a', 'b'])", "!recent.exists(r, r.tool == 'x')", "size(args.x) != 3"],
)
def test_what_the_gate_or_the_author_says_has_no_second_reading(source: str) -> None:
    assert strictly(LIBRARY.compile(source).serialize(), NAMES) is None


def test_what_is_long_is_refused_before_it_is_compared_in_python() -> None:
    expression = compile_expression("args.l.all(a, a - 1 != args.x)", CALL_NAMES)
    assert expression.test({"args": {"l": [1] * 100, "x": 5}})
    with pytest.raises(MismatchError, match="too long"):
        expression.test({"args": {"l": [1] * 4000, "x": 5}})


@pytest.mark.parametrize(
    "source",
    [
        "args.x == -5 && args.y < 1.5 || !(tool in ['a', 'b'])",
        "args.l.map(x, {'a': x, 'b': [x + 1]}).size() > 2 ? has(args.x) : args['y'] == null",
        "timestamp(args.at) > timestamp('2026-01-01T00:00:00Z') && 5u == 5u && b'a' == b'a'",
        '"900" > 100',
    ],
)
def test_a_tree_that_is_written_is_the_one_that_was_read(source: str) -> None:
    tree = read_tree(LIBRARY.compile(source, disable_check=True).serialize())
    assert read_tree(LIBRARY.deserialize(write_tree(tree)).serialize()) == tree
