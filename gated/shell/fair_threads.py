"""Threads that compute for agents, one thing at a time for each, so that what one agent sends does not keep the others waiting.

INVARIANT: whoever stops waiting for a computation has not ended it, so the agent's next one starts only after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")


class FairThreads:
    def __init__(self, workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="gated-detector")
        self._turns: dict[str, CapacityLimiter] = {}

    async def run(self, agent: str, work: Callable[..., T], *given: Any) -> T:
        """What `work` gives, in the agent's turn. May be cancelled at any moment."""
        turns, loop, mine = self._turns.setdefault(agent, CapacityLimiter(1)), asyncio.get_running_loop(), object()

        def over(_: Future[T]) -> None:
            loop.call_soon_threadsafe(turns.release_on_behalf_of, mine)

        await turns.acquire_on_behalf_of(mine)
        running = self._pool.submit(work, *given)
        running.add_done_callback(over)  # also where it is cancelled before it began
        return await asyncio.wrap_future(running)

    async def close(self) -> None:
        """Wait for what is being computed; nothing new is taken."""
        await to_thread.run_sync(lambda: self._pool.shutdown(cancel_futures=True))
