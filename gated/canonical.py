"""Deterministic JSON bytes: the form that digests are taken of.

RFC 8785 (keys sorted by UTF-16 code units, ECMAScript numbers, no white space), except that integers are written with all
their digits, which RFC 8785 would round beyond 2^53. So 1 and 1.0 are the same text, as in RFC 8785.
The fast path is msgspec's sorted encoder, for values that it provably writes so: it sorts by code point, which differs from
UTF-16 only beyond U+FFFF, and its floats differ where they are whole, very large or very small. All else is written exactly.
INVARIANT: what is not JSON (NaN, lone surrogates, keys that are not text, other types) raises `ValueError`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

_FAST: Final = msgspec.json.Encoder(order="sorted").encode
_SCALARS: Final = frozenset({str, int, bool, type(None)})
_TEXT: Final = frozenset({str})


def encode(value: Any) -> bytes:
    """The canonical bytes of decoded JSON."""
    try:
        return _FAST(value) if _plain(value) else _exact(value).encode()
    except RecursionError:
        raise ValueError("nested too deep for JSON") from None


def args_digest(tool: str, args: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a call: its tool and its arguments."""
    call = {"args": args, "tool": tool}
    if type(args) is dict and _SCALARS.issuperset(map(type, args.values())) and _TEXT.issuperset(map(type, args)):
        raw = _FAST(call)  # flat arguments, the usual case; that all keys are ASCII is seen most cheaply afterwards
        if raw.isascii():
            return hashlib.sha256(raw).hexdigest()
    return hashlib.sha256(encode(call)).hexdigest()


def _plain(value: Any) -> bool:
    """Whether the fast path writes this exactly as the slow one would."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not (key.isascii() or max(key) < "\U00010000"):
                return False
            if type(item) is not str and not _plain(item):
                return False
        return True
    if kind is list or kind is tuple:
        return all(map(_plain, value))
    if kind is float:
        return 1e-3 < abs(value) < 1e15 and not value.is_integer()
    return kind is str or kind is int or value is None or kind is bool


def _exact(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, str):
        return _FAST(str.__str__(value)).decode()
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_exact(key)}:{_exact(value[key])}" for key in sorted(value, key=_utf16)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_exact, value)) + "]"
    raise ValueError(f"`{type(value).__name__}` is not JSON")


def _utf16(key: Any) -> bytes:
    if not isinstance(key, str):
        raise ValueError(f"the key `{key}` is not text")
    return key.encode("utf-16-be")


def number(value: float) -> str:
    """A double as ECMAScript's Number::toString writes it. Raises `ValueError` for NaN and infinity."""
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"`{value}` is not a JSON number")
    if value == 0:
        return "0"
    # Python's repr has the digits (the shortest that read back as the same double), ECMAScript says where the point goes.
    mantissa, _, exponent = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(digits) - len(fraction) + int(exponent or 0)  # value = 0.digits * 10^point
    digits = digits.rstrip("0")
    return ("-" if value < 0 else "") + _placed(digits, point)


def _placed(digits: str, point: int) -> str:
    if len(digits) <= point <= 21:
        return digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{tail}e{'+' if point > 0 else '-'}{abs(point - 1)}"
