"""The language of the gate: ids, findings, observations, decisions, and the record that holds them.

An *observation* is an outside fact (what an agent, an approver or a timer said, and when the bus stored it). A *decision*
is what the pure core made of it. One observation and the decisions it caused are one *record* of the append-only log.

INVARIANT: a record's body is deterministic JSON, and the bytes that are hashed are the bytes that are stored.
Money is integer micro-dollars (`*_microusd`), time is integer microseconds since 1970-01-01 UTC (`at`, `due`).
This module knows nothing of policies, of the bus or of files.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any, Final, Literal, NewType

import msgspec
from msgspec import UNSET, Struct, UnsetType

ThreadId = NewType("ThreadId", str)
RunId = NewType("RunId", str)
CallId = NewType("CallId", str)
AgentId = NewType("AgentId", str)
TicketId = NewType("TicketId", str)

VERSION: Final = 1
GENESIS: Final = "0" * 64
MILLION: Final = 1_000_000  # scores are whole millionths

Value = Any  # decoded JSON


class Phase(StrEnum):
    """Where a run is (the seed on DFA supervision). The last three are terminal."""

    IDLE = "IDLE"
    PLANNING = "PLANNING"
    ACTING = "ACTING"
    OBSERVING = "OBSERVING"
    ANSWERING = "ANSWERING"
    REJECTED = "REJECTED"
    EXHAUSTED = "EXHAUSTED"


Decided = Literal["allow", "deny", "suspend"]
Status = Literal["success", "error", "not_run"]
Role = Literal["agent", "approver", "operator", "runner", "timer", "notifier"]


class Sender(Struct, frozen=True):
    """Who said it: the role and name are tokens of the subject, which the bus credentials fix."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role}:{self.name}"


# --- findings --------------------------------------------------------------------------------------------------------


class Breach(Struct, frozen=True):
    """A barrier that would be, or is, left: its value now, its value after the call, and the least it may be then."""

    barrier: str
    now: float
    next: float
    bound: float


class Circuit(Struct, frozen=True, omit_defaults=True):
    """A tool's circuit breaker. `errors` are the times (µs) of its newest error outcomes.

    Closed while `until` is None, open before `until` (µs), then half open: `trial` is the run and call that tries the tool.
    """

    errors: tuple[int, ...] = ()
    until: int | None = None
    trial: tuple[RunId, CallId] | None = None


class Finding(Struct, frozen=True, omit_defaults=True):
    """What one stage says of one call. `authoritative` is false where the stage is only observed."""

    stage: str
    outcome: Literal["deny", "ask", "warn"]
    code: str
    reason: str
    authoritative: bool = True
    machine: str | None = None
    key: str | None = None
    contract: str | None = None
    pattern: str | None = None
    breaches: tuple[Breach, ...] = ()
    resource: str | None = None
    run: RunId | None = None  # the ancestor whose limit it is
    retry: bool = False  # the same call may be allowed once calls in flight have ended
    error: str | None = None  # the class of what a crashed stage raised
    circuit: Circuit | None = None  # the tool's breaker as it was found
    detector: str | None = None
    score: float | None = None  # what the detector gave


# --- order machines --------------------------------------------------------------------------------------------------


class Touch(Struct, frozen=True, omit_defaults=True):
    """A machine instance that a call bears on: the indices of the transitions it matches, exactly and only widely.

    `overrides` are transitions that an approved ask lets fire as if the current state had been listed; `emits` are the
    texts of the exact transitions' reminders and `warning` that of a warning, rendered here since the fold has no arguments.
    """

    machine: str
    key: str
    exact: tuple[int, ...] = ()
    wide: tuple[int, ...] = ()
    overrides: tuple[int, ...] = ()
    emits: tuple[str, ...] = ()
    warning: str | None = None


class Move(Struct, frozen=True, omit_defaults=True):
    """What an outcome did to one instance. `to` equal to the present state is no transition."""

    machine: str
    key: str
    to: str


class Reminder(Struct, frozen=True, omit_defaults=True):
    """Text for the model, handed to the agent with the acknowledgement of the outcome."""

    target: Literal["system", "suffix_system", "session", "conversation"]
    role: Literal["user", "assistant"]
    content: str
    machine: str
    key: str
    reason: Literal["transition", "warning"]


# --- observations ----------------------------------------------------------------------------------------------------


class Embedding(Struct, frozen=True, array_like=True):
    """The direction of a text by `model`: one signed byte a dimension (base64 in JSON)."""

    model: str
    vector: bytes


class Score(Struct, frozen=True, omit_defaults=True):
    """What a detector said: 0 to 1 in millionths, and why; None where it said nothing, and why not."""

    value: int | None = None
    reason: str = ""


class Fingerprints(Struct, frozen=True, array_like=True):
    """Of a result that must not leave: marks of five bytes each (base64 in JSON), made under the key of this name.

    A mark is made of `gram` characters; marks of neighbouring text lie at most `window` characters apart.
    """

    key: str
    marks: bytes
    gram: int
    window: int


class Reading(Struct, frozen=True, omit_defaults=True):
    """What detectors made of a result. `fingerprints` is a text where there are none although there should be: why."""

    injection: Score | None = None
    fingerprints: Fingerprints | str | None = None


class Wanted(Struct, frozen=True, omit_defaults=True):
    """One call of an intent, as the agent asked for it. `refused` is set where the call itself is malformed."""

    id: CallId | None
    tool: str = ""
    args: dict[str, Value] = {}
    parent: CallId | None = None
    cost_microusd: int | None = None
    refused: str | None = None  # an ingress code
    why: str | None = None
    scores: dict[str, Score] | None = None  # what detectors said of the call, by their names
    links: dict[str, str] | None = None  # where its paths really led, for a scope that follows links
    embedding: Embedding | None = None  # of the tool and its arguments
    args_sha256: str | None = None  # keyed, where something in the arguments is redacted


class RunStarted(Struct, frozen=True, omit_defaults=True, tag="run_started", tag_field="kind"):
    by: Sender
    agent: AgentId
    task: str | None = None
    labels: dict[str, str] = {}
    tools: tuple[str, ...] | None = None
    parent: RunId | None = None
    message: str | None = None  # the client's id of its message, by which it is known when it is published again
    embedding: Embedding | None = None  # of the task
    open_elsewhere: int = 0  # the agent's open runs on other threads, counted where `runs: {max_open}` asks


class IntentsReceived(Struct, frozen=True, omit_defaults=True, tag="intents_received", tag_field="kind"):
    by: Sender
    calls: tuple[Wanted, ...]
    mode: Literal["each", "atomic"] = "each"
    nesting: Literal["explicit", "inferred"] = "inferred"
    open_elsewhere: int = 0  # as of a run's start


class OutcomeReported(Struct, frozen=True, omit_defaults=True, tag="outcome_reported", tag_field="kind"):
    by: Sender
    call: CallId
    status: Status
    content: Value = None
    facts: dict[str, Value] = {}
    cost_microusd: int | None = None
    tokens: int = 0
    reading: Reading | None = None  # what detectors made of `content`


class FinishRequested(Struct, frozen=True, tag="finish_requested", tag_field="kind"):
    by: Sender


class AbortRequested(Struct, frozen=True, tag="abort_requested", tag_field="kind"):
    """From the run's agent (`run.abort`) or an operator (`run.kill`)."""

    by: Sender
    reason: str


class Remember(Struct, frozen=True, omit_defaults=True):
    """How far an approval reaches beyond its ticket: this call's digest (`call`), or a pattern for the run or thread."""

    scope: Literal["call", "run", "thread"]
    pattern: str | None = None


class ResolutionReceived(Struct, frozen=True, omit_defaults=True, tag="resolution_received", tag_field="kind"):
    by: Sender
    ticket: TicketId
    decision: Literal["approve", "reject"]
    decision_id: str
    args_sha256: str
    note: str = ""
    args: dict[str, Value] | None = None
    result: Value = None
    answers: bool = False  # `result` was given (it may be null)
    remember: Remember | None = None
    args_sha256_edited: str | None = None  # keyed digest of `args`, where something in them is redacted
    named: str | None = None  # a name in the body; refused where it is not the sender's
    tool: str | None = None  # a tool in the body; refused where it is not the ticket's
    scores: dict[CallId, dict[str, Score]] = {}  # what detectors say of the calls that are decided again
    links: dict[CallId, dict[str, str]] = {}  # and where their paths lead by now
    reading: Reading | None = None  # what they make of `result`


class ForgetRequested(Struct, frozen=True, tag="forget_requested", tag_field="kind"):
    """An approver or operator withdraws a remembered approval."""

    by: Sender
    remembered: str


class RecallRequested(Struct, frozen=True, tag="recall_requested", tag_field="kind"):
    """An agent asks what was decided on one of its calls: after a restart, or where it may have missed the answer."""

    by: Sender
    call: CallId


class DeadlineReached(Struct, frozen=True, tag="deadline_reached", tag_field="kind"):
    """A timer of the shell ran: the fact is only that time has come to `due`; what follows is the core's to say."""

    by: Sender
    due: int


class NoticeReported(Struct, frozen=True, omit_defaults=True, tag="notice_reported", tag_field="kind"):
    """Whether people could be told of a ticket over a channel; `error` says why not, empty where they were at last."""

    by: Sender
    ticket: TicketId
    channel: str
    error: str = ""


class PolicyBound(Struct, frozen=True, tag="policy_bound", tag_field="kind"):
    """An operator binds the run to another policy (`gated policy bind --now`)."""

    by: Sender
    policy: str


class MessageRefused(Struct, frozen=True, omit_defaults=True, tag="message_refused", tag_field="kind"):
    """A message that could not be read. `raw_sha256` is the digest of its bytes."""

    by: Sender
    code: str
    reason: str
    raw_sha256: str
    bytes: int


Observation = (
    RunStarted
    | IntentsReceived
    | OutcomeReported
    | FinishRequested
    | AbortRequested
    | ResolutionReceived
    | ForgetRequested
    | RecallRequested
    | DeadlineReached
    | NoticeReported
    | PolicyBound
    | MessageRefused
)


# --- decisions -------------------------------------------------------------------------------------------------------


class RunOpened(Struct, frozen=True, omit_defaults=True, tag="run_opened", tag_field="kind"):
    """The run exists from here on, bound to `policy`. `announced` is false where an intent opened it in passing."""

    agent: AgentId
    policy: str
    task: str | None = None
    labels: dict[str, str] = {}
    tools: tuple[str, ...] | None = None
    parent: RunId | None = None
    announced: bool = False
    message: str | None = None
    embedding: Embedding | None = None  # of the task


class Admission(Struct, frozen=True, omit_defaults=True):
    """What an allowed call takes at once: money, a step, its place in history and in the machines."""

    reserved_microusd: int
    due: int
    path: tuple[Phase, ...] = ()
    nested: bool = False
    parent: CallId | None = None
    touches: tuple[Touch, ...] = ()
    args: dict[str, Value] | None = None  # kept where a postcondition will read them
    trial: bool = False  # the one call that tries a tool whose breaker was open
    sealed: str | None = None  # the same before redaction, under the key of the vault
    drift: int | None = None  # how far the call is from the task, 1 - cosine in millionths; -1: not to be compared


class CallDecided(Struct, frozen=True, omit_defaults=True, tag="call_decided", tag_field="kind"):
    """The verdict on one call. A repeated decision on the same call follows an answer of its ticket.

    `known` is false for a verdict that leaves no trace in the run: a stranger's, or one past the recording cap.
    """

    call: CallId
    tool: str
    args_sha256: str
    decision: Decided
    stage: str | None = None
    code: str | None = None
    reason: str | None = None
    findings: tuple[Finding, ...] = ()
    checks_failed: tuple[str, ...] = ()
    checks_skipped: tuple[str, ...] = ()
    would: Literal["deny", "suspend"] | None = None
    ticket: TicketId | None = None
    admission: Admission | None = None
    phase: Phase | None = None  # where the call leaves the run, when it is not ACTING by admission
    hop: bool = True
    misfit: bool = False  # counts as a consecutive tool error: arguments off the schema, an unknown tool
    known: bool = True
    counted: bool = True  # in the machines' counters; not so in a batch that is denied
    edited: bool = False
    args: dict[str, Value] | None = None  # what may run, where it differs from what was asked
    execute: bool = True
    result: Value = None
    sealed: str | None = None  # `args` and `result` before redaction, under the key of the vault


class CallRefused(Struct, frozen=True, omit_defaults=True, tag="call_refused", tag_field="kind"):
    """The message, or one call of it, was not taken: it has no verdict and counts nowhere but here."""

    code: str
    reason: str
    call: CallId | None = None
    ticket: TicketId | None = None


class CallSettled(Struct, frozen=True, omit_defaults=True, tag="call_settled", tag_field="kind"):
    """The end of an admitted call: `cost_microusd` replaces its reservation. `lapsed`: nobody reported in time."""

    call: CallId
    status: Status
    cost_microusd: int
    tokens: int = 0
    phase: Phase | None = None
    moves: tuple[Move, ...] = ()
    reminders: tuple[Reminder, ...] = ()
    lapsed: bool = False
    breached: tuple[Finding, ...] = ()  # postconditions that did not hold
    summary: str = ""  # of an error, for `gave up: …`
    circuit: Circuit | None = None  # the tool's breaker from here on, where the outcome changed it
    reading: Reading | None = None  # what detectors made of the result


class UngatedExecution(Struct, frozen=True, omit_defaults=True, tag="ungated_execution", tag_field="kind"):
    """An outcome for a call that never had an allow verdict."""

    call: CallId
    status: Status


class RunEnded(Struct, frozen=True, omit_defaults=True, tag="run_ended", tag_field="kind"):
    """The run takes no more calls. `ungrounded`: it finished well without any of the calls its policy calls grounding."""

    status: Literal["complete", "aborted", "failed"]
    phase: Phase
    reason: str = ""
    grounded_calls: int | None = None
    ungrounded: bool | None = None


class RunAnswered(Struct, frozen=True, omit_defaults=True, tag="run_answered", tag_field="kind"):
    """The answer to a `run.start` or `run.finish` that changes nothing, or to one that is steered back to work."""

    status: Literal["open", "steer", "complete", "aborted", "failed"]
    message: str = ""
    grounded_calls: int | None = None
    ungrounded: bool | None = None


class Ask(Struct, frozen=True, omit_defaults=True):
    """One reason why a person is asked; `source` names what asked, so that an answer lifts this and nothing else."""

    source: str
    stage: str
    code: str
    reason: str
    call: CallId | None = None  # in a batch's ticket: whose ask it is
    machine: str | None = None
    key: str | None = None


class AnswerRule(Struct, frozen=True, omit_defaults=True):
    """Who must answer: a quorum of `approvers`, or one of each of `stages` in turn. Names are `user:x` or `group:x`.

    `anyone` is the rule where the policy names nobody: every approver that the bus lets in.
    """

    approvers: tuple[str, ...] = ()
    stages: tuple[tuple[str, ...], ...] = ()
    quorum: int = 1
    self_approval: bool = False
    may_answer: bool = False
    escalate_to: tuple[str, ...] = ()
    escalate_after: int = 0  # microseconds; 0: never
    anyone: bool = False
    excluded: tuple[str, ...] = ()
    call: CallId | None = None  # in a batch's ticket: whose rule it is


class Answer(Struct, frozen=True, omit_defaults=True):
    """One person's word. `self_approved`: given by who asked, or who runs the agent, where the policy lets them."""

    by: str
    decision: Literal["approve", "reject"]
    decision_id: str
    at: int
    note: str = ""
    remember: Remember | None = None
    self_approved: bool = False


class TicketCall(Struct, frozen=True, omit_defaults=True):
    """A call that waits, with all that deciding it again needs."""

    call: CallId
    tool: str
    args: dict[str, Value]
    args_sha256: str
    parent: CallId | None = None
    cost_microusd: int | None = None
    nesting: Literal["explicit", "inferred"] = "inferred"
    scores: dict[str, Score] | None = None
    sealed: str | None = None  # the arguments before redaction, under the key of the vault
    embedding: Embedding | None = None


class TicketOpened(Struct, frozen=True, omit_defaults=True, tag="ticket_opened", tag_field="kind"):
    """A suspended call (or an atomic batch of them) waits for people until `expires_at`.

    `args_sha256` is the call's digest; of a batch, the digest of its calls' digests.
    """

    ticket: TicketId
    calls: tuple[TicketCall, ...]
    args_sha256: str
    asks: tuple[Ask, ...]
    rules: tuple[AnswerRule, ...]
    opened_at: int
    expires_at: int
    soon_at: int
    escalate_at: int | None = None
    atomic: bool = False
    edited: bool = False
    answers: tuple[Answer, ...] = ()


class TicketAnswered(Struct, frozen=True, omit_defaults=True, tag="ticket_answered", tag_field="kind"):
    """An answer was taken; `state` is the ticket's afterwards."""

    ticket: TicketId
    answer: Answer
    state: Literal["pending", "approved", "rejected", "expired", "cancelled", "superseded"]
    remembered: Remembered | None = None


class TicketClosed(Struct, frozen=True, omit_defaults=True, tag="ticket_closed", tag_field="kind"):
    ticket: TicketId
    state: Literal["expired", "cancelled"]


class TicketNoted(Struct, frozen=True, omit_defaults=True, tag="ticket_noted", tag_field="kind"):
    """Time passed: the ticket's people were widened, or it is about to expire. Or its people could not be told over `channel`,
    and why (`undelivered`), or were told after all (`delivered`).
    """

    ticket: TicketId
    event: Literal["expiring_soon", "escalated", "undelivered", "delivered"]
    channel: str | None = None
    reason: str = ""


class Remembered(Struct, frozen=True, omit_defaults=True):
    """A standing approval, in words people can read; it lifts asks of `sources` for `tool`, never a denial."""

    id: str
    scope: Literal["call", "run", "thread"]
    tool: str
    sources: tuple[str, ...]
    policy: str
    by: str
    agent: AgentId
    args_sha256: str | None = None
    pattern: str | None = None
    text: str = ""


class Forgotten(Struct, frozen=True, tag="forgotten", tag_field="kind"):
    remembered: str


class PolicyRebound(Struct, frozen=True, omit_defaults=True, tag="policy_rebound", tag_field="kind"):
    """The run is bound to `policy` now; `strangers` are machine instances in states the new machines do not have."""

    policy: str
    strangers: tuple[str, ...] = ()


Decision = (
    RunOpened
    | CallDecided
    | CallRefused
    | CallSettled
    | UngatedExecution
    | RunEnded
    | RunAnswered
    | TicketOpened
    | TicketAnswered
    | TicketClosed
    | TicketNoted
    | Forgotten
    | PolicyRebound
)


# --- the record ------------------------------------------------------------------------------------------------------


class Body(Struct, frozen=True):
    """The hashed part of a record. `policy` is the digest of the policy that was current; `flags` the logic flags.

    `redacted` are the places of the observation that were taken out before it was recorded; absent where that is none.
    """

    v: int
    thread: ThreadId
    run: RunId
    seq: int
    at: int
    kind: str
    observation: Observation
    decisions: tuple[Decision, ...]
    policy: str
    prev: str
    flags: tuple[int, ...] = ()
    input: int = 0  # position of the input in the bus's stream: what comes again at or below it was handled
    redacted: tuple[str, ...] | UnsetType = UNSET


class Record(Struct, frozen=True):
    """A sealed record: `body` is the stored and hashed JSON, `hash` its SHA-256 in hex, `prev` the hash before it."""

    thread: ThreadId
    run: RunId
    seq: int
    at: int
    kind: str
    prev: str
    hash: str
    body: bytes


_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECODER: Final = msgspec.json.Decoder(Body)


def encode(value: object) -> bytes:
    """Deterministic JSON of any part of the language: compact, keys sorted."""
    return _ENCODER.encode(value)


def seal(body: Body) -> Record:
    """The record of a body: its bytes and their hash."""
    raw = _ENCODER.encode(body)
    digest = hashlib.sha256(raw).hexdigest()
    return Record(body.thread, body.run, body.seq, body.at, body.kind, body.prev, digest, raw)


def kind_of(observation: Observation) -> str:
    return str(observation.__struct_config__.tag)


def unseal(record: Record) -> Body:
    """The typed body of a record. Raises `msgspec.ValidationError` where the bytes are not of this version's shape."""
    return _DECODER.decode(record.body)
