"""A map of what nobody changes any more, kept as the bytes of a snapshot: an entry is decoded when somebody asks for it.

Keys are text, values bytes. The newest entries wait in `fresh`; some at a time they go into `leaves`, of which each holds the
keys from its bound up to the next one's. So an entry costs O(log n), versions of a map share their leaves, and to dump or
load one costs as much as copying it.
INVARIANT: a key stands in one place. What comes out depends on what went in and in which order, so that a map that was loaded
grows on like the one that was dumped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from immutables import Map
from msgspec import Struct

FRESH: Final = 8  # entries that wait to be sorted in, more where there are many leaves
SHARE: Final = 16  # one for so many leaves, since whoever sorts in copies the list of them
LEAF: Final = 64  # entries of a leaf before it is split
HEAVY: Final = 16_384  # bytes of values that fill a leaf, too

_SEP: Final = b"\xff"  # in no UTF-8
_ROWS: Final = msgspec.msgpack.Decoder(list[bytes])
_MANY: Final = b"\xdd"  # msgpack: an array, its length in the next four bytes

Entry = tuple[str, bytes]


class Leaf(Struct, frozen=True, gc=False, array_like=True):
    """`keys` are parted and enclosed by `_SEP`, `rows` are msgpack binaries one after another, in the order of the keys."""

    keys: bytes = _SEP
    rows: bytes = b""
    count: int = 0

    def values(self) -> list[bytes]:
        return _ROWS.decode(b"".join((_MANY, self.count.to_bytes(4, "big"), self.rows)))

    def names(self) -> list[str]:
        return [key.decode() for key in self.keys.split(_SEP)[1:-1]]

    def entries(self) -> list[Entry]:
        return list(zip(self.names(), self.values(), strict=True))

    @property
    def full(self) -> bool:
        return self.count > LEAF or (len(self.rows) > HEAVY and self.count > 1)


def _row(value: bytes) -> bytes:
    """The value as a msgpack binary."""
    size = len(value)
    if size < 256:
        return b"\xc4" + size.to_bytes(1, "big") + value
    return b"\xc6" + size.to_bytes(4, "big") + value


def _leaf(entries: Sequence[Entry]) -> Leaf:
    keys = b"".join([_SEP, *(key.encode() + _SEP for key, _ in entries)])
    return Leaf(keys, b"".join([_row(value) for _, value in entries]), len(entries))


def _joined(leaf: Leaf, more: Sequence[Entry]) -> Leaf:
    """The leaf with entries whose keys it does not have."""
    added = _leaf(more)
    return Leaf(leaf.keys + added.keys[1:], leaf.rows + added.rows, leaf.count + added.count)


def _split(bound: str, leaf: Leaf) -> Iterator[tuple[str, Leaf]]:
    """The leaf in parts that are not full, each with its bound."""
    if not leaf.full:
        yield bound, leaf
        return
    entries = sorted(leaf.entries())
    middle = len(entries) // 2
    yield from _split(bound, _leaf(entries[:middle]))
    yield from _split(entries[middle][0], _leaf(entries[middle:]))


class Packed(Struct, frozen=True, gc=False, array_like=True):
    """The first of the `bounds`, where there are any, is the empty text."""

    bounds: tuple[str, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    fresh: Map[str, bytes] = Map()
    size: int = 0

    def __len__(self) -> int:
        return self.size

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> bytes | None:
        found = self.fresh.get(key)
        if found is not None or not self.bounds:
            return found
        leaf = self.leaves[bisect_right(self.bounds, key) - 1]
        place = leaf.keys.rfind(b"\xff%b\xff" % key.encode())  # where keys begin alike twice as fast as `find` and `in`
        return None if place < 0 else leaf.values()[leaf.keys.count(_SEP, 0, place)]

    def set(self, key: str, value: bytes) -> Packed:
        return (self.delete(key) if key in self else self).add(key, value)

    def add(self, key: str, value: bytes) -> Packed:
        """With a key that it does not have."""
        fresh = self.fresh.set(key, value)
        if len(fresh) < FRESH + len(self.leaves) // SHARE:
            return Packed(self.bounds, self.leaves, fresh, self.size + 1)
        return self._sorted_in(sorted(fresh.items()))

    def joined(self, more: Mapping[str, bytes]) -> Packed:
        """With many keys that it does not have."""
        return self._sorted_in(sorted({**self.fresh, **more}.items()), len(more)) if more else self

    def delete(self, key: str) -> Packed:
        """Without the key. Raises `KeyError` where it is not here."""
        if key in self.fresh:
            return Packed(self.bounds, self.leaves, self.fresh.delete(key), self.size - 1)
        if key not in self:
            raise KeyError(key)
        at = bisect_right(self.bounds, key) - 1
        leaves = (*self.leaves[:at], _without(self.leaves[at], key), *self.leaves[at + 1 :])
        return Packed(self.bounds, leaves, self.fresh, self.size - 1)

    def items(self) -> Iterator[Entry]:
        """In no order that means anything."""
        for leaf in self.leaves:
            yield from leaf.entries()
        yield from self.fresh.items()

    def keys(self) -> Iterator[str]:
        for leaf in self.leaves:
            yield from leaf.names()
        yield from self.fresh

    def _sorted_in(self, entries: list[Entry], more: int = 1) -> Packed:
        """With the sorted entries in their leaves, and nothing fresh. So many of them are new."""
        bounds, leaves = list(self.bounds or ("",)), list(self.leaves or (Leaf(),))
        full: list[int] = []
        start = 0
        while start < len(entries):
            at = bisect_right(bounds, entries[start][0]) - 1
            end = start + 1
            while end < len(entries) and (at + 1 == len(bounds) or entries[end][0] < bounds[at + 1]):
                end += 1
            leaves[at] = _joined(leaves[at], entries[start:end])
            if leaves[at].full:
                full.append(at)
            start = end
        for at in reversed(full):
            parts = list(_split(bounds[at], leaves[at]))
            bounds[at : at + 1] = [bound for bound, _ in parts]
            leaves[at : at + 1] = [leaf for _, leaf in parts]
        return Packed(tuple(bounds), tuple(leaves), Map(), self.size + more)


def _without(leaf: Leaf, key: str) -> Leaf:
    return _leaf([entry for entry in leaf.entries() if entry[0] != key])
