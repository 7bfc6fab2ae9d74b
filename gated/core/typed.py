"""Functions of CEL on values of one type, where there is nothing to disagree about: what quick.py puts together.

Each takes what reads its operands, and gives what reads its result. Values of other types are `Unsure`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Values = Mapping[str, Any]
Read = Callable[[Values], Any]


class Unsure(Exception):
    """The library must say."""


class NotPlain(Exception):
    """An operand of the text that is not dealt with here."""


DOUBTS: Final = (Unsure, LookupError, TypeError)
SCALARS: Final = frozenset({str, int, bool, float})
_ORDERED: Final = frozenset({int, str, float})
_SIZED: Final = frozenset({str, list, dict})
ORDERS: Final = {"_<_": operator.lt, "_<=_": operator.le, "_>_": operator.gt, "_>=_": operator.ge}
_EXACT: Final = 1 << 53  # a larger integer is rounded where it meets a double


def decided(asked: Iterable[tuple[Read, Values]], decisive: bool) -> bool:
    """And (False decides) and or (True does), which absorb an error of what does not decide."""
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


def each_of(of: Read, variable: str, holds: Read, decisive: bool) -> Read:
    def each(values: Values) -> bool:
        elements = of(values)
        if elements.__class__ is not list and elements.__class__ is not dict:
            raise Unsure
        return decided(((holds, {**values, variable: element}) for element in elements), decisive)

    return each


def negated(of: Read) -> Read:
    def result(values: Values) -> bool:
        found = of(values)
        if found.__class__ is not bool:
            raise Unsure
        return not found

    return result


def either(condition: Read, one: Read, other: Read) -> Read:
    def result(values: Values) -> Any:
        found = condition(values)
        if found.__class__ is not bool:
            raise Unsure
        return one(values) if found else other(values)

    return result


def ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Read, Read], Read]:
    def made(left: Read, right: Read) -> Read:
        def result(values: Values) -> bool:
            one, other = left(values), right(values)
            if (one.__class__ is other.__class__ and one.__class__ in _ORDERED) or (_exact(one) and _exact(other)):
                return compare(one, other)
            raise Unsure

        return result

    return made


def against(compare: Callable[[Any, Any], bool], read: Read, constant: Any) -> Read:
    """The usual comparison, with a constant."""
    kind = constant.__class__
    if kind not in SCALARS:
        raise NotPlain

    def compared(values: Values) -> bool:
        value = read(values)
        if value.__class__ is kind or (_exact(value) and _exact(constant)):
            return compare(value, constant)
        raise Unsure

    return compared


def _exact(value: Any) -> bool:
    return value.__class__ is float or (value.__class__ is int and -_EXACT <= value <= _EXACT)


def among(read: Read, constants: list[Any]) -> Read:
    kinds = {constant.__class__ for constant in constants}
    if len(kinds) != 1 or not kinds <= {str, int}:
        raise NotPlain
    kind, known = kinds.pop(), frozenset(constants)

    def result(values: Values) -> bool:
        value = read(values)
        if value.__class__ is not kind:
            raise Unsure
        return value in known

    return result


def holds(elements: Any, value: Any) -> bool:
    if elements.__class__ is not list and elements.__class__ is not dict:
        raise Unsure
    return bool(value in elements)


def asked(of: Read, field: str) -> Read:
    def has(values: Values) -> bool:
        found = of(values)
        if found.__class__ is not dict:
            raise Unsure
        return field in found

    return has


def item(of: Read, key: Read) -> Read:
    def result(values: Values) -> Any:
        found, at = of(values), key(values)
        if found.__class__ is dict and at.__class__ is str:
            return found[at]
        raise Unsure

    return result


def size(of: Read) -> Read:
    def result(values: Values) -> int:
        found = of(values)
        if found.__class__ not in _SIZED:
            raise Unsure
        return len(found)

    return result


def of_texts(ask: Callable[[str, str], bool]) -> Callable[[Read, Read], Read]:
    def made(left: Read, right: Read) -> Read:
        def asked(values: Values) -> bool:
            one, other = left(values), right(values)
            if one.__class__ is str and other.__class__ is str:
                return ask(one, other)
            raise Unsure

        return asked

    return made
