"""Where the open tickets are, in the order they were opened: what lists of them are made from, without a look at every thread.

Live it follows what is published of tickets. After a start the runs with a deadline in the log are looked through, one after
another between other work; until that has begun and is done a list says that it may not be whole. The states remain the truth:
what is listed here and is not open there is passed over.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple

import anyio

from gated.core.state import ThreadState
from gated.core.tickets import Ticket
from gated.events import RunId, ThreadId
from gated.shell.log import ThreadDamaged
from gated.wire import TicketMessage

CLOSED: Final = 2000  # tickets whose place is known after their end

Look = Callable[[ThreadId], Awaitable[ThreadState]]


class Place(NamedTuple):
    """Where a ticket is; `number` grows with each that was found, and is what lists go on behind."""

    number: int
    thread: ThreadId
    run: RunId


class OpenTickets:
    """Open tickets by id. Ids are unique in the log, since thread and run are hashed into them."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._closed: OrderedDict[str, Place] = OrderedDict()
        self._numbers = count(1)
        self._unsearched: deque[tuple[ThreadId, RunId]] = deque()
        self._whole = anyio.Event()

    @property
    def complete(self) -> bool:
        return self._whole.is_set()

    async def whole(self) -> None:
        """Wait until they are complete."""
        while not self.complete:
            await self._whole.wait()

    def __len__(self) -> int:
        return len(self._places)

    def note(self, said: TicketMessage) -> None:
        """What was published of a ticket's life."""
        if said.event == "opened":
            self._add(said.ticket, ThreadId(said.thread), RunId(said.run))
        elif said.state != "pending" and (place := self._places.pop(said.ticket, None)) is not None:
            self._closed[said.ticket] = place
            while len(self._closed) > CLOSED:
                self._closed.popitem(last=False)

    def search_later(self, thread: ThreadId, run: RunId) -> None:
        """A run that may have open tickets since before the start."""
        self._unsearched.append((thread, run))
        if self.complete:
            self._whole = anyio.Event()

    async def search(self, look: Look) -> None:
        """Look through the runs that were open at the start. Raises what `look` raises; that run is looked at again then.

        The tickets of a damaged thread are nobody's to answer: it is passed over.
        """
        while self._unsearched:
            thread, run = self._unsearched[0]
            with suppress(ThreadDamaged):
                for ticket in pending(await look(thread), run):
                    self._add(ticket.id, thread, run)
            self._unsearched.popleft()
        self._whole.set()

    def _add(self, ticket: str, thread: ThreadId, run: RunId) -> None:
        if ticket not in self._places:
            self._places[ticket] = Place(next(self._numbers), thread, run)

    def find(self, ticket: str, *, closed: bool = False) -> Place | None:
        """Where an open ticket is, or with `closed` one that has closed lately: whoever is late is told who was first."""
        return self._places.get(ticket) or (self._closed.get(ticket) if closed else None)

    def after(self, number: int) -> Iterator[tuple[str, Place]]:
        """The open tickets that were found after one of them, in that order."""
        return iter([(ticket, place) for ticket, place in self._places.items() if place.number > number])


def pending(state: ThreadState, run: RunId) -> list[Ticket]:
    """The open tickets of a run."""
    found = state.runs.get(run)
    return [] if found is None else list(found.tickets.open.values())
