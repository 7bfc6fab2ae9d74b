"""The tree of a CEL expression, as the library parsed it: read from what the library serializes, and written back.

The form is `cel.expr.Expr` of the language's own protobuf schema (syntax.proto). No more of protobuf is known here than the
wire form of four field types, so that nothing has to be installed for it. INVARIANT: what is written is what was read.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct


class Kind(IntEnum):
    """What an expression is; the numbers are those of the schema. An entry is a part of a map."""

    ENTRY = 0
    CONSTANT = 3
    NAME = 4
    SELECT = 5
    CALL = 6
    LIST = 7
    MAP = 8
    FOLD = 9


class Node(Struct, frozen=True):
    """`fields` by their numbers in the schema, in order: integers, doubles, bytes, and nodes."""

    kind: Kind
    fields: tuple[tuple[int, int | float | bytes | Node], ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return tuple(value for _, value in self.fields if isinstance(value, Node))

    def part(self, field: int) -> Node:
        return next(value for number, value in self.fields if number == field and isinstance(value, Node))

    def text(self, field: int) -> str:
        """A text among the fields; empty where there is none."""
        return next((value.decode() for number, value in self.fields if number == field and isinstance(value, bytes)), "")


Fields = tuple[tuple[int, int | float | bytes], ...]

NAME_NAME: Final = 1
SELECT_OF, SELECT_FIELD, SELECT_ASKED = 1, 2, 3
CALL_OF, CALL_FUNCTION, CALL_ARGUMENT = 1, 2, 3
FOLD_VARIABLE, FOLD_RANGE, FOLD_RESULT_NAME, FOLD_START, FOLD_WHILE, FOLD_STEP, FOLD_RESULT = 1, 2, 3, 4, 5, 6, 7
FOLD_SECOND_VARIABLE: Final = 8

# Which fields are expressions; those of a map are entries.
_NESTED: Final[Mapping[Kind, frozenset[int]]] = {
    Kind.ENTRY: frozenset({3, 4}),
    Kind.CONSTANT: frozenset(),
    Kind.NAME: frozenset(),
    Kind.SELECT: frozenset({SELECT_OF}),
    Kind.CALL: frozenset({CALL_OF, CALL_ARGUMENT}),
    Kind.LIST: frozenset({1}),
    Kind.MAP: frozenset({2}),
    Kind.FOLD: frozenset({FOLD_RANGE, FOLD_START, FOLD_WHILE, FOLD_STEP, FOLD_RESULT}),
}
_ID: Final = 2
_ENTRY_ID: Final = (Kind.ENTRY, 1)
_CHECKED: Final = b"type.googleapis.com/cel.expr.CheckedExpr"
_PARSED: Final = b"type.googleapis.com/cel.expr.ParsedExpr"
_EXPRESSION_OF: Final = {_CHECKED: 4, _PARSED: 2}


def read_tree(serialized: bytes) -> Node:
    """The tree of what `Expression.serialize()` gives."""
    outer = dict(_fields(serialized))
    inner = dict(_fields(_bytes(outer[2])))
    return _expression(_bytes(inner[_EXPRESSION_OF[_bytes(outer[1])]]))


def write_tree(node: Node) -> bytes:
    """What `Env.deserialize()` takes: parsed, not checked."""
    parsed = _written([(_EXPRESSION_OF[_PARSED], _laid_out(node, itertools.count(1)))])
    return _written([(1, _PARSED), (2, parsed)])


def constant(text: str) -> Node:
    return Node(Kind.CONSTANT, ((6, text.encode()),))


def read_constant(node: Node) -> Any:
    """Null, a boolean, an integer, a double or a text; `...` for a constant that JSON has not."""
    ((number, value),) = node.fields
    match number, value:
        case (1, _):
            return None
        case (2, int()):
            return bool(value)
        case (3, int()):
            return value - (1 << 64) if value >> 63 else value
        case (5, float()):
            return value
        case (6, bytes()):
            return value.decode()
    return ...


def call(function: str, *parts: Node) -> Node:
    return Node(Kind.CALL, ((CALL_FUNCTION, function.encode()), *((CALL_ARGUMENT, part) for part in parts)))


def listed(*parts: Node) -> Node:
    return Node(Kind.LIST, tuple((1, part) for part in parts))


# --- the schema ------------------------------------------------------------------------------------------------------


def _expression(data: bytes) -> Node:
    kind, value = next((number, value) for number, value in _fields(data) if number != _ID)
    return _node(Kind(kind), _bytes(value))


def _node(kind: Kind, data: bytes) -> Node:
    nested = _NESTED[kind]
    fields = (field for field in _fields(data) if (kind, field[0]) != _ENTRY_ID)
    return Node(kind, tuple((n, _part(kind, _bytes(value)) if n in nested else value) for n, value in fields))


def _part(kind: Kind, data: bytes) -> Node:
    return _node(Kind.ENTRY, data) if kind is Kind.MAP else _expression(data)


def _laid_out(node: Node, ids: Iterator[int]) -> bytes:
    fields = [(number, _laid_out(v, ids) if isinstance(v, Node) else v) for number, v in node.fields]
    if node.kind is Kind.ENTRY:
        return _written([(_ENTRY_ID[1], next(ids)), *fields])
    return _written([(_ID, next(ids)), (node.kind, _written(fields))])


# --- the wire --------------------------------------------------------------------------------------------------------

_VARINT, _DOUBLE, _BYTES = 0, 1, 2


def _fields(data: bytes) -> Fields:
    return tuple(_each_field(data))


def _each_field(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, form = key >> 3, key & 7
        if form == _VARINT:
            value, at = _varint(data, at)
            yield number, value
        elif form == _DOUBLE:
            yield number, struct.unpack_from("<d", data, at)[0]
            at += 8
        elif form == _BYTES:
            size, at = _varint(data, at)
            yield number, data[at : at + size]
            at += size
        else:
            raise ValueError(f"a field of the wire type {form}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def _written(fields: Sequence[tuple[int, int | float | bytes]]) -> bytes:
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return _number(number << 3 | _BYTES) + _number(len(value)) + value
    if isinstance(value, float):
        return _number(number << 3 | _DOUBLE) + struct.pack("<d", value)
    return _number(number << 3 | _VARINT) + _number(value)


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _bytes(value: int | float | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value
