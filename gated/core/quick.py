"""A shortcut for the plain part of CEL: the tree of an expression as Python closures, which cost a tenth of an evaluation.

INVARIANT: what it answers is what the library answers, in both readings (comparing.py): it compares values of one type only,
and whatever is not plain sailing (another type, a missing key, a number that is rounded) is `Unsure`: then the library is asked.
So nothing rests on this file but time; tests/core/test_quick.py holds it against the library.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gated.core.comparing import WRITTEN, Names, is_doubtful, is_null, within_fold
from gated.core.syntax import (
    CALL_FUNCTION,
    FOLD_RANGE,
    FOLD_RESULT,
    FOLD_RESULT_NAME,
    FOLD_SECOND_VARIABLE,
    FOLD_STEP,
    FOLD_VARIABLE,
    NAME_NAME,
    SELECT_ASKED,
    SELECT_FIELD,
    SELECT_OF,
    Kind,
    Node,
    read_constant,
    read_tree,
)
from gated.core.typed import (
    ORDERS,
    SCALARS,
    NotPlain,
    Read,
    Unsure,
    Values,
    against,
    among,
    asked,
    decided,
    each_of,
    either,
    holds,
    item,
    negated,
    of_texts,
    ordered,
    size,
)


def shortcut(serialized: bytes) -> Read | None:
    """What gives the result, or raises one of `DOUBTS`; None where the expression is not plain."""
    try:
        return _made(read_tree(serialized), WRITTEN)
    except NotPlain:
        return None


def _made(node: Node, written: Names) -> Read:
    maker = _MAKERS.get(node.kind)
    if maker is None:
        raise NotPlain
    return maker(node, written)


def _constant(node: Node, written: Names) -> Read:
    value = _plain_constant(node)
    return lambda values: value


def _plain_constant(node: Node) -> Any:
    value = read_constant(node)
    if value is ... or (isinstance(value, str) and "\0" in value):
        raise NotPlain
    return value


def _name(node: Node, written: Names) -> Read:
    return operator.itemgetter(node.text(NAME_NAME))


def _select(node: Node, written: Names) -> Read:
    of, field = node.part(SELECT_OF), node.text(SELECT_FIELD)
    if any(number == SELECT_ASKED for number, _ in node.fields):
        return asked(_made(of, written), field)
    if of.kind is Kind.NAME:
        root = of.text(NAME_NAME)
        return lambda values: values[root][field]
    read = _made(of, written)
    return lambda values: read(values)[field]


def _call(node: Node, written: Names) -> Read:
    function, parts = node.text(CALL_FUNCTION), node.parts
    if function in ("_==_", "_!=_"):
        same = _typed(node, written) or _same(node, written)
        return same if function == "_==_" else negated(same)
    if function == "@in":
        return _within(node, written)
    if function in _LOGIC:
        return _joined([_made(part, written) for part in _flat(function, node)], _LOGIC[function])
    if function in ORDERS and parts[1].kind is Kind.CONSTANT:
        return against(ORDERS[function], _made(parts[0], written), _plain_constant(parts[1]))
    made = [_made(part, written) for part in parts]
    maker = _FUNCTIONS.get((function, len(made)))
    if maker is None:
        raise NotPlain
    return maker(*made)


# --- and, or, all, exists: an error of one part is absorbed by what decides --------------------------------------------

_LOGIC: Final = {"_&&_": False, "_||_": True}  # what decides


def _flat(function: str, node: Node) -> Iterable[Node]:
    for part in node.parts:
        if part.kind is Kind.CALL and part.text(CALL_FUNCTION) == function:
            yield from _flat(function, part)
        else:
            yield part


def _joined(parts: list[Read], decisive: bool) -> Read:
    return lambda values: decided(zip(parts, itertools.repeat(values)), decisive)


def _fold(node: Node, written: Names) -> Read:
    """`all` and `exists`, which begin with what does not decide and join each element to it."""
    step, name = node.part(FOLD_STEP), node.text(FOLD_RESULT_NAME)
    function = step.text(CALL_FUNCTION) if step.kind is Kind.CALL else ""
    variable = node.text(FOLD_VARIABLE)
    if function not in _LOGIC or node.text(FOLD_SECOND_VARIABLE) or variable in _TYPES:
        raise NotPlain
    before, condition = step.parts
    if not (_is_name(before, name) and _is_name(node.part(FOLD_RESULT), name)):
        raise NotPlain
    of, condition_of = _made(node.part(FOLD_RANGE), written), _made(condition, within_fold(node, written))
    return each_of(of, variable, condition_of, _LOGIC[function])


def _is_name(node: Node, name: str) -> bool:
    return node.kind is Kind.NAME and node.text(NAME_NAME) == name


# --- comparisons -----------------------------------------------------------------------------------------------------

_TYPES: Final = {"string": str, "int": int, "double": float, "bool": bool, "list": list, "map": dict, "null_type": type(None)}


def _typed(node: Node, written: Names) -> Read | None:
    """`type(args.x) == string`"""
    left, right = node.parts
    if left.kind is not Kind.CALL or left.text(CALL_FUNCTION) != "type" or right.kind is not Kind.NAME:
        return None
    kind = _TYPES.get(right.text(NAME_NAME))
    if kind is None:
        raise NotPlain
    read = _made(left.parts[0], written)
    return lambda values: read(values).__class__ is kind


def _same(node: Node, written: Names) -> Read:
    if node.parts[1].kind is Kind.CONSTANT and is_doubtful(node, written):
        return against(operator.eq, _made(node.parts[0], written), _plain_constant(node.parts[1]))
    left, right = (_made(part, written) for part in node.parts)
    if any(map(is_null, node.parts)):
        return lambda values: left(values) is right(values)
    nullable = not is_doubtful(node, written)

    def same(values: Values) -> bool:
        one, other = left(values), right(values)
        if one.__class__ is other.__class__ and one.__class__ in SCALARS:
            return bool(one == other)
        if nullable and (one is None or other is None):
            return one is other
        raise Unsure

    return same


def _within(node: Node, written: Names) -> Read:
    needle, haystack = node.parts
    read = _made(needle, written)
    if haystack.kind is Kind.LIST:
        return among(read, [_plain_constant(part) for part in haystack.parts])
    of = _made(haystack, written)

    def within(values: Values) -> bool:
        value, elements = read(values), of(values)
        if value.__class__ is not str:
            raise Unsure
        if elements.__class__ is list and value not in elements and not _TEXTS.issuperset(map(type, elements)):
            raise Unsure
        return holds(elements, value)

    return within


_TEXTS: Final = frozenset({str})


# --- functions -------------------------------------------------------------------------------------------------------


_MAKERS: Final[Mapping[Kind, Callable[[Node, Names], Read]]] = {
    Kind.CONSTANT: _constant,
    Kind.NAME: _name,
    Kind.SELECT: _select,
    Kind.CALL: _call,
    Kind.FOLD: _fold,
}

_FUNCTIONS: Final[Mapping[tuple[str, int], Callable[..., Read]]] = {
    ("!_", 1): negated,
    ("_?_:_", 3): either,
    ("_[_]", 2): item,
    ("size", 1): size,
    **{(name, 2): ordered(compare) for name, compare in ORDERS.items()},
    ("startsWith", 2): of_texts(str.startswith),
    ("endsWith", 2): of_texts(str.endswith),
    ("contains", 2): of_texts(str.__contains__),
}
