"""What a stretch of the log says of its runs and tickets, and how two stretches that follow each other are one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from gated import canonical
from gated.core.order.templates import escape_text
from gated.events import (
    AnswerRule,
    Ask,
    Body,
    CallDecided,
    PolicyRebound,
    RunEnded,
    RunOpened,
    TicketAnswered,
    TicketClosed,
    TicketOpened,
)
from gated.ticket_views import PREVIEW

Rules = tuple[AnswerRule, ...]
COUNTED = {"allow": "allowed", "deny": "denied", "suspend": "suspended"}


class RunLine(Struct):
    """A run in a list. `rules` are those of its tickets, `people` who answered them: these may see it. Times in µs."""

    thread: str
    run: str
    opener: str = ""  # for whom it was opened, once that is known
    speaker: str = ""  # who spoke first in it
    bound: str = ""  # the policy that it is bound to, once that is known
    current: str = ""  # the policy that was current
    task: str | None = None
    ended: str = ""
    opened_at: int = 0
    at: int = 0
    allowed: int = 0
    denied: int = 0
    suspended: int = 0
    rules: set[Rules] = set()
    people: set[str] = set()

    @property
    def agent(self) -> str:
        return self.opener or self.speaker

    @property
    def policy(self) -> str:
        return self.bound or self.current

    @property
    def status(self) -> str:
        return self.ended or "open"

    def then(self, later: RunLine) -> RunLine:
        """This stretch and the one that follows it."""
        return RunLine(
            self.thread,
            self.run,
            opener=self.opener or later.opener,
            speaker=self.speaker or later.speaker,
            bound=later.bound or self.bound,
            current=self.current or later.current,
            task=self.task if self.opener else later.task,
            ended=later.ended or self.ended,
            opened_at=self.opened_at,
            at=later.at,
            allowed=self.allowed + later.allowed,
            denied=self.denied + later.denied,
            suspended=self.suspended + later.suspended,
            rules=self.rules | later.rules,
            people=self.people | later.people,
        )


class Opened(Struct, frozen=True):
    """What a ticket asks; the arguments only in part."""

    tool: str
    args_sha256: str
    preview: str
    asks: tuple[Ask, ...]
    rules: Rules
    opened_at: int


class TicketLine(Struct):
    """A ticket in a list, and how it ended. What opened it may stand in an earlier stretch."""

    ticket: str
    thread: str
    run: str
    opened: Opened | None = None
    state: str = ""
    at: int = 0
    answers: tuple[tuple[str, str, str], ...] = ()  # who, what, note

    def then(self, later: TicketLine) -> TicketLine:
        """This stretch and the one that follows it."""
        opened, state = later.opened or self.opened, later.state or self.state
        return TicketLine(self.ticket, self.thread, self.run, opened, state, later.at, self.answers + later.answers)


class Stretch:
    """The lines of some records that follow each other."""

    def __init__(self, bodies: Iterable[Body] = ()) -> None:
        self.runs: dict[tuple[str, str], RunLine] = {}
        self.tickets: dict[str, TicketLine] = {}
        for body in bodies:
            self._glean(body)

    def _glean(self, body: Body) -> None:
        key = (body.thread, body.run)
        line = self.runs.setdefault(key, RunLine(*key, opened_at=body.at))
        line.at, line.current = body.at, line.current or body.policy
        if body.observation.by.role == "agent":
            line.speaker = line.speaker or body.observation.by.name
        for decision in body.decisions:
            self._apply(line, body, decision)

    def _apply(self, line: RunLine, body: Body, decision: Any) -> None:
        match decision:
            case RunOpened():
                line.opener, line.task, line.bound = decision.agent, decision.task, decision.policy
            case PolicyRebound():
                line.bound = decision.policy
            case RunEnded():
                line.ended = decision.status
            case CallDecided():
                name = COUNTED[decision.decision]
                setattr(line, name, getattr(line, name) + 1)
            case TicketOpened():
                line.rules.add(decision.rules)
                found = self._ticket(body, decision.ticket)
                found.opened, found.state = _opened(decision), "pending"
                found.answers += tuple((said.by, said.decision, said.note) for said in decision.answers)
            case TicketAnswered():
                said = decision.answer
                line.people.add(said.by)
                found = self._ticket(body, decision.ticket)
                found.state = decision.state
                found.answers += ((said.by, said.decision, said.note),)
            case TicketClosed():
                self._ticket(body, decision.ticket).state = decision.state

    def _ticket(self, body: Body, ticket: str) -> TicketLine:
        found = self.tickets.setdefault(ticket, TicketLine(ticket, body.thread, body.run))
        found.at = body.at
        return found


def _opened(decision: TicketOpened) -> Opened:
    call = decision.calls[0]
    text = canonical.encode(call.args)[: 4 * PREVIEW].decode(errors="ignore")
    preview = escape_text(text, PREVIEW)
    return Opened(call.tool, decision.args_sha256, preview, decision.asks, decision.rules, decision.opened_at)
