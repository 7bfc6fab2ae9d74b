"""Bytes off the wire as decoded JSON, or a typed error: what the standard leaves to implementations is refused here.

Refused: duplicate keys, NaN and infinities (also by overflow), lone surrogates, invalid UTF-8, more payload, depth, values or
key bytes than the limits, more than `MAX_DIGITS` digits in a row in a number. Integers keep all their digits.
msgspec decodes fast and refuses most of this, but takes duplicate keys silently. So its value is trusted only where a proof
shows that no key was lost: the text is what the value is written as; or it has as many strings as the text has quotes for, or
as many keys as there are colons.
INVARIANT: a proof that does not come out refuses; `walk` only finds words for it, and the time for that is linear and capped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

MAX_DIGITS: Final = 1000

Code = Literal["shape", "args", "too_large"]
Path = tuple[str | int, ...]
T = TypeVar("T")


class Limits(Struct, frozen=True):
    """Payload and keys in bytes; `depth` counts containers in containers, `values` every value, containers included."""

    payload: int = 1_048_576
    depth: int = 64
    values: int = 10_000
    key: int = 1024


DEFAULT: Final = Limits()


class BadJson(ValueError):
    """`code` is the part after `ingress.` of a reason code; `path` leads to the mistake, `position` is its byte, if known."""

    def __init__(self, code: Code, message: str, path: Path = (), position: int | None = None) -> None:
        super().__init__(f"{message}, at `{path_text(path)}`" if path else message)
        self.code: Code = code
        self.message, self.path, self.position = message, path, position


def parse(data: bytes, limits: Limits = DEFAULT) -> dict[str, Any]:
    """One JSON object. Raises `BadJson`; nothing else, whatever the bytes."""
    value = parse_value(data, limits)
    if type(value) is not dict:
        raise BadJson("shape", f"not a JSON object but `{data[:40].decode(errors='replace')}`")
    return value


def parse_value(data: bytes, limits: Limits = DEFAULT) -> Any:
    """Any JSON value. Raises `BadJson`; nothing else, whatever the bytes."""
    if len(data) > limits.payload:
        raise BadJson("too_large", f"{len(data)} bytes, at most {limits.payload} are taken")
    # Before decoding: the cost of digits is quadratic.
    if len(data) > MAX_DIGITS and _LONG_RUN.search(data) and _LONG_RUN.search(_STRINGS.sub(b'""', data)):
        raise _fault(data, limits)
    try:
        value = _DECODE(data)
        whole = _says_itself(value, data, limits.depth) or _lost_no_key(data, *_count(value, limits.depth))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _fault(data, limits) from error
    if not whole or not _within(value, len(data), limits):
        raise _fault(data, limits)
    return value


def plainly(data: bytes, decode: Callable[[bytes], T], limits: Limits = DEFAULT) -> T | None:
    """What a decoder of msgspec makes of an object, without `parse`: where the text is short, and what the value is written as.

    So write our own clients. None where it is another text, or none that the decoder takes: `parse` says what to think of it.
    """
    size = len(data)
    if size > MAX_DIGITS or size > limits.key or size >= 2 * limits.values or size > limits.payload:
        return None
    if data.count(b"{") + data.count(b"[") > limits.depth:
        return None
    try:
        value = decode(data)
        return value if _ENCODE(value) == data else None
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return None


# --- proofs ----------------------------------------------------------------------------------------------------------

_DECODE: Final = msgspec.json.Decoder().decode
_ENCODE: Final = msgspec.json.Encoder().encode

# Both match in linear time: a run is tried only where it begins, and what follows a quote always matches.
_LONG_RUN: Final = re.compile(rb"(?<![0-9])[0-9]{%d}" % (MAX_DIGITS + 1))
_STRINGS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def _says_itself(value: Any, data: bytes, room: int) -> bool:
    """Whether the text is the shortest form of the value, and so has every key once; and shallow, by its brackets.

    Most clients write it so, and this costs no step in Python for each value.
    """
    return data.count(b"{") + data.count(b"[") <= room and bool(_ENCODE(value) == data)


def _lost_no_key(data: bytes, strings: int, keys: int) -> bool:
    """Whether the text, known to be JSON, has no more keys than the value that was decoded of it.

    A lost key takes two quotes with it. Escaped quotes only add to the count of all, so where it equals that of the strings
    which are left, none is lost. Else colons are counted, then colons outside strings, which is exact.
    """
    if data.count(b'"') == 2 * strings or data.count(b":") == keys:
        return True
    return _STRINGS.sub(b"", data).count(b":") == keys


def _count(value: Any, room: int) -> tuple[int, int]:
    """How many strings, keys included, and how many keys are in a value. Raises `ValueError` where it nests deeper than room."""
    kind = type(value)
    if kind is dict:
        strings = keys = len(value)
        members = value.values()
    elif kind is list:
        strings = keys = 0
        members = value
    else:
        return int(kind is str), 0
    if not room:
        raise ValueError("nested too deep")
    for member in members:
        kind = type(member)
        if kind is str:
            strings += 1
        elif kind is dict or kind is list:
            inner = _count(member, room - 1)
            strings += inner[0]
            keys += inner[1]
    return strings, keys


def _within(value: Any, size: int, limits: Limits) -> bool:
    """Whether values and keys are within the limits: few bytes need no look, since a value takes two, its separator included."""
    if size <= limits.key and size < 2 * limits.values:
        return True
    values, level = 1, [value]
    while level and values <= limits.values:
        inner: list[Any] = []
        for item in level:
            if type(item) is dict:
                if any(4 * len(key) > limits.key and len(key.encode()) > limits.key for key in item):
                    return False
                inner += item.values()
            elif type(item) is list:
                inner += item
        values += len(inner)
        level = inner
    return values <= limits.values


# --- words for what was refused --------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(_STRINGS.pattern + rb'|[{}\[\],:]|[^\s"{}\[\],:]++', re.DOTALL)
_NUMBER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NAMED: Final = frozenset({b"NaN", b"-NaN", b"Infinity", b"-Infinity"})
_SIMPLE: Final = re.compile(r"[A-Za-z0-9_-]+")


class Token(NamedTuple):
    """A key, or the first token of a value: the path of the value, the byte it starts at, and its text."""

    path: Path
    start: int
    text: bytes
    is_key: bool


def walk(data: bytes, depth: int, most: int | None = None) -> Iterator[Token]:
    """Every key and value in order of the text, its grammar taken on trust.

    It ends at the first container that is deeper than `depth` (paths would grow without bound), and after `most` tokens.
    """
    path: list[str | int] = []
    awaits_key = False
    for match in islice(_TOKEN.finditer(data), most):
        text = match[0]
        if text == b",":
            if path and isinstance(path[-1], int):
                path[-1] += 1
            else:
                awaits_key = bool(path)
        elif text in (b"]", b"}"):
            del path[-1:]
            awaits_key = False
        elif text != b":":
            is_key = awaits_key and text.startswith(b'"')
            if is_key:
                path[-1] = _decoded(text)
            yield Token(tuple(path), match.start(), text, is_key)
            awaits_key = text == b"{"
            if awaits_key or text == b"[":
                if len(path) >= depth:
                    return
                path.append("" if awaits_key else 0)


def path_text(path: Path) -> str:
    """`calls[0].args["a b"]`: how people are told of a place."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _SIMPLE.fullmatch(step):
            text += f".{step[:80]}"
        else:
            text += f"[{json.dumps(step[:80])}]"
    return text.removeprefix(".")


def _fault(data: bytes, limits: Limits) -> BadJson:
    """The first thing that is wrong with bytes that were refused."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return BadJson("args", f"byte {error.start} is not UTF-8", _path_at(data, error.start, limits), error.start)
    seen: set[Path] = set()
    values = 0
    for token in _walk_within(data, limits):
        values += not token.is_key
        found = _wrong_key(token, seen, limits) if token.is_key else _wrong_value(token, limits)
        if values > limits.values:
            found = "too_large", f"more than {limits.values} values"
        if found is None and token.text.startswith(b'"') and _is_torn(token.text):
            found = "args", "a lone surrogate is no text"
        if found is not None:
            return BadJson(*found, token.path, token.start)
    return _bad_grammar(data, text, limits)


def _wrong_key(token: Token, seen: set[Path], limits: Limits) -> tuple[Code, str] | None:
    key = str(token.path[-1])
    if len(key.encode(errors="surrogatepass")) > limits.key:
        return "args", f"a key of more than {limits.key} bytes"
    if token.path in seen:
        return "shape" if len(token.path) == 1 else "args", f"duplicate key `{key[:80]}`"
    seen.add(token.path)
    return None


def _wrong_value(token: Token, limits: Limits) -> tuple[Code, str] | None:
    text = token.text
    if text in (b"{", b"["):
        return ("args", f"nested deeper than {limits.depth}") if len(token.path) >= limits.depth else None
    shown = text[:40].decode(errors="replace")
    if text in _NAMED:
        return "args", f"`{shown}` is not a JSON number"
    if _NUMBER.fullmatch(text):
        if _LONG_RUN.search(text):
            return "args", f"`{shown}…` has more than {MAX_DIGITS} digits in a row"
        if float(text) in (float("inf"), float("-inf")) and not text.lstrip(b"-").isdigit():
            return "args", f"`{shown}` is too large for a number"
    return None


def _is_torn(text: bytes) -> bool:
    try:
        _decoded(text).encode()
    except UnicodeEncodeError:
        return True
    return False


def _decoded(text: bytes) -> str:
    """A string token as text; as it is written, where it is no JSON."""
    try:
        return str(json.loads(text))
    except ValueError:
        return text.decode(errors="replace").strip('"')


def _bad_grammar(data: bytes, text: str, limits: Limits) -> BadJson:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        position = len(text[: error.pos].encode())
        said = f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} (byte {position})"
        return BadJson("shape", said, _path_at(data, position, limits), position)
    except (ValueError, RecursionError):
        pass  # what the standard parser cannot take either is said below
    return BadJson("shape", "not JSON that can be taken")


def _walk_within(data: bytes, limits: Limits) -> Iterator[Token]:
    return walk(data, limits.depth, 5 * limits.values + 5)  # a value takes five tokens at most


def _path_at(data: bytes, position: int, limits: Limits) -> Path:
    path: Path = ()
    for token in _walk_within(data, limits):
        if token.start > position:
            break
        path = token.path
    return path
