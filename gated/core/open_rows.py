"""How the tickets that wait in a run, and its calls that wait on them, are written in a snapshot: as rows, each text once.

INVARIANT: equal maps are equal bytes.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from immutables import Map
from msgspec import Struct

from gated.core.tickets import State, Ticket, batch_digest
from gated.core.writing import Form, Reading, Rows, Slices, pack, rows_written
from gated.events import Answer, AnswerRule, Ask, CallId, Embedding, Score, TicketCall, TicketId

T = TypeVar("T")


def digest_bytes(text: str) -> bytes:
    """The bytes of a digest in hex, half as long; none where it is something else."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return b""
    return raw if raw.hex() == text else b""


# --- tickets ---------------------------------------------------------------------------------------------------------


class _Call(Struct, frozen=True, gc=False, array_like=True):
    call: CallId
    tool: str
    args: dict[str, Any]
    digest: bytes
    text: str | None  # what stands where a digest should, if it is none in hex
    parent: CallId | None
    cost_microusd: int | None
    explicit: bool
    scores: dict[str, Score] | None
    sealed: str | None
    embedding: Embedding | None


class _Rules(Struct, frozen=True, gc=False):
    """Who may answer, and how long after the ticket was opened what happens."""

    rules: tuple[AnswerRule, ...]
    given: int
    soon: int
    escalate: int | None


class _Asks(Struct, frozen=True, gc=False):
    asks: tuple[Ask, ...]


class _Since(Struct, frozen=True, gc=False):
    """What became of a ticket after it was opened."""

    answers: tuple[Answer, ...]
    state: State
    escalated: bool
    soon: bool
    undelivered: tuple[str, ...]
    closed_at: int | None


class _Row(Struct, frozen=True, gc=False, array_like=True):
    id: TicketId
    calls: tuple[_Call, ...]
    asks: int  # its place in the table
    rules: int
    opened_at: int
    number: int
    atomic: bool
    edited: bool
    since: bytes | None
    args_sha256: str | None  # None: the digest of its calls


class _Sheet(Struct, frozen=True, gc=False, array_like=True):
    asks: tuple[bytes, ...]
    rules: tuple[bytes, ...]
    rows: tuple[_Row, ...]


_ASKS: Final = Rows(_Asks)
_RULES: Final = Rows(_Rules)
_SINCE: Final = Rows(_Since)
_SHEETS: Final = Reading(_Sheet)
_SHEET: Final = b"\x93"  # msgpack: an array of three
_NOTHING_SINCE: Final = ((), "pending", False, False, (), None)
_UNTOUCHED: Final = _Since((), "pending", False, False, (), None)


class _Table(Generic[T]):
    """What many rows have alike, and its place. Most have what the one before them has."""

    def __init__(self) -> None:
        self.places: dict[bytes, int] = {}
        self._last: T | None = None
        self._at = -1

    def place(self, value: T, rows: Rows[Any], made: type[Struct]) -> int:
        if value != self._last:
            self._last = value
            self._at = self.places.setdefault(rows.write(made(*value)), len(self.places))  # type: ignore[misc]
        return self._at


def _tickets_written(tickets: Map[TicketId, Ticket]) -> Slices:
    asks, rules = _Table[Any](), _Table[Any]()
    rows = yield from rows_written(sorted(tickets), lambda ticket: _row(tickets[ticket], asks, rules))
    return b"".join((_SHEET, pack(list(asks.places)), pack(list(rules.places)), rows))


def _row(ticket: Ticket, asks: _Table[Any], rules: _Table[Any]) -> tuple[Any, ...]:
    """The fields of a `_Row`: a tuple is made at a third of the price, and is the same bytes."""
    opened, escalate = ticket.opened_at, ticket.escalate_at
    times = ticket.expires_at - opened, ticket.soon_at - opened, None if escalate is None else escalate - opened
    return (
        ticket.id,
        [_call(call) for call in ticket.calls],
        asks.place((ticket.asks,), _ASKS, _Asks),
        rules.place((ticket.rules, *times), _RULES, _Rules),
        opened,
        ticket.number,
        ticket.atomic,
        ticket.edited,
        _since(ticket),
        None if ticket.args_sha256 == batch_digest(ticket.calls) else ticket.args_sha256,
    )


def _since(ticket: Ticket) -> bytes | None:
    since = (ticket.answers, ticket.state, ticket.escalated, ticket.soon, ticket.undelivered, ticket.closed_at)
    return None if since == _NOTHING_SINCE else _SINCE.write(_Since(*since))


def _call(call: TicketCall) -> tuple[Any, ...]:
    digest = digest_bytes(call.args_sha256)
    return (
        call.call,
        call.tool,
        call.args,
        digest,
        None if digest else call.args_sha256,
        call.parent,
        call.cost_microusd,
        call.nesting == "explicit",
        call.scores,
        call.sealed,
        call.embedding,
    )


def _tickets_read(raw: bytes) -> dict[TicketId, Ticket]:
    sheet = _SHEETS.read(raw)
    asks, rules = [_ASKS.read(each) for each in sheet.asks], [_RULES.read(each) for each in sheet.rules]
    return {row.id: _ticket(row, asks[row.asks].asks, rules[row.rules]) for row in sheet.rows}


def _ticket(row: _Row, asks: tuple[Ask, ...], rules: _Rules) -> Ticket:
    calls = tuple([_ticket_call(call) for call in row.calls])
    opened, escalate = row.opened_at, rules.escalate
    since = _UNTOUCHED if row.since is None else _SINCE.read(row.since)
    return Ticket(
        row.id,
        calls,
        batch_digest(calls) if row.args_sha256 is None else row.args_sha256,
        asks,
        rules.rules,
        opened,
        opened + rules.given,
        opened + rules.soon,
        None if escalate is None else opened + escalate,
        row.atomic,
        row.edited,
        since.answers,
        since.state,
        since.escalated,
        since.soon,
        row.number,
        since.undelivered,
        since.closed_at,
    )


def _ticket_call(call: _Call) -> TicketCall:
    return TicketCall(
        call.call,
        call.tool,
        call.args,
        call.digest.hex() if call.text is None else call.text,
        call.parent,
        call.cost_microusd,
        "explicit" if call.explicit else "inferred",
        call.scores,
        call.sealed,
        call.embedding,
    )


TICKETS: Final = Form(_tickets_written, _tickets_read)
