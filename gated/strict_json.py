"""Bytes off the wire as decoded JSON, or a typed error: what the standard leaves to implementations is refused here.

Refused: duplicate keys, NaN and infinities (also by overflow), lone surrogates, invalid UTF-8, more depth, values, key bytes or
payload than the limits, integers of more than `MAX_DIGITS` digits. Integers keep all their digits.
msgspec decodes fast but takes duplicate keys silently. So its result is trusted where a count proves that no key was lost
(every `":` outside a string is a key), and any doubt is settled by the slow parser.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Literal, NoReturn

import msgspec
from msgspec import Struct

MAX_DIGITS: Final = 1000

Code = Literal["shape", "args", "too_large"]


class Limits(Struct, frozen=True):
    """Payload and keys in bytes."""

    payload: int = 1_048_576
    depth: int = 64
    values: int = 10_000
    key: int = 1024


DEFAULT: Final = Limits()
UNLIMITED: Final = Limits(payload=1 << 30, depth=64, values=1 << 30, key=1 << 30)


class BadJson(ValueError):
    """`code` is the part after `ingress.` of a reason code."""

    def __init__(self, code: Code, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.code: Code = code
        self.position = position

    def line_in(self, text: str) -> int:
        return 1 if self.position is None else text.count("\n", 0, self.position) + 1


def parse(data: bytes, limits: Limits = DEFAULT) -> Any:
    """Decoded JSON. Raises `BadJson`; nothing else, whatever the bytes."""
    if len(data) > limits.payload:
        raise BadJson("too_large", f"{len(data)} bytes, at most {limits.payload} are taken")
    _check_shape(data, limits.depth)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        _diagnose(data)
    keys, values = _count(value, limits)
    if values > limits.values:
        raise BadJson("too_large", f"{values} values, at most {limits.values} are taken")
    if b"\\" in data or data.count(b":") != keys:
        _check_slowly(data)
    return value


_LONG_NUMBER: Final = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _check_shape(data: bytes, depth: int) -> None:
    """Depth and digits before any recursive or quadratic parser sees them; brackets in strings cost only a closer look."""
    if len(data) > 2 * depth and data.count(b"[") + data.count(b"{") > depth:
        bare = _STRINGS.sub(b'""', data)
        level = 0
        for byte in re.findall(rb"[\[\]{}]", bare):
            level += 1 if byte in b"[{" else -1
            if level > depth:
                raise BadJson("args", f"nested deeper than {depth}")
    if len(data) > MAX_DIGITS and _LONG_NUMBER.search(_STRINGS.sub(b'""', data)):
        raise BadJson("args", f"a number of more than {MAX_DIGITS} digits")


def _count(value: Any, limits: Limits) -> tuple[int, int]:
    """Keys and values, walked without recursion."""
    keys = values = 0
    stack = [value]
    while stack:
        item = stack.pop()
        values += 1
        kind = type(item)
        if kind is dict:
            keys += len(item)
            for key in item:
                if len(key) > limits.key // 4 and len(key.encode()) > limits.key:
                    raise BadJson("args", f"a key of more than {limits.key} bytes")
            stack.extend(item.values())
        elif kind is list:
            stack.extend(item)
        if values > limits.values:
            break
    return keys, values


def _check_slowly(data: bytes) -> None:
    """The exact look at duplicate keys and lone surrogates."""
    text = data.decode()
    json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_int=str, parse_float=str)
    if "\\" in text:
        value = json.loads(text, parse_int=str, parse_float=str)
        _no_surrogates(value)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadJson("args", f"duplicate key `{key[:80]}`")
            seen.add(key)
    return found


def _no_constant(name: str) -> NoReturn:
    raise BadJson("args", f"`{name}` is not JSON")


def _no_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadJson("args", "a lone surrogate is no text") from error


def _diagnose(data: bytes) -> NoReturn:
    """Say what is wrong with bytes that the fast parser did not take."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadJson("args", f"byte {error.start} is not UTF-8") from error
    try:
        value = json.loads(
            text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite, parse_int=str
        )
    except json.JSONDecodeError as error:
        raise BadJson("shape", f"not JSON: {error.msg} at character {error.pos}", error.pos) from error
    except RecursionError:
        raise BadJson("args", "nested too deep") from None
    _no_surrogates(value)
    raise BadJson("args", "not JSON that can be taken")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise BadJson("args", f"`{text[:40]}` is too large for a number")
    return value
