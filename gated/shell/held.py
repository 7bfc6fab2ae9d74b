"""Inputs that are set aside: one of a thread that detectors are asked about, and whatever is said in that thread meanwhile.

INVARIANT: a thread's inputs leave in the order in which they came, and none of them overtakes the one that is asked about.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from gated.events import ThreadId

T = TypeVar("T")


class Held(Generic[T]):
    def __init__(self) -> None:
        self._later: dict[ThreadId, list[T]] = {}  # of each thread that waits: what came after its first input
        self._ready: list[tuple[ThreadId, T]] = []

    def __contains__(self, thread: ThreadId) -> bool:
        return thread in self._later

    def __len__(self) -> int:
        """How many inputs are set aside."""
        return len(self._later) + sum(map(len, self._later.values()))

    def hold(self, thread: ThreadId) -> None:
        """An input of this thread waits for an answer; so does everything that follows it."""
        self._later[thread] = []

    def follows(self, thread: ThreadId, item: T) -> bool:
        """Set an input aside if its thread waits. False: it does not."""
        later = self._later.get(thread)
        if later is not None:
            later.append(item)
        return later is not None

    def answered(self, thread: ThreadId, item: T) -> None:
        """The input that its thread waited for may go on, as it is now."""
        self._ready.append((thread, item))

    def released(self) -> list[T]:
        """What may go on, each thread's inputs in order. They come before anything of theirs that was not set aside."""
        found: list[T] = []
        for thread, item in self._ready:
            found += (item, *self._later.pop(thread))
        self._ready.clear()
        return found
