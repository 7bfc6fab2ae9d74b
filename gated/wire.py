"""The bus contract: subjects, message structs, and pure conversions between them and the language of the core.

What comes in is strict (unknown fields, duplicate keys, NaN, wrong types are refused with the place), what goes out is made
only here. Identity is the subject's, never the payload's. Money is US dollars on the wire, time RFC 3339 UTC.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct

from gated import canonical, ingress, strict_json
from gated.events import (
    AbortRequested,
    AgentId,
    CallDecided,
    CallId,
    CallRefused,
    CallSettled,
    Decided,
    Finding,
    FinishRequested,
    ForgetRequested,
    IntentsReceived,
    MessageRefused,
    Observation,
    OutcomeReported,
    PolicyBound,
    RecallRequested,
    Remember,
    Reminder,
    ResolutionReceived,
    RunAnswered,
    RunEnded,
    RunId,
    RunOpened,
    RunStarted,
    Sender,
    Status,
    ThreadId,
    TicketAnswered,
    TicketClosed,
    TicketId,
    TicketNoted,
    TicketOpened,
    UngatedExecution,
)
from gated.units import parse_usd
from gated.units import rfc3339 as rfc3339

PREFIX: Final = "gated"
STREAM: Final = "GATED_IN"
MAX_PAYLOAD: Final = 1_048_576
RE: Final = "Gated-Re"  # the `Nats-Msg-Id` of the message that is answered
MSGPACK: Final = "application/msgpack"

MessageId = Annotated[str, Meta(pattern=ingress.ID_PATTERN)]


# --- subjects --------------------------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Who says something for which run: what the subject of an input means."""

    thread: ThreadId
    run: RunId
    sender: Sender


def in_subject(origin: Origin, prefix: str = PREFIX) -> str:
    return f"{prefix}.in.{origin.thread}.{origin.run}.{origin.sender.role}.{origin.sender.name}"


def out_subject(thread: ThreadId, run: RunId, agent: str, prefix: str = PREFIX) -> str:
    return f"{prefix}.out.{thread}.{run}.agent.{agent}"


def reply_subject(thread: ThreadId, run: RunId, sender: Sender, prefix: str = PREFIX) -> str:
    """Where a person or a runner is told what became of its own message."""
    return f"{prefix}.out.{thread}.{run}.{sender.role}.{sender.name}"


def tickets_subject(thread: ThreadId, run: RunId, prefix: str = PREFIX) -> str:
    return f"{prefix}.tickets.{thread}.{run}"


def events_subject(thread: ThreadId, run: RunId, prefix: str = PREFIX) -> str:
    return f"{prefix}.events.{thread}.{run}"


def parse_in_subject(subject: str, prefix: str = PREFIX) -> Origin | None:
    """What an input's subject says, or None where it is not of the contract's form."""
    parts = subject.split(".")
    if len(parts) != 6 or parts[0] != prefix or parts[1] != "in":
        return None
    _, _, thread, run, role, name = parts
    if role not in ("agent", "approver", "operator", "runner") or not all(map(ingress.is_id, (thread, run, name))):
        return None
    return Origin(ThreadId(thread), RunId(run), Sender(role, name))  # type: ignore[arg-type]


# --- what comes in ---------------------------------------------------------------------------------------------------


class RunStart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="run.start", kw_only=True):
    """Open a run. `agent` is for operators; `tools` are the tools that the run knows, others are unknown then."""

    agent: MessageId | None = None
    task: Annotated[str, Meta(max_length=65_536)] | None = None
    labels: dict[str, str] = {}
    tools: list[str] | None = None
    parent_run: MessageId | None = None


class WantedCall(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One call of an intent, as a client writes it."""

    id: str
    tool: str
    args: dict[str, Any]
    parent: str | None = None
    cost_usd: float | None = None


class Intents(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="intents", kw_only=True):
    """Ask for calls. Each is checked by itself, so that one malformed call does not hide the others."""

    calls: Annotated[list[Any], Meta(min_length=1, max_length=1000)]
    mode: Literal["each", "atomic"] = "each"
    nesting: Literal["explicit", "inferred"] = "inferred"


class Outcome(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="outcome", kw_only=True):
    """How an allowed call ended."""

    call: MessageId
    status: Status
    content: Any = None
    facts: dict[str, Any] = {}
    cost_usd: Annotated[float, Meta(ge=0)] | Annotated[int, Meta(ge=0)] | None = None
    tokens: Annotated[int, Meta(ge=0, le=2**53)] = 0


class Recall(Struct, frozen=True, forbid_unknown_fields=True, tag="recall", kw_only=True):
    """What was decided on a call? The answer is its recorded verdict, replayed."""

    call: MessageId


class RunFinish(Struct, frozen=True, forbid_unknown_fields=True, tag="run.finish"):
    """The agent has its answer."""


class RunAbort(Struct, frozen=True, forbid_unknown_fields=True, tag="run.abort", kw_only=True):
    reason: Annotated[str, Meta(max_length=1000)] = ""


class RunKill(Struct, frozen=True, forbid_unknown_fields=True, tag="run.kill", kw_only=True):
    """An operator ends the run."""

    reason: Annotated[str, Meta(max_length=1000)] = ""


class PolicyBind(Struct, frozen=True, forbid_unknown_fields=True, tag="policy.bind", kw_only=True):
    """An operator binds the run to a policy that the daemon has, by digest."""

    policy: Annotated[str, Meta(pattern="^[0-9a-f]{64}" + ingress.END)]


class RememberPattern(Struct, frozen=True, forbid_unknown_fields=True, rename={"scope": "for"}, kw_only=True):
    pattern: str
    scope: Literal["run", "thread"]


class Resolution(Struct, frozen=True, forbid_unknown_fields=True, tag="resolution", kw_only=True):
    """A person's answer to a ticket. `args_sha256` says what the person saw."""

    ticket: Annotated[str, Meta(pattern="^[A-Za-z0-9_.-]{1,160}" + ingress.END)]
    decision: Literal["approve", "reject"]
    decision_id: MessageId
    args_sha256: str
    note: Annotated[str, Meta(max_length=4000)] = ""
    args: dict[str, Any] | None = None
    result: Any = UNSET
    remember: Literal["once", "call"] | RememberPattern = "once"
    by: str | None = None
    tool: str | None = None


class Forget(Struct, frozen=True, forbid_unknown_fields=True, tag="forget", kw_only=True):
    """Withdraw a remembered approval."""

    remembered: str


Inbound = RunStart | Intents | Outcome | Recall | RunFinish | RunAbort | RunKill | PolicyBind | Resolution | Forget

_IN: Final = msgspec.json.Decoder(Inbound)

SENDERS: Final[dict[str, tuple[type[Struct], ...]]] = {
    "agent": (RunStart, Intents, Outcome, Recall, RunFinish, RunAbort),
    "approver": (Resolution, Forget),
    "operator": (RunStart, PolicyBind, RunKill, Forget),
    "runner": (Outcome,),
}


class Unreadable(ValueError):
    """A message that is not of the contract. `code` is an ingress code."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def read(origin: Origin, data: bytes, content_type: str | None = None, message_id: str | None = None) -> Observation:
    """The observation that a message is. Never raises: what cannot be read is a `MessageRefused`."""
    try:
        return to_observation(origin, _parse(data, content_type), message_id if ingress.is_id(message_id) else None)
    except Unreadable as error:
        digest = hashlib.sha256(data).hexdigest()
        return MessageRefused(origin.sender, error.code, error.reason[:500], digest, len(data))


def _parse(data: bytes, content_type: str | None) -> Inbound:
    try:
        text = _json_of(data) if content_type == MSGPACK else data  # so that one parser says what is allowed
        strict_json.parse(text)
        return _IN.decode(text)
    except strict_json.BadJson as error:
        raise Unreadable(f"ingress.{error.code}", str(error)) from error
    except (msgspec.ValidationError, OverflowError) as error:
        raise Unreadable("ingress.shape", str(error)) from error


def _json_of(data: bytes) -> bytes:
    """MessagePack in its shortest form as JSON. Any other form could hide a duplicate key; bytes and NaN are no JSON."""
    if len(data) > MAX_PAYLOAD:
        raise Unreadable("ingress.too_large", f"{len(data)} bytes, at most {MAX_PAYLOAD} are taken")
    try:
        value = msgspec.msgpack.decode(data)
        if msgspec.msgpack.encode(value) != data:
            raise ValueError("not in the shortest form, or with a duplicate key")
        return canonical.encode(value)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise Unreadable("ingress.shape", f"not MessagePack of JSON values: {error}") from error


def to_observation(origin: Origin, message: Inbound, message_id: str | None = None) -> Observation:
    """Raises `Unreadable` where the sender's role may not say this."""
    by = origin.sender
    if not isinstance(message, SENDERS[by.role]):
        raise Unreadable("ingress.shape", f"an {by.role} does not send `{_tag(message)}`")
    match message:
        case Intents():
            calls = tuple(ingress.wanted_from(call, i) for i, call in enumerate(message.calls))
            return IntentsReceived(by, calls, message.mode, message.nesting)
        case Outcome():
            cost = None if message.cost_usd is None else _usd(message.cost_usd)
            return OutcomeReported(by, CallId(message.call), message.status, message.content, message.facts, cost, message.tokens)
        case Recall():
            return RecallRequested(by, CallId(message.call))
        case RunStart():
            return _run_started(by, message, message_id)
        case RunFinish():
            return FinishRequested(by)
        case RunAbort() | RunKill():
            return AbortRequested(by, message.reason)
        case PolicyBind():
            return PolicyBound(by, message.policy)
        case Resolution():
            return _resolution(by, message)
        case Forget():
            return ForgetRequested(by, message.remembered)


def _run_started(by: Sender, message: RunStart, message_id: str | None) -> RunStarted:
    if message.agent is not None and by.role == "agent" and message.agent != by.name:
        raise Unreadable("ingress.shape", "`agent` is for operators: an agent opens its own runs")
    if message.agent is None and by.role == "operator":
        raise Unreadable("ingress.shape", "an operator's run.start names the `agent` whose run it opens")
    return RunStarted(
        by=by,
        agent=AgentId(message.agent or by.name),
        task=message.task,
        labels=message.labels,
        tools=None if message.tools is None else tuple(message.tools),
        parent=None if message.parent_run is None else RunId(message.parent_run),
        message=message_id,
    )


def _resolution(by: Sender, message: Resolution) -> ResolutionReceived:
    remember: Remember | None = None
    if message.remember == "call":
        remember = Remember("call")
    elif isinstance(message.remember, RememberPattern):
        remember = Remember(message.remember.scope, message.remember.pattern)
    return ResolutionReceived(
        by=by,
        ticket=TicketId(message.ticket),
        decision=message.decision,
        decision_id=message.decision_id,
        args_sha256=message.args_sha256,
        note=message.note,
        args=message.args,
        result=None if message.result is UNSET else message.result,
        answers=message.result is not UNSET,
        remember=remember,
        named=message.by,
        tool=message.tool,
    )


def _usd(value: float | int) -> int:
    try:
        return parse_usd(value)
    except ValueError as error:
        raise Unreadable("ingress.cost", f"cost_usd: {error}") from error


def _tag(message: Struct) -> str:
    return str(message.__struct_config__.tag)


# --- what goes out ---------------------------------------------------------------------------------------------------


class Verdict(Struct, frozen=True, omit_defaults=True, tag="verdict", kw_only=True):
    """The decision on one call. What may run are `args` where they are given, else the arguments that were asked.

    `token`, of a call that may run: a JWT that proves it to the tool, where the daemon signs verdicts.
    `settled`, of a replayed verdict: the call has its outcome already, so it must not run again.
    """

    call: str
    decision: Decided
    stage: str | None = None
    code: str | None = None
    reason: str | None = None
    would: Literal["deny", "suspend"] | None = None
    findings: tuple[Finding, ...] = ()
    checks_failed: tuple[str, ...] = ()
    checks_skipped: tuple[str, ...] = ()
    ticket: str | None = None
    args_sha256: str
    args: dict[str, Any] | None = None
    edited: bool = False
    execute: bool
    result: Any = None
    token: str | None = None
    policy: str
    seq: int
    at: str
    replayed: bool = False
    settled: bool = False
    authoritative: bool = True


class ReminderMessage(Struct, frozen=True, omit_defaults=True, tag="reminder", kw_only=True):
    """The acknowledgement of an outcome, with what the model should be told."""

    call: str
    status: Status
    reminders: tuple[Reminder, ...] = ()
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
    """The life of a ticket: `event` says what happened, the rest what it is about."""

    event: Literal["opened", "answered", "closed", "expiring_soon", "escalated", "undelivered", "delivered"]
    ticket: str
    thread: str
    run: str
    state: str
    at: str
    details: dict[str, Any] = {}


Outbound = Verdict | ReminderMessage | RunStatus | Refusal

_ENCODER: Final = msgspec.json.Encoder()
_OUT: Final = msgspec.json.Decoder(Outbound)


def encode(message: Struct) -> bytes:
    return _ENCODER.encode(message)


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
        result=decided.result,
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
                code=decision.code,
                reason=decision.reason,
                call=decision.call,
                ticket=decision.ticket,
                seq=seq,
                at=rfc3339(at),
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
    return None


def to_approvers(decision: Any, thread: ThreadId, run: RunId, at: int) -> TicketMessage | None:
    """The message by which approvers learn of a ticket's life."""
    base: dict[str, Any] = {"thread": thread, "run": run, "at": rfc3339(at)}
    match decision:
        case TicketOpened():
            details = msgspec.to_builtins(decision)
            for call in details["calls"]:
                call.pop("sealed", None)  # of use to the daemon only
            return TicketMessage(event="opened", ticket=decision.ticket, state="pending", details=details, **base)
        case TicketAnswered():
            details = {"answer": msgspec.to_builtins(decision.answer)}
            return TicketMessage(event="answered", ticket=decision.ticket, state=decision.state, details=details, **base)
        case TicketClosed():
            return TicketMessage(event="closed", ticket=decision.ticket, state=decision.state, **base)
        case TicketNoted():
            details = {"channel": decision.channel, "reason": decision.reason} if decision.channel is not None else {}
            return TicketMessage(event=decision.event, ticket=decision.ticket, state="pending", details=details, **base)
    return None
