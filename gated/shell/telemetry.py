"""What a daemon counts of the events that pass through it, since its start: the numbers behind its metrics.

Made from durable records only, after their answers are out. Counting costs an addition: whoever wants the numbers (`metrics.py`)
reads them. Labels are few and known: never a tool's or a run's name, which agents choose.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from gated.events import (
    CallDecided,
    CallRefused,
    CallSettled,
    Decision,
    Record,
    RunEnded,
    RunOpened,
    ThreadId,
    TicketAnswered,
    TicketClosed,
    TicketId,
    TicketNoted,
    TicketOpened,
    UngatedExecution,
)

log = structlog.get_logger("gated.telemetry")

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # seconds
NOBODY: Final = "(none)"  # the agent of what no profile is known for


class Histogram:
    """Durations in seconds, counted by the bucket they fall into; the last is for all that is longer."""

    def __init__(self, buckets: Sequence[float] = BUCKETS) -> None:
        self.buckets = tuple(buckets)
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.buckets, seconds)] += 1
        self.sum += seconds


class Listener(Protocol):
    """Who hears of every record once it is durable and answered."""

    def heard(self, record: Record, decisions: Sequence[Decision], agent: str) -> None: ...


class Telemetry:
    """`known` says whether an agent has a profile; `listeners` hear what is counted too."""

    def __init__(self, known: Callable[[str], bool]) -> None:
        self._known = known
        self.listeners: list[Listener] = []
        self.verdicts: Counter[tuple[str, str, str, str]] = Counter()  # decision, stage, code, agent
        self.observed: Counter[tuple[str, str]] = Counter()  # outcome, code: findings that were not acted on
        self.refusals: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.runs_opened = 0
        self.runs_ended: Counter[str] = Counter()
        self.lapsed = self.ungated = 0
        self.breaches: Counter[str] = Counter()  # broken postconditions, by contract
        self.tickets_opened = 0
        self.tickets_closed: Counter[str] = Counter()
        self.tickets_noted: Counter[str] = Counter()
        self.expired_undecided = 0  # without a single answer
        self.expired_unseen = 0  # nobody so much as looked at them
        self.latency = Histogram()
        self._open: dict[TicketId, ThreadId] = {}
        self._unseen: set[TicketId] = set()
        self._answered: set[TicketId] = set()
        self._threads: dict[ThreadId, set[TicketId]] = {}

    @property
    def open(self) -> int:
        """Open tickets that were opened since the start."""
        return len(self._open)

    @property
    def unseen(self) -> int:
        """Those of them that nobody has looked at."""
        return len(self._unseen)

    def heard(self, record: Record, decisions: Sequence[Decision], agent: str, seconds: float | None) -> None:
        """A record that is durable and answered, `seconds` after the bus stored its input."""
        if seconds is not None:
            self.latency.add(seconds if seconds > 0.0 else 0.0)
        for decision in decisions:
            match decision:
                case CallDecided():
                    label = agent if self._known(agent) else NOBODY
                    self.verdicts[(decision.decision, decision.stage or "", decision.code or "", label)] += 1
                    for finding in decision.findings:
                        if not finding.authoritative:
                            self.observed[(finding.outcome, finding.code)] += 1
                case CallSettled():
                    self.outcomes[decision.status] += 1
                    self.lapsed += decision.lapsed
                    for finding in decision.breached:
                        self.breaches[finding.contract or ""] += 1
                case RunOpened():
                    self.runs_opened += 1
                case RunEnded():
                    self.runs_ended[decision.status] += 1
                case CallRefused():
                    self.refusals[decision.code] += 1
                case UngatedExecution():
                    self.ungated += 1
                case TicketOpened() | TicketAnswered() | TicketClosed() | TicketNoted():
                    self._ticket(record.thread, decision)
                case _:
                    pass
        for listener in self.listeners:
            try:
                listener.heard(record, decisions, agent)
            except Exception as error:  # whoever only listens must not stop the daemon
                log.error("a listener failed", listener=type(listener).__name__, error=repr(error))

    def _ticket(self, thread: ThreadId, said: TicketOpened | TicketAnswered | TicketClosed | TicketNoted) -> None:
        match said:
            case TicketOpened():
                self.tickets_opened += 1
                self._open[said.ticket] = thread
                self._unseen.add(said.ticket)
                self._threads.setdefault(thread, set()).add(said.ticket)
            case TicketNoted():
                self.tickets_noted[said.event] += 1
            case TicketAnswered():
                self._unseen.discard(said.ticket)
                self._answered.add(said.ticket)
                if said.state != "pending":
                    self._close(said.ticket, said.state)
            case TicketClosed():
                self._close(said.ticket, said.state)

    def _close(self, ticket: TicketId, state: str) -> None:
        self.tickets_closed[state] += 1
        if state == "expired":
            self.expired_undecided += ticket not in self._answered
            self.expired_unseen += ticket in self._unseen
        self._unseen.discard(ticket)
        self._answered.discard(ticket)
        thread = self._open.pop(ticket, None)
        if thread is not None:
            self._threads[thread].discard(ticket)
            if not self._threads[thread]:
                del self._threads[thread]

    def looked(self, thread: ThreadId) -> None:
        """Someone looked at what a thread's runs do, and so at its tickets."""
        self._unseen -= self._threads.get(thread, set())
