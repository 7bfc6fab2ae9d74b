"""The serialiser: inputs in, records appended, answers out, thread after thread, each thread strictly in order.

One task decides (the core is CPU-bound, so more would not help), one commits, one answers; between them stand short queues, so
that the next inputs are decided, and the next records made durable, while the last ones are answered. A few are decided at a
time, so that the disk need not wait for many; whatever queued meanwhile is committed in one transaction. Of many serialisers in
one process each does all three itself while no more waits: what came meanwhile is decided together, and no other task is woken.
What detectors must be asked about, or a long thread that must be read first, is set aside with the rest of its thread.
INVARIANT: nothing is published before its record is durable, and an input is acknowledged last. An append or a look that fails
is tried again for ever: until then no verdict leaves, the queue fills, and no more inputs are pulled.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Final

import anyio
import structlog
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from gated import wire
from gated.core import decide as core
from gated.core.answers import due_times, next_due
from gated.core.policy import Policy
from gated.core.redaction.cover import expected
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    CanIAsked,
    DeadlineReached,
    ErasureRequested,
    IntentsReceived,
    Observation,
    PolicyBound,
    Record,
    RunId,
    ThreadId,
)
from gated.shell import damaged, faults, misaddressed
from gated.shell.answering import Answering
from gated.shell.aside import Aside
from gated.shell.bus import Ack, Input
from gated.shell.embedding import embed_all
from gated.shell.erasing import Subjects
from gated.shell.handover import Bell, Handover
from gated.shell.keyring import Keyring
from gated.shell.log import EventLog, LogUnavailable
from gated.shell.mailbox import CROWDED, Mailbox
from gated.shell.open_runs import OpenRunsWhenAsked, asks_of_open_runs
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
QUEUE: Final = 16  # batches between deciding and committing, which takes all of them at once
CAPACITY: Final = 4096  # inputs that wait in memory
ASIDE: Final = 16_384  # inputs that are set aside at the same time; those of other threads go on meanwhile
LOST: Final = 3 * BATCH * QUEUE  # the newest records that a crash may have kept from being published

FETCHED_FOR: Final = frozenset({PolicyBound, ErasureRequested})

Decide = Callable[[Registry, ThreadState, RunId, Observation, int, int], tuple[core.Step, Record | None]]

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
        self._decide = decide
        self._mailbox: Mailbox[Said] = Mailbox(attrgetter("thread"), _agent_of)
        self._refused: list[tuple[Said, IntentsReceived | CanIAsked]] = []  # asked by agents that have too much waiting
        self._arrived, self._overloaded = Bell(), Bell()
        self._embedded_for: Mapping[str, Policy] = {}  # the policies that the newest inputs have embeddings for
        self._embeds = False  # one of them asks for some
        self._draining = False
        self._open_runs = OpenRunsWhenAsked(event_log, self.threads.states)
        self.places: Places | None = None  # what counts open runs instead, in a cluster
        self.overlaps = True  # decides the next inputs while the last records are made durable, also where no more wait yet
        self.drained = anyio.Event()

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
        self._arrived.ring()

    def _ring(self) -> None:
        self._arrived.ring()

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
        decided: Handover[Batch] = Handover(QUEUE)
        durable: Handover[list[Settled]] = Handover(1)
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
                registry, settled = self.threads.registry, list[Settled]()
                if registry.known is not self._embedded_for or self._embeds:
                    self._embedded_for, self._embeds = registry.known, any(each.embeds for each in registry.known.values())
                    batch = await self._embedded(batch)
                if len(batch) > 1:
                    registry.current.redactor.expect(expected(said.observation for said in batch))
                for said in batch:
                    if not self._at_once(said, settled) and (item := await self._persisting.do(self._settle, said)) is not None:
                        settled.append(item)
                faults.point("decided")
                made = Batch(settled, self.timers.changes())
                if self.overlaps or self._mailbox or not (decided.idle and durable.idle):
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
        self.drained.set()

    def drain(self) -> None:
        """Take nothing more and finish what is here."""
        self._draining = True
        self._arrived.ring()

    async def _next_batch(self) -> list[Said] | None:
        while True:
            if self._aside:
                self._mailbox.put_first(self._aside.released())
            if self._mailbox:
                break
            if self._draining and not self._aside:
                return None
            await self._arrived.wait()
        batch = self._mailbox.take(BATCH)
        self.health.waiting = len(self._mailbox)
        return batch

    async def _embedded(self, batch: list[Said]) -> list[Said]:
        """The inputs with the embeddings that some policy's barriers read; made in a thread, so that others go on."""
        policies = self.registry.known.values()
        if not any(policy.embeds for policy in policies):
            return batch
        redactors = [policy.redactor for policy in policies]
        found = await anyio.to_thread.run_sync(embed_all, [said.observation for said in batch], redactors)
        return [replace(said, observation=observation) for said, observation in zip(batch, found, strict=True)]

    def _at_once(self, said: Said, settled: list[Settled]) -> bool:
        """Decide an input for which nothing must be fetched, as is usual. False: for this something must."""
        state, registry, observation = self.threads.states.get(said.thread), self.threads.registry, said.observation
        if state is None or self._aside or registry.known is not self._embedded_for or type(observation) in FETCHED_FOR:
            return False
        if self.places is None and said.run not in state.runs.open and asks_of_open_runs(registry, state, said.run, observation):
            return False
        made = self.subjects.keyed_at_once(self._decide, registry, state, said.run, observation, said.at, said.position)
        if made is None:
            return False
        item = self._settled(said, state, registry, *made)
        if item is not None:
            settled.append(item)
        return True

    async def _settle(self, said: Said) -> Settled | None:
        """Decide one input on the state that those before it left; None where it is set aside."""
        if not said.thread or not said.run:
            return misaddressed.settled(said)
        if self._aside and self._aside.follows(said.thread, said):
            return None
        state = self.threads.states.get(said.thread)
        if state is None:
            part = await self.threads.begin(said.thread)
            if part is not None and not part.whole:
                self._aside.until(said, partial(self._persisting.do, self.threads.end, part))
                return None
            state = None if part is None else part.state
        if state is None:
            if type(said.observation) is DeadlineReached:
                self.timers.postpone(said.thread, said.run)
            return damaged.settled(said)
        if self.registry.known is not self._embedded_for:  # the thread came with a policy that nobody had asked for
            (said,) = await self._embedded([said])
        handled = 0 < said.position <= state.input
        observation = said.observation
        if type(observation) is PolicyBound:
            observation = await self.threads.with_policy(observation)
        elif type(observation) is ErasureRequested and not handled:
            observation = await self.subjects.erased(self.registry, state.runs.get(said.run), observation)
        elif self.places is None and asks_of_open_runs(self.registry, state, said.run, observation):
            observation = await self._open_runs.told(state, observation)
        said = said if observation is said.observation else replace(said, observation=observation)
        this = (registry := self.registry), state, said.run, observation, said.at, said.position
        made, sealed = await self.subjects.keyed(self._decide, *this)
        return self._settled(said, state, registry, made, sealed)

    def _settled(
        self, said: Said, state: ThreadState, registry: Registry, made: core.Step, sealed: Record | None
    ) -> Settled | None:
        """What becomes of an input that was decided on a state; None where it is set aside."""
        runs, by = made.state.runs, said.observation.by
        run = runs.open.get(said.run) or runs.get(said.run)
        agent = by.name if by.role == "agent" else ("" if run is None else run.agent)
        policy = registry.current.digest if run is None else run.policy
        if 0 < said.position <= state.input:  # it was handled before
            self.threads.keep(state)
            replies = () if made.decisions else made.replies
            return Settled(said, None, (), replies, agent, policy, again=True)
        if (made.unfollowed or made.unscored) and self._aside.set_aside(said, made, registry.known[policy]):
            self.threads.keep(state)
            return None
        if self.places is not None and self.places.needed(registry, state, said, run):
            self._aside.find_place(said, state, self.places)
            self.threads.keep(state)
            return None
        self.threads.keep(made.state)
        if self.places is None:
            self._open_runs.follow(state, made.state)
        else:
            self.places.follow(state, made.state, said)
        dues = due_times(made.decisions)
        if type(said.observation) is DeadlineReached and run is not None:
            self.timers.woke(said.thread, said.run)
            dues.append(next_due(run) or 0)
        if dues:
            self.timers.remind(min(dues), said.thread, said.run)
        return Settled(said, sealed, made.decisions, made.replies, agent, policy)

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

    async def _commit(self, batch: Batch) -> None:
        records = [item.record for item in batch.settled if item.record is not None]
        await self._persisting.append(records, batch.dues)
        faults.point("appended")
        if self.places is not None:
            self.places.stored(records)

    async def _answer_all(self, durable: Handover[list[Settled]]) -> None:
        while batches := await durable.take_all():
            for batch in batches:
                await self._answer(batch)

    async def _answer(self, batch: list[Settled]) -> None:
        answering, heard = self.answering, self.telemetry.heard
        if self.places is not None and self.places.owes:
            await self.places.given_back()  # so that who is told that a run ended may open the next
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
        if self.threads.unsettled(changed):
            await self.threads.settle_down(changed, self._is_busy)
        self.health.threads = len(self.threads.states)

    # --- what others may see -----------------------------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        return self.threads.registry

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


async def _within(scope: anyio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await work()
