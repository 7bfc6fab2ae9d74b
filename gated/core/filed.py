"""A map whose entries come to rest: what may still change is at hand, what is final is packed and decoded when it is asked for.

A subclass says what rests, and how it is packed. INVARIANT: a key is either open or final.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Self, TypeVar

from immutables import Map
from msgspec import Struct

from gated.core.packed import Packed

K = TypeVar("K", bound=str)
V = TypeVar("V")


class Filed(Struct, Generic[K, V], frozen=True, array_like=True):
    """Immutable: `set`, `file`, `keep` and `delete` give another one."""

    open: Map[K, V] = Map()
    final: Packed = Packed()

    # --- what a subclass says ----------------------------------------------------------------------------------------

    @staticmethod
    def rests(value: V) -> bool:
        """Whether a value will hardly change any more."""
        raise TypeError("a subclass says what rests")

    @staticmethod
    def pack(value: V) -> bytes:
        raise TypeError("a subclass packs")

    @staticmethod
    def unpack(raw: bytes) -> V:
        raise TypeError("a subclass unpacks")

    # --- a map -------------------------------------------------------------------------------------------------------

    def get(self, key: K) -> V | None:
        found, final = self.open.get(key), self.final
        if found is not None or not final.size:
            return found
        raw = final.get(key)
        return None if raw is None else self.unpack(raw)

    def __getitem__(self, key: K) -> V:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: K) -> bool:
        return key in self.open or (self.final.size > 0 and key in self.final)

    def __len__(self) -> int:
        return len(self.open) + self.final.size

    def __iter__(self) -> Iterator[K]:
        yield from self.open
        yield from self.final.keys()  # type: ignore[misc]

    def values(self) -> Iterator[V]:
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[K, V]]:
        yield from self.open.items()
        for key, raw in self.final.items():
            yield key, self.unpack(raw)  # type: ignore[misc]

    def set(self, key: K, value: V) -> Self:
        final = self.final
        if self.rests(value):
            if key in self.open:
                return type(self)(self.open.delete(key), final.add(key, self.pack(value)))
            return type(self)(self.open, final.set(key, self.pack(value)))
        if final.size and key not in self.open and key in final:
            final = final.delete(key)
        return type(self)(self.open.set(key, value), final)

    def file(self, key: K, value: V) -> Self:
        """With a value that rests, of a key that is not here."""
        return type(self)(self.open, self.final.add(key, self.pack(value)))

    def keep(self, key: K, value: V) -> Self:
        """The same where neither this value nor what stands under the key now rests: nothing else is looked at."""
        return type(self)(self.open.set(key, value), self.final)

    def delete(self, key: K) -> Self:
        """Raises `KeyError`."""
        if key in self.open:
            return type(self)(self.open.delete(key), self.final)
        return type(self)(self.open, self.final.delete(key))
