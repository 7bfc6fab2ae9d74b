"""Figures over a log: verdicts by decision, stage, tool and agent; how long tools took and tickets waited; what nobody answered.

It needs the decisions only. Times are the log's own, in seconds; how long the gate itself takes is a metric of the daemon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from gated.events import (
    Body,
    CallDecided,
    CallId,
    CallRefused,
    CallSettled,
    RunEnded,
    RunId,
    RunOpened,
    ThreadId,
    TicketAnswered,
    TicketClosed,
    TicketId,
    TicketOpened,
    UngatedExecution,
)

MICRO: Final = 1_000_000


class Spread(Struct, frozen=True):
    """Of durations in seconds; all None where there is none."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None
    most: float | None


class Verdicts(Struct):
    """How a tool's or an agent's calls were decided, each by its last verdict of the message."""

    allow: int = 0
    deny: int = 0
    suspend: int = 0

    def add(self, decision: str) -> None:
        setattr(self, decision, getattr(self, decision) + 1)

    @property
    def total(self) -> int:
        return self.allow + self.deny + self.suspend


class Tickets(Struct):
    """`unanswered` expired without a single answer: nobody looked, or nobody was told."""

    opened: int = 0
    approved: int = 0
    rejected: int = 0
    expired: int = 0
    cancelled: int = 0
    superseded: int = 0
    unanswered: int = 0

    def end(self, state: str) -> None:
        setattr(self, state, getattr(self, state) + 1)


class Stats(Struct):
    """Feed it bodies in the order of the log."""

    records: int = 0
    first_at: int | None = None
    last_at: int | None = None
    runs: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    verdicts: Verdicts = field(default_factory=Verdicts)
    stages: dict[str, Verdicts] = field(default_factory=dict)  # that denied, or were the first to ask
    codes: Counter[str] = field(default_factory=Counter)  # of denials and suspensions
    watched: Counter[str] = field(default_factory=Counter)  # codes of findings that were only observed
    refused: Counter[str] = field(default_factory=Counter)
    tools: dict[str, Verdicts] = field(default_factory=dict)
    agents: dict[str, Verdicts] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    lapsed: int = 0
    breaches: Counter[str] = field(default_factory=Counter)  # broken postconditions, by contract
    ungated: int = 0
    tickets: Tickets = field(default_factory=Tickets)
    _agents: dict[tuple[ThreadId, RunId], str] = field(default_factory=dict)
    _admitted: dict[tuple[ThreadId, RunId, CallId], int] = field(default_factory=dict)
    _open: dict[TicketId, tuple[int, bool]] = field(default_factory=dict)  # opened at, answered by anyone
    _took: list[float] = field(default_factory=list)
    _waited: list[float] = field(default_factory=list)

    def feed(self, body: Body) -> None:
        self.records += 1
        self.first_at = body.at if self.first_at is None else self.first_at
        self.last_at = body.at
        for decision in body.decisions:
            match decision:
                case RunOpened():
                    self.runs += 1
                    self._agents[(body.thread, body.run)] = decision.agent
                case CallDecided():
                    self._decided(body, decision)
                case CallRefused():
                    self.refused[decision.code] += 1
                case CallSettled():
                    self._settled(body, decision)
                case RunEnded():
                    self.ended[decision.status] += 1
                case UngatedExecution():
                    self.ungated += 1
                case TicketOpened():
                    self.tickets.opened += 1
                    self._open[decision.ticket] = (body.at, bool(decision.answers))
                case TicketAnswered():
                    self._answered(body, decision)
                case TicketClosed():
                    self._closed(body, decision.ticket, decision.state)
                case _:
                    pass

    def _decided(self, body: Body, decided: CallDecided) -> None:
        agent = self._agents.get((body.thread, body.run), body.observation.by.name)
        verdicts = self.verdicts, self.tools.setdefault(decided.tool, Verdicts()), self.agents.setdefault(agent, Verdicts())
        for counted in verdicts:
            counted.add(decided.decision)
        if decided.stage is not None:
            self.stages.setdefault(decided.stage, Verdicts()).add(decided.decision)
        if decided.code is not None:
            self.codes[decided.code] += 1
        self.watched.update(finding.code for finding in decided.findings if not finding.authoritative)
        if decided.admission is not None:
            self._admitted[(body.thread, body.run, decided.call)] = body.at

    def _settled(self, body: Body, settled: CallSettled) -> None:
        self.statuses[settled.status] += 1
        self.lapsed += settled.lapsed
        self.breaches.update(finding.contract or "" for finding in settled.breached)
        since = self._admitted.pop((body.thread, body.run, settled.call), None)
        if since is not None and not settled.lapsed:
            self._took.append((body.at - since) / MICRO)

    def _answered(self, body: Body, answered: TicketAnswered) -> None:
        since, _ = self._open.get(answered.ticket, (body.at, True))
        self._open[answered.ticket] = (since, True)
        if answered.state != "pending":
            self._closed(body, answered.ticket, answered.state)

    def _closed(self, body: Body, ticket: TicketId, state: str) -> None:
        since, answered = self._open.pop(ticket, (body.at, True))
        self.tickets.end(state)
        self.tickets.unanswered += state == "expired" and not answered
        if state in ("approved", "rejected", "superseded"):
            self._waited.append((body.at - since) / MICRO)

    @property
    def waiting(self) -> int:
        """Tickets that are open."""
        return len(self._open)

    @property
    def in_flight(self) -> int:
        return len(self._admitted)

    @property
    def tool_seconds(self) -> Spread:
        """From an admission to its outcome."""
        return spread(self._took)

    @property
    def answer_seconds(self) -> Spread:
        """From a ticket's opening to the answer that ended it."""
        return spread(self._waited)


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    if not ordered:
        return Spread(0, None, None, None, None)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Spread(len(ordered), at(0.5), at(0.9), at(0.99), ordered[-1])
