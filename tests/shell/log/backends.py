"""The backends of the log, each with the ways to hurt it that the common suite needs, and records for it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from gated.core.chain import verify_records
from gated.events import GENESIS, Body, CallId, IntentsReceived, Record, RunId, Sender, ThreadId, Wanted, kind_of, seal
from gated.shell.log import EventLog, ReadableLog, sqlite_file
from gated.shell.log.sealing import Sealing
from gated.shell.log.sqlite import SqliteLog, open_for_reading, open_for_writing

BY = Sender("agent", "a")


def chained(
    thread: str = "t", count: int = 3, after: Record | None = None, text: str = "wörter \u2028 \U0001f512"
) -> list[Record]:
    """The next `count` records of a thread."""
    made: list[Record] = []
    for _ in range(count):
        seq, prev = (1, GENESIS) if after is None else (after.seq + 1, after.hash)
        said = IntentsReceived(BY, (Wanted(CallId(f"c{seq}"), "search", {"q": text, "n": [seq, 1.5, None]}),))
        after = seal(Body(1, ThreadId(thread), RunId(f"{thread}-r"), seq, 10**15 + seq, kind_of(said), said, (), "p" * 64, prev))
        made.append(after)
    return made


async def all_of(log: ReadableLog, after: int = 0) -> list[Record]:
    return [record async for _, record in log.read_all(after)]


async def intact(log: ReadableLog) -> int:
    """How many records a log has, all of them verified, and its table of heads with them."""
    found = verify_records([item async for item in log.read_all()])
    assert found.damage is None
    assert dict(found.heads) == await log.heads()
    return found.records


class Backend(Protocol):
    """A place for one log."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None: ...

    async def open(self, sealing: Sealing | None = None) -> EventLog:
        """Open for writing; a stall is borne for a moment only."""

    async def reader(self) -> ReadableLog: ...

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Nothing can be written for a while."""

    @contextmanager
    def outcome_lost(self, log: Any) -> Iterator[None]:
        """What is committed is reported as failed."""

    def take_over(self) -> None:
        """Another daemon begins to write, though this one never let go."""


class SqliteBackend:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = folder / "log.db"
        patch.setattr(sqlite_file, "BUSY_SECONDS", 0.3)

    async def open(self, sealing: Sealing | None = None) -> SqliteLog:
        return await open_for_writing(self.path, sealing)

    async def reader(self) -> SqliteLog:
        return await open_for_reading(self.path)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("begin immediate")
            yield

    @contextmanager
    def outcome_lost(self, log: Any) -> Iterator[None]:
        writer = log._writer
        real = writer._connection
        writer._connection = _Forgetful(real)
        yield
        writer._connection = real

    def take_over(self) -> None:
        with closing(sqlite3.connect(self.path)) as other, other:
            other.execute("update meta set value = value + 1 where key = 'epoch'")


class _Forgetful:
    """A connection whose commits are done and then fail."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        done = self._real.execute(sql, values)
        if sql == "commit":
            raise sqlite3.OperationalError("disk I/O error")
        return done


BACKENDS: Final[list[type[Backend]]] = [SqliteBackend]
