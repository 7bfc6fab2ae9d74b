"""A ticket as people's tools see it: whole, as a line of a list, and in what is published when it opens.

Wherever several are listed, the one that expires first stands first: who answers from the top down lets the fewest expire.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import Struct, to_builtins

from gated import canonical
from gated.core.order.templates import escape_text
from gated.core.state import RunState, ThreadState
from gated.core.tickets import Ticket
from gated.core.tickets import open_ticket as opened_ticket
from gated.events import AgentId, Answer, AnswerRule, Ask, RunId, ThreadId, TicketOpened
from gated.units import format_duration, rfc3339
from gated.wire import answer_view

PREVIEW = 240  # characters


class OpenTicket(Struct, frozen=True):
    """An open ticket in a list: who asks for what and why, who may answer, until when (µs); the arguments only in part."""

    ticket: str
    thread: str
    run: str
    agent: str
    policy: str
    tool: str
    calls: int
    preview: str
    args_bytes: int
    args_sha256: str
    asks: tuple[Ask, ...]
    rules: tuple[AnswerRule, ...]
    answers: tuple[Answer, ...]
    escalated: bool
    soon: bool
    undelivered: tuple[str, ...]
    opened_at: int
    expires_at: int
    hidden_bytes: int = 0  # of the arguments of all calls, which the preview does not show


def place(expires_at: int | str, ticket: str) -> tuple[int | str, str]:
    """Where a ticket stands among others; all times in µs, or all in RFC 3339."""
    return expires_at, ticket


def open_ticket(thread: ThreadId, run_id: RunId, run: RunState, ticket: Ticket) -> OpenTicket:
    """The line of a list that a ticket is."""
    preview = preview_of(ticket)
    return OpenTicket(
        ticket=ticket.id,
        thread=thread,
        run=run_id,
        agent=run.agent,
        policy=run.policy,
        tool=ticket.calls[0].tool,
        calls=len(ticket.calls),
        preview=preview.text,
        args_bytes=preview.size,
        hidden_bytes=preview.hidden,
        args_sha256=ticket.args_sha256,
        asks=ticket.asks,
        rules=ticket.rules,
        answers=ticket.answers,
        escalated=ticket.escalated,
        soon=ticket.soon,
        undelivered=ticket.undelivered,
        opened_at=ticket.opened_at,
        expires_at=ticket.expires_at,
    )


def line_view(line: OpenTicket, state: str) -> dict[str, Any]:
    """The same as a plain mapping, with what every ticket has by name."""
    return {"id": line.ticket, **to_builtins(line), "rules": [rule_view(rule) for rule in line.rules], "state": state}


def ticket_views(state: ThreadState) -> list[dict[str, Any]]:
    """The tickets of a thread that wait for people."""
    found = [
        ticket_view(state.thread, run_id, run.agent, run.policy, ticket)
        for run_id, run in state.runs.unfinished()
        for ticket in run.tickets.open.values()
    ]
    return in_order(found)


def in_order(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tickets as mappings, in their places."""
    return sorted(lines, key=lambda line: place(line["expires_at"], line["ticket"]))


def opened_view(thread: ThreadId, run_id: RunId, agent: str, policy: str, opened: TicketOpened) -> dict[str, Any]:
    """A ticket as it opened."""
    return ticket_view(thread, run_id, AgentId(agent), policy, opened_ticket(opened))


def ticket_view(thread: ThreadId, run_id: RunId, agent: AgentId, policy: str, ticket: Ticket) -> dict[str, Any]:
    """A ticket whole."""
    preview = preview_of(ticket)
    return {
        "id": ticket.id,
        "ticket": ticket.id,
        "thread": thread,
        "run": run_id,
        "agent": agent,
        "tool": ticket.calls[0].tool,
        "preview": preview.text,
        "args_bytes": preview.size,
        "hidden_bytes": preview.hidden,
        "calls": [{"call": c.call, "tool": c.tool, "args": c.args, "args_sha256": c.args_sha256} for c in ticket.calls],
        "args_sha256": ticket.args_sha256,
        "asks": to_builtins(ticket.asks),
        "policy": policy,
        "opened_at": rfc3339(ticket.opened_at),
        "expires_at": rfc3339(ticket.expires_at),
        "rules": [rule_view(rule) for rule in ticket.rules],
        "answers": [answer_view(answer) for answer in ticket.answers],
        "state": ticket.state,
        "atomic": ticket.atomic,
        "edited": ticket.edited,
        "undelivered": list(ticket.undelivered),
    }


def rule_view(rule: AnswerRule) -> dict[str, Any]:
    """Who must answer. `escalation` is null where nobody else is ever asked."""
    escalation = {"after": format_duration(rule.escalate_after), "to": list(rule.escalate_to)} if rule.escalate_after else None
    return {"approvers": list(rule.approvers), "quorum": rule.quorum, "escalation": escalation, **to_builtins(rule)}


class Preview(NamedTuple):
    """The first call's arguments in part, how many bytes the arguments of all calls have, and how many of them are not shown."""

    text: str
    size: int
    hidden: int


def preview_of(ticket: Ticket, characters: int = PREVIEW) -> Preview:
    """INVARIANT: the text fits its place, and all of the arguments that is not in it is counted."""
    first = canonical.encode(ticket.calls[0].args)
    size = len(first) + sum(len(canonical.encode(call.args)) for call in ticket.calls[1:])
    shown = _fitting(first[: 4 * characters].decode(errors="ignore")[:characters], characters)
    return Preview(escape_text(shown, characters), size, size - len(shown.encode()))


def _fitting(text: str, characters: int) -> str:
    """As much of a text as has so many characters once the unsafe ones are written out."""
    if len(escape_text(text, characters)) <= characters:
        return text
    grown = 0
    for place, character in enumerate(text):
        grown += len(escape_text(character))
        if grown > characters:
            return text[:place]
    return text
