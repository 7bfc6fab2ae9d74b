"""The state of a thread: plain, immutable data, brought forward one decision at a time by `fold`.

Everything that grows is an `immutables.Map`, so a step costs the same at the 10,000th call as at the 10th, and a copy (an
atomic batch, a what-if) is free. The owner, the runs, the tally, the machines and standing approvals outlive a run.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import msgspec
from immutables import Map
from msgspec import Struct

from gated.core.history import Tally
from gated.core.order.state import OrderState
from gated.core.stages.dfa import DfaState
from gated.core.stages.semantic import Seen
from gated.core.tickets import Ticket
from gated.events import (
    AgentId,
    CallId,
    Circuit,
    Embedding,
    Phase,
    Remembered,
    RunEnded,
    RunId,
    Status,
    ThreadId,
    TicketId,
    Touch,
)

KnownAs = Literal["denied", "suspended", "admitted", "settled"]


class Known(Struct, frozen=True, array_like=True):
    """A call id of the run: the digest it stands for, and the record that holds its latest verdict."""

    args_sha256: str
    tool: str
    seq: int
    state: KnownAs
    asked: int = 0  # the record of the message that asked for it


class InFlight(Struct, frozen=True, array_like=True):
    """An admitted call without an outcome. `seq` is the record that admitted it, `due` when it lapses (µs)."""

    tool: str
    args_sha256: str
    reserved_microusd: int
    seq: int
    due: int
    parent: CallId | None = None
    touches: tuple[Touch, ...] = ()
    ancestors: tuple[RunId, ...] = ()  # the runs whose tallies the call counts in too
    policy: str = ""  # whose machines and transitions `touches` speaks of, also after the run was bound to another
    args: dict[str, Any] | None = None  # kept where a postcondition will read them
    ordinal: int = 0  # the calls admitted before it
    sealed: str | None = None  # the same before redaction
    asked: int = 0  # the record of the message that asked for it: calls of one message are siblings


class Recent(Struct, frozen=True, array_like=True):
    """An ended call, for contracts."""

    tool: str
    status: Status
    args_sha256: str


class RunState(Struct, frozen=True):
    """One task of one agent. `tally` counts its own calls and, where they inherit, its children's (`below` these alone)."""

    agent: AgentId
    policy: str
    tally: Tally
    below: Tally | None = None
    parent: RunId | None = None
    message: str | None = None
    task: str | None = None
    labels: dict[str, str] = {}
    tools: tuple[str, ...] | None = None
    dfa: DfaState = DfaState()
    end: Literal["", "complete", "aborted", "failed"] = ""
    reason: str = ""
    step_count: int = 0
    hop_count: int = 0
    retry_count: int = 0
    refusals: int = 0
    grounded: int = 0
    ended: RunEnded | None = None
    continuations: int = 0
    ungated: int = 0
    calls: Map[CallId, Known] = Map()
    in_flight: Map[CallId, InFlight] = Map()
    recent: tuple[Recent, ...] = ()
    tickets: Map[TicketId, Ticket] = Map()
    waiting: Map[CallId, TicketId] = Map()
    remembered: tuple[Remembered, ...] = ()

    @property
    def own(self) -> Tally:
        """What the run itself was admitted, without its children."""
        return self.tally if self.below is None else self.tally.without(self.below)

    def beside(self, call: CallId) -> int:
        """How many calls of other messages than the call's own are in flight."""
        known = self.calls.get(call)
        if known is None:
            return len(self.in_flight)
        return sum(entry.asked != known.asked for entry in self.in_flight.values())

    embedding: Embedding | None = None  # of the task
    drift: int | None = None  # of the newest admitted call from it

    @property
    def failed(self) -> bool:
        return self.end == "failed"

    @property
    def phase(self) -> Phase:
        return self.dfa.phase


class ThreadState(Struct, frozen=True):
    """`seq`, `at` and `head` are the last record's; `input` is the bus position of the last input that was handled."""

    thread: ThreadId
    seq: int = 0
    at: int = 0
    head: str = ""
    input: int = 0
    owner: AgentId | None = None
    refusals: int = 0
    tally: Tally = Tally(0)
    runs: Map[RunId, RunState] = Map()
    open_runs: Map[AgentId, int] = Map()
    order: OrderState = OrderState()
    remembered: tuple[Remembered, ...] = ()
    circuits: Map[str, Circuit] = Map()
    semantic: Seen = Seen()
    erased: Map[RunId, tuple[str, ...]] = Map()  # of each run that held data of subjects: the keys that are gone


# --- snapshots -------------------------------------------------------------------------------------------------------


def _enc_hook(value: Any) -> Any:
    if isinstance(value, Map):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no place in a state")


def _dec_hook(kind: Any, value: Any) -> Any:
    if get_origin(kind) is Map or kind is Map:
        return Map(msgspec.convert(value, dict[get_args(kind)], dec_hook=_dec_hook))  # type: ignore[misc]
    raise TypeError(f"{kind} has no place in a state")


_ENCODER = msgspec.json.Encoder(enc_hook=_enc_hook, order="sorted")
_DECODER: list[msgspec.json.Decoder[ThreadState]] = []


def dump(state: ThreadState) -> bytes:
    """A snapshot: deterministic bytes of the whole state."""
    return _ENCODER.encode(state)


def load(raw: bytes) -> ThreadState:
    """The state of a snapshot. Raises `msgspec.ValidationError` for one of another shape (then fold the records)."""
    if not _DECODER:
        _DECODER.append(msgspec.json.Decoder(ThreadState, dec_hook=_dec_hook))
    return _DECODER[0].decode(raw)
