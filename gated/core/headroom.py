"""Headroom: how much a tally may hold while nobody who counts has anything to say.

Budgets, steps and barriers are limits of the same few numbers. Each says as data up to where it is certainly silent, and what all
of an agent's leave together is asked once a call, instead of each of them. INVARIANT: never a false yes; a no says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from gated.core.history import Tally

UNBOUNDED: Final = 1 << 128


class Headroom(Struct, frozen=True, gc=False):
    """What one tally may hold, the call in question counted."""

    cost: int = UNBOUNDED  # µ$, at most
    load: int = UNBOUNDED  # steps and calls in flight before the call, fewer than these
    calls: int = UNBOUNDED  # calls before the call, fewer than these
    tokens: int = UNBOUNDED  # at most
    time: int = UNBOUNDED  # µs since the tally was opened, at most
    apart: frozenset[str] = frozenset()  # tools that neither are called nor stand among the newest
    counted: tuple[tuple[tuple[str, ...], int], ...] = ()  # calls of these tools, at most so many

    def holds(self, tally: Tally, tool: str, reserved: int, at: int = 0) -> bool:
        """`at` in µs, where time is limited."""
        if (
            tally.cost_microusd + reserved > self.cost
            or tally.steps + tally.in_flight >= self.load
            or tally.calls >= self.calls
            or tally.tokens > self.tokens
            or at - tally.opened_at > self.time
        ):
            return False
        if self.apart and (tool in self.apart or not self.apart.isdisjoint(tally.recent)):
            return False
        if not self.counted:
            return True
        counts = tally.counts
        for tools, most in self.counted:
            total = int(tool in tools)
            for name in tools:
                if name in counts:
                    total += counts[name]
            if total > most:
                return False
        return True


BOUNDLESS: Final = Headroom()


class Rooms(Struct, frozen=True, gc=False):
    """What the tally of a run and that of its thread may hold; None: nothing is asked of the thread's."""

    run: Headroom = BOUNDLESS
    thread: Headroom | None = None

    def hold(self, run: Tally, thread: Tally, tool: str, reserved: int, at: int = 0) -> bool:
        return self.run.holds(run, tool, reserved, at) and (self.thread is None or self.thread.holds(thread, tool, reserved, at))


def room_of(thread: bool, headroom: Headroom) -> Rooms:
    """A limit of the thread's tally, or of the run's."""
    return Rooms(thread=headroom) if thread else Rooms(headroom)


def all_of(rooms: Iterable[Rooms]) -> Rooms:
    """What all of them leave."""
    found = tuple(rooms)
    of_thread = [room.thread for room in found if room.thread is not None]
    return Rooms(_least(room.run for room in found), _least(of_thread) if of_thread else None)


def _least(headrooms: Iterable[Headroom]) -> Headroom:
    found = (BOUNDLESS, *headrooms)
    return Headroom(
        cost=min(room.cost for room in found),
        load=min(room.load for room in found),
        calls=min(room.calls for room in found),
        tokens=min(room.tokens for room in found),
        time=min(room.time for room in found),
        apart=frozenset().union(*(room.apart for room in found)),
        counted=tuple(pair for room in found for pair in room.counted),
    )
