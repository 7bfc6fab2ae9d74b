"""Threads of many records, in the shapes that load worst: what a run, an agent or a policy can make a state grow by.

A shape is a policy and what is said in the thread. The records of a thread are those that what is said makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks import core
from gated import canonical
from gated.core.tickets import ticket_id
from gated.events import (
    AbortRequested,
    CallId,
    FinishRequested,
    IntentsReceived,
    Observation,
    OutcomeReported,
    ResolutionReceived,
    RunId,
    RunStarted,
    Sender,
    ThreadId,
    Wanted,
)

THREAD = ThreadId("long")
BOB = Sender("approver", "bob")
FILES = 10_000

Said = tuple[RunId, Observation]

ASKED = core.PLAIN.replace("data_scope:", "approval_required: [Read]\n    data_scope:") + (
    "approvals: {default: {approvers: [user:bob]}}\n"
)
OF_RUNS = core.machines(5, 1).replace("initial: n", "scope: run, initial: n")


def calls(run: RunId, count: int) -> Iterator[Said]:
    """Calls of a run, each with its outcome."""
    for number in range(count):
        call = CallId(f"call_{run}_{number:06d}")
        yield run, _wants(call, "Read", number)
        yield run, OutcomeReported(core.BY, call, "success", content="ok")


def finished(run: RunId, count: int) -> Iterator[Said]:
    yield from calls(run, count)
    yield run, FinishRequested(core.BY)


def _wants(call: CallId, tool: str, number: int) -> IntentsReceived:
    wanted = Wanted(call, tool, {"file_path": f"src/f{number % FILES}.py"})
    return IntentsReceived(core.BY, (wanted,), nesting="explicit")


def _one_run(records: int) -> Iterator[Said]:
    return calls(RunId("r"), records // 2)


def _denied(records: int) -> Iterator[Said]:
    for number in range(records):
        yield RunId("r"), _wants(CallId(f"call_{number:06d}"), "Forbidden", number)


def _ended_runs(records: int) -> Iterator[Said]:
    for number in range(records // 11):
        yield from finished(RunId(f"run{number}"), 5)


def _open_runs(of: int, records: int) -> Iterator[Said]:
    for number in range(records // of):
        yield from calls(RunId(f"run{number}"), of // 2)


def _children(records: int) -> Iterator[Said]:
    yield from calls(RunId("parent"), 1)
    for number in range((records - 2) // 12):
        run = RunId(f"run{number}")
        yield run, RunStarted(core.BY, agent=core.A, parent=RunId("parent"), labels={"part": str(number)})
        yield from finished(run, 5)


def _aborted(records: int) -> Iterator[Said]:
    for number in range(records // 2):
        run = RunId(f"run{number}")
        yield run, _wants(CallId("c"), "Forbidden", number)
        yield run, AbortRequested(core.BY, "enough")


def _in_flight(records: int) -> Iterator[Said]:
    """As many calls of each run as the default limit takes."""
    for number in range(records):
        yield RunId(f"run{number // 100}"), _wants(CallId(f"call_{number:06d}"), "Read", number)


def _answered(decision: str, records: int) -> Iterator[Said]:
    """Tickets of one run, each answered, and the outcomes of what was approved."""
    run = RunId("r")
    for number in range(records // (3 if decision == "approve" else 2)):
        call = CallId(f"call_{number:06d}")
        wants = _wants(call, "Read", number)
        yield run, wants
        digest = canonical.args_digest("Read", wants.calls[0].args)
        ticket = ticket_id(THREAD, run, call, 1)
        yield run, ResolutionReceived(BOB, ticket, decision, f"d{number}", digest, note="fine")  # type: ignore[arg-type]
        if decision == "approve":
            yield run, OutcomeReported(core.BY, call, "success", content="ok")


def _waiting(of: int, records: int) -> Iterator[Said]:
    """Calls that wait for people, so many of each run."""
    for number in range(records):
        yield RunId(f"run{number // of}"), _wants(CallId(f"call_{number:06d}"), "Read", number)


SHAPES: dict[str, tuple[str, Callable[[int], Iterator[Said]]]] = {
    "one_run": (core.PLAIN, _one_run),
    "denials": (core.PLAIN, _denied),
    "ended_runs": (core.PLAIN, _ended_runs),
    "aborted_runs": (core.PLAIN, _aborted),
    "children": (core.PLAIN, _children),
    "runs_of_ten_left_open": (core.PLAIN, partial(_open_runs, 10)),
    "runs_of_two_left_open": (core.PLAIN, partial(_open_runs, 2)),
    "machines": (core.machines(5, 1), _one_run),
    "machines_of_ended_runs": (OF_RUNS, _ended_runs),
    "machines_of_runs_left_open": (OF_RUNS, partial(_open_runs, 10)),
    "tickets_approved": (ASKED, partial(_answered, "approve")),
    "tickets_rejected": (ASKED, partial(_answered, "reject")),
    "tickets_waiting": (ASKED, partial(_waiting, 100)),
    "tickets_waiting_in_one_run": (ASKED, partial(_waiting, 100_000)),
    "in_flight": (core.PLAIN, _in_flight),
}
