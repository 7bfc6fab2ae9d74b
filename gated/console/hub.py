"""Open pages that hear of changes: what happened is gathered for a moment, filtered for the person, and sent as one event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Final

import anyio

from gated.console.board import Board, Change
from gated.console.gleaning import RunLine
from gated.console.past import Past
from gated.console.people import Person

GATHER: Final = 0.1  # seconds
BEAT: Final = 15.0  # seconds without news after which a comment shows that the line is open
WAITING: Final = 20_000  # tickets and runs that one page has not taken yet
MOST: Final = 1000  # tickets or runs in one event; with more the page reads its list again anyway


class Listener:
    """One open page of a person."""

    def __init__(self, person: Person) -> None:
        self.person = person
        self.tickets: dict[str, Change] = {}
        self.runs: dict[tuple[str, str], RunLine] = {}
        self.news = anyio.Event()


class Hub:
    """`most` pages of one person may be open at a time; the oldest is let go then."""

    def __init__(self, most: int = 20) -> None:
        self._listeners: list[Listener] = []
        self._most = most

    def busy(self) -> bool:
        """Whether any page is open."""
        return bool(self._listeners)

    def ticket(self, change: Change) -> None:
        for listener in list(self._listeners):
            listener.tickets[change.ticket] = change
            self._tell(listener)

    def run(self, line: RunLine) -> None:
        for listener in list(self._listeners):
            listener.runs[line.thread, line.run] = line
            self._tell(listener)

    def _tell(self, listener: Listener) -> None:
        """There is something new; a page that takes nothing any more is let go, and reads all anew if it comes back."""
        listener.news.set()
        if len(listener.tickets) + len(listener.runs) > WAITING:
            self._listeners.remove(listener)
            listener.tickets, listener.runs = {}, {}

    async def listen(self, person: Person, board: Board, past: Past, still: Callable[[], bool]) -> AsyncIterator[str]:
        """The events for one page, as text of an event stream, while `still` holds."""
        listener = Listener(person)
        self._listeners.append(listener)
        own = [other for other in self._listeners if other.person.name == person.name]
        for other in own[: max(0, len(own) - self._most)]:
            self._listeners.remove(other)
        past.watched()
        try:
            yield _event("hello", {"open": len(board.visible(person))})
            while still() and listener in self._listeners:
                with anyio.move_on_after(BEAT) as waited:
                    await listener.news.wait()
                if waited.cancelled_caught:
                    yield ": still here\n\n"
                    continue
                await anyio.sleep(GATHER)
                listener.news = anyio.Event()
                for text in await _news(listener, board, past):
                    yield text
        finally:
            if listener in self._listeners:
                self._listeners.remove(listener)


async def _news(listener: Listener, board: Board, past: Past) -> list[str]:
    """What the person may see of what happened."""
    tickets, listener.tickets = listener.tickets, {}
    runs, listener.runs = listener.runs, {}
    person, found = listener.person, list[str]()
    seen = [change for change in tickets.values() if change.line is not None and board.sees(person, change.line)]
    if seen:
        changed = {change.ticket: change.state for change in seen[-MOST:]}
        found.append(_event("tickets", {"open": len(board.visible(person)), "changed": changed}))
    visible = await past.seen(person, runs) if runs else []
    if visible:
        found.append(_event("runs", {"changed": [[*key, runs[key].status] for key in visible[-MOST:]]}))
    return found


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
