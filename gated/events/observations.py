"""Outside facts: what an agent, a person or a timer said, and when the bus stored it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gated.events.ids import AgentId, CallId, RunId, Sender, Status, TicketId, Value


class Embedding(Struct, frozen=True, gc=False, array_like=True):
    """The direction of a text by `model`: one signed byte a dimension (base64 in JSON)."""

    model: str
    vector: bytes


class Score(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a detector said: 0 to 1 in millionths, and why; None where it said nothing, and why not."""

    value: int | None = None
    reason: str = ""


class Fingerprints(Struct, frozen=True, gc=False, array_like=True):
    """Of a result that must not leave: marks of five bytes each (base64 in JSON), made under the key of this name.

    A mark is made of `gram` characters; marks of neighbouring text lie at most `window` characters apart.
    """

    key: str
    marks: bytes
    gram: int
    window: int


class Reading(Struct, frozen=True, gc=False, omit_defaults=True):
    """What detectors made of a result. `fingerprints` is a text where there are none although there should be: why."""

    injection: Score | None = None
    fingerprints: Fingerprints | str | None = None


class Wanted(Struct, frozen=True, gc=False, omit_defaults=True):
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


class RunStarted(Struct, frozen=True, gc=False, omit_defaults=True, tag="run_started", tag_field="kind"):
    by: Sender
    agent: AgentId
    task: str | None = None
    labels: dict[str, str] = {}
    tools: tuple[str, ...] | None = None
    parent: RunId | None = None
    message: str | None = None  # the client's id of its message, by which it is known when it is published again
    embedding: Embedding | None = None  # of the task
    open_elsewhere: int = 0  # the agent's open runs on other threads, counted where `runs: {max_open}` asks


class IntentsReceived(Struct, frozen=True, gc=False, omit_defaults=True, tag="intents_received", tag_field="kind"):
    by: Sender
    calls: tuple[Wanted, ...]
    mode: Literal["each", "atomic"] = "each"
    nesting: Literal["explicit", "inferred"] = "inferred"
    open_elsewhere: int = 0  # as of a run's start


class OutcomeReported(Struct, frozen=True, gc=False, omit_defaults=True, tag="outcome_reported", tag_field="kind"):
    by: Sender
    call: CallId
    status: Status
    content: Value = None
    facts: dict[str, Value] = {}
    cost_microusd: int | None = None
    tokens: int = 0
    reading: Reading | None = None  # what detectors made of `content`


class FinishRequested(Struct, frozen=True, gc=False, tag="finish_requested", tag_field="kind"):
    by: Sender


class AbortRequested(Struct, frozen=True, gc=False, tag="abort_requested", tag_field="kind"):
    """From the run's agent (`run.abort`) or an operator (`run.kill`)."""

    by: Sender
    reason: str


class Remember(Struct, frozen=True, gc=False, omit_defaults=True):
    """How far an approval reaches beyond its ticket: this call's digest (`call`), or a pattern for the run or thread."""

    scope: Literal["call", "run", "thread"]
    pattern: str | None = None


class ResolutionReceived(Struct, frozen=True, gc=False, omit_defaults=True, tag="resolution_received", tag_field="kind"):
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
    content_sha256: str | None = None  # of all that the message says of the ticket; keyed, where something in it is redacted


class ForgetRequested(Struct, frozen=True, gc=False, tag="forget_requested", tag_field="kind"):
    """An approver or operator withdraws a remembered approval."""

    by: Sender
    remembered: str


class RecallRequested(Struct, frozen=True, gc=False, tag="recall_requested", tag_field="kind"):
    """An agent asks what was decided on one of its calls: after a restart, or where it may have missed the answer."""

    by: Sender
    call: CallId


class CanIAsked(Struct, frozen=True, gc=False, omit_defaults=True, tag="can_i_asked", tag_field="kind"):
    """An agent asks what is left of its budgets, and what would be decided on some calls. It is answered, never recorded."""

    by: Sender
    calls: tuple[Wanted, ...] = ()
    nesting: Literal["explicit", "inferred"] = "inferred"


class DeadlineReached(Struct, frozen=True, gc=False, tag="deadline_reached", tag_field="kind"):
    """A timer of the shell ran: the fact is only that time has come to `due`; what follows is the core's to say."""

    by: Sender
    due: int


class NoticeReported(Struct, frozen=True, gc=False, omit_defaults=True, tag="notice_reported", tag_field="kind"):
    """Whether people could be told of a ticket over a channel; `error` says why not, empty where they were at last."""

    by: Sender
    ticket: TicketId
    channel: str
    error: str = ""


class PolicyBound(Struct, frozen=True, gc=False, omit_defaults=True, tag="policy_bound", tag_field="kind"):
    """An operator binds the run to another policy (`gated policy bind --now`). `unknown`: the log did not have it then."""

    by: Sender
    policy: str
    unknown: bool = False


class ErasureRequested(Struct, frozen=True, gc=False, omit_defaults=True, tag="erasure_requested", tag_field="kind"):
    """An operator has a subject's data erased. `keys` are the ids of its keys, which are gone by now."""

    by: Sender
    subject: str
    keys: tuple[str, ...] = ()
    reason: str = ""


class MessageRefused(Struct, frozen=True, gc=False, omit_defaults=True, tag="message_refused", tag_field="kind"):
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
    | CanIAsked
    | DeadlineReached
    | NoticeReported
    | PolicyBound
    | ErasureRequested
    | MessageRefused
)
