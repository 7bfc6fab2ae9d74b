"""Field paths over decoded JSON (`a.b`, `items[0]`, `items[*].name`, `*.id`), and how a value is compared as text.

`*` is every value of an object, `[*]` every item of a list. A path visits a value at most once, so its cost is bounded by the
size of the value. It knows nothing of patterns or templates.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from gated import canonical


class Every(enum.Enum):
    """The steps that lead to many values."""

    VALUE = "*"
    ITEM = "[*]"


Step = str | int | Every
MISSING: Final = object()

_STEP: Final = re.compile(r"(?P<name>[A-Za-z0-9_$@-]+)|(?P<value>\*)|\[(?:(?P<index>\d{1,9})|(?P<item>\*))\]")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<point>\.[0-9]+)?(?P<exponent>[eE][+-]?[0-9]+)?")
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


class FieldError(ValueError):
    """A field path that has no meaning. `what` is wrong `at` a character of it, counted from 0."""

    def __init__(self, text: str, at: int) -> None:
        self.at, self.what = at, f"`{text}` is no field path: write one like `a.b[0].c`, `items[*].id` or `*.id`"
        super().__init__(f"{self.what} (character {at})")


def compile_field(text: str) -> tuple[Step, ...]:
    """Raises `FieldError`."""
    steps: list[Step] = []
    position = 0
    while not steps or position < len(text):
        dotted = bool(steps) and text.startswith(".", position)
        match = _STEP.match(text, position + dotted)
        bracket = match is not None and match.group().startswith("[")
        if match is None or (bracket if dotted else not bracket and steps):
            raise FieldError(text, position)
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["value"]:
        return Every.VALUE
    if match["item"]:
        return Every.ITEM
    return match["name"] or int(match["index"])


def resolve(steps: tuple[Step, ...], value: Any) -> Iterator[Any]:
    """Every value that the path leads to; none where it leads nowhere."""
    for depth, step in enumerate(steps):
        if isinstance(step, Every):
            for child in _children(step, value):
                yield from resolve(steps[depth + 1 :], child)
            return
        value = lookup((step,), value)
        if value is MISSING:
            return
    yield value


def lookup(steps: tuple[str | int, ...], value: Any) -> Any:
    """What a path to one value leads to, or `MISSING`."""
    for step in steps:
        if isinstance(step, int):
            if not isinstance(value, list | tuple) or step >= len(value):
                return MISSING
        elif not isinstance(value, (dict, Mapping)) or step not in value:
            return MISSING
        value = value[step]
    return value


def _children(step: Every, value: Any) -> Iterable[Any]:
    if step is Every.VALUE:
        return value.values() if isinstance(value, (dict, Mapping)) else ()
    return value if isinstance(value, list | tuple) else ()


def render(value: Any) -> str:
    """A value as patterns and templates see it: text as it is, null as nothing, the rest as compact JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return compact(value)


def compact(value: Any) -> str:
    """Compact JSON with sorted keys."""
    try:
        return _ENCODER.encode(value).decode()
    except (OverflowError, UnicodeEncodeError):  # integers beyond 64 bits in some versions; lone surrogates in embedders' values
        return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def strings(value: Any) -> Iterator[str]:
    """Every text in a value, keys included, walked without recursion."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, (dict, Mapping)):
            yield from item
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)


def digested(value: Any) -> Iterator[str]:
    """A value as the digest of arguments has it, where that may be another text: 1.0 and 1e0 are 1."""
    if isinstance(value, float | list | tuple | dict):
        try:
            yield canonical.encode(value).decode()
        except ValueError:  # an embedder's value that is no JSON
            return


def key_text(value: Any) -> str:
    """A value as a part of a key: the same of arguments of one digest."""
    return value if isinstance(value, str) else next(digested(value), None) or render(value)


def is_number(text: str) -> bool:
    """Whether a text writes a number in JSON."""
    return _NUMBER.fullmatch(text) is not None


def number_of(text: str) -> str:
    """A text that writes a number in JSON, as the digest has that number; any other text as it is."""
    found = _NUMBER.fullmatch(text)
    return next(digested(float(text)), text) if found is not None and (found["point"] or found["exponent"]) else text


def inside(value: Any) -> Iterator[str]:
    """What else a value is to a restriction: itself as digested, and every scalar in a list or a map as text, keys included."""
    yield from digested(value)
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, (dict, Mapping)):
            yield from item
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
        elif item is not value:
            yield render(item)
            yield from digested(item)
