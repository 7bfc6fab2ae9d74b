"""The serialiser: inputs in, records appended, answers out, thread after thread, each thread strictly in order.

One task decides (the core is CPU-bound, so more would not help), one commits and publishes; between them stands a short
queue, so that the next inputs are decided while the last ones are being made durable. A few are decided at a time, so that the
disk need not wait for many; whatever queued meanwhile is committed in one transaction. What detectors must be asked about is
set aside, with the rest of its thread, until they have answered.
INVARIANT: nothing is published before its record is durable, and an input is acknowledged last. An append that fails is tried
again for ever: until then no verdict leaves, the queue fills, and no more inputs are pulled.
"""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import anyio
import structlog
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream
from msgspec import Struct
from msgspec.structs import replace

from gated import wire
from gated.core import decide as core
from gated.core import state as states
from gated.core.answers import due_times, next_due
from gated.core.fold import fold
from gated.core.policy import Policy
from gated.core.redaction.cover import revealed
from gated.core.redaction.vault import Unreadable, Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry, Repeat, Reply, Unscored
from gated.events import (
    Body,
    CallDecided,
    CallRefused,
    DeadlineReached,
    Decision,
    Observation,
    Record,
    RunId,
    Sender,
    ThreadId,
    unseal,
)
from gated.shell import faults
from gated.shell.bus import Input
from gated.shell.embedding import embed_all
from gated.shell.held import Held
from gated.shell.log import EventLog, LogConflict, LogUnavailable
from gated.shell.open_runs import OpenRuns, asks_of_open_runs
from gated.shell.open_tickets import OpenTickets
from gated.shell.policies import load_stored
from gated.shell.scoring import About, Scorer
from gated.shell.verdict_tokens import VerdictSigner, arguments

BATCH: Final = 32  # inputs that are decided in one go
QUEUE: Final = 16  # batches between deciding and committing, which takes all of them at once
CAPACITY: Final = 4096  # inputs that wait in memory
CACHE: Final = 10_000  # threads whose state stays in memory
SNAPSHOT: Final = 500  # records of a thread between two snapshots
ASKED: Final = 3  # rounds of asking detectors about one input: an admitted call of it may let another reach them
RETRY: Final = 0.25  # seconds between two attempts to append
LOST: Final = BATCH * (QUEUE + 2)  # the newest records that a crash may have kept from being published
TIMER: Final = Sender("timer", "daemon")
HEARS_ITSELF: Final = ("approver", "operator", "runner")  # is told why it was refused, on a subject of its own

Decide = Callable[[Registry, ThreadState, RunId, Observation, int, int], tuple[core.Step, Record | None]]
Message = wire.Outbound | wire.TicketMessage | None
Publish = Callable[[str, bytes, str | None], Awaitable[None]]

log = structlog.get_logger("gated.runs")


class Said(NamedTuple):
    """One thing that was said for a run, and where it came from."""

    thread: ThreadId
    run: RunId
    observation: Observation
    at: int
    position: int
    ack: str | None
    message_id: str | None
    asked: int = 0  # how often detectors were asked about it


class Settled(NamedTuple):
    """What became of an input: a record to append, replies that need none, or (`again`) a look-up in the log."""

    said: Said
    record: Record | None
    decisions: tuple[Decision, ...]
    replies: tuple[Reply, ...]
    agent: str  # whom it concerns; nobody where people spoke of a run that is not there
    policy: str
    again: bool = False


Due = tuple[ThreadId, RunId, int]


class Batch(NamedTuple):
    """What was decided in one go: settled inputs, and the runs' next deadlines (0: none)."""

    settled: list[Settled]
    dues: list[Due]


class Health(Struct):
    """What the daemon knows of itself; `why` is empty while all is well."""

    records: int = 0
    verdicts: int = 0
    waiting: int = 0
    threads: int = 0
    why: str = ""
    reload_failed: str = ""


class Outlet(NamedTuple):
    """The way out to the bus."""

    publish: Publish
    acknowledge: Callable[[str], Awaitable[None]]
    prefix: str = wire.PREFIX
    caught_up: Callable[[], Awaitable[None]] | None = None  # waits until all that is stored was taken
    tells_time: bool = False  # deadlines come as inputs: no timers here


class Runs:
    """The states of the threads in memory, and the two tasks that move them."""

    def __init__(
        self,
        event_log: EventLog,
        policy: Policy,
        outlet: Outlet,
        vault: Vault,
        scorer: Scorer | None = None,
        decide: Decide = core.record,
        signer: VerdictSigner | None = None,
    ) -> None:
        """Without a `scorer` what detectors must be asked about is decided without them: it is not let through.

        Without a `signer` verdicts have no token.
        """
        self.log, self.outlet, self.health = event_log, outlet, Health()
        self.open_tickets = OpenTickets()
        self.on_ticket: Callable[[], None] = lambda: None  # something was published of a ticket
        self.registry = Registry(policy, {policy.digest: policy}, vault)
        self._vault = vault
        self._scorer = scorer
        self._signer = signer
        self._held: Held[Said] = Held()
        self._asking: TaskGroup | None = None
        self._decide = decide
        self._states: OrderedDict[ThreadId, ThreadState] = OrderedDict()
        self._saved: dict[ThreadId, int] = {}
        self._inbox: list[Said] = []
        self._arrived = anyio.Event()
        self._room = anyio.Event()
        self._deadlines: list[tuple[int, ThreadId, RunId]] = []
        self._armed: dict[tuple[ThreadId, RunId], int] = {}
        self._sooner = anyio.Event()
        self._draining = False
        self._dues: dict[tuple[ThreadId, RunId], int] = {}  # of the batch that is being decided
        self._open_runs: OpenRuns | None = None  # counted from when a policy first caps them
        self.drained = anyio.Event()

    # --- what comes in -----------------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many more inputs may be pulled."""
        return 0 if self._draining else CAPACITY - len(self._inbox) - len(self._held)

    def take(self, item: Input) -> None:
        """An input off the bus. What is not of the contract's form has no run and is dropped with a line in the log."""
        faults.point("received")
        origin = wire.parse_in_subject(item.subject, self.outlet.prefix)
        if origin is None:
            log.warning("input on a subject outside the contract", subject=item.subject[:200])
            self.say(Said(ThreadId(""), RunId(""), DeadlineReached(TIMER, 0), 0, 0, item.ack, None))
            return
        observation = wire.read(origin, item.data, item.content_type, item.message_id)
        self.say(Said(origin.thread, origin.run, observation, item.at, item.position, item.ack, item.message_id))

    def say(self, said: Said) -> None:
        self._inbox.append(said)
        self._arrived.set()

    def bind(self, policy: Policy) -> None:
        """New runs are bound to this policy from now on."""
        self.registry = Registry(policy, {**self.registry.known, policy.digest: policy}, self._vault)

    # --- the tasks ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `drain`, then until everything that came in is settled."""
        send, receive = anyio.create_memory_object_stream[Batch](QUEUE)
        async with anyio.create_task_group() as tasks:
            self._asking = tasks
            tasks.start_soon(self._commit_all, receive)
            timers = anyio.CancelScope()
            if not self.outlet.tells_time:
                tasks.start_soon(self._keep_time, timers)
            async with send:
                while (batch := await self._next_batch()) is not None:
                    self._dues = {}
                    batch = await self._embedded(batch)
                    settled = [item for said in batch if (item := await self._settle(said)) is not None]
                    faults.point("decided")
                    await send.send(Batch(settled, [(*key, due) for key, due in self._dues.items()]))
            timers.cancel()
        self.drained.set()

    def drain(self) -> None:
        """Take nothing more and finish what is here."""
        self._draining = True
        self._arrived.set()

    async def _next_batch(self) -> list[Said] | None:
        while True:
            self._inbox[:0] = self._held.released()
            if self._inbox:
                break
            if self._draining and not self._held:
                return None
            self._arrived = anyio.Event()
            await self._arrived.wait()
        batch, self._inbox = self._inbox[:BATCH], self._inbox[BATCH:]
        self.health.waiting = len(self._inbox)
        return batch

    async def _embedded(self, batch: list[Said]) -> list[Said]:
        """The inputs with the embeddings that some policy's barriers read; made in a thread, so that others go on."""
        policies = self.registry.known.values()
        if not any(policy.embeds for policy in policies):
            return batch
        redactors = [policy.redactor for policy in policies]
        found = await anyio.to_thread.run_sync(embed_all, [said.observation for said in batch], redactors)
        return [said._replace(observation=observation) for said, observation in zip(batch, found, strict=True)]

    async def _settle(self, said: Said) -> Settled | None:
        """Decide one input on the state that those before it left; None where it is set aside."""
        if not said.thread:
            return Settled(said, None, (), (), "", "")
        if self._held and self._held.follows(said.thread, said):
            return None
        state = self._states.get(said.thread) or await self._load(said.thread)
        handled = 0 < said.position <= state.input
        observation = said.observation
        if asks_of_open_runs(self.registry, state, said.run, observation):
            observation = await self._with_open_runs(state, observation)
        made, sealed = self._decide(self.registry, state, said.run, observation, said.at, said.position)
        run = made.state.runs.get(said.run)
        by = said.observation.by
        agent = by.name if by.role == "agent" else ("" if run is None else run.agent)
        policy = self.registry.current.digest if run is None else run.policy
        if made.unscored and not handled and self._ask(said, made, agent, policy):
            self._keep(said.thread, state)
            return None
        if handled:
            self._keep(said.thread, state)
            replies = () if made.decisions else made.replies
            return Settled(said, None, (), replies, agent, policy, again=True)
        self._keep(said.thread, made.state)
        if self._open_runs is not None:
            self._open_runs.follow(state, made.state)
        dues = due_times(made.decisions)
        if isinstance(said.observation, DeadlineReached) and run is not None:
            self._armed.pop((said.thread, said.run), None)
            dues.append(next_due(run) or 0)
        if dues:
            self._remind(min(dues), said.thread, said.run)
        return Settled(said, sealed, made.decisions, made.replies, agent, policy)

    def _ask(self, said: Said, made: core.Step, agent: str, policy: str) -> bool:
        """Set an input aside and ask the detectors about it. False: there is nobody to ask, or they were asked enough."""
        bound, run = self.registry.known[policy], made.state.runs.get(said.run)
        if self._scorer is None or self._asking is None or bound.semantic is None or said.asked >= ASKED:
            return False
        task = None if run is None else run.task
        about = About(
            said.thread,
            said.run,
            agent,
            task,
            bound.semantic,
            made.state.semantic,
            lambda text: bound.redactor.text(text, self._vault),
        )
        self._held.hold(said.thread)
        self._asking.start_soon(self._score, self._scorer, said, about, made.unscored)
        return True

    async def _score(self, scorer: Scorer, said: Said, about: About, unscored: Sequence[Unscored]) -> None:
        observation = await scorer.answered(said.observation, about, unscored)
        self._held.answered(said.thread, said._replace(observation=observation, asked=said.asked + 1))
        self._arrived.set()

    async def _with_open_runs(self, state: ThreadState, observation: Observation) -> Observation:
        if self._open_runs is None:
            self._open_runs = await OpenRuns.of(self.log, self._states)
        return self._open_runs.told(state, observation)

    def _keep(self, thread: ThreadId, state: ThreadState) -> None:
        self._states[thread] = state
        self._states.move_to_end(thread)
        self.health.threads = len(self._states)

    async def _load(self, thread: ThreadId) -> ThreadState:
        """The state of a thread out of its snapshot and the records after it."""
        state = ThreadState(thread)
        snapshot = await self.log.load_snapshot(thread)
        if snapshot is not None:
            try:
                state = states.load(snapshot[1])
            except ValueError as error:
                log.warning("snapshot of another version, folding the records", thread=thread, error=str(error))
        self._saved[thread] = state.seq
        async for stored in self.log.read(thread, state.seq):
            body = unseal(stored)
            await self._know(body)
            state = fold(self.registry.known, state, body, stored.hash)
        for run_id, run in state.runs.items():
            await self._know_policy(run.policy)
            if self.outlet.tells_time and (due := next_due(run)):
                self._armed.setdefault((thread, run_id), due)
        return state

    async def _know(self, body: Body) -> None:
        await self._know_policy(body.policy)
        digest = getattr(body.observation, "policy", None)
        if isinstance(digest, str):
            await self._know_policy(digest)

    async def _know_policy(self, digest: str) -> None:
        if digest in self.registry.known:
            return
        text = await self.log.policy(digest)
        if text is not None:
            policy = load_stored(text, digest, lenient=True)
            self.registry = replace(self.registry, known={**self.registry.known, digest: policy})

    # --- committing and publishing -----------------------------------------------------------------------------------

    async def _commit_all(self, receive: MemoryObjectReceiveStream[Batch]) -> None:
        async with receive:
            async for first in receive:
                batch, dues = _joined([first, *_ready(receive)])
                await self._append([item.record for item in batch if item.record is not None], dues)
                faults.point("appended")
                for item in batch:
                    await self._answer(item)
                for item in batch:
                    if item.said.ack is not None:
                        await self.outlet.acknowledge(item.said.ack)
                faults.point("acknowledged")
                await self._snapshot_and_evict(batch)

    async def _append(self, records: list[Record], dues: list[Due]) -> None:
        """Make the records durable, however long it takes. Raises `LogConflict` where another writer was here."""
        while records or dues:
            try:
                await self.log.append_many(records, dues)
                self.health.records += len(records)
                self.health.why = ""
                return
            except LogUnavailable as error:
                if self.health.why != str(error):
                    log.error("cannot append: no verdict leaves until it works", error=str(error))
                self.health.why = str(error)
                await anyio.sleep(RETRY)
                records = await self._missing(records)

    async def _missing(self, records: list[Record]) -> list[Record]:
        """Those of the records that an append of unknown outcome did not make durable."""
        missing: list[Record] = []
        for record in records:
            try:
                stored = await self.log.get(record.thread, record.seq)
            except LogUnavailable:
                return records
            if stored is None:
                missing.append(record)
            elif stored.hash != record.hash:
                raise LogConflict(record.thread, record.seq, stored.seq)
        return missing

    async def _answer(self, item: Settled) -> None:
        if item.again and not _repeats(item.replies) and await self._answer_again(item):
            return
        if item.record is not None:
            await self._publish_record(item, item.record, item.decisions)
        for reply in item.replies:
            await self._reply(item, reply)
        faults.point("published")

    async def _publish_record(self, item: Settled, record: Record, decisions: Sequence[Decision]) -> None:
        said, prefix, seq, at = item.said, self.outlet.prefix, record.seq, record.at
        out = wire.out_subject(said.thread, said.run, item.agent, prefix)
        for decision in decisions:
            told = self._revealed(decision)
            message = self._signed(wire.to_agent(told, item.policy, seq, at), told, item, at)
            if isinstance(message, wire.Refusal) and said.observation.by.role in HEARS_ITSELF:
                await self._tell_sender(said, message)
            elif message is not None and item.agent:
                self.health.verdicts += isinstance(decision, CallDecided)
                await self.outlet.publish(out, wire.encode(message), said.message_id)
            notice = wire.to_approvers(decision, said.thread, said.run, at)
            if notice is not None:
                self.open_tickets.note(notice)
                self.on_ticket()
                subject = wire.tickets_subject(said.thread, said.run, prefix)
                await self.outlet.publish(subject, wire.encode(notice), said.message_id)
        await self.outlet.publish(wire.events_subject(said.thread, said.run, prefix), record.body, None)

    async def say_again(self) -> int:
        """Publish what timers decided just before a crash: no input comes again and asks for it. Returns how many records.

        A log that was sealed at its end was left in order, and all of it had been published.
        """
        head, notes = await self.log.head(), await self.log.checkpoints()
        if notes and notes[-1].position >= head:
            return 0
        told = 0
        async for _, record in self.log.read_all(max(0, head - LOST)):
            body = unseal(record)
            if isinstance(body.observation, DeadlineReached):
                run = (await self.look(body.thread)).runs.get(body.run)
                said = Said(body.thread, body.run, body.observation, body.at, 0, None, None)
                owner, policy = ("", body.policy) if run is None else (run.agent, run.policy)
                await self._publish_record(Settled(said, record, body.decisions, (), owner, policy), record, body.decisions)
                told += 1
        return told

    def _revealed(self, decision: Decision) -> Decision:
        """A verdict with the arguments that may run, as its agent must get them; without them there is no verdict."""
        if not isinstance(decision, CallDecided):
            return decision
        try:
            return revealed(decision, self._vault)
        except Unreadable as error:
            log.error("a verdict's arguments cannot be read", call=decision.call, error=str(error))
            reason = "the arguments of this verdict were sealed under a key that this gate does not have"
            return CallRefused(code="approvals.crashed", reason=reason, call=decision.call)

    def _signed(self, message: Message, decision: Decision, item: Settled, at: int) -> Message:
        """A verdict with its token, where this gate signs verdicts."""
        if self._signer is None or not isinstance(message, wire.Verdict) or not isinstance(decision, CallDecided):
            return message
        said, state = item.said, self._states.get(item.said.thread)
        run = None if state is None else state.runs.get(said.run)
        ticket = None if run is None or decision.ticket is None else run.tickets.get(decision.ticket)
        try:
            args = arguments(decision, said.observation, () if ticket is None else ticket.calls, self._vault)
        except Unreadable as error:
            log.error("a verdict has no token", call=decision.call, error=str(error))
            return message
        return replace(message, token=self._signer.token(decision, args, at, item.agent, (said.thread, said.run)))

    async def _reply(self, item: Settled, reply: Reply) -> None:
        """An answer that needs no record: a repeat is the recorded verdict, read from the log."""
        said = item.said
        message: Message
        if isinstance(reply, Repeat):
            stored = await self.log.get(said.thread, reply.seq)
            if stored is None:
                raise LogConflict(said.thread, reply.seq, 0)
            body = unseal(stored)
            decided = [d for d in body.decisions if isinstance(d, CallDecided) and d.call == reply.call][-1]
            said_so = self._revealed(decided)
            if isinstance(said_so, CallDecided):
                message = wire.verdict(said_so, item.policy, stored.seq, stored.at, replayed=True, settled=reply.settled)
                message = self._signed(message, said_so, item, stored.at)
            else:
                message = wire.to_agent(said_so, item.policy, stored.seq, stored.at)
        else:
            message = wire.to_agent(reply, item.policy, 0, said.at) or wire.to_approvers(reply, said.thread, said.run, said.at)
        if isinstance(message, wire.Refusal | wire.TicketMessage) and said.observation.by.role in HEARS_ITSELF:
            await self._tell_sender(said, message)
        elif message is not None and item.agent:
            out = wire.out_subject(said.thread, said.run, item.agent, self.outlet.prefix)
            await self.outlet.publish(out, wire.encode(message), said.message_id)

    async def _tell_sender(self, said: Said, message: Struct) -> None:
        """What only concerns the person or the runner who spoke, and not the run's agent."""
        subject = wire.reply_subject(said.thread, said.run, said.observation.by, self.outlet.prefix)
        await self.outlet.publish(subject, wire.encode(message), said.message_id)

    async def _answer_again(self, item: Settled) -> bool:
        """An input that was handled before: its record's answers, word for word. False where it needed no record."""
        said = item.said
        state = self._states.get(said.thread)
        seq = state.seq if state is not None else 0
        while seq > 0:
            stored = await self.log.get(said.thread, seq)
            body = None if stored is None else unseal(stored)
            if stored is not None and body is not None and body.input == said.position:
                await self._publish_record(item, stored, body.decisions)
                return True
            if body is not None and 0 < body.input < said.position:
                return False
            seq -= 1
        return False

    # --- what others may see -----------------------------------------------------------------------------------------

    async def look(self, thread: ThreadId) -> ThreadState:
        """The state of a thread, loaded where it is not in memory (and not kept then)."""
        return self._states.get(thread) or await self._load(thread)

    def states(self) -> list[ThreadState]:
        """The threads in memory."""
        return list(self._states.values())

    async def find_open_tickets(self) -> None:
        """Find the tickets that have been open since before the start."""
        while not self.open_tickets.complete:
            try:
                await self.open_tickets.search(self.look)
            except LogUnavailable as error:
                log.warning("cannot look for open tickets now", error=str(error))
                await anyio.sleep(RETRY)

    # --- memory ------------------------------------------------------------------------------------------------------

    async def _snapshot_and_evict(self, batch: Sequence[Settled]) -> None:
        for thread in {item.said.thread for item in batch if item.record is not None}:
            state = self._states.get(thread)
            if state is not None and state.seq - self._saved.get(thread, 0) >= SNAPSHOT:
                await self._snapshot(state)
        while len(self._states) > CACHE:
            thread, state = next(iter(self._states.items()))
            stored = await self.log.get(thread, state.seq)
            if stored is None or thread in self._held or any(said.thread == thread for said in self._inbox):
                self._states.move_to_end(thread)
                return
            await self._snapshot(state)
            self._states.pop(thread, None)
            self._saved.pop(thread, None)

    async def _snapshot(self, state: ThreadState) -> None:
        """A snapshot bounds the folding. One that ran ahead of what is durable would be a lie, so that is asked first."""
        try:
            if await self.log.get(state.thread, state.seq) is None:
                return
            await self.log.save_snapshot(state.thread, state.seq, states.dump(state))
            self._saved[state.thread] = state.seq
        except LogUnavailable as error:
            log.warning("cannot save a snapshot", thread=state.thread, error=str(error))

    # --- time --------------------------------------------------------------------------------------------------------

    def _remind(self, due: int, thread: ThreadId, run: RunId) -> None:
        """Wake the run at `due` unless it is woken sooner; one timer a run. 0: it has no deadline left."""
        if due and self._armed.get((thread, run), due + 1) <= due:
            return
        self._dues[(thread, run)] = due
        if due:
            self._armed[(thread, run)] = due
            if self.outlet.tells_time:
                return
            heapq.heappush(self._deadlines, (due, thread, run))
            if self._deadlines[0][0] == due:
                self._sooner.set()

    async def _keep_time(self, scope: anyio.CancelScope) -> None:
        """Tell a run when one of its deadlines has come; whether anything follows is the core's to say.

        INVARIANT: what was stored before a deadline is said before it, also where it lay in the stream meanwhile.
        """
        with scope:
            while True:
                now = time.time_ns() // 1000
                if self._deadlines and self._deadlines[0][0] <= now and self.outlet.caught_up is not None:
                    await self.outlet.caught_up()
                while self._deadlines and self._deadlines[0][0] <= now:
                    due, thread, run = heapq.heappop(self._deadlines)
                    if self._armed.get((thread, run)) == due:
                        self.say(Said(thread, run, DeadlineReached(TIMER, due), now, 0, None, None))
                self._sooner = anyio.Event()
                wait = (self._deadlines[0][0] - now) / 1e6 if self._deadlines else 3600.0
                with anyio.move_on_after(min(wait, 3600.0)):
                    await self._sooner.wait()

    async def arm(self) -> int:
        """Set the timers of all that is open in the log; called once at start. Returns how many."""
        armed = 0
        async for due, thread, run in self.log.open_deadlines():
            self._remind(due, thread, run)
            self.open_tickets.search_later(thread, run)
            armed += 1
        return armed


def _ready(receive: MemoryObjectReceiveStream[Batch]) -> Iterator[Batch]:
    """What queued meanwhile."""
    with suppress(anyio.WouldBlock, anyio.EndOfStream):
        while True:
            yield receive.receive_nowait()


def _joined(batches: Sequence[Batch]) -> Batch:
    dues = {(thread, run): due for batch in batches for thread, run, due in batch.dues}
    return Batch([item for batch in batches for item in batch.settled], [(*key, due) for key, due in dues.items()])


def _repeats(replies: Sequence[Reply]) -> bool:
    """Whether an input's answers are verdicts that the state knows the records of."""
    return bool(replies) and all(isinstance(reply, Repeat) for reply in replies)
