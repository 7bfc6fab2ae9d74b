"""What is written in a JSON value, and what it says once it is decoded: the forms in which data hides in arguments.

Percent-escapes, base64 (both alphabets), hexadecimal and reversal, one inside another up to `DEPTH`; and the values joined, in
their order and backwards, so that what is split across arguments is whole again.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from gated.core.redaction.forms import compatible

DEPTH: Final = 3  # of codings inside one another
SHORTEST: Final = 8  # characters of a text that are worth decoding

_LONG: Final = r"[A-Za-z0-9+/]{12,}"
_BASE64: Final = re.compile(rf"{_LONG}(?:=*\s+{_LONG})*(?:\s+[A-Za-z0-9+/]+)?")  # lines of one block are read together
_HEX_MARKS: Final = re.compile(r"\\x|0x|[\s:,_-]+", re.IGNORECASE)
_HEX: Final = re.compile(r"[0-9A-Fa-f]{16,}")
_URL_SAFE: Final = str.maketrans("-_", "+/")
_NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9+/]+")
_READABLE: Final = re.compile(r"[\w \t\r\n!-~]{8,}")  # chance makes eight readable bytes of noise once in thousands


class TooLong(ValueError):
    """There is more text than is looked at."""


class Form(NamedTuple):
    """A text and how it was come by, for people: nothing where as written, `base64`, `reversed base64`."""

    text: str
    how: str


def leaves(value: Any, *, keys: bool = True) -> Iterator[str]:
    """Every scalar of a value as text, and every key, in the order in which they stand."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for key, inner in reversed(item.items()):
                pending += (inner, str(key)) if keys else (inner,)
        elif isinstance(item, list | tuple):
            pending.extend(reversed(item))
        elif item is not None and not isinstance(item, bool):
            yield str(item)


def plain(text: str) -> str:
    """Letters and digits alone, case folded: what is left of a text however it is spaced and punctuated."""
    return "".join(filter(str.isalnum, compatible(text).casefold()))


def forms(value: Any, limit: int) -> list[Form]:
    """Everything that the texts of a value may say. Raises `TooLong` beyond `limit` characters, decoded ones included."""
    values = list(leaves(value, keys=False))
    joined = ["".join(values), "".join(reversed(values))] if len(values) > 1 else []
    found: dict[str, str] = {}
    next_up = [Form(text, "") for text in (" ".join(leaves(value)), *joined)]
    for depth in range(DEPTH + 1):
        fresh = [form for form in next_up if len(form.text) >= SHORTEST and form.text not in found]
        found.update(fresh)
        if sum(map(len, found)) > limit:
            raise TooLong(f"there are over {limit} characters to look at, decoded ones included")
        next_up = [decoded for form in fresh for decoded in _decoded(form)] if depth < DEPTH else []
    return [Form(text, how) for text, how in found.items()]


def _decoded(form: Form) -> Iterator[Form]:
    text, how = form
    if "reversed" not in how:
        yield Form(text[::-1], f"{how} reversed".strip())
    if "%" in text:
        yield Form(unquote(text), f"{how} percent-encoded".strip())
    for found in _BASE64.findall(text.translate(_URL_SAFE)):
        dense = _NOT_BASE64.sub("", found)
        for offset in range(4):  # what stands before the block may have been taken for a part of it
            yield Form(_from_base64(dense[offset:]), f"{how} base64".strip())
    for found in _HEX.findall(_HEX_MARKS.sub("", text)):
        for offset in range(2):
            yield Form(_from_hex(found[offset:]), f"{how} hexadecimal".strip())


def _from_base64(text: str) -> str:
    whole = text[: len(text) - (1 if len(text) % 4 == 1 else 0)]
    return _readable(base64.b64decode(whole + "=" * (-len(whole) % 4)))


def _from_hex(text: str) -> str:
    return _readable(bytes.fromhex(text[: len(text) // 2 * 2]))


def _readable(decoded: bytes) -> str:
    return " ".join(_READABLE.findall(decoded.decode("utf-8", "replace")))
