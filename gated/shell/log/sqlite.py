"""The event log in one SQLite file: WAL, `synchronous=FULL`, one writer with natural group commit.

The writer is a thread of its own with the only writing connection: whatever queued during the last commit goes into the next
transaction, and all waiters of a commit are woken by one call into the event loop. Update and delete of records are refused by
triggers. A lock on a side file and an epoch in the database keep a second daemon out.
Reads go through aiosqlite on connections of their own; a reader opens the file read-only and needs no lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiosqlite
import anyio

from gated.events import Record, RunId, ThreadId
from gated.shell.log import LogConflict, LogError, LogLocked, LogUnavailable, Positioned

FETCH: Final = 512
POLL: Final = 0.1  # seconds between looks at the file while following it
SCHEMA_VERSION: Final = 1

_SCHEMA: Final = """
create table if not exists records (
    position integer primary key, thread text not null, run text not null, seq integer not null, at integer not null,
    kind text not null, prev text not null, hash text not null, body blob not null, unique (thread, seq)
) strict;
create trigger if not exists records_no_update before update on records
begin select raise(abort, 'the log is append-only'); end;
create trigger if not exists records_no_delete before delete on records
begin select raise(abort, 'the log is append-only'); end;
create table if not exists policies (digest text primary key, text blob not null) strict;
create table if not exists snapshots (thread text primary key, seq integer not null, data blob not null) strict;
create table if not exists deadlines (
    thread text not null, run text not null, due integer not null, primary key (thread, run)
) strict, without rowid;
create table if not exists meta (key text primary key, value text not null) strict;
"""

_COLUMNS: Final = "thread, run, seq, at, kind, prev, hash, body"
_INSERT: Final = f"insert into records ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)"

Job = Callable[[sqlite3.Connection], None]


class _Write(NamedTuple):
    job: Job
    done: asyncio.Future[None]


class SqliteLog:
    """One file, opened for writing (`open_for_writing`) or only for reading (`open_for_reading`)."""

    def __init__(self, path: Path, reader: aiosqlite.Connection, writer: _Writer | None) -> None:
        self.path = path
        self._reader = reader
        self._writer = writer

    async def append_many(self, records: Sequence[Record], dues: Sequence[tuple[ThreadId, RunId, int]] = ()) -> None:
        rows = [(r.thread, r.run, r.seq, r.at, r.kind, r.prev, r.hash, r.body) for r in records]

        def append(connection: sqlite3.Connection) -> None:
            try:
                connection.executemany(_INSERT, rows)
            except sqlite3.IntegrityError as error:
                raise _conflict(connection, records) from error
            if dues:
                connection.executemany("insert or replace into deadlines values (?, ?, ?)", dues)

        await self._write(append)

    async def _write(self, job: Job) -> None:
        if self._writer is None:
            raise LogUnavailable(f"`{self.path}` is open for reading only")
        await self._writer.submit(job)

    async def get(self, thread: ThreadId, seq: int) -> Record | None:
        rows = await self._all(f"select {_COLUMNS} from records where thread = ? and seq = ?", (thread, seq))
        return Record(*rows[0]) if rows else None

    async def _all(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return [tuple(row) for row in await self._reader.execute_fetchall(sql, values)]
        except (sqlite3.Error, ValueError) as error:
            raise LogUnavailable(f"cannot read `{self.path}`: {error}") from error

    async def read(self, thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
        sql = f"select {_COLUMNS} from records where thread = ? and seq > ? order by seq limit {FETCH}"
        while rows := await self._all(sql, (thread, after)):
            for row in rows:
                yield Record(*row)
            after = rows[-1][2]

    async def read_all(self, after: int = 0) -> AsyncIterator[Positioned]:
        sql = f"select position, {_COLUMNS} from records where position > ? order by position limit {FETCH}"
        while rows := await self._all(sql, (after,)):
            for position, *row in rows:
                yield Positioned(position, Record(*row))
            after = rows[-1][0]

    async def tail(self, after: int) -> AsyncIterator[Positioned]:
        while True:
            async for found in self.read_all(after):
                after = found.position
                yield found
            await anyio.sleep(POLL)

    async def head(self) -> int:
        rows = await self._all("select coalesce(max(position), 0) from records")
        return int(rows[0][0])

    async def put_policy(self, digest: str, text: bytes) -> None:
        await self._write(lambda c: _ran(c, "insert or ignore into policies values (?, ?)", (digest, text)))

    async def policy(self, digest: str) -> bytes | None:
        rows = await self._all("select text from policies where digest = ?", (digest,))
        return bytes(rows[0][0]) if rows else None

    async def policies(self) -> dict[str, bytes]:
        return {str(digest): bytes(text) for digest, text in await self._all("select digest, text from policies")}

    async def save_snapshot(self, thread: ThreadId, seq: int, data: bytes) -> None:
        await self._write(lambda c: _ran(c, "insert or replace into snapshots values (?, ?, ?)", (thread, seq, data)))

    async def load_snapshot(self, thread: ThreadId) -> tuple[int, bytes] | None:
        rows = await self._all("select seq, data from snapshots where thread = ?", (thread,))
        return (int(rows[0][0]), bytes(rows[0][1])) if rows else None

    async def open_deadlines(self) -> AsyncIterator[tuple[int, ThreadId, RunId]]:
        for due, thread, run in await self._all("select due, thread, run from deadlines where due > 0 order by due"):
            yield int(due), ThreadId(thread), RunId(run)

    async def close(self) -> None:
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        await self._reader.close()


def _ran(connection: sqlite3.Connection, sql: str, values: tuple[Any, ...]) -> None:
    connection.execute(sql, values)


def _conflict(connection: sqlite3.Connection, records: Sequence[Record]) -> LogConflict:
    """Which of the records does not fit, asked of the database."""
    for record in records:
        found = connection.execute("select coalesce(max(seq), 0) from records where thread = ?", (record.thread,))
        last = int(found.fetchone()[0])
        if last >= record.seq:
            return LogConflict(record.thread, record.seq, last)
    return LogConflict(records[0].thread, records[0].seq, -1)


class _Writer:
    """The thread that owns the writing connection."""

    def __init__(self, path: Path, lock: int, loop: asyncio.AbstractEventLoop) -> None:
        self._path, self._lock, self._loop = path, lock, loop
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._closed = False
        self._connection = _connect(path)
        self._thread = threading.Thread(target=self._work, name="gated-log", daemon=True)
        self._thread.start()

    async def submit(self, job: Job) -> None:
        if self._closed:
            raise LogUnavailable("the log is closed")
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put(_Write(job, done))
        await asyncio.shield(done)

    def close(self) -> None:
        """Commit what is queued and let go of the file."""
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        self._connection.close()
        os.close(self._lock)

    def _work(self) -> None:
        ending = False
        while not ending:
            batch, ending = self._next()
            if not batch:
                continue
            results = self._commit(batch)
            self._loop.call_soon_threadsafe(_wake, results)

    def _next(self) -> tuple[list[_Write], bool]:
        """Everything that is queued, at least one; and whether it is the end."""
        batch: list[_Write] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _commit(self, batch: list[_Write]) -> list[tuple[asyncio.Future[None], Exception | None]]:
        """One transaction for the batch; where one job fails, the others are written without it."""
        errors: dict[int, Exception] = {}
        while len(errors) < len(batch):
            try:
                failed = self._transact(batch, errors)
            except Exception as error:
                self._roll_back()
                return [(w.done, errors.get(i) or _unavailable(self._path, error)) for i, w in enumerate(batch)]
            if failed is None:
                break
        return [(write.done, errors.get(index)) for index, write in enumerate(batch)]

    def _transact(self, batch: list[_Write], errors: dict[int, Exception]) -> int | None:
        self._connection.execute("begin immediate")
        for index, write in enumerate(batch):
            if index in errors:
                continue
            try:
                write.job(self._connection)
            except LogError as error:
                errors[index] = error
                self._roll_back()
                return index
        self._connection.execute("commit")
        return None

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("rollback")


def _wake(results: list[tuple[asyncio.Future[None], Exception | None]]) -> None:
    for done, error in results:
        if done.cancelled():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


def _unavailable(path: Path, error: Exception) -> LogError:
    return error if isinstance(error, LogError) else LogUnavailable(f"cannot write `{path}`: {error}")


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("pragma wal_autocheckpoint = 4000")
    connection.executescript(_SCHEMA)
    _check_version(path, connection)
    return connection


def _check_version(path: Path, connection: sqlite3.Connection) -> None:
    connection.execute("insert or ignore into meta values ('version', ?)", (str(SCHEMA_VERSION),))
    connection.execute("insert or ignore into meta values ('epoch', '0')")
    connection.execute("update meta set value = cast(value as integer) + 1 where key = 'epoch'")
    version = connection.execute("select value from meta where key = 'version'").fetchone()[0]
    if version != str(SCHEMA_VERSION):
        raise LogUnavailable(f"`{path}` is of version {version}, this gated writes version {SCHEMA_VERSION}")


async def open_for_writing(path: Path) -> SqliteLog:
    """Open or create a log as its one writer. Raises `LogLocked`, `LogUnavailable`."""
    lock = await asyncio.to_thread(_take_lock, path)
    try:
        writer = await asyncio.to_thread(_Writer, path, lock, asyncio.get_running_loop())
    except (sqlite3.Error, OSError) as error:
        os.close(lock)
        raise LogUnavailable(f"cannot open `{path}`: {error}") from error
    return SqliteLog(path, await _reader(path), writer)


async def open_for_reading(path: Path) -> SqliteLog:
    """Open a log that may be in use by a daemon. Raises `LogUnavailable`."""
    if not await anyio.Path(path).is_file():
        raise LogUnavailable(f"there is no log at `{path}`")
    return SqliteLog(path, await _reader(path), None)


async def _reader(path: Path) -> aiosqlite.Connection:
    try:
        connection = await aiosqlite.connect(f"file:{path}?mode=ro", uri=True)
        await connection.execute("select 1 from records limit 1")
    except sqlite3.Error as error:
        raise LogUnavailable(f"`{path}` is not a log of gated: {error}") from error
    return connection


def _take_lock(path: Path) -> int:
    """The lock of the one writer, held by the open file until it is closed or the process dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LogUnavailable(f"cannot open `{path}`: {error}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(handle, 100).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise LogLocked(str(path), holder) from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"pid {os.getpid()}\n".encode(), 0)
    return handle
