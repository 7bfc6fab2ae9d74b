"""A map of a snapshot whose entries are decoded when somebody asks for one of them, all together.

What waits for people in a run is much and mostly not looked at: neither a start nor a decision on another run shall pay for it.
INVARIANT: it is the map that its bytes stand for, and is written as them again; equal ones have equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from immutables import Map

K = TypeVar("K")
V = TypeVar("V")


class Late(Generic[K, V]):
    """Has at least one entry. It stands in for a `Map`; what changes it gives one."""

    __slots__ = ("_map", "_read", "raw")

    def __init__(self, raw: bytes, read: Callable[[bytes], Mapping[K, V]]) -> None:
        self.raw = raw
        self._read = read
        self._map: Map[K, V] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What is declared to be a `Map` is checked to be one where it is read."""
        return Map

    def whole(self) -> Map[K, V]:
        found = self._map
        if found is None:
            found = self._map = Map(self._read(self.raw))
        return found

    def get(self, key: K, default: Any = None) -> Any:
        return self.whole().get(key, default)

    def __getitem__(self, key: K) -> V:
        return self.whole()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.whole()

    def __len__(self) -> int:
        return len(self.whole())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[K]:
        return iter(self.whole())

    def keys(self) -> Iterable[K]:
        return self.whole().keys()

    def values(self) -> Iterable[V]:
        return self.whole().values()

    def items(self) -> Iterable[tuple[K, V]]:
        return self.whole().items()

    def set(self, key: K, value: V) -> Map[K, V]:
        return self.whole().set(key, value)

    def delete(self, key: K) -> Map[K, V]:
        return self.whole().delete(key)

    def __eq__(self, other: object) -> bool:
        if type(other) is Late:
            return self.raw == other.raw
        return type(other) is Map and bool(other) and self.whole() == other

    __hash__ = None  # type: ignore[assignment]
