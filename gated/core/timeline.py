"""One run as spans of time: each call from the asking to its end, with what it waited for; and what happened between.

It needs the run's records only, in order.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gated.events import (
    Body,
    CallDecided,
    CallRefused,
    CallSettled,
    DataErased,
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


class Span(Struct):
    """A call. Times in µs: asked, let in, ended; `waited` are the ticket's id and when it opened. `status`: its outcome."""

    call: str
    tool: str
    asked_at: int
    decision: str
    code: str | None = None
    reason: str | None = None
    ticket: str | None = None
    admitted_at: int | None = None
    ended_at: int | None = None
    status: str | None = None
    moves: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        return self.decision == "suspend"


class Mark(Struct, frozen=True):
    """Something that happened at a moment."""

    at: int
    what: str


class Timeline(Struct):
    """`opened_at` to `last_at`, in µs."""

    opened_at: int
    last_at: int
    spans: list[Span]
    marks: list[Mark]


def timeline(bodies: Iterable[Body]) -> Timeline:
    """The time line of one run's records."""
    spans: dict[str, Span] = {}
    marks: list[Mark] = []
    first = last = 0
    for body in bodies:
        first, last = first or body.at, body.at
        for decision in body.decisions:
            match decision:
                case CallDecided():
                    _decided(spans, body.at, decision)
                case CallSettled():
                    _settled(spans, body.at, decision)
                case _:
                    what = told(decision, str(body.observation.by))
                    if what:
                        marks.append(Mark(body.at, what))
    return Timeline(first, last, list(spans.values()), marks)


def _decided(spans: dict[str, Span], at: int, decided: CallDecided) -> None:
    span = spans.setdefault(decided.call, Span(decided.call, decided.tool, at, decided.decision))
    span.decision, span.code, span.reason = decided.decision, decided.code, decided.reason
    span.ticket = decided.ticket or span.ticket
    if decided.decision == "allow":
        span.admitted_at = at
    elif decided.decision == "deny":
        span.ended_at = at


def _settled(spans: dict[str, Span], at: int, settled: CallSettled) -> None:
    span = spans.get(settled.call)
    if span is None:
        return
    span.ended_at, span.status = at, "lapsed" if settled.lapsed else settled.status
    span.moves = tuple(f"{move.machine}[{move.key}] → {move.to}" for move in settled.moves)


def told(decision: object, by: str) -> str:
    """A decision that is no call's, in words."""
    match decision:
        case RunOpened():
            return f"opened by {by} under policy {decision.policy[:12]}"
        case RunEnded():
            return f"ended: {decision.status} {decision.reason}".rstrip()
        case RunAnswered():
            return f"{decision.status} {decision.message}".rstrip()
        case CallRefused():
            return f"refused {decision.call or ''} {decision.code}: {decision.reason}".replace("  ", " ")
        case TicketOpened():
            return f"ticket {decision.ticket} opened: " + "; ".join(ask.reason for ask in decision.asks)
        case TicketAnswered():
            return f"ticket {decision.ticket} {answered(decision)}"
        case TicketClosed():
            return f"ticket {decision.ticket} {decision.state}"
        case TicketNoted():
            over = f" over {decision.channel}: {decision.reason}" if decision.channel is not None else ""
            return f"ticket {decision.ticket} {decision.event.replace('_', ' ')}{over}"
        case UngatedExecution():
            return f"call {decision.call} ran without an allow verdict"
        case PolicyRebound():
            return f"bound to policy {decision.policy[:12]}"
        case DataErased():
            return f"erased by {by}: the data of {decision.subject}"
    return ""


def answered(said: TicketAnswered) -> str:
    """A person's answer, in words."""
    if said.state == "pending":
        return f"approved by {said.answer.by}; others must answer too"
    return f"{'edited' if said.state == 'superseded' else said.state} by {said.answer.by}"
