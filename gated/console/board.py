"""The open tickets, as the console knows them: read in pages from the gate, kept by what it publishes of them.

INVARIANT: a published message is only a hint that a ticket is to be looked at again; what is shown is what the gate answers.
After the line was lost, and every few minutes, everything is read again, so that a hint that was missed cannot stay missed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import anyio
import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from gated import wire
from gated.console.line import Lines, NoAnswer
from gated.console.people import Person
from gated.console.threads import Policies
from gated.core import tickets
from gated.views import OpenTicket

AGAIN: Final = 300.0  # seconds until everything is read again
RETRY: Final = 1.0
GATHER: Final = 0.03  # seconds in which hints are gathered into one question
BATCH: Final = 200
PEOPLE: Final = 500  # whose lists are kept until something changes
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
        self._version = 0
        self._visible: dict[tuple[str, bool], tuple[int, list[OpenTicket]]] = {}
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
            self._version += 1
            self._changed(Change(line.ticket, line.thread, line.run, "pending", line))

    def _close(self, ticket: str, thread: str, run: str, state: str) -> None:
        line = self._open.pop(ticket, None)
        self._hinted.pop(ticket, None)
        self._version += 1
        change = Change(ticket, thread, run, state, line)
        self._closed[ticket] = change
        while len(self._closed) > CLOSED:
            self._closed.popitem(last=False)
        self._changed(change)

    # --- what a person sees ------------------------------------------------------------------------------------------

    def visible(self, person: Person) -> list[OpenTicket]:
        """The open tickets that a person may see, the first to expire first."""
        version, found = self._visible.get((person.name, person.auditor), (-1, []))
        if version != self._version:
            found = self._look(person)
            if len(self._visible) > PEOPLE:
                self._visible.clear()
            self._visible[person.name, person.auditor] = (self._version, found)
        return found

    def _look(self, person: Person) -> list[OpenTicket]:
        known: dict[Any, bool] = {}
        found = [line for line in self._open.values() if person.auditor or self._concerns(person, line, known)]
        return sorted(found, key=lambda line: (line.expires_at, line.ticket))

    def sees(self, person: Person, line: OpenTicket) -> bool:
        return person.auditor or self._concerns(person, line, {})

    def _concerns(self, person: Person, line: OpenTicket, known: dict[Any, bool]) -> bool:
        key = (line.policy, line.rules)
        if key not in known:
            known[key] = tickets.concerned(line.rules, person.name, self._groups(line.policy))
        return known[key]

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
