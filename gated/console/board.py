"""The open tickets, as the console knows them: read in pages from the gate, kept by what it publishes of them.

INVARIANT: a published message is only a hint that a ticket is to be looked at again; what is shown is what the gate answers.
After the line was lost, and every few minutes, everything is read again, so that a hint that was missed cannot stay missed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import anyio
import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from gated import wire
from gated.console.line import Lines, NoAnswer
from gated.console.people import Person
from gated.console.threads import Policies
from gated.core import tickets
from gated.events import AnswerRule
from gated.ticket_views import OpenTicket, place

AGAIN: Final = 300.0  # seconds until everything is read again
RETRY: Final = 1.0
GATHER: Final = 0.03  # seconds in which hints are gathered into one question
BATCH: Final = 200
PEOPLE: Final = 500  # whose lists are kept up to date
RULES: Final = 50_000  # of whom what was found is remembered
CLOSED: Final = 2000  # tickets whose end is remembered, for pages that are still open


class _Page(Struct):
    tickets: list[OpenTicket]
    after: int = 0
    complete: bool = True


class Change(NamedTuple):
    """A ticket that opened, moved or closed: what browsers are told."""

    ticket: str
    thread: str
    run: str
    state: str
    line: OpenTicket | None  # as it is now, or was last


class Board:
    """Open tickets by id. `changed` is told of every change; groups are those of the policy that a ticket's run is bound to."""

    def __init__(self, lines: Lines, policies: Policies, changed: Callable[[Change], None]) -> None:
        self._lines, self._policies, self._changed = lines, policies, changed
        self._open: dict[str, OpenTicket] = {}
        self._views: dict[tuple[str, bool], View] = {}
        self._concerned: dict[tuple[str, str, tuple[AnswerRule, ...]], bool] = {}
        self._closed: OrderedDict[str, Change] = OrderedDict()
        self._hinted: dict[str, None] = {}
        self._hint = anyio.Event()
        self._stale = anyio.Event()
        self.ready = False
        self.trouble = ""

    # --- keeping up --------------------------------------------------------------------------------------------------

    async def hear(self, message: Msg) -> None:
        """A message of `gated.tickets.>`."""
        said = msgspec.json.decode(message.data, type=wire.TicketMessage)
        if said.state == "pending":
            self._hinted[said.ticket] = None
            self._hint.set()
        else:
            self._close(said.ticket, said.thread, said.run, said.state)

    def stale(self) -> None:
        """The line was lost for a while."""
        self._stale.set()

    async def run(self) -> None:
        """Keep up until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_again_and_again)
            tasks.start_soon(self._look_at_hints)

    async def _read_again_and_again(self) -> None:
        while True:
            self._stale = anyio.Event()
            try:
                await self._read_all()
                self.ready, self.trouble, wait = True, "", AGAIN
            except NoAnswer as error:
                self.trouble, wait = str(error), RETRY
            with anyio.move_on_after(wait):
                await self._stale.wait()

    async def _read_all(self) -> None:
        """Every page; then what was open before and is in none of them has closed unheard."""
        before, found, after = set(self._open), set[str](), 0
        while True:
            page = await self._lines.ask("tickets.page", _Page, after=after)
            await self._take(page.tickets)
            found.update(line.ticket for line in page.tickets)
            if page.complete:
                break
            if not page.tickets:
                await anyio.sleep(RETRY / 5)
            after = page.after
        for ticket in before - found:
            if (line := self._open.get(ticket)) is not None:
                self._close(ticket, line.thread, line.run, "closed")

    async def _look_at_hints(self) -> None:
        while True:
            await self._hint.wait()
            await anyio.sleep(GATHER)
            names = list(self._hinted)[:BATCH]
            for name in names:
                del self._hinted[name]
            if not self._hinted:
                self._hint = anyio.Event()
            try:
                page = await self._lines.ask("tickets.show", _Page, tickets=names)
                await self._take(page.tickets)
            except NoAnswer as error:
                self.trouble = str(error)
                self.stale()

    async def _take(self, lines: Iterable[OpenTicket]) -> None:
        for line in lines:
            if line.ticket in self._closed or self._open.get(line.ticket) == line:
                continue
            await self._policies.get(line.policy)
            self._open[line.ticket] = line
            for view in self._views.values():
                view.put(line)
            self._changed(Change(line.ticket, line.thread, line.run, "pending", line))

    def _close(self, ticket: str, thread: str, run: str, state: str) -> None:
        line = self._open.pop(ticket, None)
        self._hinted.pop(ticket, None)
        if line is not None:
            for view in self._views.values():
                view.drop(line)
        change = Change(ticket, thread, run, state, line)
        self._closed[ticket] = change
        while len(self._closed) > CLOSED:
            self._closed.popitem(last=False)
        self._changed(change)

    # --- what a person sees ------------------------------------------------------------------------------------------

    def visible(self, person: Person) -> View:
        """The open tickets that a person may see, the first to expire first. It follows what happens from now on."""
        key = (person.name, person.auditor)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= PEOPLE:
                self._views.clear()
            view = View(person, self)
            for line in self._open.values():
                view.put(line)
            self._views[key] = view
        return view

    def sees(self, person: Person, line: OpenTicket) -> bool:
        """Whether a person may see a ticket."""
        if person.auditor:
            return True
        key = (person.name, line.policy, line.rules)
        if key not in self._concerned:
            if len(self._concerned) > RULES:
                self._concerned.clear()
            self._concerned[key] = tickets.concerned(line.rules, person.name, self._groups(line.policy))
        return self._concerned[key]

    def _groups(self, policy: str) -> Mapping[str, frozenset[str]]:
        held = self._policies.known.get(policy)
        return held.approvals.groups if held is not None else {}

    def find(self, ticket: str) -> OpenTicket | None:
        return self._open.get(ticket)

    def ended(self, ticket: str) -> Change | None:
        """How a ticket closed, where that was not long ago."""
        return self._closed.get(ticket)

    def __len__(self) -> int:
        return len(self._open)


class View:
    """One person's open tickets in order. A change moves one of them; nothing is sorted anew."""

    def __init__(self, person: Person, board: Board) -> None:
        self._person, self._board = person, board
        self._order: list[tuple[int | str, str]] = []  # the places of the tickets

    def put(self, line: OpenTicket) -> None:
        """A ticket that opened, or that the person may see from now on."""
        key = place(line.expires_at, line.ticket)
        at = bisect_left(self._order, key)
        there = at < len(self._order) and self._order[at] == key
        if self._board.sees(self._person, line):
            if not there:
                self._order.insert(at, key)
        elif there:
            del self._order[at]

    def drop(self, line: OpenTicket) -> None:
        key = place(line.expires_at, line.ticket)
        at = bisect_left(self._order, key)
        if at < len(self._order) and self._order[at] == key:
            del self._order[at]

    def __len__(self) -> int:
        return len(self._order)

    def window(self, start: int, end: int) -> list[OpenTicket]:
        found = (self._board.find(ticket) for _, ticket in self._order[start:end])
        return [line for line in found if line is not None]

    def __iter__(self) -> Iterator[OpenTicket]:
        return iter(self.window(0, len(self)))
