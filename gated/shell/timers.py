"""One timer a run: it wakes the run when the first of its deadlines has come. What follows is the core's to say.

INVARIANT: what was stored before a deadline is said before it, also where it lay in the stream meanwhile.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

import anyio

from gated.core.answers import next_due
from gated.core.state import ThreadState
from gated.events import DeadlineReached, RunId, ThreadId
from gated.shell.said import TIMER, Due, Outlet, Said

LONGEST = 60.0  # seconds of one sleep: it does not notice that the clock was set forward, or the machine suspended
GRAIN = 0.05  # seconds between two askings of what the bus has stored: what is due meanwhile is told together

AGAIN = 300_000_000  # µs until a run is woken again that could not be decided on


class Timers:
    """Where the bus tells the time (`outlet.tells_time`), deadlines are only kept here, and come as inputs."""

    def __init__(self, outlet: Outlet, say: Callable[[Said], None]) -> None:
        self._outlet, self._say = outlet, say
        self._deadlines: list[tuple[int, ThreadId, RunId]] = []
        self._armed: dict[tuple[ThreadId, RunId], int] = {}
        self._changed: dict[tuple[ThreadId, RunId], int] = {}
        self._sooner = anyio.Event()

    def remind(self, due: int, thread: ThreadId, run: RunId) -> None:
        """Wake the run at `due` (µs) unless it is woken sooner. 0: it has no deadline left."""
        if due and self._armed.get((thread, run), due + 1) <= due:
            return
        self._changed[(thread, run)] = due
        if due:
            self._armed[(thread, run)] = due
            if self._outlet.tells_time:
                return
            heapq.heappush(self._deadlines, (due, thread, run))
            if self._deadlines[0][0] == due:
                self._sooner.set()

    def woke(self, thread: ThreadId, run: RunId) -> None:
        """The run's timer has run."""
        self._armed.pop((thread, run), None)

    def postpone(self, thread: ThreadId, run: RunId, now: int) -> None:
        """The run's timer has run and nothing could be decided: it runs again in a while."""
        self.woke(thread, run)
        self.remind(now + AGAIN, thread, run)

    def loaded(self, state: ThreadState) -> None:
        """A thread came into memory: where the bus tells the time, its deadlines are known to it already."""
        if self._outlet.tells_time:
            for run_id, run in state.runs.unfinished():
                if due := next_due(run):
                    self._armed.setdefault((state.thread, run_id), due)

    def changes(self) -> list[Due]:
        """The deadlines that have changed since they were asked for last, for the log."""
        found = [(*key, due) for key, due in self._changed.items()]
        self._changed = {}
        return found

    async def run(self, scope: anyio.CancelScope) -> None:
        """Tell runs their time until the scope is cancelled."""
        if self._outlet.tells_time:
            return
        with scope:
            while True:
                now = time.time_ns() // 1000
                if self._deadlines and self._deadlines[0][0] <= now:
                    if self._outlet.caught_up is not None:
                        await self._outlet.caught_up()
                    self._tell(now)
                    await anyio.sleep(GRAIN)
                    continue
                self._sooner = anyio.Event()
                wait = (self._deadlines[0][0] - now) / 1e6 if self._deadlines else LONGEST
                with anyio.move_on_after(min(wait, LONGEST)):
                    await self._sooner.wait()

    def _tell(self, now: int) -> None:
        """What is due by `now`. A run that was given another deadline meanwhile is told at that one."""
        while self._deadlines and self._deadlines[0][0] <= now:
            due, thread, run = heapq.heappop(self._deadlines)
            if self._armed.get((thread, run)) == due:
                self._say(Said(thread, run, DeadlineReached(TIMER, due), now, 0, None, None))
