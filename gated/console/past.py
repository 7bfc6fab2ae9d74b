"""What happened, over all threads: every run, and every ticket that ended. For lists, search and precedents.

It is read from the log in pages, the newest records first and then back to the first one. Rejected: hearing every record as it is
published; a busy gate then paid for a page that nobody had open. Also an index that is kept: what is erased or archived in the
log would live on in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import anyio
import anyio.to_thread
import structlog
from msgspec import Struct

from gated.console.gleaning import Rules, RunLine, Stretch
from gated.console.index import Eyes, Index
from gated.console.index import Past as PastTicket
from gated.console.line import Lines, NoAnswer
from gated.console.people import Person
from gated.console.threads import Policies, Records, Stored
from gated.core import tickets

FIRST: Final = 10_000  # records that are read before all others
STRIDE: Final = 500  # and how many at a time then
OFTEN: Final = 0.4  # seconds between looks while pages are open
SELDOM: Final = 60.0
JUST_NOW: Final = 0.15
PAUSE: Final = 1.0  # how long the gate is left in peace after a stride, in times of what that took

log = structlog.get_logger("gated.console")

T = TypeVar("T")


class _Head(Struct):
    position: int


class Past:
    """`changed` is told of each run that something happened to; `watched` says whether anybody hears it.

    INVARIANT: the index has every record between `_first` (without it) and `_last`, each once.
    """

    def __init__(self, lines: Lines, policies: Policies, changed: Callable[[RunLine], None], watched: Callable[[], bool]) -> None:
        self._lines, self._policies, self._changed, self._watched = lines, policies, changed, watched
        self._index = Index()
        self._one_at_a_time = anyio.CapacityLimiter(1)
        self._eyes: dict[Person, Eyes] = {}
        self._first = self._last = 0
        self._read_at = -math.inf
        self._reading = anyio.Lock()
        self._wanted = anyio.Event()
        self.ready = False
        self.back_to = 0  # µs; the oldest record that was read

    # --- keeping up --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep up until cancelled: often while pages are open, and now and then so that the next one need not wait."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_back)
            while True:
                await self.fresh()
                with anyio.move_on_after(OFTEN if self._watched() else SELDOM):
                    await self._wanted.wait()
                self._wanted = anyio.Event()

    async def fresh(self) -> None:
        """Have what happened until just now. Where the gate does not answer, what is known stays."""
        async with self._reading:
            if anyio.current_time() - self._read_at < JUST_NOW:
                return
            try:
                await self._catch_up()
                self.ready, self._read_at = True, anyio.current_time()
            except NoAnswer as error:
                log.warning("cannot read the log", error=str(error))

    def watched(self) -> None:
        """A page was opened that follows what happens."""
        self._wanted.set()

    @property
    def whole(self) -> bool:
        """Whether the log was read back to its first record."""
        return self.ready and self._first == 0

    async def _catch_up(self) -> None:
        """The records since the last look; at the start, and where it is another log, the end of it."""
        head = (await self._lines.ask("log.head", _Head)).position
        if not self.ready or head < self._last:
            await self._begin(max(0, head - FIRST))
        complete = False
        while not complete:
            page = await self._lines.ask("log.read", Records, after=self._last)
            with anyio.CancelScope(shield=True):  # the index and what is known of it are one
                lines, self._last = await self._take(page), page.after
            for line in lines if self.ready else ():
                self._changed(line)
            complete = page.complete

    async def _begin(self, position: int) -> None:
        await self._in_thread(self._index.clear)
        self._first = self._last = position
        self.back_to = 0

    async def _read_back(self) -> None:
        """Back to the first record, in strides and with pauses: the gate has more to do."""
        while True:
            began, wait = anyio.current_time(), OFTEN
            try:
                async with self._reading:
                    if self.ready and self._first:
                        await self._stride()
                        wait = (anyio.current_time() - began) * PAUSE
            except NoAnswer as error:
                log.warning("cannot read the log", error=str(error))
            await anyio.sleep(wait)

    async def _stride(self) -> None:
        """The records before the first that the index has; all of them, or none."""
        start = at = max(0, self._first - STRIDE)
        stretch, complete = list[Stored](), False
        while not complete:
            page = await self._lines.ask("log.read", Records, after=at, until=self._first)
            if page.after > self._first:
                raise NoAnswer("the gate is older than this console: it cannot be asked for a part of its log")
            stretch += page.records
            at, complete = page.after, page.complete
        with anyio.CancelScope(shield=True):
            await self._take(Records(stretch, at, complete=True), earlier=True)
            self._first = start

    async def _take(self, page: Records, *, earlier: bool = False) -> list[RunLine]:
        if not page.records:
            return []
        self.back_to = page.records[0].body.at if earlier or not self.back_to else self.back_to
        return await self._in_thread(lambda: self._index.take(Stretch(stored.body for stored in page.records), earlier=earlier))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._one_at_a_time)

    # --- what a person sees ------------------------------------------------------------------------------------------

    async def _as(self, person: Person) -> Eyes:
        """What concerns a person, by the groups of the policies that tickets were opened under."""
        if person.auditor:
            return Eyes(person.name, auditor=True)
        known = self._eyes.get(person)
        if known is not None and known.of == len(self._index.pairs):
            return known
        pairs = dict(self._index.pairs)
        for policy in {policy for policy, _ in pairs.values()} - self._policies.known.keys():
            with suppress(NoAnswer):  # then nobody is in its groups
                await self._policies.get(policy)
        mine = (number for number, (policy, rules) in pairs.items() if self._concerns(person, policy, rules))
        found = Eyes(person.name, auditor=False, pairs=tuple(mine), of=len(pairs))
        if all(policy in self._policies.known for policy, _ in pairs.values()):
            self._eyes[person] = found
        return found

    def _concerns(self, person: Person, policy: str, rules: Rules) -> bool:
        held = self._policies.known.get(policy)
        return tickets.concerned(rules, person.name, held.approvals.groups if held is not None else {})

    async def runs(self, person: Person, most: int, skip: int = 0, words: Sequence[str] = ()) -> list[RunLine]:
        """Runs that a person may see, with every word in their texts, the last to change first."""
        eyes = await self._as(person)
        return await self._in_thread(lambda: self._index.runs(eyes, most, skip, words))

    async def seen(self, person: Person, runs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Which of these runs, by thread and run, a person may see."""
        eyes = await self._as(person)
        return await self._in_thread(lambda: self._index.seen(eyes, runs))

    async def ended(self, person: Person, most: int, words: Sequence[str] = (), skip: int = 0) -> list[PastTicket]:
        """Tickets that ended, with every word in their texts, the last to end first."""
        eyes = await self._as(person)
        return await self._in_thread(lambda: self._index.ended(eyes, most, words, skip))

    async def similar(self, person: Person, tool: str, agent: str, digest: str, but: str, most: int = 8) -> list[PastTicket]:
        """Ended tickets of the tool: the same call first, then the same agent's of late, the newest first."""
        eyes = await self._as(person)
        return await self._in_thread(lambda: self._index.similar(eyes, tool, agent, digest, but, most))

    async def place(self, person: Person, ticket: str) -> tuple[str, str] | None:
        """The thread and run of a ticket that a person may see."""
        eyes = await self._as(person)
        return await self._in_thread(lambda: self._index.place(eyes, ticket))

    async def close(self) -> None:
        """Let the index go."""
        await self._in_thread(self._index.close)
