"""The event log in one SQLite file: WAL, `synchronous=FULL`, one writer (`sqlite_writer.py`).

Reads go through aiosqlite on a connection of their own, some hundred rows a look, so that no look holds up the writer's clearing
of the WAL; a reader opens the file read-only and needs no lock. Only `position` and `(thread, seq)` are indexed: every further
index is paid for by each append, and what filters by run or time reads in the order of the log.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiosqlite
import anyio

from gated.core.chain import Anchors, CheckpointNote
from gated.events import GENESIS, AgentId, Record, RunId, ThreadId
from gated.shell.log import Due, LogConflict, LogDamaged, LogLocked, LogUnavailable, Positioned
from gated.shell.log.sealing import Sealing
from gated.shell.log.sqlite_file import APPEND, COLUMNS, ROW, connect_reader, meaning, take_lock, unreadable_words
from gated.shell.log.sqlite_writer import Job, Statement, Writer

FETCH: Final = 512
POLL: Final = 0.1  # seconds between looks at the file while following it

_INSERT: Final = f"insert into records ({COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)"
_FIRST: Final = "insert or ignore into heads values (?, ?, ?)"
_NEXT: Final = "update heads set seq = ?, hash = ? where thread = ? and seq = ? and hash = ?"
_DUE: Final = "insert or replace into deadlines values (?, ?, ?)"
_APPENDS: Final = {size: f"{APPEND} {', '.join([ROW] * size)}" for size in (1 << bits for bits in range(11))}
_CHECKPOINT: Final = """insert into checkpoints (position, note) select ?1, ?2
where not exists (select 1 from checkpoints where position = ?1 and note = ?2)"""


# A quick look at the bytes says where a run may have opened or ended, and the decisions themselves whether it did: an agent's
# arguments may say anything.
_OPEN_RUNS: Final = """
select thread, run, max(agent) from (
    select r.thread, r.run, d.value ->> '$.kind' as kind, d.value ->> '$.agent' as agent
    from records r, json_each(iif(json_valid(cast(r.body as text)), cast(r.body as text), '{}'), '$.decisions') d
    where instr(r.body, cast('"run_opened"' as blob)) or instr(r.body, cast('"run_ended"' as blob))
) where kind in ('run_opened', 'run_ended') group by thread, run having sum(kind = 'run_ended') = 0
"""


class SqliteLog:
    """One file, opened for writing (`open_for_writing`) or only for reading (`open_for_reading`)."""

    def __init__(self, path: Path, reader: aiosqlite.Connection, writer: Writer | None) -> None:
        self.path = path
        self._reader = reader
        self._writer = writer

    @property
    def epoch(self) -> int:
        return self._writing().epoch

    async def append(self, thread: ThreadId, expected_seq: int, records: Sequence[Record], fence: int | None = None) -> None:
        if any(r.thread != thread or r.seq != expected_seq + n for n, r in enumerate(records, 1)):
            raise ValueError(f"the records are not those of thread `{thread}` after {expected_seq}")
        if fence is not None and fence != self.epoch:
            raise LogLocked(str(self.path), f"epoch {self.epoch}, the fence is {fence}")
        append = _appending(records)

        def compare_and_append(connection: sqlite3.Connection) -> None:
            found = _last(connection, thread)
            if found != expected_seq:
                raise LogConflict(thread, expected_seq + 1, found)
            append(connection)

        await self._write(compare_and_append)

    async def append_many(self, records: Sequence[Record], dues: Sequence[Due] = ()) -> None:
        await self._writing().submit(_appending(records, dues), _as_one(records, dues))

    async def put_policy(self, digest: str, text: bytes) -> None:
        await self._write(_running("insert or ignore into policies values (?, ?)", digest, text))

    async def save_snapshot(self, thread: ThreadId, seq: int, data: bytes) -> None:
        await self._write(_running("insert or replace into snapshots values (?, ?, ?)", thread, seq, data))

    async def put_checkpoint(self, note: CheckpointNote) -> None:
        await self._write(_running(_CHECKPOINT, note.position, note.note))

    async def seal(self) -> None:
        """Seal the log as it is now, where it is sealed at all; what is sealed already is not sealed again."""
        await self._writing().seal()

    def seal_only_when_asked(self) -> None:
        self._writing().seal_at_end = False

    def _writing(self) -> Writer:
        if self._writer is None:
            raise LogUnavailable(f"`{self.path}` is open for reading only")
        return self._writer

    async def _write(self, job: Job) -> None:
        await self._writing().submit(job)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get(self, thread: ThreadId, seq: int) -> Record | None:
        rows = await self._all(f"select {COLUMNS} from records where thread = ? and seq = ?", thread, seq)
        return Record(*rows[0]) if rows else None

    async def _all(self, sql: str, *values: Any, position: int = 0) -> list[tuple[Any, ...]]:
        try:
            return list(await self._reader.execute_fetchall(sql, values))  # type: ignore[arg-type]  # plain rows are tuples
        except sqlite3.Error as error:
            raise meaning(self.path, "read", position, error) from error
        except UnicodeDecodeError as error:
            raise LogDamaged(position, f"cannot read `{self.path}`: {unreadable_words(error)}") from error
        except ValueError as error:  # what aiosqlite says of a closed connection
            raise LogUnavailable(f"cannot read `{self.path}`: {error}") from error

    async def read(self, thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
        sql = f"select {COLUMNS} from records where thread = ? and seq > ? order by seq limit {FETCH}"
        while rows := await self._all(sql, thread, after):
            for row in rows:
                yield Record(*row)
            after = rows[-1][2]

    async def read_all(self, after: int = 0) -> AsyncIterator[Positioned]:
        """Of a damaged file too, all that stands before the first record that cannot be read."""
        sql = f"select position, {COLUMNS} from records where position > ? order by position limit ?"
        broken: LogDamaged | None = None  # from there on one by one
        while True:
            try:
                rows = await self._all(sql, after, 1 if broken else FETCH, position=after)
            except LogDamaged as error:
                if broken:
                    raise
                broken = error
                continue
            if not rows:
                break
            for position, *row in rows:
                if position <= after:  # a damaged tree leads back
                    raise LogDamaged(after, broken.why if broken else f"the records of `{self.path}` are not in order")
                yield Positioned(position, Record(*row))
                after = position
        if broken:
            raise broken

    async def tail(self, after: int) -> AsyncIterator[Positioned]:
        while True:
            async for found in self.read_all(after):
                after = found.position
                yield found
            await anyio.sleep(POLL)

    async def head(self) -> int:
        return int((await self._all("select coalesce(max(position), 0) from records"))[0][0])

    async def heads(self) -> dict[ThreadId, tuple[int, str]]:
        rows = await self._all("select thread, seq, hash from heads order by thread")
        return {ThreadId(thread): (seq, hash_) for thread, seq, hash_ in rows}

    async def threads(self) -> AsyncIterator[ThreadId]:
        after = ""
        while rows := await self._all(f"select thread from heads where thread > ? order by thread limit {FETCH}", after):
            for (thread,) in rows:
                yield ThreadId(thread)
            after = rows[-1][0]

    async def policy(self, digest: str) -> bytes | None:
        rows = await self._all("select text from policies where digest = ?", digest)
        return bytes(rows[0][0]) if rows else None

    async def policies(self) -> dict[str, bytes]:
        rows = await self._all("select digest, text from policies order by digest")
        return {str(digest): bytes(text) for digest, text in rows}

    async def anchors(self) -> Anchors | None:
        """What was archived out of this log."""
        if not await self._all("select 1 from sqlite_schema where name = 'anchors'"):
            return None
        found = dict(await self._all("select key, value from meta where key like 'archived_%'"))
        if not found:
            return None
        rows = await self._all("select thread, seq, hash from anchors order by thread")
        heads = {ThreadId(thread): (seq, hash_) for thread, seq, hash_ in rows}
        return Anchors(int(found["archived_position"]), found["archived_head"], int(found["archived_records"]), heads)

    async def anchored_states(self) -> AsyncIterator[bytes]:
        """The states of the threads that were archived, as they were then."""
        if await self.anchors() is not None:
            for (state,) in await self._all("select state from anchors order by thread"):
                yield bytes(state)

    async def load_snapshot(self, thread: ThreadId) -> tuple[int, bytes] | None:
        rows = await self._all("select seq, data from snapshots where thread = ?", thread)
        return (int(rows[0][0]), bytes(rows[0][1])) if rows else None

    async def checkpoints(self) -> list[CheckpointNote]:
        rows = await self._all("select position, note from checkpoints order by position, id")
        return [CheckpointNote(position, note) for position, note in rows]

    async def open_deadlines(self) -> AsyncIterator[tuple[int, ThreadId, RunId]]:
        for due, thread, run in await self._all("select due, thread, run from deadlines where due > 0 order by due"):
            yield int(due), ThreadId(thread), RunId(run)

    async def open_runs(self) -> dict[tuple[ThreadId, RunId], AgentId]:
        return {(ThreadId(thread), RunId(run)): AgentId(agent) for thread, run, agent in await self._all(_OPEN_RUNS)}

    async def close(self) -> None:
        await self._reader.close()  # first, since whoever closes last clears the WAL, and a reader cannot
        if self._writer is not None:
            await self._writer.close()


# --- jobs of the writer ----------------------------------------------------------------------------------------------


def _running(sql: str, *values: Any) -> Job:
    def run(connection: sqlite3.Connection) -> None:
        connection.execute(sql, values)

    return run


def _appending(records: Sequence[Record], dues: Sequence[Due] = ()) -> Job:
    def append(connection: sqlite3.Connection) -> None:
        for record in records:
            if not _advanced(connection, record):
                raise LogConflict(record.thread, record.seq, _last(connection, record.thread))
        connection.executemany(_INSERT, [(r.thread, r.run, r.seq, r.at, r.kind, r.prev, r.hash, r.body) for r in records])
        if dues:
            connection.executemany(_DUE, dues)

    return append


def _as_one(records: Sequence[Record], dues: Sequence[Due]) -> Statement | None:
    """The same as one statement, where it is not too many rows: as many as the next power of two, so that few are prepared."""
    size = 1 << (len(records) + len(dues) - 1).bit_length()
    if size not in _APPENDS:
        return None

    def statement(epoch: int) -> tuple[str, Sequence[Any]]:
        of = str(epoch)
        values: list[Any] = [v for r in records for v in (of, r.thread, r.run, r.seq, r.at, r.kind, r.prev, r.hash, r.body)]
        for thread, run, due in dues:
            values += (of, thread, run, None, due, None, None, None, None)
        values += [None] * (9 * size - len(values))
        return _APPENDS[size], values

    return statement


def _advanced(connection: sqlite3.Connection, record: Record) -> bool:
    """Move the thread's head on, if it is the one that the record follows."""
    thread, seq = record.thread, record.seq
    if seq > 1:
        return connection.execute(_NEXT, (seq, record.hash, thread, seq - 1, record.prev)).rowcount == 1
    return record.prev == GENESIS and seq == 1 and connection.execute(_FIRST, (thread, seq, record.hash)).rowcount == 1


def _last(connection: sqlite3.Connection, thread: ThreadId) -> int:
    rows = connection.execute("select seq from heads where thread = ?", (thread,)).fetchall()
    return int(rows[0][0]) if rows else 0


# --- opening ---------------------------------------------------------------------------------------------------------


async def open_for_writing(path: Path, sealing: Sealing | None = None) -> SqliteLog:
    """Open or create a log as its one writer. Raises `LogLocked`, `LogUnavailable`, `LogDamaged`."""
    lock = await asyncio.to_thread(take_lock, path)
    try:
        writer = await asyncio.to_thread(Writer, path, lock, asyncio.get_running_loop(), sealing)
    except BaseException as error:
        os.close(lock)
        if isinstance(error, UnicodeDecodeError):
            raise LogDamaged(0, f"cannot open `{path}`: {unreadable_words(error)}") from error
        if isinstance(error, sqlite3.Error | OSError):
            raise LogUnavailable(f"cannot open `{path}`: {error}") from error
        raise
    try:
        return SqliteLog(path, await connect_reader(path), writer)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await writer.close()
        raise


async def open_for_reading(path: Path) -> SqliteLog:
    """Open a log that may be in use by a daemon. Raises `LogUnavailable`."""
    if not await anyio.Path(path).is_file():
        raise LogUnavailable(f"there is no log at `{path}`")
    return SqliteLog(path, await connect_reader(path), None)
