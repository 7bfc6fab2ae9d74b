"""The serialisers of one process, which take their turns together.

Each of many partitions has a few inputs at a time. What came for all of them is decided in one go, made durable in one write and
answered when that is stored: for so few inputs, most of the cost would else be tasks that are woken and writes of their own.
INVARIANT: what fails for one partition fails for that one, in its own task; and what one must wait for (a thread that is not in
memory, a detector, a log whose last append is in doubt), it waits for there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from gated.core.redaction.cover import expected
from gated.events import Record
from gated.shell.handover import Bell
from gated.shell.log import LogError
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.log.jetstream_api import JetStreamApi, Outcome, Outgoing
from gated.shell.runs import Runs
from gated.shell.said import Batch, Said

MOST: Final = 64  # inputs from which on a turn takes no more partitions: the server stores them while the next are decided


class Seat:
    """A serialiser among others, and the log of its partition."""

    def __init__(self, together: Together, runs: Runs, event_log: JetStreamLog) -> None:
        self.runs, self.log = runs, event_log
        self._together, self._waits = together, False

    def want(self) -> None:
        """There is something to decide."""
        if not self._waits:
            self._waits = True
            self._together.want(self)

    def called(self) -> None:
        """Its turn has come."""
        self._waits = False


class Append(NamedTuple):
    """What is under way for one of them."""

    seat: Seat
    batch: Batch
    records: Sequence[Record]
    messages: Sequence[Outgoing]


class Together:
    """`run` is a task of the process whose serialisers these are, all of which store through `api`."""

    def __init__(self, api: JetStreamApi) -> None:
        self._api = api
        self._waiting: deque[Seat] = deque()
        self._came = Bell()
        self._ended: deque[tuple[Append, Outcome]] = deque()
        self._stored = Bell()

    def join(self, runs: Runs, event_log: JetStreamLog) -> None:
        """From now on this serialiser's turns are taken here, where nothing stands in the way of that."""
        runs.want_turn = Seat(self, runs, event_log).want

    def want(self, seat: Seat) -> None:
        self._waiting.append(seat)
        self._came.ring()

    async def run(self) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._answer)
            while True:
                await self._came.wait()
                await self._take_turn()
                while self._waiting:
                    await checkpoint()
                    await self._take_turn()

    async def _take_turn(self) -> None:
        turn, count = [], 0
        while self._waiting and count < MOST:
            seat = self._waiting.popleft()
            seat.called()
            if batch := seat.runs.next_together():
                turn.append((seat, batch))
                count += len(batch)
        if count > 1:  # whatever policies their runs have, new ones have the worker's
            turn[0][0].runs.registry.current.redactor.expect(expected(said.observation for _, batch in turn for said in batch))
        begun = [await _begun(seat, batch) for seat, batch in turn]
        if appends := [append for append in begun if append is not None]:
            await self._api.post([append.messages for append in appends], partial(self._hear, appends))

    def _hear(self, appends: Sequence[Append], outcomes: Sequence[Outcome]) -> None:
        self._ended.extend(zip(appends, outcomes, strict=True))
        self._stored.ring()

    async def _answer(self) -> None:
        while True:
            await self._stored.wait()
            while self._ended:
                append, outcome = self._ended.popleft()
                await _ended(append, outcome)


async def _begun(seat: Seat, inputs: Sequence[Said]) -> Append | None:
    """Decide, and begin the append of what was decided; None: there is none, or its own task makes it."""
    try:
        batch = seat.runs.decide_together(inputs)
        records = batch.records
        messages = await seat.log.begin(records) if records and not batch.dues else None
    except Exception as error:
        seat.runs.fail(error)
        return None
    if messages is not None:
        return Append(seat, batch, records, messages)
    if records or batch.dues:
        seat.runs.leave(batch)
    else:
        await seat.runs.stored_together(batch.settled, records)
    return None


async def _ended(append: Append, outcome: Outcome) -> None:
    seat, batch, records, _ = append
    if isinstance(outcome, LogError):
        seat.log.ended(records, None)
        seat.runs.leave(batch, doubtful=True)
    else:
        seat.log.ended(records, outcome)
        await seat.runs.stored_together(batch.settled, records)
