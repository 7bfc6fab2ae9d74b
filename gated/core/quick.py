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

Values = Mapping[str, Any]
Read = Callable[[Values], Any]


class Unsure(Exception):
    """The library must say."""


class _NotPlain(Exception):
    """The tree holds something that is not done here."""


DOUBTS: Final = (Unsure, LookupError, TypeError)
_EXACT: Final = 1 << 53  # a larger integer is rounded where it meets a double


def shortcut(serialized: bytes) -> Read | None:
    """What gives the result, or raises one of `DOUBTS`; None where the expression is not plain."""
    try:
        return _made(read_tree(serialized), WRITTEN)
    except _NotPlain:
        return None


def _made(node: Node, written: Names) -> Read:
    maker = _MAKERS.get(node.kind)
    if maker is None:
        raise _NotPlain
    return maker(node, written)


def _constant(node: Node, written: Names) -> Read:
    value = _plain_constant(node)
    return lambda values: value


def _plain_constant(node: Node) -> Any:
    value = read_constant(node)
    if value is ... or (isinstance(value, str) and "\0" in value):
        raise _NotPlain
    return value


def _name(node: Node, written: Names) -> Read:
    return operator.itemgetter(node.text(NAME_NAME))


def _select(node: Node, written: Names) -> Read:
    of, field = node.part(SELECT_OF), node.text(SELECT_FIELD)
    if any(number == SELECT_ASKED for number, _ in node.fields):
        return _asked(_made(of, written), field)
    if of.kind is Kind.NAME:
        root = of.text(NAME_NAME)
        return lambda values: values[root][field]
    read = _made(of, written)
    return lambda values: read(values)[field]


def _asked(of: Read, field: str) -> Read:
    def has(values: Values) -> bool:
        found = of(values)
        if found.__class__ is not dict:
            raise Unsure
        return field in found

    return has


def _call(node: Node, written: Names) -> Read:
    function, parts = node.text(CALL_FUNCTION), node.parts
    if function in ("_==_", "_!=_"):
        same = _typed(node, written) or _same(node, written)
        return same if function == "_==_" else _not(same)
    if function == "@in":
        return _within(node, written)
    if function in _LOGIC:
        return _joined([_made(part, written) for part in _flat(function, node)], _LOGIC[function])
    if function in _ORDERS and parts[1].kind is Kind.CONSTANT:
        return _against(_ORDERS[function], _made(parts[0], written), _plain_constant(parts[1]))
    made = [_made(part, written) for part in parts]
    maker = _FUNCTIONS.get((function, len(made)))
    if maker is None:
        raise _NotPlain
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
    return lambda values: _decided(zip(parts, itertools.repeat(values)), decisive)


def _decided(asked: Iterable[tuple[Read, Values]], decisive: bool) -> bool:
    sure = True
    for read, values in asked:
        try:
            found = read(values)
        except DOUBTS:
            sure = False
            continue
        if found is decisive:
            return found is True
        sure = sure and found.__class__ is bool
    if not sure:
        raise Unsure
    return not decisive


def _fold(node: Node, written: Names) -> Read:
    """`all` and `exists`, which begin with what does not decide and join each element to it."""
    step, name = node.part(FOLD_STEP), node.text(FOLD_RESULT_NAME)
    function = step.text(CALL_FUNCTION) if step.kind is Kind.CALL else ""
    variable = node.text(FOLD_VARIABLE)
    if function not in _LOGIC or node.text(FOLD_SECOND_VARIABLE) or variable in _TYPES:
        raise _NotPlain
    before, condition = step.parts
    if not (_is_name(before, name) and _is_name(node.part(FOLD_RESULT), name)):
        raise _NotPlain
    of, holds = _made(node.part(FOLD_RANGE), written), _made(condition, within_fold(node, written))
    return _each(of, variable, holds, _LOGIC[function])


def _each(of: Read, variable: str, holds: Read, decisive: bool) -> Read:
    def each(values: Values) -> bool:
        elements = of(values)
        if elements.__class__ is not list and elements.__class__ is not dict:
            raise Unsure
        return _decided(((holds, {**values, variable: element}) for element in elements), decisive)

    return each


def _is_name(node: Node, name: str) -> bool:
    return node.kind is Kind.NAME and node.text(NAME_NAME) == name


# --- comparisons -----------------------------------------------------------------------------------------------------

_SCALARS: Final = frozenset({str, int, bool, float})
_TYPES: Final = {"string": str, "int": int, "double": float, "bool": bool, "list": list, "map": dict, "null_type": type(None)}


def _typed(node: Node, written: Names) -> Read | None:
    """`type(args.x) == string`"""
    left, right = node.parts
    if left.kind is not Kind.CALL or left.text(CALL_FUNCTION) != "type" or right.kind is not Kind.NAME:
        return None
    kind = _TYPES.get(right.text(NAME_NAME))
    if kind is None:
        raise _NotPlain
    read = _made(left.parts[0], written)
    return lambda values: read(values).__class__ is kind


def _same(node: Node, written: Names) -> Read:
    if node.parts[1].kind is Kind.CONSTANT and is_doubtful(node, written):
        return _against(operator.eq, _made(node.parts[0], written), _plain_constant(node.parts[1]))
    left, right = (_made(part, written) for part in node.parts)
    if any(map(is_null, node.parts)):
        return lambda values: left(values) is right(values)
    nullable = not is_doubtful(node, written)

    def same(values: Values) -> bool:
        one, other = left(values), right(values)
        if one.__class__ is other.__class__ and one.__class__ in _SCALARS:
            return bool(one == other)
        if nullable and (one is None or other is None):
            return one is other
        raise Unsure

    return same


def _within(node: Node, written: Names) -> Read:
    needle, haystack = node.parts
    read = _made(needle, written)
    if haystack.kind is Kind.LIST:
        return _among(read, [_plain_constant(part) for part in haystack.parts])
    of = _made(haystack, written)

    def within(values: Values) -> bool:
        value, elements = read(values), of(values)
        if value.__class__ is not str:
            raise Unsure
        if elements.__class__ is list and value not in elements and not _TEXTS.issuperset(map(type, elements)):
            raise Unsure
        return _holds(elements, value)

    return within


def _among(read: Read, constants: list[Any]) -> Read:
    kinds = {constant.__class__ for constant in constants}
    if len(kinds) != 1 or not kinds <= {str, int}:
        raise _NotPlain
    kind, known = kinds.pop(), frozenset(constants)

    def among(values: Values) -> bool:
        value = read(values)
        if value.__class__ is not kind:
            raise Unsure
        return value in known

    return among


_TEXTS: Final = frozenset({str})


def _holds(elements: Any, value: Any) -> bool:
    if elements.__class__ is not list and elements.__class__ is not dict:
        raise Unsure
    return bool(value in elements)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Read, Read], Read]:
    def made(left: Read, right: Read) -> Read:
        def ordered(values: Values) -> bool:
            one, other = left(values), right(values)
            if (one.__class__ is other.__class__ and one.__class__ in _ORDERED) or (_exact(one) and _exact(other)):
                return compare(one, other)
            raise Unsure

        return ordered

    return made


_ORDERED: Final = frozenset({int, str, float})
_ORDERS: Final = {"_<_": operator.lt, "_<=_": operator.le, "_>_": operator.gt, "_>=_": operator.ge}


def _against(compare: Callable[[Any, Any], bool], read: Read, constant: Any) -> Read:
    """The usual comparison, with a constant."""
    kind = constant.__class__
    if kind not in _SCALARS:
        raise _NotPlain

    def compared(values: Values) -> bool:
        value = read(values)
        if value.__class__ is kind or (_exact(value) and _exact(constant)):
            return compare(value, constant)
        raise Unsure

    return compared


def _exact(value: Any) -> bool:
    return value.__class__ is float or (value.__class__ is int and -_EXACT <= value <= _EXACT)


# --- functions -------------------------------------------------------------------------------------------------------


def _not(of: Read) -> Read:
    def negated(values: Values) -> bool:
        found = of(values)
        if found.__class__ is not bool:
            raise Unsure
        return not found

    return negated


def _either(condition: Read, one: Read, other: Read) -> Read:
    def either(values: Values) -> Any:
        found = condition(values)
        if found.__class__ is not bool:
            raise Unsure
        return one(values) if found else other(values)

    return either


def _size(of: Read) -> Read:
    def size(values: Values) -> int:
        found = of(values)
        if found.__class__ not in _SIZED:
            raise Unsure
        return len(found)

    return size


_SIZED: Final = frozenset({str, list, dict})


def _of_texts(ask: Callable[[str, str], bool]) -> Callable[[Read, Read], Read]:
    def made(left: Read, right: Read) -> Read:
        def asked(values: Values) -> bool:
            one, other = left(values), right(values)
            if one.__class__ is str and other.__class__ is str:
                return ask(one, other)
            raise Unsure

        return asked

    return made


def _item(of: Read, key: Read) -> Read:
    def item(values: Values) -> Any:
        found, at = of(values), key(values)
        if found.__class__ is dict and at.__class__ is str:
            return found[at]
        raise Unsure

    return item


_MAKERS: Final[Mapping[Kind, Callable[[Node, Names], Read]]] = {
    Kind.CONSTANT: _constant,
    Kind.NAME: _name,
    Kind.SELECT: _select,
    Kind.CALL: _call,
    Kind.FOLD: _fold,
}

_FUNCTIONS: Final[Mapping[tuple[str, int], Callable[..., Read]]] = {
    ("!_", 1): _not,
    ("_?_:_", 3): _either,
    ("_[_]", 2): _item,
    ("size", 1): _size,
    **{(name, 2): _ordered(compare) for name, compare in _ORDERS.items()},
    ("startsWith", 2): _of_texts(str.startswith),
    ("endsWith", 2): _of_texts(str.endswith),
    ("contains", 2): _of_texts(str.__contains__),
}
