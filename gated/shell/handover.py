"""From one task of a loop to another: a bell to be woken by, a lock, and a short queue.

Events and streams of anyio reschedule their task at every use; these do so only where there is something to wait for, which
is what most of a gate's time would go into otherwise: its batches are small. All are for the tasks of one loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, Literal, TypeVar

T = TypeVar("T")


class Bell:
    """Wakes the one task that waits. A ring that nobody waits for is kept, so that none is missed; more are one."""

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Until it is rung, or at once where it was since the last wait."""
        while not self._rung:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._rung = False

    @property
    def awaited(self) -> bool:
        """Whether a task waits for a ring, and was not woken yet."""
        return self._waiter is not None and not self._rung


class Lock(asyncio.Lock):
    """Mostly it is free, which anyio's takes four times as long to find.

    `wanted`: by how many, with who has it. One that was left to the next, which does not run yet, is not `locked()`; but whoever
    comes then waits.
    """

    wanted = 0

    async def acquire(self) -> Literal[True]:
        self.wanted += 1
        try:
            return await super().acquire()
        except BaseException:
            self.wanted -= 1
            raise

    def release(self) -> None:
        super().release()
        self.wanted -= 1


class Handover(Generic[T]):
    """A queue of one giver and one taker, with `room` for so many items."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: deque[T] = deque()
        self._came, self._left = Bell(), Bell()
        self._closed = False

    async def put(self, item: T) -> None:
        """Hand an item over; waits where there is no room."""
        while len(self._items) >= self._room:
            await self._left.wait()
        self._items.append(item)
        self._came.ring()

    async def take_all(self) -> list[T]:
        """What was handed over since the last time, at least one item. Nothing where it is closed and empty."""
        while not self._items and not self._closed:
            await self._came.wait()
        taken = list(self._items)
        self._items.clear()
        self._left.ring()
        return taken

    @property
    def waits(self) -> bool:
        """Whether something was handed over that is not taken yet."""
        return bool(self._items)

    @property
    def idle(self) -> bool:
        """Whether the taker is done with what it took, and waits for more."""
        return self._came.awaited and not self._items

    def close(self) -> None:
        """Nothing more will be handed over."""
        self._closed = True
        self._came.ring()
