"""A map whose entries come to rest: what may still change is at hand, what is final is packed and decoded when it is asked for.

A subclass says what rests, and how it is packed. Of a `Shelved` map not even all that may change is at hand: where that would be
many entries, those that nobody speaks of are packed too. INVARIANT: a key is in one part only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, Self, TypeVar

from immutables import Map
from msgspec import Struct

from gated.core.packed import Packed

AT_HAND: Final = 64  # open entries of a `Shelved` map before all but the one that is spoken of are put aside

K = TypeVar("K", bound=str)
V = TypeVar("V")


class Filed(Struct, Generic[K, V], frozen=True, gc=False, array_like=True):
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


class Shelved(Filed[K, V], frozen=True, gc=False, array_like=True):
    """`aside` is what is open and was not spoken of lately. Its entries cost a decision nothing until one is spoken of again."""

    aside: Packed = Packed()

    def get(self, key: K) -> V | None:
        found = self.open.get(key)
        if found is not None:
            return found
        raw = self.aside.get(key) if self.aside.size else None
        if raw is None and self.final.size:
            raw = self.final.get(key)
        return None if raw is None else self.unpack(raw)

    def __contains__(self, key: K) -> bool:
        return super().__contains__(key) or (self.aside.size > 0 and key in self.aside)

    def __len__(self) -> int:
        return super().__len__() + self.aside.size

    def __iter__(self) -> Iterator[K]:
        yield from super().__iter__()
        yield from self.aside.keys()  # type: ignore[misc]

    def items(self) -> Iterator[tuple[K, V]]:
        yield from super().items()
        for key, raw in self.aside.items():
            yield key, self.unpack(raw)  # type: ignore[misc]

    def unfinished(self) -> Iterator[tuple[K, V]]:
        """The entries that may change."""
        yield from self.open.items()
        for key, raw in self.aside.items():
            yield key, self.unpack(raw)  # type: ignore[misc]

    def set(self, key: K, value: V) -> Self:
        if key in self.open:
            if self.rests(value):
                return type(self)(self.open.delete(key), self.final.add(key, self.pack(value)), self.aside)
            return type(self)(self.open.set(key, value), self.final, self.aside)
        if self.rests(value):
            return self._without(key).file(key, value)
        return self._without(key)._at_hand(key, value)

    def file(self, key: K, value: V) -> Self:
        return type(self)(self.open, self.final.add(key, self.pack(value)), self.aside)

    def keep(self, key: K, value: V) -> Self:
        if key in self.open:
            return type(self)(self.open.set(key, value), self.final, self.aside)
        return self.set(key, value)

    def delete(self, key: K) -> Self:
        if key not in self:
            raise KeyError(key)
        return self._without(key)

    def _without(self, key: K) -> Self:
        """Without the key, wherever it is."""
        if key in self.open:
            return type(self)(self.open.delete(key), self.final, self.aside)
        if self.aside.size and key in self.aside:
            return type(self)(self.open, self.final, self.aside.delete(key))
        if self.final.size and key in self.final:
            return type(self)(self.open, self.final.delete(key), self.aside)
        return self

    def _at_hand(self, key: K, value: V) -> Self:
        """With an open entry that was nowhere."""
        if len(self.open) < AT_HAND:
            return type(self)(self.open.set(key, value), self.final, self.aside)
        packed = {str(name): self.pack(each) for name, each in self.open.items()}
        return type(self)(Map({key: value}), self.final, self.aside.joined(packed))
