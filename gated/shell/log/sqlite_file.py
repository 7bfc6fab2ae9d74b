"""The SQLite file of a log: its tables, the lock of its one writer, its connections, and what its errors mean.

INVARIANT: records and checkpoints are only ever inserted; triggers refuse the rest, for every program that opens the file.
The `heads` table repeats the last record of every thread, in the same transaction, so that an append is compare-and-append and a
start reads no records; `gated verify` computes the heads from the records and believes no table.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiosqlite

from gated.events import GENESIS
from gated.shell.log import LogDamaged, LogError, LogLocked, LogUnavailable

SCHEMA_VERSION: Final = 1
BUSY_SECONDS: Final = 5.0  # how long a statement waits for another program that holds the file

COLUMNS: Final = "thread, run, seq, at, kind, prev, hash, body"

_TABLES: Final = """
create table if not exists records (
    position integer primary key, thread text not null, run text not null, seq integer not null, at integer not null,
    kind text not null, prev text not null, hash text not null, body blob not null, unique (thread, seq)
) strict;
create table if not exists heads (thread text primary key, seq integer not null, hash text not null) strict, without rowid;
create table if not exists checkpoints (id integer primary key, position integer not null, note text not null) strict;
create table if not exists policies (digest text primary key, text blob not null) strict;
create table if not exists snapshots (thread text primary key, seq integer not null, data blob not null) strict;
create table if not exists deadlines (
    thread text not null, run text not null, due integer not null, primary key (thread, run)
) strict, without rowid;
create table if not exists anchors (
    thread text primary key, seq integer not null, hash text not null, state blob not null
) strict, without rowid;
create table if not exists meta (key text primary key, value text not null) strict;
insert or ignore into meta values ('version', '{version}'), ('epoch', '0');
"""

_HEADS: Final = "insert into heads select thread, max(seq), hash from records group by thread"

# `insert or replace` deletes without a delete trigger (unless its connection asks for them): it is stopped before it inserts.
_GUARDS: Final = """
create trigger if not exists {table}_no_update before update on {table}
begin select raise(abort, 'the log is append-only'); end;
create trigger if not exists {table}_no_delete before delete on {table}
begin select raise(abort, 'the log is append-only'); end;
create trigger if not exists {table}_no_replace before insert on {table}
when exists (select 1 from {table} where {same})
begin select raise(abort, 'the log is append-only'); end;
"""

SCHEMA: Final = (
    _TABLES.format(version=SCHEMA_VERSION)
    + _GUARDS.format(table="records", same="position = new.position or (thread = new.thread and seq = new.seq)")
    + _GUARDS.format(table="checkpoints", same="id = new.id")
)

# What a writer appends, as rows of a view that only its connection has, so that any number of them is one statement. A row
# without a body is a deadline, one without a thread is nothing.
_APPENDING: Final = f"""
create temp view appending as select '' as epoch, {COLUMNS} from records;
create temp trigger append_record instead of insert on appending when new.body is not null
begin
    select raise(abort, 'another writer') where not exists (select 1 from meta where key = 'epoch' and value = new.epoch);
    update heads set seq = new.seq, hash = new.hash where thread = new.thread and seq = new.seq - 1 and hash = new.prev;
    select raise(abort, 'not the next') where changes() = 0 and (new.seq <> 1 or new.prev <> '{GENESIS}');
    insert into heads select new.thread, new.seq, new.hash where new.seq = 1;
    insert into records ({COLUMNS})
    values (new.thread, new.run, new.seq, new.at, new.kind, new.prev, new.hash, new.body);
end;
create temp trigger append_deadline instead of insert on appending when new.body is null and new.thread is not null
begin
    select raise(abort, 'another writer') where not exists (select 1 from meta where key = 'epoch' and value = new.epoch);
    insert or replace into deadlines values (new.thread, new.run, new.at);
end;
"""
ROW: Final = f"({', '.join('?' * 9)})"  # epoch, then the columns; of a deadline the moment is `at`
APPEND: Final = "insert into appending values"


def connect(path: Path) -> tuple[sqlite3.Connection, int]:
    """The writing connection, and the epoch that begins with it. Raises `sqlite3.Error`, `LogUnavailable`."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("pragma wal_autocheckpoint = 4000")
        _check_version(path, connection)
        connection.executescript(f"begin immediate; {SCHEMA} commit;")
        if not connection.execute("select 1 from heads limit 1").fetchall():
            connection.execute(_HEADS)
        connection.execute("pragma temp_store = memory")
        connection.executescript(_APPENDING)
        sql = "update meta set value = cast(value as integer) + 1 where key = 'epoch' returning cast(value as integer)"
        return connection, int(connection.execute(sql).fetchall()[0][0])
    except BaseException:
        connection.close()
        raise


def _check_version(path: Path, connection: sqlite3.Connection) -> None:
    """Before anything is written."""
    tables = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table' order by name")]
    if not tables:
        return
    if "meta" not in tables or "records" not in tables:
        raise LogUnavailable(f"`{path}` is no log of gated but a database with the table `{tables[0]}`: name another file")
    version = connection.execute("select value from meta where key = 'version'").fetchall()[0][0]
    if version != str(SCHEMA_VERSION):
        raise LogUnavailable(f"`{path}` is of version {version}, this gated writes version {SCHEMA_VERSION}")


async def connect_reader(path: Path) -> aiosqlite.Connection:
    """A connection that can only read. Raises `LogUnavailable`, `LogDamaged`."""
    uri = f"file:{quote(str(path))}?mode=ro"
    try:
        try:
            return await _looked_into(uri)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN:
                raise
            # on a medium where the side files of WAL cannot be made, nobody writes either
            return await _looked_into(uri + "&immutable=1")
    except UnicodeDecodeError as error:  # SQLite's own words, which quote the file
        raise LogDamaged(0, f"`{path}` is damaged: {unreadable_words(error)}") from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT:
            raise LogDamaged(0, f"`{path}` is damaged: {error}") from error
        raise LogUnavailable(f"`{path}` is not a log of gated: {error}") from error


async def _looked_into(uri: str) -> aiosqlite.Connection:
    opening = aiosqlite.connect(uri, uri=True, timeout=BUSY_SECONDS)
    # Else a log that nobody closed keeps its process for ever, as a `sys.exit` in its block would. Before 0.22, which current
    # frameworks for agents still ask for, the connection is the thread.
    thread: Any = getattr(opening, "_thread", opening)
    thread.daemon = True
    connection = await opening
    try:
        await connection.execute_fetchall("select 1 from records limit 1")
    except BaseException:
        await connection.close()
        raise
    return connection


def take_lock(path: Path) -> int:
    """The lock of the one writer, held by the open file until it is closed or the process dies."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LogUnavailable(f"cannot open `{path}`: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(handle, 100, 0).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise LogLocked(str(path), holder) from error
    except OSError as error:
        os.close(handle)
        raise LogUnavailable(f"cannot lock `{path}`: {error.strerror}") from error
    return handle


def unreadable_words(error: UnicodeDecodeError) -> str:
    """What SQLite said, in which bytes of a damaged file stand."""
    return error.object.decode(errors="backslashreplace")


def meaning(path: Path, verb: str, position: int, error: sqlite3.Error) -> LogError:
    """What an error of SQLite says of the log: damaged for good, or not to be used now."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if verb == "read" and isinstance(error, sqlite3.OperationalError) and code in (0, sqlite3.SQLITE_ERROR):
        return LogDamaged(position, f"cannot read `{path}`: {error}")  # tables that are not ours, text that is not UTF-8
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT):
        return LogDamaged(position, f"cannot {verb} `{path}`: {error}")
    return LogUnavailable(f"cannot {verb} `{path}`: {error}")
