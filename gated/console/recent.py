"""What happened lately, over all threads: the runs, and the tickets that were answered. For lists, search and precedents.

It is read from the log, the end of it at the start and in pages from there; it is no truth, and it forgets. Rejected: hearing
every record as it is published. A busy gate then paid for a page that nobody had open.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import anyio
import anyio.lowlevel
import structlog
from msgspec import Struct

from gated import canonical
from gated.console.line import Lines, NoAnswer
from gated.console.people import Person
from gated.console.threads import Policies, Records, policies_of
from gated.core import tickets
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

BACK: Final = 10_000  # records that are read at the start
RUNS: Final = 5_000
TICKETS: Final = 5_000
PER_TOOL: Final = 200
OFTEN: Final = 0.4  # seconds between looks while pages are open
SELDOM: Final = 60.0
JUST_NOW: Final = 0.15

log = structlog.get_logger("gated.console")

Rules = tuple[str, tuple[AnswerRule, ...]]  # under which policy, and which


class _Head(Struct):
    position: int


class RunLine(Struct):
    """A run in a list. `rules` are those of its tickets: whom they concern may see it."""

    thread: str
    run: str
    agent: str = ""
    policy: str = ""
    task: str | None = None
    status: str = "open"
    opened_at: int = 0
    at: int = 0
    seq: int = 0
    allowed: int = 0
    denied: int = 0
    suspended: int = 0
    rules: dict[Rules, None] = {}
    people: set[str] = set()


class PastTicket(Struct):
    """A ticket that was opened lately, and how it ended."""

    ticket: str
    thread: str
    run: str
    agent: str
    tool: str
    args_sha256: str
    preview: str
    asks: tuple[Ask, ...]
    rules: Rules
    opened_at: int
    state: str = "pending"
    ended_at: int = 0
    answers: list[tuple[str, str, str]] = []  # who, what, note


class Recent:
    """`changed` is told of each run that something happened to; `watched` says whether anybody hears it."""

    def __init__(self, lines: Lines, policies: Policies, changed: Callable[[RunLine], None], watched: Callable[[], bool]) -> None:
        self._lines, self._policies, self._changed, self._watched = lines, policies, changed, watched
        self.runs: OrderedDict[tuple[str, str], RunLine] = OrderedDict()  # the last to change is last
        self.tickets: OrderedDict[str, PastTicket] = OrderedDict()
        self._by_tool: dict[str, deque[str]] = {}
        self._position = 0
        self._read_at = -math.inf
        self._reading = anyio.Lock()
        self._wanted = anyio.Event()
        self.ready = False

    # --- keeping up --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep up until cancelled: often while pages are open, and now and then so that the next one need not wait."""
        while True:
            await self.fresh()
            with anyio.move_on_after(OFTEN if self._watched() else SELDOM):
                await self._wanted.wait()
            self._wanted = anyio.Event()

    async def fresh(self, *, anew: bool = False) -> None:
        """Have what happened until just now; `anew`: until now. Where the gate does not answer, what is known stays."""
        async with self._reading:
            if not anew and anyio.current_time() - self._read_at < JUST_NOW:
                return
            try:
                await self._catch_up()
                self.ready, self._read_at = True, anyio.current_time()
            except NoAnswer as error:
                log.warning("cannot read the log", error=str(error))

    def watched(self) -> None:
        """A page was opened that follows what happens."""
        self._wanted.set()

    async def _catch_up(self) -> None:
        """The records since the last look, or the end of the log where those are too many."""
        head = (await self._lines.ask("log.head", _Head)).position
        self._position = max(self._position, head - BACK)
        complete = False
        while not complete:
            page = await self._lines.ask("log.read", Records, after=self._position)
            for stored in page.records:
                line = await self._feed(stored.body)
                if line is not None and self.ready:
                    self._changed(line)
            self._position, complete = page.after, page.complete
            await anyio.lowlevel.checkpoint()

    async def _feed(self, body: Body) -> RunLine | None:
        """Take a record in, unless it was before; records of one run come in order."""
        line = self.runs.get((body.thread, body.run)) or RunLine(body.thread, body.run, opened_at=body.at)
        if body.seq <= line.seq:
            return None
        for digest in policies_of(body):
            await self._policies.get(digest)
        line.seq, line.at = body.seq, body.at
        for decision in body.decisions:
            self._apply(line, body, decision)
        if not line.agent and body.observation.by.role == "agent":
            line.agent = body.observation.by.name
        self._keep(line)
        return line

    def _keep(self, line: RunLine) -> None:
        key = (line.thread, line.run)
        self.runs[key] = line
        self.runs.move_to_end(key)
        while len(self.runs) > RUNS:
            self.runs.popitem(last=False)

    def _apply(self, line: RunLine, body: Body, decision: Any) -> None:
        match decision:
            case RunOpened():
                line.agent, line.task, line.opened_at, line.status = decision.agent, decision.task, body.at, "open"
                line.policy = decision.policy
            case PolicyRebound():
                line.policy = decision.policy
            case RunEnded():
                line.status = decision.status
            case CallDecided():
                name = {"allow": "allowed", "deny": "denied", "suspend": "suspended"}[decision.decision]
                setattr(line, name, getattr(line, name) + 1)
            case TicketOpened():
                self._opened(line, body, decision)
            case TicketAnswered():
                self._answered(line, body, decision)
            case TicketClosed():
                if (past := self.tickets.get(decision.ticket)) is not None:
                    past.state, past.ended_at = decision.state, body.at

    def _opened(self, line: RunLine, body: Body, opened: TicketOpened) -> None:
        call = opened.calls[0]
        rules = (line.policy or body.policy, opened.rules)
        line.rules = {**line.rules, rules: None}
        text = canonical.encode(call.args)[: 4 * PREVIEW].decode(errors="ignore")
        self.tickets[opened.ticket] = PastTicket(
            ticket=opened.ticket,
            thread=body.thread,
            run=body.run,
            agent=line.agent or body.observation.by.name,
            tool=call.tool,
            args_sha256=opened.args_sha256,
            preview=escape_text(text, PREVIEW),
            asks=opened.asks,
            rules=rules,
            opened_at=opened.opened_at,
        )
        self._by_tool.setdefault(call.tool, deque(maxlen=PER_TOOL)).append(opened.ticket)
        while len(self.tickets) > TICKETS:
            _, gone = self.tickets.popitem(last=False)
            known = self._by_tool.get(gone.tool, deque())
            if known and known[0] == gone.ticket:
                known.popleft()
            if not known:  # an agent may think of ever new tools
                self._by_tool.pop(gone.tool, None)

    def _answered(self, line: RunLine, body: Body, said: TicketAnswered) -> None:
        line.people = {*line.people, said.answer.by}
        past = self.tickets.get(said.ticket)
        if past is not None:
            past.state, past.ended_at = said.state, body.at
            past.answers = [*past.answers, (said.answer.by, said.answer.decision, said.answer.note)]

    # --- what a person sees ------------------------------------------------------------------------------------------

    def may_see_run(self, person: Person, thread: str, run: str) -> bool:
        """Auditors see every run; others those whose tickets concern them, or that they have answered in."""
        if person.auditor:
            return True
        line = self.runs.get((thread, run))
        return line is not None and (person.name in line.people or self._concerns(person, line.rules))

    async def shows_run(self, person: Person, thread: str, run: str) -> bool:
        """The same, looked for once more where it is not known: it may have begun since just now."""
        await self.fresh()
        if not self.may_see_run(person, thread, run):
            await self.fresh(anew=True)
        return self.may_see_run(person, thread, run)

    def may_see_ticket(self, person: Person, past: PastTicket) -> bool:
        answered = any(by == person.name for by, _, _ in past.answers)
        return person.auditor or answered or self._concerns(person, [past.rules])

    def _concerns(self, person: Person, rules: Iterable[Rules]) -> bool:
        return any(tickets.concerned(held, person.name, self._groups(policy)) for policy, held in rules)

    def _groups(self, policy: str) -> Mapping[str, frozenset[str]]:
        known = self._policies.known.get(policy)
        return known.approvals.groups if known is not None else {}

    def visible_runs(self, person: Person) -> list[RunLine]:
        """The last to change first."""
        return [line for line in reversed(self.runs.values()) if self.may_see_run(person, line.thread, line.run)]

    def similar(self, person: Person, tool: str, agent: str, digest: str, but: str, most: int = 8) -> list[PastTicket]:
        """Ended tickets of the tool: the same call first, then the same agent's, the newest first."""
        found = [self.tickets[t] for t in reversed(self._by_tool.get(tool, ())) if t in self.tickets and t != but]
        ended = [past for past in found if past.state != "pending" and self.may_see_ticket(person, past)]
        return sorted(ended, key=lambda past: (past.args_sha256 != digest, past.agent != agent))[:most]
