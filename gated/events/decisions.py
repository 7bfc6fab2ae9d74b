"""What the core made of an observation."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gated.events.findings import Circuit, Finding, Move, Reminder, Touch
from gated.events.ids import AgentId, CallId, Decided, Phase, RunId, Status, TicketId, Value
from gated.events.observations import Embedding, Reading, Remember, Score


class RunOpened(Struct, frozen=True, gc=False, omit_defaults=True, tag="run_opened", tag_field="kind"):
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


class Admission(Struct, frozen=True, gc=False, omit_defaults=True):
    """What an allowed call takes at once: money, a step, its place in history and in the machines."""

    reserved_microusd: int
    due: int
    path: tuple[Phase, ...] = ()
    nested: bool = False
    parent: CallId | None = None
    touches: tuple[Touch, ...] = ()
    args: dict[str, Value] | None = None  # kept where a postcondition will read them
    trial: bool = False  # the one call that tries a tool whose breaker was open
    sealed: str | None = None  # the same before redaction, under the key of the vault or of their subject
    drift: int | None = None  # how far the call is from the task, 1 - cosine in millionths; -1: not to be compared


class CallDecided(Struct, frozen=True, gc=False, omit_defaults=True, tag="call_decided", tag_field="kind"):
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
    sealed: str | None = None  # `args` and `result` before redaction, under the key of the vault or of their subject


class CallRefused(Struct, frozen=True, gc=False, omit_defaults=True, tag="call_refused", tag_field="kind"):
    """The message, or one call of it, was not taken: it has no verdict and counts nowhere but here."""

    code: str
    reason: str
    call: CallId | None = None
    ticket: TicketId | None = None


class CallSettled(Struct, frozen=True, gc=False, omit_defaults=True, tag="call_settled", tag_field="kind"):
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


class UngatedExecution(Struct, frozen=True, gc=False, omit_defaults=True, tag="ungated_execution", tag_field="kind"):
    """An outcome for a call that never had an allow verdict."""

    call: CallId
    status: Status


class RunEnded(Struct, frozen=True, gc=False, omit_defaults=True, tag="run_ended", tag_field="kind"):
    """The run takes no more calls. `ungrounded`: it finished well without any of the calls its policy calls grounding."""

    status: Literal["complete", "aborted", "failed"]
    phase: Phase
    reason: str = ""
    grounded_calls: int | None = None
    ungrounded: bool | None = None


class RunAnswered(Struct, frozen=True, gc=False, omit_defaults=True, tag="run_answered", tag_field="kind"):
    """The answer to a `run.start` or `run.finish` that changes nothing, or to one that is steered back to work."""

    status: Literal["open", "steer", "complete", "aborted", "failed"]
    message: str = ""
    grounded_calls: int | None = None
    ungrounded: bool | None = None


class Ask(Struct, frozen=True, gc=False, omit_defaults=True):
    """One reason why a person is asked; `source` names what asked, so that an answer lifts this and nothing else."""

    source: str
    stage: str
    code: str
    reason: str
    call: CallId | None = None  # in a batch's ticket: whose ask it is
    machine: str | None = None
    key: str | None = None


class AnswerRule(Struct, frozen=True, gc=False, omit_defaults=True):
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


class Answer(Struct, frozen=True, gc=False, omit_defaults=True):
    """One person's word. `self_approved`: given by who asked, or who runs the agent, where the policy lets them."""

    by: str
    decision: Literal["approve", "reject"]
    decision_id: str
    at: int
    note: str = ""
    remember: Remember | None = None
    self_approved: bool = False
    content_sha256: str | None = None  # of its message, as it came


class TicketCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """A call that waits, with all that deciding it again needs."""

    call: CallId
    tool: str
    args: dict[str, Value]
    args_sha256: str
    parent: CallId | None = None
    cost_microusd: int | None = None
    nesting: Literal["explicit", "inferred"] = "inferred"
    scores: dict[str, Score] | None = None
    sealed: str | None = None  # the arguments before redaction, under the key of the vault or of their subject
    embedding: Embedding | None = None


class TicketOpened(Struct, frozen=True, gc=False, omit_defaults=True, tag="ticket_opened", tag_field="kind"):
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


class TicketAnswered(Struct, frozen=True, gc=False, omit_defaults=True, tag="ticket_answered", tag_field="kind"):
    """An answer was taken; `state` is the ticket's afterwards."""

    ticket: TicketId
    answer: Answer
    state: Literal["pending", "approved", "rejected", "expired", "cancelled", "superseded"]
    remembered: Remembered | None = None


class TicketClosed(Struct, frozen=True, gc=False, omit_defaults=True, tag="ticket_closed", tag_field="kind"):
    ticket: TicketId
    state: Literal["expired", "cancelled"]


class TicketNoted(Struct, frozen=True, gc=False, omit_defaults=True, tag="ticket_noted", tag_field="kind"):
    """Time passed: the ticket's people were widened, or it is about to expire. Or its people could not be told over `channel`,
    and why (`undelivered`), or were told after all (`delivered`).
    """

    ticket: TicketId
    event: Literal["expiring_soon", "escalated", "undelivered", "delivered"]
    channel: str | None = None
    reason: str = ""


class Remembered(Struct, frozen=True, gc=False, omit_defaults=True):
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


class Forgotten(Struct, frozen=True, gc=False, tag="forgotten", tag_field="kind"):
    remembered: str


class PolicyRebound(Struct, frozen=True, gc=False, omit_defaults=True, tag="policy_rebound", tag_field="kind"):
    """The run is bound to `policy` now; `strangers` are machine instances in states the new machines do not have, and `more` of
    them are not listed.
    """

    policy: str
    strangers: tuple[str, ...] = ()
    more: int = 0


class DataErased(Struct, frozen=True, gc=False, tag="data_erased", tag_field="kind"):
    """Whatever was sealed under these keys, here and in every copy of the log, can be read by nobody from here on."""

    subject: str
    keys: tuple[str, ...]


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
    | DataErased
)
