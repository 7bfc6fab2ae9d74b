"""Field paths over decoded JSON (`a.b`, `items[0]`, `items[*].name`, `*.id`), and how a value is compared as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

Step = str | int | None  # a key, an index, or None for "every one"

_STEP: Final = re.compile(r"\.?(?:(?P<name>[A-Za-z0-9_$@-]+)|(?P<any>\*))|\[(?P<index>\d{1,9})\]|(?P<every>\[\*\])")
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


class FieldError(ValueError):
    """A field path that has no meaning."""


def compile_field(text: str) -> tuple[Step, ...]:
    """Raises `FieldError`."""
    steps: list[Step] = []
    position = 0
    while position < len(text):
        match = _STEP.match(text, position)
        dotted = match is not None and match.group().startswith(".")
        bracket = match is not None and match.group().startswith("[")
        if match is None or (not bracket and dotted is (position == 0)):
            raise FieldError(f"`{text}` is not a field path (at character {position}): write one like `a.b[0].c` or `*.id`")
        index = match.group("index")
        steps.append(match.group("name") or (int(index) if index is not None else None))
        position = match.end()
    if not steps:
        raise FieldError("a field path is empty")
    return tuple(steps)


def resolve(steps: tuple[Step, ...], value: Any) -> Iterator[Any]:
    """Every value that the path leads to; none where it leads nowhere."""
    if not steps:
        yield value
        return
    step, rest = steps[0], steps[1:]
    if step is None:
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for child in children:
            yield from resolve(rest, child)
    elif isinstance(step, int):
        if isinstance(value, list) and step < len(value):
            yield from resolve(rest, value[step])
    elif isinstance(value, dict) and step in value:
        yield from resolve(rest, value[step])


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
    except (OverflowError, UnicodeEncodeError):
        return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def strings(value: Any) -> Iterator[str]:
    """Every text in a value, keys included, walked without recursion."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
