"""The state of a thread: plain, immutable data, brought forward one decision at a time by `fold`.

Everything that grows is an `immutables.Map`, or a `Filed` where its entries come to rest, so a step costs the same at the
10,000th call as at the 10th, and a copy (an atomic batch, a what-if) is free. The owner, the runs, the tally, the machines and
standing approvals outlive a run.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from immutables import Map
from msgspec import Struct
from msgspec.structs import replace

from gated.core.filed import Filed, Shelved
from gated.core.history import Tally
from gated.core.late import Late
from gated.core.open_rows import TICKETS, digest_bytes
from gated.core.order.apart import OrderApart
from gated.core.order.state import OrderState
from gated.core.stages.dfa import DfaState
from gated.core.stages.semantic import Seen
from gated.core.tickets import Ticket, batch_digest
from gated.core.writing import FORMS, SLICE, Form, Reading, Rows, Slices, checked, from_json, rows_written, summed, write
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


class Known(Struct, frozen=True, gc=False, array_like=True):
    """A call id of the run: the digest it stands for, and the record that holds its latest verdict. See `RunState.known`."""

    args_sha256: str
    tool: str
    seq: int
    state: KnownAs
    asked: int = 0  # the record of the message that asked for it


class _Row(Struct, frozen=True, gc=False, array_like=True):
    """A call that was settled or denied, packed: a digest takes half as much in bytes."""

    digest: bytes
    tool: str
    seq: int
    settled: bool
    asked: int
    text: str | None = None  # what stands where a digest should, if it is none in hex


_PACKER: Final = msgspec.msgpack.Encoder()
_ROWS: Final = msgspec.msgpack.Decoder(_Row)


class Calls(Filed[CallId, Known], frozen=True, gc=False, array_like=True):
    """The calls that a run knows and that are not in flight. Those that were settled or denied stay as they are."""

    @staticmethod
    def rests(value: Known) -> bool:
        return value.state == "settled" or value.state == "denied"

    @staticmethod
    def pack(value: Known) -> bytes:
        digest = digest_bytes(value.args_sha256)
        text = None if digest else value.args_sha256
        return _PACKER.encode(_Row(digest, value.tool, value.seq, value.state == "settled", value.asked, text))

    @staticmethod
    def unpack(raw: bytes) -> Known:
        row = _ROWS.decode(raw)
        return Known(
            row.digest.hex() if row.text is None else row.text,
            row.tool,
            row.seq,
            "settled" if row.settled else "denied",
            row.asked,
        )


class _OpenRow(Struct, frozen=True, gc=False, array_like=True):
    """A call that waits, among those of its run."""

    call: CallId
    digest: bytes
    tool: str
    seq: int
    asked: int
    text: str | None
    state: KnownAs | None  # None: it is suspended


_OPEN_ROWS: Final = Reading(tuple[_OpenRow, ...])


def _calls_written(calls: Map[CallId, Known]) -> Slices:
    return rows_written(sorted(calls), lambda call: _open_row(call, calls[call]))


def _open_row(call: CallId, known: Known) -> tuple[Any, ...]:
    """The fields of an `_OpenRow`."""
    digest, state = digest_bytes(known.args_sha256), known.state
    text = None if digest else known.args_sha256
    return (call, digest, known.tool, known.seq, known.asked, text, None if state == "suspended" else state)


def _calls_read(raw: bytes) -> dict[CallId, Known]:
    return {
        row.call: Known(
            row.digest.hex() if row.text is None else row.text, row.tool, row.seq, row.state or "suspended", row.asked
        )
        for row in _OPEN_ROWS.read(raw)
    }


FORMS[Known] = Form(_calls_written, _calls_read)


class Tickets(Filed[TicketId, Ticket], frozen=True, gc=False, array_like=True):
    """The tickets of a run. What people, time or the run's end decided hardly changes any more."""

    @staticmethod
    def rests(value: Ticket) -> bool:
        return value.state != "pending"

    @staticmethod
    def pack(value: Ticket) -> bytes:
        same = value.args_sha256 == batch_digest(value.calls)
        return _TICKETS.write(replace(value, args_sha256="") if same else value)

    @staticmethod
    def unpack(raw: bytes) -> Ticket:
        read = _TICKETS.read(raw)
        return read if read.args_sha256 else replace(read, args_sha256=batch_digest(read.calls))


_TICKETS: Final = Rows(Ticket)
FORMS[Ticket] = TICKETS


class InFlight(Struct, frozen=True, gc=False, array_like=True):
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
    known_sha256: str = ""  # the digest that the call's id stands for, where it was edited since


class Recent(Struct, frozen=True, gc=False, array_like=True):
    """An ended call, for contracts."""

    tool: str
    status: Status
    args_sha256: str


class RunState(Struct, frozen=True, gc=False):
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
    calls: Calls = Calls()
    in_flight: Map[CallId, InFlight] = Map()
    recent: tuple[Recent, ...] = ()
    tickets: Tickets = Tickets()
    remembered: tuple[Remembered, ...] = ()
    embedding: Embedding | None = None  # of the task
    drift: int | None = None  # of the newest admitted call from it
    bound_before: tuple[tuple[int, str], ...] = ()  # to which policies, each until before this record

    @property
    def own(self) -> Tally:
        """What the run itself was admitted, without its children."""
        return self.tally if self.below is None else self.tally.without(self.below)

    def asked(self) -> int:
        """How many calls the run knows. (No property: to read one costs a decision as much as ten attributes.)"""
        calls = self.calls
        return len(calls.open) + calls.final.size + len(self.in_flight)

    def known(self, call: CallId) -> Known | None:
        """What the run knows of a call id, None for a new one."""
        entry = self.in_flight.get(call)
        if entry is None:
            return self.calls.get(call)
        return Known(entry.known_sha256 or entry.args_sha256, entry.tool, entry.seq, "admitted", entry.asked)

    def beside(self, call: CallId) -> int:
        """How many calls of other messages than the call's own are in flight."""
        known = self.known(call)
        if known is None:
            return len(self.in_flight)
        return sum(entry.asked != known.asked for entry in self.in_flight.values())

    def policy_at(self, seq: int) -> str:
        """The policy that decided record `seq`."""
        return next((policy for until, policy in self.bound_before if seq < until), self.policy)

    @property
    def failed(self) -> bool:
        return self.end == "failed"

    @property
    def phase(self) -> Phase:
        return self.dfa.phase


class Runs(Shelved[RunId, RunState], frozen=True, gc=False, array_like=True):
    """The runs of a thread. One that ended, and of which no outcome is to come, rests, if it did little."""

    @staticmethod
    def rests(value: RunState) -> bool:
        over = value.end and not value.in_flight and not value.tickets.open
        return bool(over) and not value.calls.final.leaves and not value.tickets.final.leaves

    @staticmethod
    def pack(value: RunState) -> bytes:
        given = {name: getattr(value, name) for name in RunState.__struct_fields__}
        return write({name: each for name, each in given.items() if name not in _UNSAID or each != _UNSAID[name]})

    @staticmethod
    def unpack(raw: bytes) -> RunState:
        return _RUNS.read(raw)


_UNSAID: Final = dict(
    zip(RunState.__struct_fields__[-len(RunState.__struct_defaults__) :], RunState.__struct_defaults__, strict=True)
)


class ThreadState(Struct, frozen=True, gc=False):
    """`seq`, `at` and `head` are the last record's; `input` is the bus position of the last input that was handled."""

    thread: ThreadId
    seq: int = 0
    at: int = 0
    head: str = ""
    input: int = 0
    owner: AgentId | None = None
    refusals: int = 0
    tally: Tally = Tally(0)
    runs: Runs = Runs()
    open_runs: Map[AgentId, int] = Map()
    order: OrderState = OrderState()
    remembered: tuple[Remembered, ...] = ()
    circuits: Map[str, Circuit] = Map()
    semantic: Seen = Seen()
    erased: Map[RunId, tuple[str, ...]] = Map()  # of each run that held data of subjects: the keys that are gone
    policies: tuple[str, ...] = ()  # that its runs are or were bound to


# --- snapshots -------------------------------------------------------------------------------------------------------

_RUNS: Final = Reading(RunState)
_STATES: Final = Reading(ThreadState)


class _Apart(ThreadState, frozen=True, gc=False):
    """As it was written when every machine had its own instances."""

    order: OrderApart = OrderApart()  # type: ignore[assignment]

    def joined(self) -> ThreadState:
        given = {name: getattr(self, name) for name in ThreadState.__struct_fields__}
        try:
            return ThreadState(**{**given, "order": self.order.joined(self._place, self._has_ended)})
        except KeyError as error:  # a call in flight that no run has
            raise msgspec.ValidationError(f"no state of a thread: {error}") from error

    def _place(self, run: RunId, call: CallId) -> tuple[int, int]:
        entry = self.runs[run].in_flight[call]
        return entry.seq, entry.ordinal

    def _has_ended(self, run: RunId) -> bool:
        return bool(self.runs[run].end)


_STATES_APART: Final = Reading(_Apart)


def dump(state: ThreadState) -> bytes:
    """A snapshot: deterministic bytes of the whole state."""
    return summed(write(state))


def dump_in_slices(state: ThreadState) -> Slices:
    """The same bytes. What waits in a run may be much: between two slices of it others have their turn."""
    opened = state.runs.open
    try:
        for run_id, run in opened.items():
            for name, form in (("calls", FORMS[Known]), ("tickets", FORMS[Ticket])):
                filed: Filed[Any, Any] = getattr(run, name)
                if type(filed.open) is Map and len(filed.open) > SLICE:
                    late = Late[Any, Any]((yield from form.write(filed.open)), form.read)
                    run = replace(run, **{name: replace(filed, open=late)})
                    opened = opened.set(run_id, run)
    except OverflowError:  # then the whole is JSON
        return dump(state)
    return dump(replace(state, runs=replace(state.runs, open=opened)))


def waiting(state: ThreadState) -> int:
    """How many rows of what waits a dump has to make. What was loaded, and nobody has spoken of since, is bytes."""
    parts = [filed.open for run in state.runs.open.values() for filed in (run.calls, run.tickets)]
    return sum(len(part) for part in parts if type(part) is Map)


def load(raw: bytes) -> ThreadState:
    """The state of a snapshot. Raises `msgspec.MsgspecError` for one of another shape (then fold the records)."""
    inner = checked(raw)
    try:
        return _STATES.read(inner)
    except msgspec.ValidationError:
        try:
            return _STATES_APART.read(inner).joined()
        except msgspec.ValidationError:
            if inner[:1] != b"{":
                raise
            return _of_one_map(msgspec.json.decode(inner))


def _of_one_map(old: Any) -> ThreadState:
    """A state as it was written when nothing of it was packed: an archive has no records to fold instead."""
    try:
        runs = {run_id: dict(run) for run_id, run in old["runs"].items()}
        for run in runs.values():
            run["calls"], run["tickets"] = (run["calls"], ()), (run["tickets"], ())
        state = from_json({**old, "runs": (runs, ())}, _Apart).joined()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise msgspec.ValidationError(f"no state of a thread: {error}") from error
    bound = {run.policy for run in state.runs.values()}
    bound |= {entry.policy for run in state.runs.values() for entry in run.in_flight.values()}
    return replace(state, runs=_rested(state.runs), policies=tuple(sorted(bound)))


def _rested(runs: Runs) -> Runs:
    made = Runs()
    for run_id, run in sorted(runs.items()):
        calls, tickets = Calls(), Tickets()
        in_flight = run.in_flight
        for call, known in sorted(run.calls.items()):
            if known.state != "admitted":
                calls = calls.set(call, known)
            elif (entry := in_flight.get(call)) is not None and entry.args_sha256 != known.args_sha256:
                in_flight = in_flight.set(call, replace(entry, known_sha256=known.args_sha256))
        for ticket_id, ticket in sorted(run.tickets.items()):
            tickets = tickets.set(ticket_id, ticket)
        made = made.set(run_id, replace(run, calls=calls, in_flight=in_flight, tickets=tickets))
    return made
