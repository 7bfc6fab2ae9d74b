"""Who may see what: auditors everything, others the tickets that concern them or that they answered, and the runs of those."""

from __future__ import annotations

from gated.console.people import Person
from gated.core import tickets
from gated.core.state import RunState
from gated.core.tickets import Groups, Ticket
from gated.events import AnswerRule


def sees_ticket(person: Person, ticket: Ticket, groups: Groups) -> bool:
    """Whether a ticket is a person's to see; the groups are those of its run's policy."""
    answered = any(answer.by == person.name for answer in ticket.answers)
    return person.auditor or answered or tickets.concerned(ticket.rules, person.name, groups)


def sees_run(person: Person, run: RunState, groups: Groups) -> bool:
    """Whether a run is a person's to see."""
    if person.auditor:
        return True
    foreign = set[tuple[AnswerRule, ...]]()  # many tickets have the same rules
    for ticket in run.tickets.values():
        if ticket.rules in foreign and not ticket.answers:
            continue
        if sees_ticket(person, ticket, groups):
            return True
        foreign.add(ticket.rules)
    return False
