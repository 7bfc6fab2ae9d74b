"""The serialiser: inputs in, records appended, answers out, thread after thread, each thread strictly in order.

One task decides (the core is CPU-bound, so more would not help), one commits, one answers; between them stand short queues, so
that the next inputs are decided, and the next records made durable, while the last ones are answered. A few are decided at a
time, so that the disk need not wait for many; whatever queued meanwhile is committed in one transaction. Of many serialisers in
one process each takes its turns with the others (`gated/shell/together.py`), and does by itself only what must be waited for.
What becomes of an input is `gated/shell/deciding.py`.
INVARIANT: nothing is published before its record is durable, and an input is acknowledged last. An append or a look that fails
is tried again for ever: until then no verdict leaves, the queue fills, and no more inputs are pulled.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

import anyio
import structlog
from anyio.lowlevel import checkpoint

from gated import wire
from gated.core import decide as core
from gated.core.policy import Policy
from gated.core.redaction.cover import expected
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import CanIAsked, IntentsReceived, Record, ThreadId
from gated.shell import faults, misaddressed
from gated.shell.answering import Answering, is_plain
from gated.shell.aside import Aside
from gated.shell.bus import Ack, Input
from gated.shell.deciding import Decide, Deciding
from gated.shell.erasing import Subjects
from gated.shell.handover import Bell, Handover
from gated.shell.keyring import Keyring
from gated.shell.log import EventLog, LogUnavailable
from gated.shell.mailbox import CROWDED, Mailbox
from gated.shell.open_tickets import OpenTickets
from gated.shell.persisting import RETRY, Persisting
from gated.shell.places import Places
from gated.shell.said import Batch, Health, Outlet, Said, Settled, joined
from gated.shell.scoring import Scorer
from gated.shell.telemetry import Telemetry
from gated.shell.threads import Threads
from gated.shell.timers import Timers
from gated.shell.verdict_tokens import VerdictSigner

BATCH: Final = 32  # inputs that are decided in one go
MANY: Final = 6  # of them from which on it is quicker to store those of one thread as a batch than one after another
QUEUE: Final = 16  # batches between deciding and committing, which takes all of them at once
CAPACITY: Final = 4096  # inputs that wait in memory
ASIDE: Final = 16_384  # inputs that are set aside at the same time; those of other threads go on meanwhile
LOST: Final = 3 * BATCH * QUEUE  # the newest records that a crash may have kept from being published

OVERLOADED: Final = "ingress.overloaded"
OVERLOADED_WHY: Final = f"this agent has {CROWDED} messages waiting: nothing was decided, publish it again in a moment"

log = structlog.get_logger("gated.runs")


class Runs:
    """The three tasks that bring the threads forward: one decides, one commits, one answers."""

    def __init__(
        self,
        event_log: EventLog,
        policy: Policy,
        outlet: Outlet,
        vault: Vault,
        scorer: Scorer | None = None,
        decide: Decide = core.record,
        signer: VerdictSigner | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        """Without a `scorer` what detectors must be asked about is not let through, without a `signer` verdicts have no token,
        without a `keyring` nothing is decided under `store: encrypted`.
        """
        self.log, self.outlet = event_log, outlet
        self.timers = Timers(outlet, self.say)
        self.subjects = Subjects(keyring, vault)
        self.threads = Threads(event_log, policy, self.subjects.vault, self.timers.loaded)
        self.health = Health(damaged=self.threads.damages)
        self._persisting = Persisting(event_log, self.health)
        self.answering = Answering(event_log, outlet, self.threads, self.health, self.subjects.reading, signer)
        self.telemetry = Telemetry(lambda agent: agent in self.threads.registry.current.agents)
        self._aside = Aside(vault, scorer, self._ring)
        parts = self.threads, self.subjects, self.timers, self._aside, self._persisting
        self._deciding = Deciding(decide, event_log, *parts)
        self._mailbox: Mailbox[Said] = Mailbox(attrgetter("thread"), _agent_of)
        self._refused: list[tuple[Said, IntentsReceived | CanIAsked]] = []  # asked by agents that have too much waiting
        self._arrived, self._overloaded = Bell(), Bell()
        self._draining = False
        self.want_turn: Callable[[], None] | None = None  # to decide together with others, where there are some
        self._turning = False  # inputs of it are decided, stored or answered with those of others
        self._for_run = False  # and what waits is not for their next turn, but for `run`
        self._left: list[Callable[[], Awaitable[None]]] = []  # what turns left for `run` to do
        self.drained = anyio.Event()
        self.over = False  # nothing is to be done with what is in memory any more

    # --- what comes in -----------------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many more inputs may be pulled."""
        waiting = len(self._mailbox) + len(self._refused)
        return 0 if self._draining else min(CAPACITY - waiting, ASIDE - len(self._aside))

    def take(self, item: Input) -> None:
        """An input off the bus. What is not of the contract's form has no run, and is refused without one."""
        origin = wire.parse_in_subject(item.subject, self.outlet.prefix)
        if origin is None:
            self.say(misaddressed.misaddressed(item, self.outlet.prefix))
            return
        self.hear(origin, item)

    def hear(self, origin: wire.Origin, item: Input) -> None:
        """An input of which it is known who says it, and for which run."""
        faults.point("received")
        thread, run, by = origin
        observation = wire.read(origin, item.data, item.content_type, item.message_id, self.threads.limits)
        said = Said(thread, run, observation, item.at, item.position, item.ack, item.message_id)
        if type(observation) is IntentsReceived or type(observation) is CanIAsked:
            if self._mailbox.crowded(by.name):  # only agents ask
                self._refused.append((said, observation))
                self._overloaded.ring()
                return
        self.say(said)

    def say(self, said: Said) -> None:
        self._mailbox.put(said)
        self._ring()

    def _ring(self) -> None:
        if self.want_turn is None or self._draining or self._aside or not self._arrived.awaited:
            self._arrived.ring()
        elif not self._turning:
            self.want_turn()

    async def _refuse_overload(self) -> None:
        """Answer at once those who ask too much. Nothing is decided or recorded: the same message may be published again."""
        while True:
            await self._overloaded.wait()
            refused, self._refused = self._refused, []
            await self.answering.refuse(refused, OVERLOADED, OVERLOADED_WHY)
            await self.outlet.acknowledge([said.ack for said, _ in refused if said.ack is not None])
            self.health.overloaded += len(refused)

    # --- the tasks ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `drain`, then until everything that came in is settled."""
        try:
            await self._run(Handover(QUEUE), Handover(1))
        finally:
            self.over = True
        self.drained.set()

    async def _run(self, decided: Handover[Batch], durable: Handover[list[Settled]]) -> None:
        async with anyio.create_task_group() as tasks:
            self._aside.tasks = tasks
            tasks.start_soon(self._commit_all, decided, durable)
            tasks.start_soon(self._answer_all, durable)
            timers = anyio.CancelScope()
            tasks.start_soon(self.timers.run, timers)
            beside = [anyio.CancelScope(), anyio.CancelScope()]
            tasks.start_soon(_within, beside[0], self._refuse_overload)
            tasks.start_soon(_within, beside[1], self.threads.keep_snapshots)
            while (batch := await self._next_batch()) is not None:
                settled, deciding = list[Settled](), self._deciding
                batch = await deciding.begin(batch)
                if len(batch) > 1:
                    self.registry.current.redactor.expect(expected(said.observation for said in batch))
                for said in batch:
                    if not deciding.at_once(said, settled):
                        await self._persisting.do(deciding.settle, said, settled)
                faults.point("decided")
                made = Batch(settled, self.timers.changes())
                if self.want_turn is None:
                    await decided.put(made)
                else:
                    await self._commit(made)
                    await self._answer(settled)
                if self._mailbox:
                    await checkpoint()  # others are waiting too, not least for this batch
            decided.close()
            timers.cancel()
            for scope in beside:
                scope.cancel()

    def drain(self) -> None:
        """Take nothing more and finish what is here."""
        self._draining = True
        self._arrived.ring()

    async def _next_batch(self) -> list[Said] | None:
        while True:
            while self._left:
                await self._left.pop(0)()
            if not self._turning:
                if self._aside:
                    self._mailbox.put_first(self._aside.released())
                if self._mailbox:
                    return self._taken()
                if self._draining and not self._aside:
                    return None
            await self._arrived.wait()

    def _taken(self) -> list[Said]:
        self._for_run = False
        batch = self._mailbox.take(BATCH)
        self.health.waiting = len(self._mailbox)
        return batch

    # --- turns with others -------------------------------------------------------------------------------------------

    def next_together(self) -> list[Said]:
        """The inputs of the turn that begins. Nothing: what waits is for `run`."""
        if self.over or not self._arrived.awaited:
            return []
        if self._draining or self._deciding.fetches:
            self._arrived.ring()
            return []
        self._turning = True
        return self._taken()

    def decide_together(self, batch: Sequence[Said]) -> Batch:
        """Decide the inputs of a turn, up to the first for which something must be fetched: from there on they are for `run`.

        Of a thread one, since its records are stored one by one: others wait for the next turn, and many are for `run` too.
        """
        settled, threads = list[Settled](), set[ThreadId]()
        for number, said in enumerate(batch):
            again = said.thread in threads
            if again or not self._deciding.at_once(said, settled):
                self._mailbox.put_first(batch[number:])
                self._for_run = not again or len(self._mailbox) >= MANY
                break
            threads.add(said.thread)
        faults.point("decided")
        return Batch(settled, self.timers.changes())

    def leave(self, batch: Batch, *, doubtful: bool = False) -> None:
        """End a turn whose records `run` is to make durable; `doubtful`: it is not known which of them are."""
        self._left += [partial(self._commit, batch, doubtful), partial(self._answer, batch.settled)]
        self._end_turn()

    def fail(self, error: Exception) -> None:
        """End a turn that cannot go on, and `run` with it."""
        self._left.append(partial(_raise, error))
        self._end_turn()

    async def stored_together(self, settled: list[Settled], records: Sequence[Record]) -> None:
        """Answer what a turn has made durable, and end it. What must be waited for is for `run`, and so is what fails."""
        self._durable(records)
        if self.over:
            return
        try:
            if (self.places is not None and self.places.owes) or not all(map(is_plain, settled)):
                self._left.append(partial(self._answer, settled))
            elif self.threads.unsettled(changed := await self._say(settled)):
                self._left.append(partial(self.threads.settle_down, changed, self._is_busy))
        except Exception as error:
            self.fail(error)
            return
        self._end_turn()

    def _end_turn(self) -> None:
        self._turning = False
        if self._left or self._for_run:
            self._arrived.ring()
        elif self._mailbox or self._aside or self._draining:
            self._ring()

    def _is_busy(self, thread: ThreadId) -> bool:
        return thread in self._aside or thread in self._mailbox

    # --- committing --------------------------------------------------------------------------------------------------

    async def _commit_all(self, decided: Handover[Batch], durable: Handover[list[Settled]]) -> None:
        while batches := await decided.take_all():
            batch = joined(batches)
            await self._commit(batch)
            if decided.waits or not durable.idle:
                await durable.put(batch.settled)
            else:  # nothing to do meanwhile: no other task need be woken
                await self._answer(batch.settled)
        durable.close()

    async def _commit(self, batch: Batch, doubtful: bool = False) -> None:
        await self._persisting.append(batch.records, batch.dues, doubtful)
        self._durable(batch.records)

    def _durable(self, records: Sequence[Record]) -> None:
        self.health.records += len(records)
        faults.point("appended")
        if self.places is not None:
            self.places.stored(records)

    async def _answer_all(self, durable: Handover[list[Settled]]) -> None:
        while batches := await durable.take_all():
            for batch in batches:
                await self._answer(batch)

    async def _answer(self, batch: list[Settled]) -> None:
        if self.places is not None and self.places.owes:
            await self.places.given_back()  # so that who is told that a run ended may open the next
        changed = await self._say(batch)
        if self.threads.unsettled(changed):
            await self.threads.settle_down(changed, self._is_busy)
            self.health.threads = len(self.threads.states)

    async def _say(self, batch: list[Settled]) -> set[ThreadId]:
        """Answer, then acknowledge. Returns the threads that have grown."""
        answering, heard = self.answering, self.telemetry.heard
        for item in batch:
            if not answering.answered(item):
                await self._persisting.do(answering.answer, item)
        await answering.say()
        acks, changed, now = list[Ack](), set[ThreadId](), time.time()
        for item in batch:
            faults.point("published")
            said, record = item.said, item.record
            if record is not None:
                heard(record, item.decisions, item.agent, now - said.at / 1e6 if said.position else None)
                changed.add(said.thread)
            if said.ack is not None:
                acks.append(said.ack)
        await self.outlet.acknowledge(acks)
        faults.point("acknowledged")
        self.health.threads = len(self.threads.states)
        return changed

    # --- what others may see -----------------------------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        return self.threads.registry

    @property
    def places(self) -> Places | None:
        """What counts open runs, in a cluster."""
        return self._deciding.places

    def count_with(self, places: Places) -> None:
        """Have open runs counted there from now on."""
        self._deciding.places = places

    @property
    def open_tickets(self) -> OpenTickets:
        return self.answering.open_tickets

    async def look(self, thread: ThreadId) -> ThreadState:
        """The state of a thread, whether in memory or not."""
        return await self.threads.look(thread)

    async def find_open_tickets(self) -> None:
        """Find the tickets that have been open since before the start."""
        while not self.open_tickets.complete:
            try:
                await self.open_tickets.search(self.look)
            except LogUnavailable as error:
                log.warning("cannot look for open tickets now", error=str(error))
                await anyio.sleep(RETRY)

    async def arm(self) -> int:
        """Once at start: say again what a crash may have kept from being said, and set the timers of all that is open.

        Returns how many timers.
        """
        await self.answering.say_again(LOST)
        for said in await self.subjects.untold(self.log, self.look):
            self.say(said)
        armed = 0
        async for due, thread, run in self.log.open_deadlines():
            self.timers.remind(due, thread, run)
            self.open_tickets.search_later(thread, run)
            armed += 1
        return armed


def _agent_of(said: Said) -> str:
    """Whose turn an input takes: its agent's; people, runners and timers have one together."""
    by = said.observation.by
    return by.name if by.role == "agent" else ""


async def _raise(error: Exception) -> None:
    raise error


async def _within(scope: anyio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await work()
