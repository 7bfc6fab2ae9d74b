"""Approval tickets: a suspended call waits here until people answer, time runs out or its run ends.

The life of a ticket is the table `MOVES`; what is not in it is refused. Whether an answer is in time is decided by the
times of two events in the log, never by whether a timer ran: silence never approves.
This module says who may answer and what an answer makes of a ticket; deciding the call again is the pipeline's.
Codes: `approvals.unknown_ticket` `already_decided` `identity` `not_authorised` `expired` `digest_mismatch`
`tool_change` `may_not_answer` `remember` `batch`, `ingress.id_conflict`; verdicts `approvals.rejected` `expired` `cancelled`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from gated.core.approval_rules import Groups as Groups
from gated.core.order.patterns import compile_pattern
from gated.events import (
    Answer,
    AnswerRule,
    Ask,
    CallId,
    ResolutionReceived,
    RunId,
    ThreadId,
    TicketCall,
    TicketId,
    TicketNoted,
    TicketOpened,
)
from gated.units import rfc3339

STAGE: Final = "approvals"

State = Literal["pending", "approved", "rejected", "expired", "cancelled", "superseded"]
Move = Literal["satisfy", "reject", "expire", "cancel", "edit"]

MOVES: Final[Mapping[State, Mapping[Move, State]]] = {
    "pending": {
        "satisfy": "approved",
        "reject": "rejected",
        "expire": "expired",
        "cancel": "cancelled",
        "edit": "superseded",
    },
    "approved": {},
    "rejected": {},
    "expired": {},
    "cancelled": {},
    "superseded": {},
}

SOON: Final = 0.8  # of the time has passed: `expiring_soon`


class Ticket(Struct, frozen=True, gc=False):
    """A ticket in the fold. `calls` lose their arguments when it is final."""

    id: TicketId
    calls: tuple[TicketCall, ...]
    args_sha256: str
    asks: tuple[Ask, ...]
    rules: tuple[AnswerRule, ...]
    opened_at: int
    expires_at: int
    soon_at: int
    escalate_at: int | None
    atomic: bool
    edited: bool
    answers: tuple[Answer, ...] = ()
    state: State = "pending"
    escalated: bool = False
    soon: bool = False
    number: int = 0  # in the order in which the run's tickets were opened
    undelivered: tuple[str, ...] = ()  # the channels over which its people could not be told
    closed_at: int | None = None


class Held(Protocol):
    """The tickets of a run, by id."""

    def get(self, key: TicketId, /) -> Ticket | None: ...


class Refusal(Struct, frozen=True, gc=False):
    code: str
    reason: str


def ticket_id(thread: ThreadId, run: RunId, call: CallId, number: int) -> TicketId:
    """Stable, and never a provider's call id alone: the second ticket of a call is `<id>.2`."""
    digest = hashlib.sha256(f"{thread}\n{run}\n{call}".encode()).hexdigest()[:20]
    return TicketId(f"t{digest}" if number == 1 else f"t{digest}.{number}")


def tickets_of(held: Held, thread: ThreadId, run: RunId, first: CallId) -> list[Ticket]:
    """The tickets whose first call this is, oldest first, found by their ids."""
    found: list[Ticket] = []
    while (ticket := held.get(ticket_id(thread, run, first, len(found) + 1))) is not None:
        found.append(ticket)
    return found


def batch_digest(calls: Sequence[TicketCall]) -> str:
    if len(calls) == 1:
        return calls[0].args_sha256
    return hashlib.sha256("".join(call.args_sha256 for call in calls).encode()).hexdigest()


def open_ticket(opened: TicketOpened, number: int = 0) -> Ticket:
    return Ticket(
        id=opened.ticket,
        calls=opened.calls,
        args_sha256=opened.args_sha256,
        asks=opened.asks,
        rules=opened.rules,
        opened_at=opened.opened_at,
        expires_at=opened.expires_at,
        soon_at=opened.soon_at,
        escalate_at=opened.escalate_at,
        atomic=opened.atomic,
        edited=opened.edited,
        answers=opened.answers,
        number=number,
    )


def noted(ticket: Ticket, note: TicketNoted) -> Ticket:
    """The ticket with what time, or those who tell people of it, did to it."""
    match note.event:
        case "escalated":
            return replace(ticket, escalated=True)
        case "expiring_soon":
            return replace(ticket, soon=True)
        case "undelivered":
            return replace(ticket, undelivered=(*ticket.undelivered, note.channel or ""))
        case "delivered":
            return replace(ticket, undelivered=tuple(name for name in ticket.undelivered if name != note.channel))


def close(ticket: Ticket, move: Move, at: int) -> Ticket:
    """Raises `KeyError` where the table has no such move: a final ticket stays as it is."""
    bare = tuple(replace(call, args={}) for call in ticket.calls)
    return replace(ticket, state=MOVES[ticket.state][move], calls=bare, closed_at=at)


def judge(ticket: Ticket | None, answer: ResolutionReceived, at: int, groups: Groups) -> Refusal | None:
    """Why an answer is not taken, in this order: known, pending, identity, in time, authorised, digest, its form."""
    if ticket is None:
        return Refusal("approvals.unknown_ticket", f"there is no ticket `{answer.ticket}` in this run")
    if ticket.state != "pending":
        return Refusal("approvals.already_decided", _decided(ticket))
    if answer.named is not None and answer.named != answer.by.name:
        return Refusal("approvals.identity", f"the message names `{answer.named}`, the bus knows `{answer.by.name}`")
    if at > ticket.expires_at:
        return Refusal("approvals.expired", f"the ticket expired {(at - ticket.expires_at) / 1e6:g}s before the answer")
    if not may_answer(ticket, answer.by.name, at, groups):
        return Refusal("approvals.not_authorised", f"`{answer.by.name}` may not answer this ticket")
    if answer.args_sha256 != ticket.args_sha256:
        return Refusal("approvals.digest_mismatch", f"the ticket's arguments have the digest {ticket.args_sha256}")
    return _form(ticket, answer)


def of_this_id(ticket: Ticket, answer: ResolutionReceived) -> Answer | None:
    """The same person's answer with this `decision_id`, if there is one. For another decision an id may serve again."""
    key = (answer.by.name, answer.decision_id, answer.decision)
    return next((known for known in ticket.answers if (known.by, known.decision_id, known.decision) == key), None)


def _form(ticket: Ticket, answer: ResolutionReceived) -> Refusal | None:
    known = of_this_id(ticket, answer)
    if known is not None:  # and no repeat, or nobody would judge it
        when = f"your `{known.decision}` at {rfc3339(known.at)}"
        why = f"`decision_id` `{answer.decision_id}` is that of {when}, which said something else: give another answer another id"
        return Refusal("ingress.id_conflict", why)
    special = answer.args is not None or answer.answers or answer.remember is not None
    if ticket.atomic and special:
        return Refusal("approvals.batch", "a batch is answered as one: it cannot be edited, answered or remembered")
    if answer.tool is not None and answer.tool != ticket.calls[0].tool:
        return Refusal("approvals.tool_change", f"the tool `{ticket.calls[0].tool}` cannot be changed")
    if answer.answers and not all(rule.may_answer for rule in ticket.rules):
        return Refusal("approvals.may_not_answer", "the rule does not let people answer for the tool")
    return _remember_form(ticket, answer)


def _remember_form(ticket: Ticket, answer: ResolutionReceived) -> Refusal | None:
    remember, call = answer.remember, ticket.calls[0]
    if remember is not None and answer.args is not None:
        return Refusal("approvals.remember", "an edit answers this call once: only a call as it was asked can be remembered")
    if remember is None or remember.scope == "call":
        return None
    try:
        fits = remember.pattern is not None and compile_pattern(remember.pattern).matches(call.tool, call.args)
    except ValueError as error:
        return Refusal("approvals.remember", str(error))
    return None if fits else Refusal("approvals.remember", f"`{remember.pattern}` does not match this call")


def _decided(ticket: Ticket) -> str:
    who = ", ".join(f"{a.decision} by {a.by} at {rfc3339(a.at)}" for a in ticket.answers) or "no answer"
    return f"the ticket is {ticket.state} since {rfc3339(ticket.closed_at or 0)}: {who}"


def _in(names: Sequence[str], person: str, groups: Groups) -> bool:
    for name in names:
        kind, _, who = name.partition(":")
        if (kind == "user" and who == person) or (kind == "group" and person in groups.get(who, ())):
            return True
    return False


def _may(rule: AnswerRule, ticket: Ticket, person: str, at: int, groups: Groups) -> bool:
    """Whether an answer that `person` gives at `at` counts for `rule` at its present stage."""
    if person in rule.excluded and not rule.self_approval:
        return False
    if rule.stages:
        stage = _stage(rule, ticket, groups)
        return stage < len(rule.stages) and _counts(rule, rule.stages[stage], ticket, person, at, groups)
    return _counts(rule, rule.approvers, ticket, person, at, groups)


def _escalated(rule: AnswerRule, ticket: Ticket, person: str, at: int, groups: Groups) -> bool:
    """By the times of the two events, whether or not a timer said so in between."""
    return at - ticket.opened_at >= rule.escalate_after and _in(rule.escalate_to, person, groups)


def _stage(rule: AnswerRule, ticket: Ticket, groups: Groups) -> int:
    """How many stages the answers so far have passed."""
    stage = 0
    for answer in ticket.answers:
        if stage < len(rule.stages) and _counts(rule, rule.stages[stage], ticket, answer.by, answer.at, groups):
            stage += 1
    return stage


def _counts(rule: AnswerRule, names: Sequence[str], ticket: Ticket, person: str, at: int, groups: Groups) -> bool:
    if person in rule.excluded and not rule.self_approval:
        return False
    return rule.anyone or _in(names, person, groups) or _escalated(rule, ticket, person, at, groups)


def may_answer(ticket: Ticket, person: str, at: int, groups: Groups) -> bool:
    return any(_may(rule, ticket, person, at, groups) for rule in ticket.rules)


def concerned(rules: Sequence[AnswerRule], person: str, groups: Groups) -> bool:
    """Whether a ticket of these rules is a person's to answer: now, at a later stage, or once it is escalated."""
    for rule in rules:
        if person in rule.excluded and not rule.self_approval:
            continue
        named = (*rule.approvers, *rule.escalate_to, *(name for stage in rule.stages for name in stage))
        if rule.anyone or _in(named, person, groups):
            return True
    return False


def satisfied(ticket: Ticket, groups: Groups) -> bool:
    """Whether the answers so far satisfy every rule of the ticket."""
    return all(_satisfied(rule, ticket, groups) for rule in ticket.rules)


def _satisfied(rule: AnswerRule, ticket: Ticket, groups: Groups) -> bool:
    if rule.stages:
        return _stage(rule, ticket, groups) == len(rule.stages)
    people = {a.by for a in ticket.answers if _counts(rule, rule.approvers, ticket, a.by, a.at, groups)}
    return len(people) >= rule.quorum


def answer_of(ticket: Ticket, resolution: ResolutionReceived, at: int) -> Answer:
    person = resolution.by.name
    return Answer(
        by=person,
        decision=resolution.decision,
        decision_id=resolution.decision_id,
        at=at,
        note=resolution.note,
        remember=resolution.remember,
        self_approved=any(person in rule.excluded for rule in ticket.rules),
        content_sha256=resolution.content_sha256,
    )
