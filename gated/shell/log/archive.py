"""Taking finished threads out of a log into an archive, so that the log stays small and both still verify.

A thread goes whole, when all its runs have ended and nothing of it is in flight or waits; the one with the newest record stays,
so that positions go on from there. Its last hash stays as an *anchor*, its state beside it, so that a late word about it is
answered as before, and what is kept and the anchors together are what was sealed. The log's file is made anew beside the old
one and put in its place in one step: a crash leaves the old log or the new.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import anyio
from msgspec import Struct

from gated.core import state as states
from gated.core.chain import verify_records
from gated.core.fold import fold
from gated.core.state import ThreadState
from gated.events import Record, ThreadId, unseal
from gated.shell import faults
from gated.shell.log import LogDamaged, LogUnavailable
from gated.shell.log.anchors import archived_states
from gated.shell.log.following import fed
from gated.shell.log.jsonl import export_lines, open_export
from gated.shell.log.open import policies_of
from gated.shell.log.sealing import Sealing
from gated.shell.log.sqlite import SqliteLog, open_for_writing
from gated.shell.log.sqlite_file import BUSY_SECONDS, COLUMNS, SCHEMA, take_lock


class Archived(Struct, frozen=True):
    """How much went, and how much was kept."""

    threads: int
    records: int
    kept: int


def is_finished(state: ThreadState) -> bool:
    """Whether nothing more is to come of a thread."""
    some = len(state.runs) > 0
    return some and all(run.end and not run.in_flight and not run.tickets.open for _, run in state.runs.unfinished())


async def archive(path: Path, target: Path, before: int, sealing: Sealing | None = None) -> Archived:
    """Move the threads that finished before a time (µs) out of a log that no daemon writes.

    Raises `LogLocked` where one does, `LogUnavailable` where the target exists or cannot be written, `LogDamaged`.
    """
    if await anyio.Path(target).exists():
        raise LogUnavailable(f"`{target}` exists: an archive is never overwritten")
    if not await anyio.Path(path).is_file():
        raise LogUnavailable(f"there is no log at `{path}`")
    log = await open_for_writing(path, sealing)
    try:
        await log.seal()
        gone = await _finished(log, before)
        if gone:
            await _write_archive(log, target, gone)
    finally:
        await log.close()
    if not gone:
        return Archived(0, 0, await _count(path))
    faults.point("archived")
    try:
        return await anyio.to_thread.run_sync(_renew, path, gone)
    except LogUnavailable:  # the log is as it was: an archive beside it would hold the same records again
        await anyio.Path(target).unlink()
        raise


async def _finished(log: SqliteLog, before: int) -> dict[ThreadId, ThreadState]:
    """The threads to take out, with their states. One that was archived before stays as it is."""
    known, anchored = await policies_of(log), await archived_states(log)
    found, newest = dict(anchored), ThreadId("")

    def feed(record: Record) -> ThreadId:
        state = found.get(record.thread) or ThreadState(record.thread)
        found[record.thread] = fold(known, state, unseal(record), record.hash)
        return record.thread

    async for thread in fed(log, log.read_all(), feed):
        newest = thread
    return {t: state for t, state in found.items() if t not in {*anchored, newest} and state.at < before and is_finished(state)}


async def _write_archive(log: SqliteLog, target: Path, gone: Mapping[ThreadId, ThreadState]) -> None:
    """Write the archive, durably, and read it again: nothing is taken out that does not stand there, to the last hash."""
    try:
        out = await anyio.open_file(target, "xb")
    except OSError as error:
        raise LogUnavailable(f"cannot write `{target}`: {error.strerror}") from error
    try:
        async with out:
            async for line in export_lines(log, gone):
                await out.write(line)
            await out.flush()
            await anyio.to_thread.run_sync(os.fsync, out.wrapped.fileno())
        await _read_again(target, gone)
    except BaseException as error:
        await anyio.Path(target).unlink()  # half an archive is none
        if isinstance(error, OSError):
            raise LogUnavailable(f"cannot write `{target}`: {error.strerror}") from error
        raise


async def _read_again(target: Path, gone: Mapping[ThreadId, ThreadState]) -> None:
    export = await anyio.to_thread.run_sync(open_export, target)
    verified = verify_records([item async for item in export.read_all()])
    heads = {thread: (state.seq, state.head) for thread, state in gone.items()}
    if verified.damage is not None or dict(verified.heads) != heads:
        raise LogDamaged(0, f"the archive `{target}` does not hold what the log does; the log is as it was")


async def _count(path: Path) -> int:
    def count() -> int:
        with closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("select count(*) from records").fetchone()[0])

    return await anyio.to_thread.run_sync(count)


# --- the new file ----------------------------------------------------------------------------------------------------

_COPIED: Final = ("policies", "snapshots", "heads", "checkpoints", "anchors")


def _renew(path: Path, gone: Mapping[ThreadId, ThreadState]) -> Archived:
    """Put a file without these threads' records in the log's place. Raises `LogUnavailable`: the log is as it was then."""
    lock = take_lock(path)
    fresh = path.with_name(path.name + ".archiving")
    try:
        fresh.unlink(missing_ok=True)
        done = _write(path, fresh, gone)
        faults.point("copied")
        _settle(path)
        for ending in ("-wal", "-shm"):  # nothing is in them any more
            path.with_name(path.name + ending).unlink(missing_ok=True)
        faults.point("cut")
        fresh.replace(path)
        faults.point("replaced")
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return done
    except sqlite3.Error as error:
        raise LogUnavailable(f"cannot archive `{path}`: {error}; it is as it was") from error
    finally:
        fresh.unlink(missing_ok=True)
        os.close(lock)


def _settle(path: Path) -> None:
    """Have everything in the log's own file: its WAL, which whoever reads the log keeps there, may not go before."""
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
        if connection.execute("pragma wal_checkpoint(truncate)").fetchone()[0]:
            raise LogUnavailable(f"`{path}` is being read: end what reads it, and archive again; it is as it was")


def _write(path: Path, fresh: Path, gone: Mapping[ThreadId, ThreadState]) -> Archived:
    connection = sqlite3.connect(fresh, isolation_level=None)
    try:
        connection.execute("pragma synchronous = full")
        connection.executescript(SCHEMA)
        connection.execute("attach ? as old", (str(path),))
        connection.execute("begin")
        connection.execute("create temp table gone (thread text primary key)")
        connection.executemany("insert into gone values (?)", [(thread,) for thread in gone])
        heads = connection.execute("select thread, seq, hash from old.heads where thread in (select thread from gone)")
        if {thread: (seq, hash_) for thread, seq, hash_ in heads} != {t: (s.seq, s.head) for t, s in gone.items()}:
            raise LogUnavailable(f"`{path}` was written to meanwhile: archive again; it is as it was")
        for table in _COPIED:
            connection.execute(f"insert into {table} select * from old.{table}")
        connection.execute("insert or replace into meta select * from old.meta")
        kept = f"insert into records (position, {COLUMNS}) select position, {COLUMNS} from old.records"
        connection.execute(f"{kept} where thread not in (select thread from gone) order by position")
        connection.execute("insert into deadlines select * from old.deadlines where thread not in (select thread from gone)")
        _anchor(connection, gone.values())
        counts = _tally(connection)
        connection.execute("commit")
        connection.execute("detach old")
        connection.execute("pragma journal_mode = wal")
        return Archived(len(gone), counts[0], counts[1])
    finally:
        connection.close()


def _anchor(connection: sqlite3.Connection, gone: Collection[ThreadState]) -> None:
    rows = [(state.thread, state.seq, state.head, states.dump(state)) for state in gone]
    connection.executemany("insert into anchors values (?, ?, ?, ?)", rows)
    connection.executemany(
        "insert or replace into snapshots values (?, ?, ?)", [(thread, seq, raw) for thread, seq, _, raw in rows]
    )
    position, head = connection.execute("select position, hash from old.records order by position desc limit 1").fetchone()
    missing = connection.execute("select ? - count(*) from records", (position,)).fetchone()[0]
    told = {"archived_position": position, "archived_head": head, "archived_records": missing}
    connection.executemany("insert or replace into meta values (?, ?)", [(key, str(value)) for key, value in told.items()])


def _tally(connection: sqlite3.Connection) -> tuple[int, int]:
    before, after = (connection.execute(f"select count(*) from {name}").fetchone()[0] for name in ("old.records", "records"))
    return int(before) - int(after), int(after)
