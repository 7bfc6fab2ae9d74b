"""Every run and ticket of the log, for lists and search: a database of the console's own that nobody else sees.

It lies in memory, and where it grows in a file that has no name and ends with the console: the log is the only truth, and what
is erased or archived there is not kept here. Its calls are quick, but not for an event loop; one at a time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from gated.console.gleaning import Opened, Rules, RunLine, Stretch, TicketLine

SCHEMA: Final = """
CREATE TABLE runs (
  id INTEGER PRIMARY KEY, thread TEXT, run TEXT, agent TEXT, policy INTEGER, at INTEGER, people TEXT, words TEXT,
  line BLOB, UNIQUE (thread, run));
CREATE INDEX runs_at ON runs (at);
CREATE TABLE rules (run INTEGER, rules INTEGER, PRIMARY KEY (run, rules)) WITHOUT ROWID;
CREATE TABLE tickets (
  id TEXT PRIMARY KEY, run INTEGER, rules INTEGER, tool TEXT, digest TEXT, ended INTEGER, at INTEGER, people TEXT, words TEXT,
  line BLOB);
CREATE INDEX tickets_at ON tickets (at) WHERE ended = 1;
CREATE INDEX tickets_tool ON tickets (tool, digest, at) WHERE ended = 1;
CREATE INDEX tickets_late ON tickets (tool, at) WHERE ended = 1;
"""

PAIRS: Final = 1 << 24  # more rules than there will be: a policy and rules are one number
CONCERNED: Final = "(SELECT value FROM json_each(:pairs))"
RUN_SEEN: Final = f"""(:all OR instr(r.people, :name) OR
  EXISTS (SELECT 1 FROM rules c WHERE c.run = r.id AND r.policy * {PAIRS} + c.rules IN {CONCERNED}))"""
TICKET_SEEN: Final = f"(:all OR instr(t.people, :name) OR r.policy * {PAIRS} + t.rules IN {CONCERNED})"


class Eyes(Struct, frozen=True):
    """As whom the index is read: an auditor, or a person with the pairs of a policy and rules that concern them."""

    name: str
    auditor: bool
    pairs: tuple[int, ...] = ()
    of: int = 0  # how many pairs there were then

    def values(self) -> dict[str, Any]:
        return {"all": self.auditor, "name": f" {self.name} ", "pairs": json.dumps(self.pairs)}


class Past(Struct, frozen=True):
    """A ticket that ended, as lists show it."""

    ticket: str
    thread: str
    run: str
    agent: str
    opened: Opened
    state: str
    ended_at: int
    answers: tuple[tuple[str, str, str], ...]


class _Numbers:
    """Things by small numbers, in the order in which they came."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._things: list[Any] = []

    def of(self, thing: Any) -> int:
        number = self._numbers.setdefault(thing, len(self._things))
        if number == len(self._things):
            self._things.append(thing)
        return number

    def at(self, number: int) -> Any:
        return self._things[number]


class Index:
    """`pairs` are the policies and rules that go together somewhere, each by its number."""

    def __init__(self) -> None:
        self._policies, self._rules = _Numbers(), _Numbers()
        self.pairs: dict[int, tuple[str, Rules]] = {}
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._db.executescript(f"PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; {SCHEMA}")

    def clear(self) -> None:
        """Forget every run and ticket; numbers stay, whoever holds some."""
        self._db.executescript("DELETE FROM runs; DELETE FROM rules; DELETE FROM tickets;")

    def close(self) -> None:
        self._db.close()

    # --- taking in ---------------------------------------------------------------------------------------------------

    def take(self, stretch: Stretch, *, earlier: bool = False) -> list[RunLine]:
        """Take a stretch of the log in, whole or not at all: it follows all that was taken, or precedes it (`earlier`).

        The runs of it, as they are now.
        """
        self._db.execute("BEGIN")
        try:
            taken = {key: self._take_run(line, earlier=earlier) for key, line in stretch.runs.items()}
            for ticket in stretch.tickets.values():
                self._take_ticket(ticket, taken[ticket.thread, ticket.run][0], earlier=earlier)
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        return [line for _, line in taken.values()]

    def _take_run(self, line: RunLine, *, earlier: bool) -> tuple[int, RunLine]:
        held = self._db.execute("SELECT id, line FROM runs WHERE thread = ? AND run = ?", (line.thread, line.run)).fetchone()
        id_, new, before = None, line.rules, ""
        if held is not None:
            id_, known = held[0], msgspec.msgpack.decode(held[1], type=RunLine)
            line, before = (line.then(known) if earlier else known.then(line)), known.policy
        line.rules = set()  # they have a table of their own
        policy = self._policies.of(line.policy)
        values = (
            *(id_, line.thread, line.run, line.agent, policy, line.at, _names(line.people), _words(line)),
            msgspec.msgpack.encode(line),
        )
        made = self._db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values).lastrowid
        assert made is not None
        for rules in new:
            self._db.execute("INSERT OR IGNORE INTO rules VALUES (?, ?)", (made, self._rules.of(rules)))
        numbers = (self._rules.of(rules) for rules in new) if line.policy == before else self._rules_of(made)
        for number in numbers:
            self.pairs[policy * PAIRS + number] = (line.policy, self._rules.at(number))
        return made, line

    def _rules_of(self, run: int) -> list[int]:
        return [number for (number,) in self._db.execute("SELECT rules FROM rules WHERE run = ?", (run,))]

    def _take_ticket(self, line: TicketLine, run: int, *, earlier: bool) -> None:
        held = self._db.execute("SELECT line FROM tickets WHERE id = ?", (line.ticket,)).fetchone()
        if held is not None:
            known = msgspec.msgpack.decode(held[0], type=TicketLine)
            line = line.then(known) if earlier else known.then(line)
        opened = line.opened
        ended = opened is not None and line.state not in ("", "pending")
        values = (
            *(line.ticket, run, -1 if opened is None else self._rules.of(opened.rules)),
            *("" if opened is None else opened.tool, "" if opened is None else opened.args_sha256, ended, line.at),
            *(_names(by for by, _, _ in line.answers), _ticket_words(line), msgspec.msgpack.encode(line)),
        )
        self._db.execute("INSERT OR REPLACE INTO tickets VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    # --- lists and search --------------------------------------------------------------------------------------------

    def runs(self, eyes: Eyes, most: int, skip: int = 0, words: Sequence[str] = ()) -> list[RunLine]:
        """Runs that these eyes may see and in whose texts every word is, the last to change first."""
        matching, values = _matching("r.words", words)
        found = self._db.execute(
            f"SELECT line FROM runs r WHERE {RUN_SEEN} {matching} ORDER BY at DESC, id DESC LIMIT :most OFFSET :skip",
            {**eyes.values(), **values, "most": most, "skip": skip},
        )
        return [msgspec.msgpack.decode(line, type=RunLine) for (line,) in found]

    def seen(self, eyes: Eyes, runs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Which of these runs, by thread and run, the eyes may see."""
        known = f"SELECT 1 FROM runs r WHERE thread = :thread AND run = :run AND {RUN_SEEN}"
        values = eyes.values()
        return [key for key in runs if self._db.execute(known, {**values, "thread": key[0], "run": key[1]}).fetchone()]

    def ended(self, eyes: Eyes, most: int, words: Sequence[str], skip: int = 0) -> list[Past]:
        """Tickets that ended, and in whose texts every word is, the last to end first."""
        matching, values = _matching("t.words || ' ' || lower(r.agent)", words)
        rest = f"{matching} ORDER BY t.at DESC, t.id LIMIT :most OFFSET :skip"
        return self._tickets(rest, eyes, {**values, "most": most, "skip": skip})

    def similar(self, eyes: Eyes, tool: str, agent: str, digest: str, but: str, most: int) -> list[Past]:
        """Ended tickets of the tool: the same call first, then the same agent's of late, the newest first."""
        values = {"tool": tool, "digest": digest, "but": but, "most": most}
        same = self._tickets(
            "AND tool = :tool AND digest = :digest AND t.id != :but ORDER BY t.at DESC LIMIT :most", eyes, values
        )
        values["most"] = 8 * most
        late = self._tickets("AND tool = :tool AND digest != :digest ORDER BY t.at DESC LIMIT :most", eyes, values)
        return [*same, *sorted(late, key=lambda past: past.agent != agent)][:most]

    def place(self, eyes: Eyes, ticket: str) -> tuple[str, str] | None:
        """The thread and run of a ticket that these eyes may see."""
        known = f"SELECT r.thread, r.run FROM tickets t JOIN runs r ON r.id = t.run WHERE t.id = :id AND {TICKET_SEEN}"
        found = self._db.execute(known, {**eyes.values(), "id": ticket}).fetchone()
        return None if found is None else (found[0], found[1])

    def _tickets(self, rest: str, eyes: Eyes, values: dict[str, Any]) -> list[Past]:
        found = self._db.execute(
            f"SELECT t.line, r.agent FROM tickets t JOIN runs r ON r.id = t.run WHERE ended = 1 AND {TICKET_SEEN} {rest}",
            {**eyes.values(), **values},
        )
        return [_past(msgspec.msgpack.decode(line, type=TicketLine), agent) for line, agent in found]


def _past(line: TicketLine, agent: str) -> Past:
    assert line.opened is not None, "what opened it was found, or it would not count as ended"
    return Past(line.ticket, line.thread, line.run, agent, line.opened, line.state, line.at, line.answers)


def _names(people: Iterable[str]) -> str:
    """Names as one text, each between spaces; no name has one."""
    return f" {' '.join(sorted(set(people)))} "


def _words(line: RunLine) -> str:
    shown = "finished" if line.status == "complete" else line.status
    return "\n".join((line.run, line.thread, line.agent, line.task or "", line.status, shown)).lower()


def _ticket_words(line: TicketLine) -> str:
    opened = line.opened
    texts = () if opened is None else (opened.tool, opened.preview, *(ask.reason for ask in opened.asks))
    return "\n".join((line.ticket, line.run, line.state, *texts)).lower()


def _matching(text: str, words: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The condition that every word is in a text, and its values."""
    values = {f"word{number}": word.lower() for number, word in enumerate(words)}
    return "".join(f" AND instr({text}, :{name})" for name in values), values
