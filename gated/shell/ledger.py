"""How many runs an agent has open in each partition of a cluster: one message an agent, written with compare-and-set.

A row is the word of the partition's owner: `open` runs by the log up to a place (`seen`), and `held`, which also has what it is
about to open. INVARIANT: the runs of an agent that are open in a partition are never more than its row's `held`: that grows
before the record that opens a run, and shrinks after the record that ends one. A row says under which lease it was written; an
owner whose lease is over finds a newer one there, and writes nothing any more. What a lost owner left is corrected by the next
one, from the log: the row says from where on.

Beside the log this is nothing but a bound; where it is missing, the log is read from its start. Rejected: a message for each
place that an agent has, which needs one more for who takes them at the same time; and the log's own stream, where what is not a
record costs every reader of positions.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import anyio
import msgspec

from gated.events import AgentId, Record, RunEnded, RunId, RunOpened, ThreadId
from gated.shell.log import LogLocked, LogUnavailable
from gated.shell.log.jetstream_api import NOT_FOUND, WRONG_SEQUENCE, Refused
from gated.shell.log.jetstream_leases import EXPECTED
from gated.shell.log.jetstream_messages import Messages
from gated.shell.log.jetstream_reader import JetStreamReader
from gated.shell.open_runs import MARKS, decisions_of

TOGETHER: Final = 900  # rows that are raised at once
BEHIND: Final = 0.005  # seconds until a writer that was overtaken tries again


class Row(msgspec.Struct, frozen=True, array_like=True):
    lease: int
    seen: int
    open: int
    held: int


NOTHING: Final = Row(0, 0, 0, 0)  # what is known before the log was read


class Tally:
    """The row of one session: what it knows of an agent's runs in its partition. `lease` is the session's, now."""

    def __init__(self, partition: int, lease: Callable[[], int], seen: int) -> None:
        self.partition, self.lease = partition, lease
        self.seen, self.open, self.pending = seen, 0, 0
        self.written: Row | None = None

    @property
    def held(self) -> int:
        return self.open + self.pending

    def row(self) -> Row:
        return Row(self.lease(), self.seen, self.open, self.held)


class Placed(NamedTuple):
    """`held`: the agent's runs without the one that was asked for. Without a place it may not be opened."""

    place: bool
    held: int


Whose = Callable[[Record], Awaitable[AgentId | None]]  # the run that a record ended; nobody's where that is damaged


async def count(log: JetStreamReader, partition: int, rows: Mapping[AgentId, Row], until: int, whose: Whose) -> Counter[AgentId]:
    """The open runs of agents in a partition at a place of the log: by their rows, and by what the log says behind them."""
    found = Counter({agent: row.open for agent, row in rows.items()})
    opened: dict[tuple[ThreadId, RunId], AgentId] = {}
    async for place, record in log.between(min(row.seen for row in rows.values()), until, partition):
        if any(mark in record.body for mark in MARKS):
            for decision in decisions_of(record):
                agent: AgentId | None = None
                if isinstance(decision, RunOpened):
                    opened[record.thread, record.run] = agent = decision.agent
                elif isinstance(decision, RunEnded):
                    agent = opened.get((record.thread, record.run)) or await whose(record)
                if agent is not None and agent in rows and place > rows[agent].seen:
                    found[agent] += 1 if isinstance(decision, RunOpened) else -1
    return found


async def _nobodys(record: Record) -> None:
    """Of what the whole log does not open."""


class _Wish:
    """To have a tally written; with `places` also to open a run more, where the agent has fewer than `limit`."""

    def __init__(self, tally: Tally, *, places: bool, limit: int | None = None) -> None:
        self.tally, self.limit, self._places = tally, limit, places
        self.answer: Placed | None = None
        self.error: LogLocked | LogUnavailable | None = None
        tally.pending += places

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None

    def end(self, answer: Placed | None = None, error: LogLocked | LogUnavailable | None = None) -> None:
        """It came to this; what was not granted is not pending."""
        if not self.done:
            self.answer, self.error = answer, error
            if answer is None or not answer.place:
                self.tally.pending -= self._places


class Ledger:
    """The open runs of one agent, for all sessions of a worker: what they wish at the same time is written at once."""

    def __init__(self, log: JetStreamReader, messages: Messages, agent: AgentId) -> None:
        self._log, self._messages, self._agent = log, messages, agent
        self._subject = log.names.open_runs(agent)
        self._known: tuple[int, dict[int, Row]] | None = None  # the place of the newest message, and its rows
        self._wishes: list[_Wish] = []
        self._lock = anyio.Lock()

    async def rows(self) -> dict[int, Row]:
        """What was true at some time, by partition. Raises `LogUnavailable`."""
        async with self._lock:
            while self._known is None:
                place, rows = await self._read()
                self._known = (place, rows) if place else await self._store(place, rows)
            return self._known[1]

    async def audit(self, whose: Whose) -> None:
        """Raise the rows that say less than the log: of partitions where somebody did not count. Raises `LogUnavailable`.

        A row that is newer than the look at the log is its owner's, and right.
        """
        rows, until = await self.rows(), await self._log.end()
        counted = await self._counted(rows, until, whose)
        async with self._lock:
            self._known = None
            while True:
                place, rows = await self._read()
                low = [p for p, n in counted.items() if rows[p].seen < until and rows[p].held < n][:TOGETHER]
                if not low:
                    return
                leases = await self._leases(low)  # who had one before knows nothing of these runs
                raised = {p: Row(leases[p], until, counted[p], counted[p]) for p in low}
                await self._store(place, rows | raised)

    async def _leases(self, partitions: Sequence[int]) -> dict[int, int]:
        subjects = {partition: self._log.names.lease(partition) for partition in partitions}
        found = await self._log.api.last_of(self._log.names.log, list(subjects.values()))
        return {partition: found[subject].place for partition, subject in subjects.items()}

    async def write(self, tally: Tally) -> None:
        """Write what a session knows. Raises `LogUnavailable`, `LogLocked`."""
        await self._fulfil(_Wish(tally, places=False))

    async def place(self, tally: Tally, limit: int | None) -> Placed:
        """Take a place for a run that is about to be opened, where the agent has fewer than `limit`: it is `pending` then.

        Raises `LogUnavailable`, `LogLocked`.
        """
        return await self._fulfil(_Wish(tally, places=True, limit=limit))

    async def _fulfil(self, wish: _Wish) -> Placed:
        self._wishes.append(wish)
        try:
            async with self._lock:
                while not wish.done:  # which somebody may have done along with his own
                    await self._round()
        finally:
            self._wishes.remove(wish)
            wish.end(error=LogUnavailable("nobody waits for it any more"))
        if wish.answer is None:
            raise wish.error or AssertionError
        return wish.answer

    async def _round(self) -> None:
        """Fulfil what is wished now, if nobody else writes meanwhile. Only what was just read lets a wish be refused."""
        fresh = self._known is None
        place, before = known = self._known or await self._read()
        self._known = None  # until the server has said otherwise, whatever ends the wait
        rows, granted = dict(before), dict[_Wish, Placed]()
        for wish in [wish for wish in self._wishes if not wish.done]:
            tally = wish.tally
            total = tally.held + sum(row.held for partition, row in rows.items() if partition != tally.partition)
            locked = self._locked(tally, rows[tally.partition])
            full = wish.limit is not None and total > wish.limit
            if (locked or full) and not fresh:
                return
            if locked or full:
                wish.end(None if locked else Placed(False, total - 1), locked)
            else:
                rows[tally.partition], granted[wish] = tally.row(), Placed(True, total - 1)
        for wish in granted:
            rows[wish.tally.partition] = wish.tally.row()  # without what was refused after it
        self._known = await self._store(place, rows) if granted else known
        if self._known is None:
            await anyio.sleep(BEHIND)
            return
        for wish, answer in granted.items():
            wish.tally.written = rows[wish.tally.partition]
            wish.end(answer)

    def _locked(self, tally: Tally, found: Row) -> LogLocked | None:
        if found.lease <= tally.lease():
            return None
        return LogLocked(f"partition {tally.partition} of {self._log.names.log}", f"lease {found.lease}")

    async def _read(self) -> tuple[int, dict[int, Row]]:
        """What the stream's leader says; at place 0 what the log says, where nobody has counted yet."""
        try:
            said = await self._log.api.ask(f"STREAM.MSG.GET.{self._log.names.snapshots}", {"last_by_subj": self._subject})
        except Refused as error:
            if error.code in NOT_FOUND:
                until = await self._log.end()
                new = dict.fromkeys(range(self._log.partitions), NOTHING)
                return 0, {p: Row(0, until, n, n) for p, n in (await self._counted(new, until, _nobodys)).items()}
            raise LogUnavailable(f"cannot read the open runs of `{self._agent}`: {error.why}") from error
        message = said["message"]
        return int(message["seq"]), msgspec.json.decode(base64.b64decode(message["data"]), type=dict[int, Row])

    async def _counted(self, rows: Mapping[int, Row], until: int, whose: Whose) -> dict[int, int]:
        """The open runs of each partition by the log."""
        each = {partition: {self._agent: row} for partition, row in rows.items()}
        return {p: (await count(self._log, p, one, until, whose))[self._agent] for p, one in each.items()}

    async def _store(self, place: int, rows: dict[int, Row]) -> tuple[int, dict[int, Row]] | None:
        """Write over the message at a place: what is known then. Nothing where another stands there."""
        message = self._messages.of(self._subject, msgspec.json.encode(rows), {EXPECTED: str(place)})
        try:
            return await self._log.api.store(message), rows
        except Refused as error:
            if error.code in WRONG_SEQUENCE:
                return None
            raise LogUnavailable(f"cannot write the open runs of `{self._agent}`: {error.why}") from error


class Ledgers:
    """The ledgers of a worker."""

    def __init__(self, log: JetStreamReader, messages: Messages) -> None:
        self._given = log, messages
        self._known: dict[AgentId, Ledger] = {}

    def of(self, agent: AgentId) -> Ledger:
        if agent not in self._known:
            self._known[agent] = Ledger(*self._given, agent)
        return self._known[agent]
