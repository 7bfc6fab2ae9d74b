"""The one function that changes the state of a thread: it applies what a record decided, and never refuses.

INVARIANT: the fold reads decisions and, by digest, policies; never the arguments of a call. So the state stays a fold of
the log where arguments are redacted or erased.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from msgspec.structs import replace

from gated.core import tickets
from gated.core.history import RECENT, Tally
from gated.core.order import engine
from gated.core.order.state import OrderState
from gated.core.policy import Policy
from gated.core.stages import breaker, dfa, semantic
from gated.core.state import Calls, InFlight, Known, KnownAs, Recent, RunState, ThreadState
from gated.events import (
    Admission,
    Body,
    CallDecided,
    CallRefused,
    CallSettled,
    DataErased,
    Decided,
    Decision,
    Forgotten,
    PolicyRebound,
    Remembered,
    RunAnswered,
    RunEnded,
    RunId,
    RunOpened,
    TicketAnswered,
    TicketClosed,
    TicketNoted,
    TicketOpened,
    UngatedExecution,
)

Policies = Mapping[str, Policy]

KNOWN_AS: Final[Mapping[Decided, KnownAs]] = {"allow": "admitted", "deny": "denied", "suspend": "suspended"}


def fold(policies: Policies, state: ThreadState, body: Body, hash: str) -> ThreadState:
    """The state after a record. Raises `KeyError` where a run's policy is not among `policies`."""
    for decision in body.decisions:
        state = apply(policies, state, body.run, body.seq, body.at, decision)
    return advance(state, body.seq, body.at, hash, body.input)


def advance(state: ThreadState, seq: int, at: int, hash: str, input: int) -> ThreadState:
    return replace(state, seq=seq, at=at, head=hash, input=max(state.input, input))


def apply(policies: Policies, state: ThreadState, run_id: RunId, seq: int, at: int, decision: Decision) -> ThreadState:
    """One decision of the record `seq` on the run it speaks of."""
    match decision:
        case CallDecided():
            return _decided(policies, state, run_id, seq, decision)
        case CallSettled():
            return _settled(policies, state, run_id, decision)
        case RunOpened():
            return _opened(state, run_id, at, decision)
        case CallRefused():
            return _refused(state, run_id)
        case RunEnded():
            return _ended(state, run_id, decision)
        case RunAnswered():
            return _answered(state, run_id, decision)
        case UngatedExecution():
            return _with(state, run_id, ungated=state.runs[run_id].ungated + 1)
        case TicketOpened():
            return _ticket_opened(state, run_id, decision)
        case TicketAnswered():
            return _ticket_answered(state, run_id, at, decision)
        case TicketClosed():
            move: tickets.Move = "expire" if decision.state == "expired" else "cancel"
            ticket = tickets.close(state.runs[run_id].tickets[decision.ticket], move, at)
            return _with_ticket(state, run_id, ticket)
        case TicketNoted():
            return _with_ticket(state, run_id, tickets.noted(state.runs[run_id].tickets[decision.ticket], decision))
        case Forgotten():
            return _forgotten(state, run_id, decision)
        case PolicyRebound():
            run = state.runs[run_id]
            before = (*run.bound_before, (seq, run.policy))
            return _bound(_with(state, run_id, policy=decision.policy, bound_before=before), decision.policy)
        case DataErased():
            return replace(state, erased=state.erased.set(run_id, (*state.erased.get(run_id, ()), *decision.keys)))
        case _:
            assert_never(decision)


def _with(state: ThreadState, run_id: RunId, **changes: object) -> ThreadState:
    run = replace(state.runs[run_id], **changes)
    return replace(state, runs=state.runs.set(run_id, run))


def _opened(state: ThreadState, run_id: RunId, at: int, decision: RunOpened) -> ThreadState:
    first, tally = state.owner is None, Tally(at)  # one object for the thread and its first run, while that is alone
    run = RunState(
        agent=decision.agent,
        policy=decision.policy,
        tally=tally,
        parent=decision.parent,
        message=decision.message,
        task=decision.task,
        labels=decision.labels,
        tools=decision.tools,
        embedding=decision.embedding,
    )
    return replace(
        _bound(state, run.policy),
        owner=decision.agent if first else state.owner,
        tally=tally if first else state.tally,
        runs=state.runs.set(run_id, run),
        open_runs=state.open_runs.set(run.agent, state.open_runs.get(run.agent, 0) + 1),
    )


def _bound(state: ThreadState, policy: str) -> ThreadState:
    """The thread's state once one of its runs is bound to the policy."""
    return state if policy in state.policies else replace(state, policies=(*state.policies, policy))


def _refused(state: ThreadState, run_id: RunId) -> ThreadState:
    run = state.runs.get(run_id)
    if run is None:
        return replace(state, refusals=state.refusals + 1)
    return _with(state, run_id, refusals=run.refusals + 1)


def _decided(policies: Policies, state: ThreadState, run_id: RunId, seq: int, decision: CallDecided) -> ThreadState:
    if not decision.known:
        return _refused(state, run_id)
    run, order = state.runs.open.get(run_id) or state.runs[run_id], state.order
    if decision.findings and decision.counted:
        order = engine.count(order, decision.findings, decision.stage, decision.decision, decision.tool)
    if decision.admission is not None:
        return _admitted(policies, state, run_id, run, order, seq, decision, decision.admission)
    run = replace(
        run,
        calls=_with_call(run, seq, decision),
        hop_count=run.hop_count + decision.hop,
        retry_count=run.retry_count + decision.misfit,
        dfa=run.dfa if decision.phase is None else replace(run.dfa, phase=decision.phase),
    )
    return replace(state, runs=state.runs.set(run_id, run), order=order)


def _with_call(run: RunState, seq: int, decision: CallDecided) -> Calls:
    before = run.calls.open.get(decision.call)
    digest = decision.args_sha256 if before is None else before.args_sha256  # an edit runs under the call's own id
    asked = seq if before is None else before.asked
    return run.calls.set(decision.call, Known(digest, decision.tool, seq, KNOWN_AS[decision.decision], asked))


def _admitted(
    policies: Policies,
    state: ThreadState,
    run_id: RunId,
    run: RunState,
    order: OrderState,
    seq: int,
    decision: CallDecided,
    admission: Admission,
) -> ThreadState:
    """The call takes its place: in flight, in the tallies of the run, its ancestors and the thread, on its machines."""
    policy, call, tool, reserved = policies[run.policy], decision.call, decision.tool, admission.reserved_microusd
    calls, digest, asked, known_digest = run.calls, decision.args_sha256, seq, ""
    waited = calls.open.get(call)
    if waited is not None:
        calls, asked = calls.delete(call), waited.asked
        known_digest = "" if waited.args_sha256 == digest else waited.args_sha256
    above = () if run.parent is None else ancestors(policies, state, run_id)
    before, in_flight, touches = run.tally, run.in_flight, admission.touches
    entry = InFlight(
        tool,
        digest,
        reserved,
        seq,
        admission.due,
        admission.parent,
        touches,
        above,
        run.policy,
        admission.args,
        before.calls,
        admission.sealed,
        asked,
        known_digest,
    )
    tally = before.admit(tool, reserved, policy.window)
    thread = tally if before is state.tally else state.tally.admit(tool, reserved, policy.window)
    run = replace(
        run,
        calls=calls,
        hop_count=run.hop_count + decision.hop,
        dfa=dfa.admit(run.dfa, admission.path, admission.nested, not in_flight),
        in_flight=in_flight.set(call, entry),
        tally=tally,
        drift=admission.drift,
    )
    runs = state.runs.set(run_id, run) if run.end else state.runs.keep(run_id, run)
    for ancestor_id in above:
        ancestor = runs[ancestor_id]
        below = ancestor.below or Tally(ancestor.tally.opened_at)
        tallies = {"tally": ancestor.tally, "below": below}
        admitted = {name: tally.admit(tool, reserved, policy.window) for name, tally in tallies.items()}
        runs = runs.set(ancestor_id, replace(ancestor, **admitted))
    if touches:
        machines = policy.profile(run.agent).machines
        order = engine.admit(order, machines, run_id, call, touches)
    circuits = state.circuits
    if admission.trial:
        circuits = breaker.start_trial(circuits, tool, run_id, call)
    return replace(state, runs=runs, order=order, tally=thread, circuits=circuits)


def ancestors(policies: Policies, state: ThreadState, run_id: RunId) -> tuple[RunId, ...]:
    """The runs above, nearest first, as far as each parent's profile says that its children inherit."""
    found: list[RunId] = []
    parent = state.runs[run_id].parent
    while parent is not None:
        run = state.runs[parent]
        if not policies[run.policy].profile(run.agent).inherits:
            break
        found.append(parent)
        parent = run.parent
    return tuple(found)


def _settled(policies: Policies, state: ThreadState, run_id: RunId, decision: CallSettled) -> ThreadState:
    run = state.runs.open.get(run_id) or state.runs[run_id]
    entry = run.in_flight[decision.call]
    profile = policies[run.policy].profile(run.agent)
    ended = bool(run.end)
    spend = (decision.status, entry.reserved_microusd, decision.cost_microusd, decision.tokens)
    known = Known(entry.known_sha256 or entry.args_sha256, entry.tool, entry.seq, "settled", entry.asked)
    tally = run.tally.settle(*spend)
    thread = tally if run.tally is state.tally else state.tally.settle(*spend)
    run = replace(
        run,
        calls=run.calls.file(decision.call, known),
        in_flight=run.in_flight.delete(decision.call),
        tally=tally,
        step_count=run.step_count + (decision.status == "success"),
        retry_count=_retries(run.retry_count, decision, ended),
        grounded=run.grounded + (decision.status == "success" and entry.tool in profile.grounding),
        dfa=run.dfa if decision.phase is None else replace(run.dfa, phase=decision.phase),
        recent=(*run.recent[1 - RECENT :], Recent(entry.tool, decision.status, entry.args_sha256)),
    )
    runs = state.runs.set(run_id, run) if run.end else state.runs.keep(run_id, run)
    for ancestor_id in entry.ancestors:
        ancestor = runs[ancestor_id]
        below = None if ancestor.below is None else ancestor.below.settle(*spend)
        runs = runs.set(ancestor_id, replace(ancestor, tally=ancestor.tally.settle(*spend), below=below))
    order = engine.advance(
        state.order,
        policies[entry.policy].profile(run.agent).machines,
        run_id,
        decision.call,
        entry.touches,
        decision.moves,
        decision.reminders,
    )
    circuits = state.circuits
    if decision.circuit is not None:
        circuits = breaker.keep(circuits, entry.tool, decision.circuit)
    seen = state.semantic if decision.reading is None else semantic.remember(state.semantic, decision.reading)
    return replace(state, runs=runs, order=order, tally=thread, circuits=circuits, semantic=seen)


def _retries(count: int, decision: CallSettled, ended: bool) -> int:
    if ended or decision.status == "not_run":
        return count
    return 0 if decision.status == "success" else count + 1


def _ended(state: ThreadState, run_id: RunId, decision: RunEnded) -> ThreadState:
    run = state.runs[run_id]
    phase = replace(run.dfa, phase=decision.phase)
    open_runs = state.open_runs.set(run.agent, state.open_runs.get(run.agent, 1) - 1)
    state = replace(state, order=state.order.retire(run_id), open_runs=open_runs)
    return _with(state, run_id, end=decision.status, reason=decision.reason, ended=decision, dfa=phase)


def _answered(state: ThreadState, run_id: RunId, decision: RunAnswered) -> ThreadState:
    if decision.status != "steer":
        return state
    return _with(state, run_id, continuations=state.runs[run_id].continuations + 1)


def _with_ticket(state: ThreadState, run_id: RunId, ticket: tickets.Ticket) -> ThreadState:
    return _with(state, run_id, tickets=state.runs[run_id].tickets.set(ticket.id, ticket))


def _ticket_opened(state: ThreadState, run_id: RunId, decision: TicketOpened) -> ThreadState:
    return _with_ticket(state, run_id, tickets.open_ticket(decision, len(state.runs[run_id].tickets)))


def _ticket_answered(state: ThreadState, run_id: RunId, at: int, decision: TicketAnswered) -> ThreadState:
    ticket = state.runs[run_id].tickets[decision.ticket]
    ticket = replace(ticket, answers=(*ticket.answers, decision.answer))
    moves: dict[str, tickets.Move] = {"approved": "satisfy", "rejected": "reject", "superseded": "edit"}
    if decision.state != "pending":
        ticket = tickets.close(ticket, moves[decision.state], at)
    state = _with_ticket(state, run_id, ticket)
    return state if decision.remembered is None else _remember(state, run_id, decision.remembered)


def _remember(state: ThreadState, run_id: RunId, item: Remembered) -> ThreadState:
    if item.scope == "thread":
        return replace(state, remembered=(*state.remembered, item))
    return _with(state, run_id, remembered=(*state.runs[run_id].remembered, item))


def _forgotten(state: ThreadState, run_id: RunId, decision: Forgotten) -> ThreadState:
    kept = tuple(item for item in state.remembered if item.id != decision.remembered)
    state = replace(state, remembered=kept)
    run = state.runs.get(run_id)
    if run is None:
        return state
    return _with(state, run_id, remembered=tuple(i for i in run.remembered if i.id != decision.remembered))
