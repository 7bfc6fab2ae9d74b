"""Inputs that wait to be decided: agents take turns, and each may have only so many waiting.

Whoever floods the gate waits behind its own messages, not the others behind them: of every agent in turn one input is taken.
INVARIANT: a thread's inputs leave in the order in which they came, whoever said them: while one waits, all that is said on its
thread stands behind it in the same lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from gated.events import ThreadId

CROWDED: Final = 2048  # inputs of one agent that wait; it may not ask for more calls until there are fewer

T = TypeVar("T")


class Mailbox(Generic[T]):
    """`thread_of` and `agent_of` say of an item on which thread it was said, and by which agent (nobody: an empty name)."""

    def __init__(self, thread_of: Callable[[T], ThreadId], agent_of: Callable[[T], str]) -> None:
        self._thread_of, self._agent_of = thread_of, agent_of
        self._first: deque[T] = deque()  # what was set aside before, and goes on now
        self._lanes: dict[str, deque[T]] = {}
        self._where: dict[ThreadId, _Place] = {}  # of each thread that waits
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, thread: ThreadId) -> bool:
        return thread in self._where or any(self._thread_of(item) == thread for item in self._first)

    def crowded(self, agent: str) -> bool:
        """Whether an agent has as many waiting as it may."""
        return len(self._lanes.get(agent, ())) >= CROWDED

    def put(self, item: T) -> None:
        thread = self._thread_of(item)
        place = self._where.get(thread)
        if place is None:
            place = self._where[thread] = _Place(self._agent_of(item))
        place.waiting += 1
        lane = self._lanes.get(place.lane)
        if lane is None:
            lane = self._lanes[place.lane] = deque()
        lane.append(item)
        self._count += 1

    def put_first(self, items: Sequence[T]) -> None:
        """What comes before everything that waits, in its order: also before what was put first earlier, and is still here.

        What is released of a thread stands before whatever of it was released with it the last time, and not taken yet.
        """
        self._first.extendleft(reversed(items))
        self._count += len(items)

    def take(self, most: int) -> list[T]:
        """The next items, of every lane in turn one."""
        taken: list[T] = []
        while self._first and len(taken) < most:
            taken.append(self._first.popleft())
        self._count -= len(taken)
        while self._lanes and len(taken) < most:
            agent, lane = next(iter(self._lanes.items()))
            turn = 1 if len(self._lanes) > 1 else most - len(taken)  # nobody else waits
            while lane and turn:
                taken.append(self._left(lane.popleft()))
                turn -= 1
            del self._lanes[agent]
            if lane:
                self._lanes[agent] = lane  # behind the others
        return taken

    def _left(self, item: T) -> T:
        self._count -= 1
        thread = self._thread_of(item)
        place = self._where[thread]
        place.waiting -= 1
        if not place.waiting:
            del self._where[thread]
        return item


class _Place:
    """Where what is said on a thread stands while some of it waits: in which lane, and how much."""

    __slots__ = ("lane", "waiting")

    def __init__(self, lane: str) -> None:
        self.lane, self.waiting = lane, 0
