"""A run told in order: what was asked, what was decided and why, what people and time did. Made from records, for a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gated import canonical
from gated.core.order.templates import escape_text
from gated.events import (
    Body,
    CallDecided,
    CallRefused,
    CallSettled,
    DataErased,
    Finding,
    Forgotten,
    IntentsReceived,
    PolicyRebound,
    RunAnswered,
    RunEnded,
    RunOpened,
    TicketAnswered,
    TicketClosed,
    TicketNoted,
    TicketOpened,
    UngatedExecution,
)

PREVIEW = 160

Hidden = Callable[[str], bool]  # whether a ticket is not this person's to see


class Entry(Struct, frozen=True):
    """One line of the story. `kind` is its colour: allow, deny, suspend, ticket, settle, run or note; `at` in µs."""

    seq: int
    at: int
    kind: str
    word: str
    what: str = ""
    why: str = ""
    args: str = ""
    ticket: str = ""
    call: str = ""
    after: str = ""  # how an allowed call ended, where that needs no line of its own
    findings: tuple[Finding, ...] = ()


def tell(bodies: Iterable[Body], hidden: Hidden = lambda ticket: False) -> list[Entry]:
    """The story of these records, which are of one run. The arguments of hidden tickets' calls are left out."""
    bodies = list(bodies)
    tickets = [d for body in bodies for d in body.decisions if isinstance(d, TicketOpened)]
    secret = {call.call for ticket in tickets if hidden(ticket.ticket) for call in ticket.calls}
    told: list[Entry] = []
    ran: dict[str, int] = {}  # where the calls were allowed
    for entry in (entry for body in bodies for entry in _entries(body, secret)):
        if entry.kind == "settle" and not entry.why and entry.call in ran:
            told[ran[entry.call]] = replace(told[ran[entry.call]], after=entry.word)
            continue
        if entry.kind == "allow":
            ran[entry.call] = len(told)
        told.append(entry)
    return told


def _entries(body: Body, secret: set[Any]) -> Iterator[Entry]:
    asked = {}
    if isinstance(body.observation, IntentsReceived):
        asked = {call.id: call.args for call in body.observation.calls if call.id not in secret}
    for decision in body.decisions:
        entry = _entry(body, decision, asked)
        if entry is not None:
            yield entry


def _entry(body: Body, decision: Any, asked: dict[Any, dict[str, Any]]) -> Entry | None:
    def made(kind: str, word: str, what: str = "", why: str = "", **more: Any) -> Entry:
        return Entry(body.seq, body.at, kind, word, what, why, **more)

    match decision:
        case RunOpened():
            return made("run", "opened", f"by {body.observation.by}", decision.task or "")
        case CallDecided():
            why = _asks(body, decision.ticket) or (f"{decision.code}: {decision.reason}" if decision.code else "")
            if decision.would:
                why = f"{why}; would {decision.would}, only observed" if why else f"would {decision.would}, only observed"
            args = preview(asked[decision.call]) if decision.call in asked else ""
            more = {"args": args, "call": decision.call, "ticket": decision.ticket or "", "findings": decision.findings}
            return made(decision.decision, WORDS[decision.decision], decision.tool, why, **more)
        case CallRefused():
            return made("deny", "refused", f"from {body.observation.by}", f"{decision.code}: {decision.reason}")
        case CallSettled():
            kind, word = ("deny", "failed") if decision.status == "error" else ("settle", STATUS[decision.status])
            reminders = "; ".join(reminder.content for reminder in decision.reminders)
            why = "no outcome was reported in time" if decision.lapsed else decision.summary or reminders
            return made(kind, word, "", why, call=decision.call)
        case UngatedExecution():
            return made("deny", "ran ungated", "", f"an outcome ({decision.status}) without an allow verdict", call=decision.call)
        case RunEnded():
            note = "ungrounded: none of the calls that its policy calls grounding" if decision.ungrounded else ""
            return made("run", decision.status, "", decision.reason or note)
        case RunAnswered():
            return made("run", decision.status, "", decision.message)
        case TicketAnswered() | TicketClosed() | TicketNoted():
            return _of_ticket(made, decision)
        case PolicyRebound():
            return made("run", "bound", f"to policy {decision.policy[:12]}")
        case Forgotten():
            return made("note", "forgotten", decision.remembered)
        case DataErased():
            return made("note", "erased", f"the data of {decision.subject}", getattr(body.observation, "reason", ""))
    return None


def _asks(body: Body, ticket: str | None) -> str:
    """Why the ticket that a record opened is asked."""
    opened = [d for d in body.decisions if isinstance(d, TicketOpened) and d.ticket == ticket]
    return "; ".join(ask.reason for ask in opened[0].asks) if opened else ""


def _of_ticket(made: Callable[..., Entry], decision: Any) -> Entry:
    match decision:
        case TicketAnswered():
            answer = decision.answer
            word = "approved" if answer.decision == "approve" else "rejected"
            if decision.state == "superseded":
                word = "edited"
            own = " (its own call)" if answer.self_approved else ""
            return made("ticket", word, f"by {answer.by}{own}", answer.note, ticket=decision.ticket)
        case TicketNoted():
            word = NOTED[decision.event]
            over = "" if decision.channel is None else f"over {decision.channel}"
            return made("ticket", word, over, decision.reason, ticket=decision.ticket)
        case _:
            return made("ticket", decision.state, ticket=decision.ticket)


WORDS = {"allow": "allowed", "deny": "denied", "suspend": "suspended"}
NOTED = {
    "expiring_soon": "expires soon",
    "escalated": "escalated",
    "undelivered": "its people could not be told",
    "delivered": "its people were told after all",
}
STATUS = {"success": "done", "not_run": "not run"}


def preview(args: dict[str, Any]) -> str:
    """The beginning of the arguments on one line."""
    text = canonical.encode(args)[: 4 * PREVIEW].decode(errors="ignore")
    return escape_text(text, PREVIEW) + ("…" if len(text) > PREVIEW else "")
