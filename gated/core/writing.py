"""How states become bytes, and bytes states: msgpack, in which every map is a byte string of its own, read with one decoder.

Structs of the log are written with the names of their fields, unless they are written as rows (`Rows`): so much smaller that
many of them are read several times as fast. What has a number beyond 64 bits, which msgpack has not, is written as JSON; so was
everything before, and it is read still. INVARIANT: equal values are equal bytes. Of JSON objects, msgpack of structs and what is
under a checksum only the first begin with `{`, only the last with `SUMMED`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Sequence
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from immutables import Map
from msgspec import NODEFAULT, Struct

from gated.core.late import Late

T = TypeVar("T")
S = TypeVar("S", bound=Struct)

SUMMED: Final = b"\x01"
SLICE: Final = 500  # rows that are written in one go
LATE: Final = 4096  # bytes from which a map that has a form of its own is decoded when somebody asks for an entry

_EMPTY: Final = b"\x80"
_BRACE: Final = b"{"
_ARRAYS: Final = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))  # msgpack: how an array begins
_NONE: Final[Map[Any, Any]] = Map()


Slices = Generator[None, None, bytes]  # gives bytes in the end, and before that others their turn


class Form(Struct, frozen=True):
    """How maps are written whose values are of one type, in place of a msgpack map: as a msgpack array."""

    write: Callable[[Map[Any, Any]], Slices]
    read: Callable[[bytes], dict[Any, Any]]


FORMS: Final[dict[type, Form]] = {}  # by the type of the values


def write(value: Any) -> bytes:
    """Raises `TypeError` for what has no place in a state."""
    try:
        return _PACKER.encode(value)
    except OverflowError:
        return write_json(value)


def write_json(value: Any) -> bytes:
    return _JSON.encode(value)


def pack(value: Any) -> bytes:
    """A part of what is written. Raises `OverflowError` where the whole must be JSON."""
    return _PACKER.encode(value)


def rows_written(values: Sequence[T], row: Callable[[T], Any]) -> Slices:
    """A msgpack array of rows. Raises `OverflowError`."""
    parts = [_array(len(values))]
    for start in range(0, len(values), SLICE):
        if start:
            yield
        some = values[start : start + SLICE]
        parts.append(pack([row(value) for value in some])[len(_array(len(some))) :])
    return b"".join(parts)


def _array(count: int) -> bytes:
    """How a msgpack array of so many begins."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 65_536 else b"\xdd" + count.to_bytes(4, "big")


def whole(slices: Slices) -> bytes:
    """In one go."""
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return bytes(done.value)


class Reading(Generic[T]):
    """Reads what was written of one type. Raises `msgspec.DecodeError`."""

    def __init__(self, kind: type[T]) -> None:
        self._packed = msgspec.msgpack.Decoder(kind, dec_hook=_unpacked_map)
        self._json = msgspec.json.Decoder(kind, dec_hook=_json_map)

    def read(self, raw: bytes | memoryview) -> T:
        return (self._json if raw[:1] == _BRACE else self._packed).decode(raw)


def from_json(value: Any, kind: type[T]) -> T:
    """What a decoded JSON value stands for. Raises `msgspec.ValidationError`."""
    return msgspec.convert(value, kind, dec_hook=_json_map)


def _packed_map(value: Any) -> Any:
    if type(value) is Late:
        return value.raw
    if not isinstance(value, Map):
        raise TypeError(f"{type(value).__name__} has no place in a state")
    if not value:
        return _EMPTY
    form = FORMS.get(type(next(iter(value.values()))))
    return _PACKER.encode(dict(value)) if form is None else whole(form.write(value))


def _unpacked_map(kind: Any, raw: Any) -> Any:
    if raw == _EMPTY:
        return _NONE
    form = FORMS.get(get_args(kind)[1]) if raw[0] in _ARRAYS else None
    if form is None:
        return Map(_entries_of(kind).decode(raw))
    return Late(raw, form.read) if len(raw) > LATE else Map(form.read(raw))


@cache
def _entries_of(kind: Any) -> msgspec.msgpack.Decoder[dict[Any, Any]]:
    return msgspec.msgpack.Decoder(_dict_of(kind), dec_hook=_unpacked_map)


@cache
def _dict_of(kind: Any) -> Any:
    if get_origin(kind) is not Map:
        raise TypeError(f"{kind} has no place in a state")
    return dict[get_args(kind)]  # type: ignore[misc]


def _json_entries(value: Any) -> Any:
    if isinstance(value, Map):
        return dict(value.items())
    raise TypeError(f"{type(value).__name__} has no place in a state")


def _json_map(kind: Any, value: Any) -> Any:
    return Map(msgspec.convert(value, _dict_of(kind), dec_hook=_json_map)) if value else _NONE


_PACKER: Final = msgspec.msgpack.Encoder(enc_hook=_packed_map, order="sorted")
_JSON: Final = msgspec.json.Encoder(enc_hook=_json_entries, order="sorted")


# --- under a checksum ------------------------------------------------------------------------------------------------


def summed(raw: bytes) -> bytes:
    """With a checksum: what was packed once is looked at late, and a damage is to show when it is loaded."""
    return b"".join((SUMMED, zlib.crc32(raw).to_bytes(4, "big"), raw))


def checked(raw: bytes) -> memoryview | bytes:
    """What was under a checksum; what was written before there was one as it is. Raises `msgspec.ValidationError`."""
    if raw[:1] != SUMMED:
        return raw
    inner = memoryview(raw)[5:]
    if zlib.crc32(inner).to_bytes(4, "big") != raw[1:5]:
        raise msgspec.ValidationError("it does not have its checksum")
    return inner


# --- structs without the names of their fields -----------------------------------------------------------------------


class Rows(Generic[S]):
    """Writes and reads structs of one type as rows: they, and the structs in them, by the places of their fields."""

    def __init__(self, kind: type[S]) -> None:
        self._kind, self._row = kind, _row_of(kind)
        self._reading = Reading[Any](self._row)
        self._json = msgspec.json.Decoder(kind)

    def write(self, value: S) -> bytes:
        """Deterministic, like `write`."""
        try:
            return _PACKER.encode(msgspec.convert(value, self._row, from_attributes=True))
        except OverflowError:
            return write_json(value)

    def read(self, raw: bytes) -> S:
        if raw[:1] == _BRACE:
            return self._json.decode(raw)
        return msgspec.convert(self._reading.read(raw), self._kind, from_attributes=True)


@cache
def _row_of(kind: Any) -> Any:
    """The type, with a struct written as an array in the place of each struct that is not."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return msgspec.defstruct(
            f"{kind.__name__}Row", [_place(field) for field in msgspec.structs.fields(kind)], array_like=True
        )
    args, origin = get_args(kind), get_origin(kind)
    if not args or origin is Literal:
        return kind
    rows = tuple(arg if arg is Ellipsis else _row_of(arg) for arg in args)
    return reduce(or_, rows) if origin in (Union, UnionType) else origin[rows]


def _place(field: msgspec.structs.FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    row = _row_of(field.type)
    if field.default is not NODEFAULT:
        return field.name, row, field.default
    if field.default_factory is not NODEFAULT:
        return field.name, row, msgspec.field(default_factory=field.default_factory)
    return field.name, row
