"""The notifier: follows the log and sees to it that people are told of every ticket, over every channel that wants it.

It reads records that are durable, so it never stands between an intent and its verdict, and a restart goes on where it stopped
(`Cursor`): every notice is said at least once, under the same id each time. The notices of one ticket over one channel are said
in order, those of different tickets side by side. After some failures the ticket itself says over which channel nobody could
be told. INVARIANT: whatever a channel does, the notifier lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup
from msgspec import Struct

from gated.core.policy import Policy
from gated.core.state import ThreadState
from gated.core.tickets import Groups, Ticket, open_ticket
from gated.events import (
    Body,
    NoticeReported,
    Record,
    Sender,
    ThreadId,
    TicketAnswered,
    TicketClosed,
    TicketId,
    TicketNoted,
    TicketOpened,
    UnsealError,
    unseal,
)
from gated.shell.log import LogError, ReadableLog, ThreadDamaged
from gated.shell.notify.notice import Notice, notice
from gated.shell.notify.settings import Channel, NotifySettings, Retry
from gated.shell.notify.ways import NotDelivered, Publish, Way, open_way

LOOK: Final = 2.0  # seconds between two looks at the log when nobody says that there is something new
RESTART: Final = 5.0  # seconds
DOUBLINGS: Final = 64  # of the time between two attempts: with more of them it is no longer a number
MOST_AT_ONCE: Final = 16  # notices of one channel that are under way

log = structlog.get_logger("gated.notify")

Look = Callable[[ThreadId], Awaitable[ThreadState]]
Report = Callable[[Body, NoticeReported], None]


class Counts(Struct):
    """Since the start, over all channels."""

    delivered: int = 0
    failed: int = 0  # attempts
    undelivered: int = 0  # notices of which a ticket says so
    given_up: int = 0


class Cursor:
    """The position up to which everything was said, in a file; written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> int | None:
        """None at the first start: what was before is not told of."""
        try:
            return int(msgspec.json.decode(self._path.read_bytes(), type=dict[str, int])["position"])
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, KeyError) as error:
            log.error("the notices' place in the log is lost, they go on from here", file=str(self._path), error=str(error))
            return None

    def save(self, position: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        new.write_bytes(msgspec.json.encode({"position": position}))
        new.replace(self._path)


class Job(NamedTuple):
    """One notice to say over one channel."""

    position: int
    body: Body
    ticket: TicketId
    event: str
    notice: Notice
    to: tuple[str, ...]


class Queue:
    """The notices of one ticket over one channel, said one after another."""

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.running = False


class Notifier:
    """`noticed` wakes it; `run` works until it is cancelled."""

    def __init__(
        self,
        settings: NotifySettings,
        event_log: ReadableLog,
        cursor: Cursor,
        look: Look,
        report: Report,
        publish: Publish,
        policy_of: Callable[[str], Policy | None],
    ) -> None:
        self.counts = Counts()
        self._settings, self._log, self._cursor = settings, event_log, cursor
        self._look, self._report, self._policy_of = look, report, policy_of
        self._publish = publish
        self._ways = self._open()
        self._slots = {channel.name: anyio.Semaphore(MOST_AT_ONCE) for channel in settings.channels}
        self._queues: dict[tuple[str, TicketId], Queue] = {}
        self._pending: dict[int, int] = {}  # position of a record -> its notices that are not said yet
        self._undelivered: set[tuple[str, TicketId]] = set()  # what tickets say of themselves
        self._read = self._saved = 0
        self._new = anyio.Event()

    def _open(self) -> dict[str, Way]:
        return {channel.name: open_way(channel.way, self._publish) for channel in self._settings.channels}

    def noticed(self) -> None:
        """There is something new in the log."""
        self._new.set()

    async def run_on(self) -> None:
        """Run until cancelled, whatever happens: people who are not told are no reason to stop deciding."""
        while True:
            try:
                await self.run()
            except* Exception as error:
                log.exception("the notifier failed, it begins again", error=str(error))
            await anyio.sleep(RESTART)

    async def run(self) -> None:
        self._ways = self._ways or self._open()
        self._queues.clear()
        self._pending.clear()
        saved, head = self._cursor.load(), await self._log.head()
        if saved is not None and saved > head:
            log.error("the notices' place is not of this log, they go on from its end", place=saved, end=head)
            saved = None
        self._read = self._saved = head if saved is None else saved
        if saved is None:
            self._cursor.save(self._read)
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    self._new = anyio.Event()
                    await self._follow(tasks)
                    with anyio.move_on_after(LOOK):
                        await self._new.wait()
        finally:
            with anyio.CancelScope(shield=True):
                for way in self._ways.values():
                    await way.close()
                self._ways = {}

    async def _follow(self, tasks: TaskGroup) -> None:
        """Read what is new and queue what is to be said of it."""
        try:
            async for position, record in self._log.read_all(self._read):
                for channel, job in await self._found(position, record):
                    self._queue(tasks, channel, job)
                self._read = position
            self._forget()
        except LogError as error:
            log.warning("cannot read the log for notices, trying again", error=str(error))

    async def _found(self, position: int, record: Record) -> list[tuple[Channel, Job]]:
        """What is to be said of a record; nothing where it cannot be read: nobody may answer such a thread's tickets."""
        try:
            return await self._jobs(position, record)
        except (ThreadDamaged, UnsealError) as error:
            log.error("there are no notices of a damaged record", thread=record.thread, error=str(error))
            return []

    async def _jobs(self, position: int, record: Record) -> list[tuple[Channel, Job]]:
        body = unseal(record)
        found: list[tuple[Channel, Job]] = []
        for index, (ticket_id, event) in enumerate(_told(body)):
            state = await self._look(body.thread)
            run = state.runs.get(body.run)
            ticket = None if run is None else run.tickets.get(ticket_id)
            if run is None or ticket is None:
                continue
            self._undelivered.update((name, ticket_id) for name in ticket.undelivered)
            said = _as_it_was(body, ticket, event)
            id_ = f"{ticket_id}-{body.seq}-{index}"
            made = notice(id_, event, body.at, body.thread, body.run, run.agent, said, self._settings.console)
            to = self._addresses(said, run.policy)
            for channel in self._settings.channels:
                if channel.wanted.takes(event, run.agent, made.tool):
                    found.append((channel, Job(position, body, ticket_id, event, made, to)))
        return found

    def _addresses(self, ticket: Ticket, policy: str) -> tuple[str, ...]:
        known = self._policy_of(policy)
        people = people_for(ticket, {} if known is None else known.approvals.groups)
        return tuple(self._settings.people[name] for name in people if name in self._settings.people)

    # --- saying it ---------------------------------------------------------------------------------------------------

    def _queue(self, tasks: TaskGroup, channel: Channel, job: Job) -> None:
        queue = self._queues.setdefault((channel.name, job.ticket), Queue())
        queue.jobs.append(job)
        self._pending[job.position] = self._pending.get(job.position, 0) + 1
        if not queue.running:
            queue.running = True
            tasks.start_soon(self._work, channel, job.ticket, queue)

    async def _work(self, channel: Channel, ticket: TicketId, queue: Queue) -> None:
        while queue.jobs:
            await self._say(channel, queue.jobs[0], queue)
            self._done(queue.jobs.popleft().position)
        del self._queues[(channel.name, ticket)]

    async def _say(self, channel: Channel, job: Job, queue: Queue) -> None:
        """Say it, however often it takes, unless it is no longer worth saying."""
        retry, started, failures = self._settings.retry, anyio.current_time(), 0
        while not _stale(job, queue):
            try:
                async with self._slots[channel.name]:
                    await self._send(channel, job)
            except NotDelivered as error:
                failures += 1
                self.counts.failed += 1
                wait = max(pause(retry, failures), error.after or 0.0)
                self._failed(channel, job, failures, str(error), wait)
                if anyio.current_time() - started + wait > retry.give_up:
                    self.counts.given_up += 1
                    log.error("a notice is given up", channel=channel.name, ticket=job.ticket, what=job.event)
                    return
                await anyio.sleep(wait)
            else:
                self.counts.delivered += 1
                if (channel.name, job.ticket) in self._undelivered:
                    self._undelivered.discard((channel.name, job.ticket))
                    self._tell(channel, job, "")
                log.info("notice delivered", channel=channel.name, ticket=job.ticket, what=job.event, attempts=failures + 1)
                return

    async def _send(self, channel: Channel, job: Job) -> None:
        try:
            await self._ways[channel.name].send(job.notice, job.to)
        except NotDelivered:
            raise
        except Exception as error:
            log.exception("a channel failed in a way that it should not", channel=channel.name)
            raise NotDelivered(type(error).__name__) from error

    def _failed(self, channel: Channel, job: Job, failures: int, why: str, wait: float) -> None:
        log.warning("notice not delivered", channel=channel.name, ticket=job.ticket, what=job.event, error=why, again_in=wait)
        if failures == self._settings.retry.undelivered_after:
            self.counts.undelivered += 1
            self._undelivered.add((channel.name, job.ticket))
            self._tell(channel, job, why)

    def _tell(self, channel: Channel, job: Job, error: str) -> None:
        self._report(job.body, NoticeReported(Sender("notifier", channel.name), job.ticket, channel.name, error))

    # --- how far -----------------------------------------------------------------------------------------------------

    def _done(self, position: int) -> None:
        self._pending[position] -= 1
        if not self._pending[position]:
            del self._pending[position]
        self._forget()

    def _forget(self) -> None:
        """Move the cursor to where everything before is said."""
        reached = min(self._pending, default=self._read + 1) - 1
        if reached <= self._saved:
            return
        try:
            self._cursor.save(reached)
            self._saved = reached
        except OSError as error:
            log.warning("cannot keep the notices' place in the log: a restart says some again", error=error.strerror)


def pause(retry: Retry, failures: int) -> float:
    """Seconds until the next attempt after so many failures in a row."""
    return min(retry.most, retry.first * 2.0 ** min(failures - 1, DOUBLINGS))


def _told(body: Body) -> list[tuple[TicketId, str]]:
    """What a record says of tickets, as events that people are told of."""
    found: list[tuple[TicketId, str]] = []
    for decision in body.decisions:
        match decision:
            case TicketOpened():
                found.append((decision.ticket, "opened"))
            case TicketNoted() if decision.channel is None:
                found.append((decision.ticket, decision.event))
            case TicketClosed():
                found.append((decision.ticket, "closed"))
            case TicketAnswered() if decision.state != "pending":
                found.append((decision.ticket, "closed"))
            case _:
                pass
    return found


def _as_it_was(body: Body, ticket: Ticket, event: str) -> Ticket:
    """A ticket that is told of as opened, with the arguments that a final one no longer has."""
    for decision in body.decisions:
        if event == "opened" and isinstance(decision, TicketOpened) and decision.ticket == ticket.id:
            return open_ticket(decision)
    return ticket


def _stale(job: Job, queue: Queue) -> bool:
    """An earlier notice of a ticket that has closed meanwhile: only the end is still worth saying."""
    return job.event != "closed" and any(later.event == "closed" for later in queue.jobs)


def people_for(ticket: Ticket, groups: Groups) -> Sequence[str]:
    """Who may answer a ticket, as far as its rules name them."""
    found: dict[str, None] = {}
    for rule in ticket.rules:
        named = [*rule.approvers, *(name for stage in rule.stages for name in stage)]
        named += rule.escalate_to if ticket.escalated else ()
        for name in named:
            kind, _, who = name.partition(":")
            people = sorted(groups.get(who, ())) if kind == "group" else [who]
            found.update(dict.fromkeys(person for person in people if person not in rule.excluded or rule.self_approval))
    return tuple(found)
