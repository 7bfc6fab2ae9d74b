"""Deterministic JSON bytes: the form that digests are taken of.

RFC 8785 (sorted keys by UTF-16 code units, ECMAScript numbers, no white space), except that integers are written with all
their digits, which RFC 8785 would round beyond 2^53.
The fast path is msgspec's sorted encoder, whose output is the same as long as no float and no key beyond the basic
multilingual plane occurs; anything else takes the exact path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

_FAST: Final = msgspec.json.Encoder(order="sorted")


def encode(value: Any) -> bytes:
    """The canonical bytes of decoded JSON. Raises `ValueError` for NaN, infinity and what is not JSON."""
    if _plain(value):
        return _FAST.encode(value)
    return _exact(value).encode()


def args_digest(tool: str, args: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a call: its tool and its arguments."""
    return hashlib.sha256(encode({"args": args, "tool": tool})).hexdigest()


def _plain(value: Any) -> bool:
    """Whether the fast path writes this exactly as the slow one would."""
    if value is None or value is True or value is False:
        return True
    kind = type(value)
    if kind is str or kind is int:
        return True
    if kind is dict:
        return all(type(k) is str and (k.isascii() or max(k) < "\ud800") and _plain(v) for k, v in value.items())
    if kind is list or kind is tuple:
        return all(map(_plain, value))
    return False


def _exact(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _FAST.encode(value).decode()
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_exact(_key(k))}:{_exact(value[k])}" for k in sorted(value, key=_utf16)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_exact, value)) + "]"
    raise ValueError(f"`{type(value).__name__}` is not JSON")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"the key `{key}` is not text")
    return key


def _utf16(key: Any) -> bytes:
    return _key(key).encode("utf-16-be", "surrogatepass")


def number(value: float) -> str:
    """A double as ECMAScript's Number::toString writes it. Raises `ValueError` for NaN and infinity."""
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"`{value}` is not a JSON number")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    _, digits, exponent = Decimal(repr(abs(value))).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)
    if 0 < point <= 21:
        body = text + "0" * (point - len(text)) if point >= len(text) else f"{text[:point]}.{text[point:]}"
    elif -6 < point <= 0:
        body = "0." + "0" * -point + text
    else:
        mantissa = text[0] + (f".{text[1:]}" if len(text) > 1 else "")
        body = f"{mantissa}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return sign + body
