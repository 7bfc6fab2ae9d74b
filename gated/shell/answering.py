"""What leaves the gate: verdicts to agents, refusals to whoever spoke, tickets to people, records to auditors.

Lines are collected, and go out together with `say`, as most of them would have anyway.
INVARIANT: what is said here is durable; what comes again is answered with the words of its record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from gated import wire
from gated.core.redaction.cover import revealed
from gated.core.redaction.vault import Unreadable, Vault
from gated.core.turn import Repeat, Reply
from gated.events import (
    CallDecided,
    CallRefused,
    CanIAsked,
    DeadlineReached,
    Decision,
    IntentsReceived,
    Record,
    TicketOpened,
)
from gated.shell.damaged import DAMAGED, WHY, opened, settled
from gated.shell.log import EventLog, ThreadDamaged
from gated.shell.open_tickets import OpenTickets
from gated.shell.said import Health, Outlet, Said, Settled
from gated.shell.threads import Threads
from gated.shell.verdict_tokens import VerdictSigner, arguments
from gated.ticket_views import opened_view

MUCH: Final = 262_144  # bytes of lines that are collected
ARCHIVED: Final = "lifecycle.run_completed"
IN_AN_ARCHIVE: Final = "the run has ended, and the verdict on this call is in an archive of the log: the call may not run"
HEARS_ITSELF: Final = ("approver", "operator", "runner")  # is told why it was refused, on a subject of its own

Message = wire.Outbound | wire.TicketMessage | None

log = structlog.get_logger("gated.runs")


class Answering:
    """Without a `signer` verdicts have no token."""

    def __init__(
        self, event_log: EventLog, outlet: Outlet, threads: Threads, health: Health, vault: Vault, signer: VerdictSigner | None
    ) -> None:
        self._log, self._outlet, self._threads, self._health = event_log, outlet, threads, health
        self._vault, self._signer = vault, signer
        self.open_tickets = OpenTickets()
        self.on_ticket: Callable[[], None] = lambda: None  # something was published of a ticket
        self._lines: list[bytes] = []
        self._size = 0

    def answered(self, item: Settled) -> bool:
        """Answer what needs nothing of the log. False: this does, `answer` does it."""
        if item.record is None or item.again or item.replies or self._size > MUCH:
            return False
        self._tell(item, item.record, item.decisions)
        return True

    async def answer(self, item: Settled) -> None:
        if self._size > MUCH:
            await self.say()
        if item.again and not _repeats(item.replies) and await self._answered_again(item):
            return
        if item.record is not None:
            self._tell(item, item.record, item.decisions)
        for reply in item.replies:
            await self._reply(item, reply)

    async def say(self) -> None:
        """Send what was answered since the last time."""
        lines, self._lines, self._size = b"".join(self._lines), [], 0
        if lines:
            await self._outlet.send(lines)

    def _put(self, subject: str, data: bytes, re: str | None) -> bool:
        """Say something with the next `say`. False: it is too large for the bus."""
        line = self._outlet.line(subject, data, re)
        self._lines.append(line)
        self._size += len(line)
        return line != b""

    async def refuse(self, refused: Sequence[tuple[Said, IntentsReceived | CanIAsked]], code: str, reason: str) -> None:
        """Answer agents' calls, or their questions, at once: nothing is decided, and nothing stands in the log."""
        lines: list[bytes] = []
        for said, asked in refused:
            out = wire.out_subject(said.thread, said.run, said.observation.by.name, self._outlet.prefix)
            for call in [wanted.id for wanted in asked.calls] if isinstance(asked, IntentsReceived) else [None]:
                refusal = wire.Refusal(code=code, reason=reason, call=call)
                lines.append(self._outlet.line(out, wire.encode(refusal), said.message_id))
        await self._outlet.send(b"".join(lines))

    def _tell(self, item: Settled, record: Record, decisions: Sequence[Decision]) -> None:
        """Say what a record decided, and the record."""
        said, prefix, seq, at = item.said, self._outlet.prefix, record.seq, record.at
        for decision in decisions:
            told = self._revealed(decision) if type(decision) is CallDecided and decision.sealed is not None else decision
            message: Message = wire.to_agent(told, item.policy, seq, at)
            if self._signer is not None:
                message = self._signed(self._signer, message, told, item, at)
            if type(message) is wire.Refusal and said.observation.by.role in HEARS_ITSELF:
                self._tell_sender(said, message)
            elif message is not None and item.agent:
                self._health.verdicts += type(decision) is CallDecided
                self._put(wire.out_subject(said.thread, said.run, item.agent, prefix), wire.encode(message), said.message_id)
            if type(decision) in wire.OF_TICKETS:
                self._tell_approvers(item, decision, at, decisions)
        events = wire.events_subject(said.thread, said.run, prefix)
        if not self._put(events, wire.record_event(record), None):
            self._put(events, wire.stub(record), None)

    def _tell_approvers(self, item: Settled, decision: Decision, at: int, together: Sequence[Decision]) -> None:
        said = item.said
        notice = self._to_approvers(decision, item, at, together)
        if notice is not None:
            self.open_tickets.note(notice)
            self.on_ticket()
            self._put(wire.tickets_subject(said.thread, said.run, self._outlet.prefix), wire.encode(notice), said.message_id)

    def _to_approvers(
        self, decision: Decision | Reply, item: Settled, at: int, together: Sequence[Decision] = ()
    ) -> wire.TicketMessage | None:
        said, opened = item.said, None
        if isinstance(decision, TicketOpened):
            opened = opened_view(said.thread, said.run, item.agent, item.policy, decision)
        return wire.to_approvers(decision, said.thread, said.run, at, opened, together)

    async def say_again(self, newest: int) -> int:
        """Publish what timers decided just before a crash: no input comes again and asks for it. Returns how many records.

        `newest` records are looked at. A log that was sealed at its end was left in order, and all of it had been published.
        """
        head, notes = await self._log.head(), await self._log.checkpoints()
        if notes and notes[-1].position >= head:
            return 0
        told = 0
        async for _, record in self._log.read_all(max(0, head - newest)):
            try:
                told += await self._say_timers_word(record)
            except ThreadDamaged as error:
                log.error("what a timer decided cannot be said again", thread=record.thread, error=str(error))
            if self._size > MUCH:
                await self.say()
        await self.say()
        return told

    async def _say_timers_word(self, record: Record) -> bool:
        """Publish a record again if a timer made it. Raises `ThreadDamaged`."""
        body = opened(record)
        if not isinstance(body.observation, DeadlineReached):
            return False
        run = (await self._threads.look(body.thread)).runs.get(body.run)
        said = Said(body.thread, body.run, body.observation, body.at, 0, None, None)
        owner, policy = ("", body.policy) if run is None else (run.agent, run.policy)
        self._tell(Settled(said, record, body.decisions, (), owner, policy), record, body.decisions)
        return True

    def _revealed(self, decision: CallDecided) -> CallDecided | CallRefused:
        """A verdict with the arguments that may run, as its agent must get them; without them there is no verdict."""
        try:
            return revealed(decision, self._vault)
        except Unreadable as error:
            log.error("a verdict's arguments cannot be read", call=decision.call, error=str(error))
            reason = f"the arguments of this verdict cannot be given again: they were {error}"
            return CallRefused(code="approvals.crashed", reason=reason, call=decision.call)

    def _signed(self, signer: VerdictSigner, message: Message, decision: Decision, item: Settled, at: int) -> Message:
        """A verdict with its token."""
        if not isinstance(message, wire.Verdict) or not isinstance(decision, CallDecided):
            return message
        said, state = item.said, self._threads.states.get(item.said.thread)
        run = None if state is None else state.runs.get(said.run)
        ticket = None if run is None or decision.ticket is None else run.tickets.get(decision.ticket)
        try:
            args = arguments(decision, said.observation, () if ticket is None else ticket.calls, self._vault)
        except Unreadable as error:
            log.error("a verdict has no token", call=decision.call, error=str(error))
            return message
        return replace(message, token=signer.token(decision, args, at, item.agent, (said.thread, said.run)))

    async def _reply(self, item: Settled, reply: Reply) -> None:
        """An answer that needs no record: a repeat is the recorded verdict, read from the log."""
        said = item.said
        message: Message
        if isinstance(reply, Repeat):
            message = await self._repeated(item, reply)
        else:
            message = wire.to_agent(reply, item.policy, 0, said.at) or self._to_approvers(reply, item, said.at)
        if isinstance(message, wire.Refusal | wire.TicketMessage) and said.observation.by.role in HEARS_ITSELF:
            self._tell_sender(said, message)
        elif message is not None and item.agent:
            out = wire.out_subject(said.thread, said.run, item.agent, self._outlet.prefix)
            self._put(out, wire.encode(message), said.message_id)

    async def _repeated(self, item: Settled, repeat: Repeat) -> Message:
        """The recorded verdict; where its record is damaged, or in an archive, the call may not run."""
        thread = item.said.thread
        stored = await self._log.get(thread, repeat.seq)
        if stored is None:
            return wire.Refusal(code=ARCHIVED, reason=IN_AN_ARCHIVE, call=repeat.call)
        try:
            decisions = opened(stored).decisions
        except ThreadDamaged as error:
            log.error("a verdict cannot be repeated", call=repeat.call, error=str(error))
            return wire.Refusal(code=DAMAGED, reason=WHY, call=repeat.call)
        said_so = self._revealed([d for d in decisions if isinstance(d, CallDecided) and d.call == repeat.call][-1])
        if not isinstance(said_so, CallDecided):
            return wire.to_agent(said_so, repeat.policy, stored.seq, stored.at)
        message = wire.verdict(said_so, repeat.policy, stored.seq, stored.at, replayed=True, settled=repeat.settled)
        return message if self._signer is None else self._signed(self._signer, message, said_so, item, stored.at)

    def _tell_sender(self, said: Said, message: Struct) -> None:
        """What only concerns the person or the runner who spoke, and not the run's agent."""
        subject = wire.reply_subject(said.thread, said.run, said.observation.by, self._outlet.prefix)
        self._put(subject, wire.encode(message), said.message_id)

    async def _answered_again(self, item: Settled) -> bool:
        """An input that was handled before: its record's answers, word for word. False where it needed no record."""
        try:
            return await self._answer_again(item)
        except ThreadDamaged as error:
            log.error("an input cannot be answered again", thread=item.said.thread, error=str(error))
            for reply in settled(item.said).replies:
                await self._reply(item, reply)
            return True

    async def _answer_again(self, item: Settled) -> bool:
        """The same. Raises `ThreadDamaged`."""
        said = item.said
        state = await self._threads.look(said.thread)
        run, seq = state.runs.get(said.run), state.seq
        while seq > 0:
            stored = await self._log.get(said.thread, seq)
            body = None if stored is None else opened(stored)
            if stored is not None and body is not None and body.input == said.position:
                then = item if run is None else replace(item, policy=run.policy_at(seq))
                self._tell(then, stored, body.decisions)
                return True
            if body is not None and 0 < body.input < said.position:
                return False
            seq -= 1
        return False


def is_plain(item: Settled) -> bool:
    """Whether an input is answered by what its record says, and by nothing else."""
    return item.record is not None and not (item.again or item.replies)


def _repeats(replies: Sequence[Reply]) -> bool:
    """Whether an input's answers are verdicts that the state knows the records of."""
    return bool(replies) and all(isinstance(reply, Repeat) for reply in replies)
