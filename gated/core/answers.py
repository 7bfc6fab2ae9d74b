"""What people and time do to tickets: resolutions, deadlines, and deciding a call again that waited.

An approval lifts the asks of its ticket and of the call's earlier approved tickets with the same digest, and nothing else:
the whole pipeline runs again on the state and the policy of now.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Literal

from msgspec.structs import replace

from gated import canonical
from gated.core import batches, outcomes, remembering, tickets, waiting
from gated.core.call import Call
from gated.core.calls import judge_again
from gated.core.redaction.cover import restored
from gated.core.redaction.subjects import key_of
from gated.core.redaction.vault import Unreadable
from gated.core.stages import semantic
from gated.core.state import RunState, ThreadState
from gated.core.tickets import Ticket
from gated.core.turn import Turn
from gated.core.verdicts import Judged
from gated.events import (
    Answer,
    CallDecided,
    CallId,
    CallRefused,
    DataErased,
    Decision,
    ErasureRequested,
    ForgetRequested,
    Forgotten,
    NoticeReported,
    ResolutionReceived,
    TicketAnswered,
    TicketCall,
    TicketId,
    TicketNoted,
    TicketOpened,
    Value,
)
from gated.units import format_duration


def resolve(turn: Turn, resolution: ResolutionReceived) -> None:
    run, groups = turn.opened, turn.policy.approvals.groups
    ticket = None if run is None else run.tickets.get(resolution.ticket)
    if ticket is not None and _repeated(turn, ticket, resolution):
        return
    refusal = tickets.judge(ticket, resolution, turn.at, groups)
    if refusal is not None or ticket is None:
        assert refusal is not None
        turn.refuse(refusal.code, refusal.reason, ticket=resolution.ticket)
        return
    shut = _shut(turn, ticket) if resolution.decision == "approve" else None
    if shut is not None:
        turn.refuse("approvals.crashed", f"{shut}: it can only be rejected", ticket=resolution.ticket)
        return
    answer = tickets.answer_of(ticket, resolution, turn.at)
    if resolution.decision == "reject":
        _reject(turn, ticket, answer)
    elif resolution.answers and _waits_on(turn, ticket, answer, resolution):
        reason = "the call still waits for people after this answer: leave the result out, whoever answers last may give it"
        turn.refuse("approvals.may_not_answer", reason, ticket=ticket.id)
    else:
        _take(turn, ticket, answer, resolution)


def _waits_on(turn: Turn, ticket: Ticket, answer: Answer, resolution: ResolutionReceived) -> bool:
    """Whether others must still answer after this answer: a result in it would be lost, and the tool run. Nothing is applied."""
    trial = Turn(turn.registry, turn.state, turn.run_id, turn.at, turn.cover)
    _take(trial, ticket, answer, resolution)
    known = trial.run.known(ticket.calls[0].call)
    if known is None or known.state != "suspended":
        return False
    turn.unscored, turn.unfollowed = trial.unscored, trial.unfollowed
    return True


def _take(turn: Turn, ticket: Ticket, answer: Answer, resolution: ResolutionReceived) -> None:
    if resolution.args is not None:
        _edit(turn, ticket, answer, resolution)
    else:
        _approve(turn, ticket, answer, resolution)


def _shut(turn: Turn, ticket: Ticket) -> str | None:
    """Why the calls of a ticket cannot be decided again, if so. Raises `Unreadable` in a replay."""
    try:
        for call in ticket.calls:
            turn.reveal(call.args, call.sealed, call.tool)
    except Unreadable as error:
        if turn.must_open:
            raise
        return str(error)
    return None


def erase(turn: Turn, request: ErasureRequested) -> None:
    """A subject's keys are gone: what waited for people with arguments under them ends, since it can never run."""
    told = turn.state.erased.get(turn.run_id, ())
    fresh = tuple(key for key in request.keys if key not in told)
    if not request.keys:
        turn.refuse("ingress.id", f"there is no key of `{request.subject}`: nothing of it is kept")
    elif not fresh:
        turn.replies.append(CallRefused(code="ingress.id", reason=f"the data of `{request.subject}` was erased already"))
    else:
        turn.do(DataErased(subject=request.subject, keys=fresh))
        _end_erased(turn, request.subject, fresh)


def _end_erased(turn: Turn, subject: str, keys: tuple[str, ...]) -> None:
    pending = () if turn.opened is None else turn.opened.tickets.open.values()
    for ticket in sorted(pending, key=lambda ticket: ticket.number):
        if any(key_of(call.sealed) in keys for call in ticket.calls):
            turn.close_ticket(ticket.id, "cancelled", f"its arguments were erased with the data of `{subject}`")


def _repeated(turn: Turn, ticket: Ticket, resolution: ResolutionReceived) -> bool:
    """The same answer again (`decision_id` is its key) changes nothing and is answered as before."""
    answer = tickets.of_this_id(ticket, resolution)
    repeated = answer is not None and resolution.content_sha256 in (None, answer.content_sha256 or resolution.content_sha256)
    if answer is not None and repeated:
        turn.replies.append(TicketAnswered(ticket=ticket.id, answer=answer, state=ticket.state))
    return repeated


def _reject(turn: Turn, ticket: Ticket, answer: Answer) -> None:
    turn.do(TicketAnswered(ticket=ticket.id, answer=answer, state="rejected"))
    reason = f"rejected by {answer.by}" + (f": {answer.note}" if answer.note else "")
    turn.deny_waiting(ticket, "rejected", reason)


def _approve(turn: Turn, ticket: Ticket, answer: Answer, resolution: ResolutionReceived) -> None:
    policy, run = turn.policy, turn.run
    answered = replace(ticket, answers=(*ticket.answers, answer))
    if not tickets.satisfied(answered, policy.approvals.groups):
        turn.do(TicketAnswered(ticket=ticket.id, answer=answer, state="pending"))
        return
    remembered = None if ticket.atomic else remembering.remembered(answered, run.policy, run.agent)
    turn.do(TicketAnswered(ticket=ticket.id, answer=answer, state="approved", remembered=remembered))
    if ticket.atomic:
        _decide_batch_again(turn, ticket, resolution)
        return
    call = _call(turn, ticket.calls[0], resolution)
    judged = judge_again(turn, call, _lifts(turn, ticket, call))
    _conclude(turn, ticket, judged, resolution if resolution.answers else None)


def _call(turn: Turn, waiting: TicketCall, resolution: ResolutionReceived) -> Call:
    return Call(
        waiting.call,
        waiting.tool,
        turn.reveal(waiting.args, waiting.sealed, waiting.tool),
        waiting.args_sha256,
        waiting.parent,
        waiting.cost_microusd,
        waiting.nesting,
        turn.run.beside(waiting.call),
        semantic.again(waiting.scores, resolution.scores.get(waiting.call)),
        waiting.embedding,
        resolution.links.get(waiting.call),
    )


def _lifts(turn: Turn, ticket: Ticket, call: Call) -> frozenset[str]:
    """The asks that were answered for exactly these arguments, on this ticket and the call's earlier ones."""
    sources = {ask.source for ask in ticket.asks if ask.call in (None, call.id)}
    for earlier in tickets.tickets_of(turn.run.tickets, turn.state.thread, turn.run_id, ticket.calls[0].call):
        same = any(c.call == call.id and c.args_sha256 == call.args_sha256 for c in earlier.calls)
        if same and earlier.state == "approved":
            sources.update(ask.source for ask in earlier.asks if ask.call in (None, call.id))
    return frozenset(sources)


def _conclude(turn: Turn, ticket: Ticket, judged: Judged, answering: ResolutionReceived | None = None) -> None:
    """The verdict that an approval led to: admitted, denied by what changed, or asked about something new."""
    edited = ticket.edited
    decided = replace(judged.decided, ticket=ticket.id, edited=edited, args=judged.call.args if edited else None)
    if decided.decision == "suspend":
        opened = waiting.ticket_for(turn, (judged,), atomic=False, edited=edited)
        turn.do(opened)
        decided = replace(decided, ticket=opened.ticket)
    answers = answering is not None and decided.decision == "allow"
    if answers and answering is not None:
        admission = None if decided.admission is None else replace(decided.admission, trial=False)  # the tool does not run
        decided = replace(decided, execute=False, result=answering.result, admission=admission)
    turn.do(decided)
    if answers and answering is not None:
        said, reading = answering.result, answering.reading
        outcomes.settle(turn, decided.call, "success", said, {}, cost_microusd=0, tokens=0, reading=reading)


def _decide_batch_again(turn: Turn, ticket: Ticket, resolution: ResolutionReceived) -> None:
    calls = [_call(turn, call, resolution) for call in ticket.calls]
    verdicts = batches.rehearse(turn, calls, partial(_judge_member_again, ticket))
    tagged = [replace(v, decided=replace(v.decided, ticket=ticket.id)) for v in verdicts]
    batches.conclude_atomic(turn, tagged)


def _judge_member_again(ticket: Ticket, trial: Turn, call: Call) -> Judged:
    return judge_again(trial, call, _lifts(trial, ticket, call))


def batch_before(turn: Turn, ticket: Ticket, resolution: ResolutionReceived, call: CallId) -> ThreadState:
    """What the calls before `call` left to it when their approved atomic batch was decided again."""
    before = itertools.takewhile(lambda waiting: waiting.call != call, ticket.calls)
    calls = [_call(turn, waiting, resolution) for waiting in before]
    return batches.rehearsed(turn, calls, partial(_judge_member_again, ticket))


def _edit(turn: Turn, ticket: Ticket, answer: Answer, resolution: ResolutionReceived) -> None:
    """Other arguments are another call: decided whole, with what this person may answer taken as answered."""
    assert resolution.args is not None
    turn.do(TicketAnswered(ticket=ticket.id, answer=answer, state="superseded"))
    old = ticket.calls[0]
    args, digest = _edited(turn, old, resolution)
    call = _call(turn, replace(old, args=args, args_sha256=digest, sealed=None, scores=None, embedding=None), resolution)
    judged = judge_again(turn, call, frozenset())
    edited = replace(ticket, edited=True)
    if judged.decided.decision != "suspend":
        _conclude(turn, edited, judged, resolution if resolution.answers else None)
        return
    opened = waiting.ticket_for(turn, (judged,), atomic=False, edited=True)
    fresh = tickets.open_ticket(opened)
    groups = turn.policy.approvals.groups
    taken = replace(fresh, answers=(answer,)) if tickets.may_answer(fresh, answer.by, answer.at, groups) else fresh
    if tickets.satisfied(taken, groups):
        lifts = frozenset(ask.source for ask in opened.asks)
        _conclude(turn, edited, judge_again(turn, call, lifts), resolution if resolution.answers else None)
        return
    turn.do(replace(opened, answers=taken.answers))
    turn.do(replace(judged.decided, ticket=opened.ticket, edited=True, args=call.args))


def _edited(turn: Turn, old: TicketCall, resolution: ResolutionReceived) -> tuple[dict[str, Value], str]:
    """The arguments after an edit and their digest: what the editor was not shown stays as it was."""
    assert resolution.args is not None
    digest = resolution.args_sha256_edited or canonical.args_digest(old.tool, resolution.args)
    if old.sealed is None:
        return resolution.args, digest
    args: dict[str, Value] = restored(resolution.args, old.args, turn.reveal(old.args, old.sealed, old.tool))
    return args, digest if args == resolution.args else turn.digest(old.tool, args)


def forget(turn: Turn, request: ForgetRequested) -> None:
    run = turn.opened
    standing = (*turn.state.remembered, *(run.remembered if run is not None else ()))
    if any(item.id == request.remembered for item in standing):
        turn.do(Forgotten(remembered=request.remembered))
    else:
        turn.refuse("approvals.unknown_ticket", f"nothing is remembered as `{request.remembered}`")


def note_delivery(turn: Turn, report: NoticeReported) -> None:
    """A ticket says over which channels nobody could be told of it. What changes nothing is not recorded."""
    ticket = None if turn.opened is None else turn.opened.tickets.get(report.ticket)
    if ticket is None or ticket.state != "pending" or bool(report.error) == (report.channel in ticket.undelivered):
        return
    event: Literal["undelivered", "delivered"] = "undelivered" if report.error else "delivered"
    turn.do(TicketNoted(ticket=ticket.id, event=event, channel=report.channel, reason=report.error))


# --- time ------------------------------------------------------------------------------------------------------------


def time_passed(turn: Turn) -> None:
    """Everything of the run that is due by now, in order of due time; what is over already is passed by.

    An outcome or an answer that comes exactly at its deadline is in time, so a deadline has passed only after it.
    """
    if turn.opened is None:
        return
    for _, kind, _, name in sorted(_due(turn)):
        if kind == "lapse":
            _lapse(turn, name)
        else:
            _ticket_due(turn, kind, name)


def _due(turn: Turn) -> list[tuple[int, str, int, str]]:
    """When, what, and of what: several at one moment in the order in which they began."""
    run, at = turn.run, turn.at
    due = [(entry.due, "lapse", entry.seq, str(call)) for call, entry in run.in_flight.items() if entry.due < at]
    for ticket in run.tickets.open.values():
        if ticket.expires_at < at:  # and nobody need hear any more that this was near
            due.append((ticket.expires_at, "expire", ticket.number, str(ticket.id)))
            continue
        if not ticket.soon and ticket.soon_at <= at:
            due.append((ticket.soon_at, "expiring_soon", ticket.number, str(ticket.id)))
        if not ticket.escalated and ticket.escalate_at is not None and ticket.escalate_at <= at:
            due.append((ticket.escalate_at, "escalated", ticket.number, str(ticket.id)))
    return due


def _lapse(turn: Turn, name: str) -> None:
    call = next(call for call in turn.run.in_flight if call == name)
    entry = turn.run.in_flight[call]
    admitting = turn.registry.known[entry.policy]  # the run may be bound to another policy by now
    timeout = admitting.timeouts.get(entry.tool, admitting.profile(turn.run.agent).call_timeout)
    content = f"no outcome within {format_duration(timeout)}"
    outcomes.settle(turn, call, "error", content, {}, cost_microusd=entry.reserved_microusd, tokens=0, lapsed=True)


def _ticket_due(turn: Turn, kind: str, name: str) -> None:
    ticket = turn.run.tickets[TicketId(name)]
    if ticket.state != "pending":  # the run ended on an earlier deadline of this turn
        return
    if kind == "expire":
        waited = format_duration(ticket.expires_at - ticket.opened_at)
        turn.close_ticket(ticket.id, "expired", f"nobody answered within {waited}")
    else:
        turn.do(TicketNoted(ticket=ticket.id, event="escalated" if kind == "escalated" else "expiring_soon"))


def next_due(run: RunState) -> int | None:
    """When a shell must wake the run next (µs): the first moment at which something of it is due or over."""
    times = [entry.due + 1 for entry in run.in_flight.values()]
    for ticket in run.tickets.open.values():
        times.append(ticket.expires_at + 1)
        times += [] if ticket.soon else [ticket.soon_at]
        times += [] if ticket.escalated or ticket.escalate_at is None else [ticket.escalate_at]
    return min(times, default=None)


def due_times(decisions: Sequence[Decision]) -> list[int]:
    """The moments (µs) at which these decisions ask to be woken."""
    times: list[int] = []
    for decision in decisions:
        if isinstance(decision, CallDecided) and decision.admission is not None:
            times.append(decision.admission.due + 1)
        elif isinstance(decision, TicketOpened):
            times += [decision.expires_at + 1, decision.soon_at]
            times += [] if decision.escalate_at is None else [decision.escalate_at]
    return times
