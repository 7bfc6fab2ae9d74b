"""What comes in: messages of agents, people, operators and runners, read strictly into observations."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct

from gated import canonical, ingress, strict_json
from gated.events import (
    AbortRequested,
    AgentId,
    CallId,
    CanIAsked,
    ErasureRequested,
    FinishRequested,
    ForgetRequested,
    IntentsReceived,
    MessageRefused,
    Observation,
    OutcomeReported,
    PolicyBound,
    RecallRequested,
    Remember,
    ResolutionReceived,
    RunId,
    RunStarted,
    Sender,
    Status,
    TicketId,
    Wanted,
)
from gated.ingress import Calls, Digest, MessageId, Note, Reason, Task, TicketName, Tokens, Unreadable, unfit
from gated.wire.subjects import Origin

MAX_PAYLOAD: Final = 1_048_576
MOST_QUESTIONS: Final = 100  # calls that one `can_i` asks about
MSGPACK: Final = "application/msgpack"
_TORN: Final = "Invalid UTF-8"  # how msgspec begins what it says of such text


class RunStart(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="run.start", kw_only=True):
    """Open a run. `agent` is for operators; `tools` are the tools that the run knows, others are unknown then."""

    agent: MessageId | None = None
    task: Task | None = None
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

    calls: Calls
    mode: Literal["each", "atomic"] = "each"
    nesting: Literal["explicit", "inferred"] = "inferred"


class Outcome(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="outcome", kw_only=True):
    """How an allowed call ended."""

    call: MessageId
    status: Status
    content: Any = None
    facts: dict[str, Any] = {}
    cost_usd: Annotated[float, Meta(ge=0)] | Annotated[int, Meta(ge=0)] | None = None
    tokens: Tokens = 0


class Recall(Struct, frozen=True, forbid_unknown_fields=True, tag="recall", kw_only=True):
    """What was decided on a call? The answer is its recorded verdict, replayed."""

    call: MessageId


class CanI(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="can_i", kw_only=True):
    """What is left of the run's budgets, and what would be decided on these calls? Nothing is taken, recorded or promised."""

    calls: Annotated[list[Any], Meta(max_length=MOST_QUESTIONS)] = []
    nesting: Literal["explicit", "inferred"] = "inferred"


class RunFinish(Struct, frozen=True, forbid_unknown_fields=True, tag="run.finish"):
    """The agent has its answer."""


class RunAbort(Struct, frozen=True, forbid_unknown_fields=True, tag="run.abort", kw_only=True):
    reason: Reason = ""


class RunKill(Struct, frozen=True, forbid_unknown_fields=True, tag="run.kill", kw_only=True):
    """An operator ends the run."""

    reason: Reason = ""


class PolicyBind(Struct, frozen=True, forbid_unknown_fields=True, tag="policy.bind", kw_only=True):
    """An operator binds the run to a policy that the daemon has, by digest."""

    policy: Digest


class RememberPattern(Struct, frozen=True, forbid_unknown_fields=True, rename={"scope": "for"}, kw_only=True):
    pattern: str
    scope: Literal["run", "thread"]


class Resolution(Struct, frozen=True, forbid_unknown_fields=True, tag="resolution", kw_only=True):
    """A person's answer to a ticket. `args_sha256` says what the person saw."""

    ticket: TicketName
    decision: Literal["approve", "reject"]
    decision_id: MessageId
    args_sha256: str
    note: Note = ""
    args: dict[str, Any] | None = None
    result: Any = UNSET
    remember: Literal["once", "call"] | RememberPattern = "once"
    by: str | None = None
    tool: str | None = None


class Forget(Struct, frozen=True, forbid_unknown_fields=True, tag="forget", kw_only=True):
    """Withdraw a remembered approval."""

    remembered: str


class Erase(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="erase", kw_only=True):
    """An operator has the key of a subject erased, and with it whatever is sealed under it; recorded in this run."""

    subject: Annotated[str, Meta(min_length=1, max_length=1000)]
    reason: Reason = ""


Inbound = RunStart | Intents | Outcome | Recall | CanI | RunFinish | RunAbort | RunKill | PolicyBind | Resolution | Forget | Erase

_IN: Final = msgspec.json.Decoder(Inbound)


class _Call(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A call that nothing is wrong with."""

    id: Annotated[CallId, Meta(pattern=ingress.ID_PATTERN)]
    tool: Annotated[str, Meta(pattern=ingress.TOOL_PATTERN)]
    args: dict[str, Any]
    parent: Annotated[CallId, Meta(pattern=ingress.ID_PATTERN)] | None = None


class _Calls(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False, tag="intents"):
    """`Intents` of such calls: what is usually said, and is known to be well-formed once it is decoded."""

    calls: Annotated[tuple[_Call, ...], Meta(min_length=1, max_length=1000)]
    mode: Literal["each", "atomic"] = "each"
    nesting: Literal["explicit", "inferred"] = "inferred"


_CALLS: Final = msgspec.json.Decoder(_Calls)
_BEGINS: Final = b'{"type":"intents",'

SENDERS: Final[dict[str, tuple[type[Struct], ...]]] = {
    "agent": (RunStart, Intents, Outcome, Recall, CanI, RunFinish, RunAbort),
    "approver": (Resolution, Forget),
    "operator": (RunStart, PolicyBind, RunKill, Forget, Erase),
    "runner": (Outcome,),
}


def read(
    origin: Origin,
    data: bytes,
    content_type: str | None = None,
    message_id: str | None = None,
    limits: strict_json.Limits = strict_json.DEFAULT,
) -> Observation:
    """The observation that a message is. Never raises: what cannot be read is a `MessageRefused`."""
    by = origin.sender
    if content_type is None and by.role == "agent" and data.startswith(_BEGINS):
        said = strict_json.plainly(data, _CALLS.decode, limits)
        if said is not None:
            wanted = tuple([Wanted(call.id, call.tool, call.args, call.parent) for call in said.calls])
            return IntentsReceived(by, wanted, said.mode, said.nesting)
    try:
        return to_observation(origin, _parse(data, content_type, limits), message_id if ingress.is_id(message_id) else None)
    except Unreadable as error:
        digest = hashlib.sha256(data).hexdigest()
        return MessageRefused(by, error.code, error.reason[:500], digest, len(data))


def _parse(data: bytes, content_type: str | None, limits: strict_json.Limits) -> Inbound:
    try:
        packed = content_type is not None and content_type.partition(";")[0].strip().lower() == MSGPACK
        text = _json_of(data, limits) if packed else data  # so that one parser says what is allowed
        plain = strict_json.plainly(text, _IN.decode, limits)
        if plain is not None:
            return plain
        strict_json.parse(text, limits)
        return _IN.decode(text)
    except strict_json.BadJson as error:
        raise Unreadable(f"ingress.{error.code}", str(error)) from error
    except (msgspec.MsgspecError, OverflowError) as error:
        raise unfit(str(error)) from error


def _json_of(data: bytes, limits: strict_json.Limits) -> bytes:
    """MessagePack in its shortest form as JSON. Any other form could hide a duplicate key; bytes and NaN are no JSON."""
    if len(data) > limits.payload:
        raise Unreadable("ingress.too_large", f"{len(data)} bytes, at most {limits.payload} are taken")
    try:
        value = msgspec.msgpack.decode(data)
        if msgspec.msgpack.encode(value) != data:
            raise ValueError("not in the shortest form, or with a duplicate key")
    except RecursionError as error:
        raise Unreadable("ingress.args", f"nested deeper than {limits.depth}") from error
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        kind = "args" if str(error).startswith(_TORN) else "shape"
        raise Unreadable(f"ingress.{kind}", f"not MessagePack of JSON values: {error}") from error
    try:
        return canonical.encode(value)
    except ValueError as error:
        with suppress(TypeError):
            strict_json.parse(json.dumps(value).encode(), limits)  # where NaN stands is said of JSON
        raise Unreadable("ingress.shape", f"not MessagePack of JSON values: {error}") from error


def to_observation(origin: Origin, message: Inbound, message_id: str | None = None) -> Observation:
    """Raises `Unreadable` where the sender's role may not say this."""
    by = origin.sender
    if not isinstance(message, SENDERS[by.role]):
        raise Unreadable("ingress.shape", f"an {by.role} does not send `{_tag(message)}`")
    match message:
        case Intents():
            calls = tuple([ingress.wanted_from(call, i) for i, call in enumerate(message.calls)])
            return IntentsReceived(by, calls, message.mode, message.nesting)
        case Outcome():
            cost = ingress.settled_cost(message.cost_usd)
            return OutcomeReported(by, CallId(message.call), message.status, message.content, message.facts, cost, message.tokens)
        case Recall():
            return RecallRequested(by, CallId(message.call))
        case CanI():
            return CanIAsked(by, tuple(ingress.wanted_from(call, i) for i, call in enumerate(message.calls)), message.nesting)
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
        case Erase():
            return ErasureRequested(by, message.subject, reason=message.reason)


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
    said = ResolutionReceived(
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
    return ingress.answer(said)


def _tag(message: Struct) -> str:
    return str(message.__struct_config__.tag)
