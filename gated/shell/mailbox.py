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
        self._lane_of: dict[ThreadId, deque[T]] = {}  # of each thread that waits: where what is said on it stands
        self._waiting: dict[ThreadId, int] = {}  # and how much of it
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, thread: ThreadId) -> bool:
        return thread in self._waiting or any(self._thread_of(item) == thread for item in self._first)

    def crowded(self, agent: str) -> bool:
        """Whether an agent has as many waiting as it may."""
        return len(self._lanes.get(agent, ())) >= CROWDED

    def put(self, item: T) -> None:
        thread = self._thread_of(item)
        lane = self._lane_of.get(thread)
        if lane is not None:
            self._waiting[thread] += 1
        else:
            agent = self._agent_of(item)
            lane = self._lanes.get(agent)
            if lane is None:
                lane = self._lanes[agent] = deque()
            self._lane_of[thread], self._waiting[thread] = lane, 1
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
        if not self._first and len(self._lanes) == 1 and self._count <= most:
            return self._all()
        taken: list[T] = []
        while self._first and len(taken) < most:
            taken.append(self._first.popleft())
        while self._lanes and len(taken) < most:
            agent, lane = next(iter(self._lanes.items()))
            turn = 1 if len(self._lanes) > 1 else most - len(taken)  # nobody else waits
            taken += self._left(lane, turn)
            del self._lanes[agent]
            if lane:
                self._lanes[agent] = lane  # behind the others
        self._count -= len(taken)
        return taken

    def _all(self) -> list[T]:
        """What is in the one lane that there is."""
        (lane,) = self._lanes.values()
        self._lanes, self._lane_of, self._waiting, self._count = {}, {}, {}, 0
        return list(lane)

    def _left(self, lane: deque[T], most: int) -> list[T]:
        """The first items of a lane."""
        taken = [lane.popleft() for _ in range(min(most, len(lane)))]
        for thread in map(self._thread_of, taken):
            self._waiting[thread] -= 1
            if not self._waiting[thread]:
                del self._waiting[thread], self._lane_of[thread]
        return taken
