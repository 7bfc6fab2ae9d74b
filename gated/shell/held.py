"""Inputs that are set aside: one of a thread that detectors are asked about, and whatever is said in that thread meanwhile.

INVARIANT: a thread's inputs leave in the order in which they came, and none of them overtakes the one that is asked about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from gated.events import ThreadId

CROWD: Final = 512  # inputs of one thread that wait behind another: with more, the wait is ended

T = TypeVar("T")


class Held(Generic[T]):
    def __init__(self) -> None:
        self._later: dict[ThreadId, list[T]] = {}  # of each thread that waits: what came after its first input
        self._hurry: dict[ThreadId, Callable[[], None]] = {}
        self._count = 0
        self._ready: list[tuple[ThreadId, T]] = []

    def __contains__(self, thread: ThreadId) -> bool:
        return thread in self._later

    def __len__(self) -> int:
        """How many inputs are set aside."""
        return self._count

    def hold(self, thread: ThreadId, hurry: Callable[[], None] | None = None) -> None:
        """An input of this thread waits for an answer; so does everything that follows it.

        `hurry` is called once there is a crowd, so that one thread cannot fill the memory while it waits.
        """
        self._later[thread] = []
        self._count += 1
        if hurry is not None:
            self._hurry[thread] = hurry

    def follows(self, thread: ThreadId, item: T) -> bool:
        """Set an input aside if its thread waits. False: it does not."""
        later = self._later.get(thread)
        if later is not None:
            later.append(item)
            self._count += 1
            if len(later) >= CROWD and thread in self._hurry:
                self._hurry.pop(thread)()
        return later is not None

    def answered(self, thread: ThreadId, item: T) -> None:
        """The input that its thread waited for may go on, as it is now."""
        self._hurry.pop(thread, None)
        self._ready.append((thread, item))

    def released(self) -> list[T]:
        """What may go on, each thread's inputs in order. They come before anything of theirs that was not set aside."""
        found: list[T] = []
        for thread, item in self._ready:
            found += (item, *self._later.pop(thread))
        self._ready.clear()
        self._count -= len(found)
        return found
