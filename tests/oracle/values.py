"""Plain values: how they read as text, where a field points, money, durations, digests.

Everything here is exact: money and barrier values are fractions, made from the decimal that was written.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

Json = Any
Segment = tuple[str, Any]
"""One step of a field: ("key", name), ("index", n), ("any key", None) or ("any index", None)."""

FIELD = r"(?:\*|[A-Za-z0-9_-]+)(?:\[(?:\d+|\*)\])*(?:\.(?:\*|[A-Za-z0-9_-]+)(?:\[(?:\d+|\*)\])*)*"
UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


def text_of(value: Json) -> str:
    """order.md, Patterns: non-strings are compared by their compact JSON text; null is the empty string."""
    if value is None:
        return ""
    return value if isinstance(value, str) else compact(value)


def compact(value: Json) -> str:
    """order.md, Patterns: compact JSON has sorted keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(tool: str, args: Json) -> str:
    """What makes two calls the same call: the tool and the arguments."""
    return hashlib.sha256(compact([tool, args]).encode()).hexdigest()


def strings_in(value: Json) -> Iterator[str]:
    """Every string value, nested ones included, object keys not."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)


def scalars_in(value: Json) -> Iterator[str]:
    """Every scalar inside a list or an object as text, object keys included; of a scalar nothing."""
    items = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else []
    for item in items:
        yield from scalars_in(item) if isinstance(item, list | dict) else [text_of(item), *plainly(item)]


def plainly(value: Json) -> list[str]:
    """Text in which whole numbers are written as such: RFC 8785, by which calls are the same, knows no `1.0`."""
    return [] if isinstance(value, str | None) else [compact(_whole(value))]


def _whole(value: Json) -> Json:
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e21 else value


def plain_number(text: str) -> str:
    """The same of a text that writes a number."""
    if re.fullmatch(r"-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?", text) and re.search("[.eE]", text):
        return compact(_whole(float(text)))
    return text


def parse_field(text: str) -> list[Segment]:
    if not re.fullmatch(FIELD, text):
        raise ValueError(f"bad field `{text}`")
    segments: list[Segment] = []
    for part in text.split("."):
        name, _, indexes = part.partition("[")
        segments.append(("any key", None) if name == "*" else ("key", name))
        for index in indexes.rstrip("]").split("][") if indexes else []:
            segments.append(("any index", None) if index == "*" else ("index", int(index)))
    return segments


def resolve(value: Json, segments: list[Segment]) -> list[Json]:
    """Every value a field points to; empty when it does not resolve."""
    if not segments:
        return [value]
    (kind, what), rest = segments[0], segments[1:]
    if kind == "key" and isinstance(value, dict) and what in value:
        return resolve(value[what], rest)
    if kind == "any key" and isinstance(value, dict):
        return [found for item in value.values() for found in resolve(item, rest)]
    if kind == "index" and isinstance(value, list) and what < len(value):
        return resolve(value[what], rest)
    if kind == "any index" and isinstance(value, list):
        return [found for item in value for found in resolve(item, rest)]
    return []


def exact(number: Json) -> Fraction:
    """decisions.md §1: decimals, not floats. The shortest text of a float is the decimal that was written."""
    return Fraction(str(number))


def microusd(usd: Json) -> int:
    """decisions.md §1: integer micro-dollars inside, rounded up at the edge."""
    return math.ceil(exact(usd) * 1_000_000)


def micros(duration: Json) -> int:
    """`15m`, `301s` and the like as microseconds; a bare number is seconds."""
    if isinstance(duration, int | float):
        return int(exact(duration) * 1_000_000)
    total, position = 0, 0
    for match in re.finditer(r"(\d+)(us|ms|s|m|h|d)", duration):
        if match.start() != position:
            break
        total, position = total + int(match[1]) * UNITS[match[2]], match.end()
    if position != len(duration) or not duration:
        raise ValueError(f"bad duration `{duration}`")
    return total


def shown(text: str) -> str:
    """order.md, Reminders: what an agent wrote is capped at 200 characters, control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:200])
