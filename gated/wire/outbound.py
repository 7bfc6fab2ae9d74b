"""What goes out: verdicts, reminders, refusals and tickets, made of decisions. Clients read it leniently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, field

from gated.events import (
    Answer,
    CallDecided,
    CallRefused,
    CallSettled,
    Decided,
    Finding,
    Record,
    Remaining,
    Reminder,
    RunAnswered,
    RunEnded,
    RunId,
    RunOpened,
    Status,
    ThreadId,
    TicketAnswered,
    TicketClosed,
    TicketNoted,
    TicketOpened,
    UngatedExecution,
)
from gated.units import rfc3339

T = TypeVar("T")

TicketEvent = Literal["opened", "answered", "closed", "expiring_soon", "escalated", "undelivered", "delivered"]


def always(value: T) -> T:
    """A default that is written out all the same: whoever reads the JSON finds the field in every message."""
    return field(default_factory=lambda: value)


class Verdict(Struct, frozen=True, omit_defaults=True, tag="verdict", kw_only=True):
    """The decision on one call. What may run are `args` where they are given, else the arguments that were asked.

    `result`, where a person answered for the tool (`execute` is false then): what they said, which may be null.

    `token`, of a call that may run: a JWT that proves it to the tool, where the daemon signs verdicts.
    `settled`, of a replayed verdict: the call has its outcome already, so it must not run again.
    """

    call: str
    decision: Decided
    stage: str | None = always(None)
    code: str | None = always(None)
    reason: str | None = always(None)
    would: Literal["deny", "suspend"] | None = None
    findings: tuple[Finding, ...] = always(())
    checks_failed: tuple[str, ...] = always(())
    checks_skipped: tuple[str, ...] = always(())
    ticket: str | None = None
    args_sha256: str
    args: dict[str, Any] | None = None
    edited: bool = False
    execute: bool
    result: Any = UNSET
    token: str | None = None
    policy: str
    seq: int
    at: str
    replayed: bool = always(False)
    settled: bool = False
    authoritative: bool = always(True)


class ReminderMessage(Struct, frozen=True, omit_defaults=True, tag="reminder", kw_only=True):
    """The acknowledgement of an outcome, with what the model should be told."""

    call: str
    status: Status
    reminders: tuple[Reminder, ...] = always(())
    ungated: bool = False
    seq: int = 0
    at: str = ""


class RunStatus(Struct, frozen=True, omit_defaults=True, tag="run.status", kw_only=True):
    """`open`, `steer` (go on, as `message` says), `complete`, `aborted` or `failed`."""

    status: Literal["open", "steer", "complete", "aborted", "failed"]
    message: str = ""
    ungrounded: bool | None = None
    grounded_calls: int | None = None
    policy: str = ""
    seq: int = 0
    at: str = ""


class Refusal(Struct, frozen=True, omit_defaults=True, tag="refusal", kw_only=True):
    """A message, or one call of it, that was not taken; nothing was decided and nothing counts."""

    code: str
    reason: str
    call: str | None = None
    ticket: str | None = None
    seq: int = 0
    at: str = ""


class TicketMessage(Struct, frozen=True, omit_defaults=True, tag="ticket", kw_only=True):
    """The life of a ticket: `opened`, then what happens while it waits, then one `closed` with the state it ended in.

    `details` are the ticket itself where it opened, and the `answer` that was taken of an `answered` or a `closed` one, with the
    `verdicts` that came of it: an approval is no admission, since the calls are decided again.
    """

    event: TicketEvent
    ticket: str
    thread: str
    run: str
    state: str
    at: str
    details: dict[str, Any] = {}


Outbound = Verdict | ReminderMessage | RunStatus | Refusal | Remaining

OF_TICKETS: Final = frozenset({TicketOpened, TicketAnswered, TicketClosed, TicketNoted})  # the decisions that people hear of

encode: Final[Callable[[Struct], bytes]] = msgspec.json.Encoder().encode
_OUT: Final = msgspec.json.Decoder(Outbound)


class RecordOmitted(Struct, frozen=True, kw_only=True):
    """In place of a record that is larger than the bus takes: auditors see that it is there, and read it from the log."""

    thread: str
    run: str
    seq: int
    at: int
    kind: str
    prev: str
    hash: str
    bytes: int
    omitted: bool = True


def record_event(record: Record) -> bytes:
    """A record as auditors hear it: its body, and its hash as a last key. Without that key it is what was hashed."""
    return b'%s,"hash":"%s"}' % (record.body[:-1], record.hash.encode())


def stub(record: Record) -> bytes:
    """What is published of a record that is too large."""
    said = {name: getattr(record, name) for name in ("thread", "run", "seq", "at", "kind", "prev", "hash")}
    return encode(RecordOmitted(**said, bytes=len(record.body)))


def decode_out(data: bytes) -> Outbound:
    """What a client reads; leniently: unknown fields are passed over."""
    return _OUT.decode(data)


def verdict(decided: CallDecided, policy: str, seq: int, at: int, *, replayed: bool = False, settled: bool = False) -> Verdict:
    return Verdict(
        call=decided.call,
        decision=decided.decision,
        stage=decided.stage,
        code=decided.code,
        reason=decided.reason,
        would=decided.would,
        findings=decided.findings,
        checks_failed=decided.checks_failed,
        checks_skipped=decided.checks_skipped,
        ticket=decided.ticket,
        args_sha256=decided.args_sha256,
        args=decided.args,
        edited=decided.edited,
        execute=decided.decision == "allow" and decided.execute,
        result=UNSET if decided.execute else decided.result,
        policy=policy,
        seq=seq,
        at=rfc3339(at),
        replayed=replayed,
        settled=settled,
        authoritative=decided.would is None,
    )


def to_agent(decision: Any, policy: str, seq: int, at: int) -> Outbound | None:
    """The message by which an agent learns of a decision, if it is told of it."""
    match decision:
        case CallDecided():
            return verdict(decision, policy, seq, at)
        case CallRefused():
            return Refusal(
                code=decision.code, reason=decision.reason, call=decision.call, ticket=decision.ticket, seq=seq, at=rfc3339(at)
            )
        case CallSettled():
            return ReminderMessage(
                call=decision.call, status=decision.status, reminders=decision.reminders, seq=seq, at=rfc3339(at)
            )
        case UngatedExecution():
            return ReminderMessage(call=decision.call, status=decision.status, ungated=True, seq=seq, at=rfc3339(at))
        case RunOpened():
            return RunStatus(status="open", policy=decision.policy, seq=seq, at=rfc3339(at)) if decision.announced else None
        case RunEnded():
            return RunStatus(
                status=decision.status,
                message=decision.reason,
                ungrounded=decision.ungrounded,
                grounded_calls=decision.grounded_calls,
                seq=seq,
                at=rfc3339(at),
            )
        case RunAnswered():
            return RunStatus(status=decision.status, message=decision.message, seq=seq, at=rfc3339(at))
        case Remaining():
            return decision
    return None


def to_approvers(
    decision: Any,
    thread: ThreadId,
    run: RunId,
    at: int,
    opened: dict[str, Any] | None = None,
    together: Sequence[Any] = (),
) -> TicketMessage | None:
    """The message by which approvers learn of a ticket's life; `opened` is the ticket, where it opened.

    `together` are the decisions of the same record.
    """
    base: dict[str, Any] = {"thread": thread, "run": run, "at": rfc3339(at)}
    match decision:
        case TicketOpened():
            return TicketMessage(event="opened", ticket=decision.ticket, state="pending", details=opened or {}, **base)
        case TicketAnswered():
            event: TicketEvent = "answered" if decision.state == "pending" else "closed"
            details: dict[str, Any] = {"answer": answer_view(decision.answer)}
            if verdicts := [_in_short(decided) for decided in together if isinstance(decided, CallDecided)]:
                details["verdicts"] = verdicts
            return TicketMessage(event=event, ticket=decision.ticket, state=decision.state, details=details, **base)
        case TicketClosed():
            return TicketMessage(event="closed", ticket=decision.ticket, state=decision.state, **base)
        case TicketNoted():
            details = {"channel": decision.channel, "reason": decision.reason} if decision.channel is not None else {}
            return TicketMessage(event=decision.event, ticket=decision.ticket, state="pending", details=details, **base)
    return None


def _in_short(decided: CallDecided) -> dict[str, Any]:
    """A verdict as people hear of it who only answered."""
    fields = {name: getattr(decided, name) for name in ("call", "tool", "decision", "code", "reason", "ticket")}
    told = {name: value for name, value in fields.items() if value is not None}
    if decided.edited:
        told["edited"] = True
    if decided.decision == "allow" and not decided.execute:
        told["execute"] = False
    return told


def answer_view(answer: Answer) -> dict[str, Any]:
    """A person's word, with the time as people read it."""
    return {**msgspec.to_builtins(answer), "at": rfc3339(answer.at)}
