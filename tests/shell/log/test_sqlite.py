"""The log on SQLite when things go wrong under it: torn files, killed writers, full disks, hands in the file."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gated.core.chain import CheckpointNote, Damage, verify_records
from gated.events import Record, RunId, ThreadId
from gated.shell.log import LogDamaged, LogError, LogLocked, LogUnavailable
from gated.shell.log.sqlite import SqliteLog, open_for_reading, open_for_writing
from shell.log.backends import all_of, chained, intact

T = ThreadId("t")
TESTS = Path(__file__).parents[2]


async def filled(path: Path, *records: Record) -> None:
    log = await open_for_writing(path)
    await log.append_many(records or [*chained(), *chained("u", 2)])
    await log.close()


async def damage_in(path: Path) -> Damage | None:
    log = await open_for_reading(path)
    try:
        return verify_records([item async for item in log.read_all()]).damage
    finally:
        await log.close()


async def statements_of(log: SqliteLog, records: list[Record], dues: list[tuple[ThreadId, RunId, int]]) -> set[str]:
    """What its writer says to SQLite to append; a statement is told again for what its triggers do."""
    assert log._writer is not None
    said: list[str] = []
    log._writer._connection.set_trace_callback(said.append)
    await log.append_many(records, dues)
    log._writer._connection.set_trace_callback(None)
    return set(said)


async def test_an_append_is_one_statement(tmp_path: Path) -> None:
    log = await open_for_writing(tmp_path / "log.db")
    records = [record for thread in "abcdefg" for record in chained(thread, 3)]
    dues = [(ThreadId("a"), RunId("a-r"), 7), (ThreadId("b"), RunId("b-r"), 0)]
    assert len(await statements_of(log, records[:2], [])) == 1
    assert len(await statements_of(log, records[2:], dues)) == 1
    assert await all_of(log) == records
    assert [due async for due in log.open_deadlines()] == [(7, "a", "a-r")]
    assert await intact(log) == 21
    await log.close()


async def test_more_than_one_statement_may_have_is_appended_too(tmp_path: Path) -> None:
    log = await open_for_writing(tmp_path / "log.db")
    records = chained("t", 1500)
    await log.append_many(records)
    assert await all_of(log) == records
    await log.close()


# --- crashes ---------------------------------------------------------------------------------------------------------


async def torn(path: Path) -> tuple[bytes, bytes, list[int]]:
    """The file and the WAL of a small log that was never closed, and the WAL's length at each acknowledgement."""
    with closing(sqlite3.connect(path)) as small:
        small.execute("pragma page_size = 512")
        small.execute("vacuum")
    await (await open_for_writing(path)).close()
    log, wal = await open_for_writing(path), path.with_name("log.db-wal")
    acknowledged = []
    for record in chained("t", 4):
        await log.append(T, record.seq - 1, [record])
        acknowledged.append(_bytes(wal))
    found = _bytes(path), acknowledged[-1], [len(tail) for tail in acknowledged]
    await log.close()
    return found


def _bytes(path: Path) -> bytes:
    return path.read_bytes()


async def test_a_tail_torn_at_any_byte_leaves_what_was_acknowledged(tmp_path: Path) -> None:
    """Every byte about the end of a record, and of what is between them every seventh."""
    database, wal, acknowledged = await torn(tmp_path / "log.db")
    path, hashes = tmp_path / "torn.db", [record.hash for record in chained("t", 4)]
    ends = {end + near for end in (0, *acknowledged) for near in range(-40, 41)}
    for cut in sorted({*range(0, len(wal), 7), *ends} & {*range(len(wal) + 1)}):
        path.write_bytes(database)
        path.with_name("torn.db-wal").write_bytes(wal[:cut])
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("pragma synchronous = off")  # what opens it here need not be durable
            found = connection.execute("select hash from records order by position").fetchall()
        assert [h for (h,) in found] == hashes[: sum(size <= cut for size in acknowledged)], cut
    assert acknowledged[-1] == len(wal)


async def test_a_torn_log_is_opened_and_goes_on(tmp_path: Path) -> None:
    database, wal, acknowledged = await torn(tmp_path / "log.db")
    for number, size in enumerate(acknowledged):
        for cut, whole in ((size - 1, number), (size, number + 1)):
            path = tmp_path / f"torn{cut}.db"
            path.write_bytes(database)
            path.with_name(path.name + "-wal").write_bytes(wal[:cut])
            log = await open_for_writing(path)
            assert await intact(log) == whole
            await log.append_many(chained("t", 5)[whole:])
            assert await intact(log) == 5
            await log.close()


async def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    command = [sys.executable, str(Path(__file__).with_name("crash_writer.py")), str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    writer = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environment)
    assert writer.stdout is not None
    lines = [await writer.stdout.readline() for _ in range(300)]
    with pytest.raises(LogLocked, match=f"pid {writer.pid}"):
        await open_for_writing(path)
    writer.kill()
    lines += (await writer.stdout.read()).splitlines()
    await writer.wait()
    log = await open_for_writing(path)
    records = await intact(log)
    heads = await log.heads()
    last: dict[str, int] = {}
    for line in lines:
        thread, seq = line.decode().split()
        last[thread] = max(last.get(thread, 0), int(seq))
    assert len(last) == 16
    assert records >= sum(last.values()) >= 300
    assert [name for name, count in last.items() if heads[ThreadId(name)][0] < count] == []
    await log.close()


# --- a disk that is full ---------------------------------------------------------------------------------------------


class FullDisk:
    """A disk of a megabyte, where this user may mount one; a file in the way, and room when it is gone."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def fill(self, log: SqliteLog) -> None:
        self._ballast.write_bytes(bytes(400_000))

    def free(self, log: SqliteLog) -> None:
        self._ballast.unlink()


class FullFile:
    """SQLite's own limit of pages, which fails as a disk does."""

    def fill(self, log: SqliteLog) -> None:
        self._limit(log, 60)

    def free(self, log: SqliteLog) -> None:
        self._limit(log, 2**30)

    def _limit(self, log: SqliteLog, pages: int) -> None:
        assert log._writer is not None
        log._writer._connection.execute(f"pragma max_page_count = {pages}")


@contextmanager
def small_disk(folder: Path) -> Iterator[FullDisk | FullFile]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        yield FullFile()
        return
    try:
        yield FullDisk(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def small_file(folder: Path) -> Iterator[FullFile]:
    folder.mkdir()
    yield FullFile()


async def append_one_by_one(log: SqliteLog, records: list[Record]) -> None:
    for record in records:
        await log.append(T, record.seq - 1, [record])
        assert await log.get(T, record.seq) == record


@pytest.mark.parametrize("small", [small_disk, small_file])
async def test_a_full_disk_is_unavailable_and_appends_go_on_when_there_is_room(tmp_path: Path, small: Any) -> None:
    records = chained("t", 400, text="x" * 2000)
    with small(tmp_path / "disk") as disk:
        log = await open_for_writing(tmp_path / "disk" / "log.db")
        disk.fill(log)
        with pytest.raises(LogUnavailable, match=r"cannot write .*full"):
            await append_one_by_one(log, records)
        acknowledged = await intact(log)
        assert 10 < acknowledged < 300
        for _ in range(3):
            with pytest.raises(LogUnavailable, match="cannot write"):
                await log.append(T, acknowledged, records[acknowledged:])
        assert await intact(log) == acknowledged
        disk.free(log)
        await log.append(T, acknowledged, records[acknowledged : acknowledged + 20])
        assert await intact(log) == acknowledged + 20
        await log.close()


# --- hands in the file -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["records", "checkpoints"])
@pytest.mark.parametrize(
    "sql",
    [
        "update {} set position = position + 10",
        "delete from {}",
        "insert or replace into {} select * from {}",
        "replace into {} select * from {} order by position desc limit 1",
    ],
)
async def test_records_and_checkpoints_cannot_be_changed(tmp_path: Path, table: str, sql: str) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    log = await open_for_writing(path)
    await log.put_checkpoint(CheckpointNote(5, "note"))
    await log.close()
    with closing(sqlite3.connect(path)) as hand, pytest.raises(sqlite3.IntegrityError, match="the log is append-only"):
        hand.execute(sql.format(table, table))
    assert await damage_in(path) is None


async def test_a_record_cannot_be_replaced_under_another_position(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    columns = "thread, run, seq, at, kind, prev, hash, body"
    replace = f"replace into records ({columns}) select {columns} from records where position = 2"
    with closing(sqlite3.connect(path)) as hand, pytest.raises(sqlite3.IntegrityError, match="the log is append-only"):
        hand.execute(replace)
    assert await damage_in(path) is None


def tampered(path: Path, sql: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as hand, hand:
        for (name,) in hand.execute("select name from sqlite_schema where type = 'trigger'").fetchall():
            hand.execute(f"drop trigger {name}")
        assert hand.execute(sql, values).rowcount > 0


@pytest.mark.parametrize("position", [1, 2, 4, 5])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("thread", "substr(thread, 2) || 'v'"),
        ("run", "run || 'x'"),
        ("seq", "seq + 8"),
        ("at", "at + 1"),
        ("kind", "replace(kind, 'i', 'j')"),
        ("prev", "'1' || substr(prev, 2)"),
        ("hash", "'g' || substr(hash, 2)"),
        ("body", "cast(replace(cast(body as text), 'search', 'rm -rf') as blob)"),
        ("position", "position + 10"),
    ],
)
async def test_a_changed_field_is_found_at_its_position(tmp_path: Path, column: str, value: str, position: int) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    tampered(path, f"update records set {column} = {value} where position = ?", position)
    first_bad = position
    if column == "position":  # a record moved away is missed at the next one; of the last there is none
        first_bad = position + 1 if position < 5 else 15
    damage = await damage_in(path)
    assert damage is not None
    assert damage.position == first_bad


async def test_a_record_taken_out_of_the_middle_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path, *chained(), *chained("u", 1), *chained("v", 1))
    tampered(path, "delete from records where thread = 'u'")
    damage = await damage_in(path)
    assert damage is not None
    assert (damage.position, damage.what) == (5, "position 5 follows position 3")


async def test_a_record_written_past_the_heads_is_damage_and_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    tampered(path, "update heads set seq = 1, hash = ? where thread = 't'", chained()[0].hash)
    log = await open_for_writing(path)
    with pytest.raises(LogDamaged, match="append-only"):
        await log.append(T, 1, chained()[1:])
    assert await log.head() == 5
    await log.close()


# --- opening ---------------------------------------------------------------------------------------------------------


async def test_a_file_with_a_hole_is_damaged_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path, *chained("t", 300))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes(40_000) + whole[len(whole) // 2 + 40_000 :])
    log = await open_for_reading(path)
    with pytest.raises(LogDamaged, match="malformed"):
        await all_of(log)
    await log.close()


@pytest.mark.parametrize("content", [b"not a database" * 400, b""])
async def test_what_is_no_log_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.db"
    with pytest.raises(LogUnavailable, match="there is no log at"):
        await open_for_reading(path)
    path.write_bytes(content)
    with pytest.raises(LogUnavailable, match="is not a log of gated"):
        await open_for_reading(path)
    if content:
        for _ in range(2):  # the lock is let go
            with pytest.raises(LogUnavailable, match="cannot open"):
                await open_for_writing(path)
    assert path.read_bytes() == content


async def test_somebody_elses_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with sqlite3.connect(path) as hand:
        hand.execute("create table theirs (x)")
    hand.close()
    with pytest.raises(LogUnavailable, match="is no log of gated but a database with the table `theirs`"):
        await open_for_writing(path)
    with sqlite3.connect(path) as hand:
        assert [name for (name,) in hand.execute("select name from sqlite_schema")] == ["theirs"]
    hand.close()


async def test_a_log_of_another_version_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    with closing(sqlite3.connect(path)) as hand, hand:
        hand.execute("update meta set value = '7' where key = 'version'")
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(LogUnavailable, match="is of version 7, this gated writes version 1"):
            await open_for_writing(path)
    assert path.read_bytes() == before


async def test_a_log_without_heads_gets_them_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    with closing(sqlite3.connect(path)) as hand, hand:
        hand.execute("drop table heads")
    log = await open_for_writing(path)
    assert await intact(log) == 5
    await log.append(T, 3, chained("t", 1, chained()[2]))
    await log.close()


async def test_a_name_may_hold_what_means_something_in_a_url(tmp_path: Path) -> None:
    path = tmp_path / "a ?mode=rwc#%41 ü.db"
    await filled(path)
    log = await open_for_reading(path)
    assert await intact(log) == 5
    await log.close()


async def test_reading_takes_no_lock_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await filled(path)
    path.with_name("log.db.lock").unlink()
    before = path.read_bytes(), path.stat().st_mtime_ns
    readers = [await open_for_reading(path) for _ in range(2)]
    assert [await intact(r) for r in readers] == [5, 5]
    with pytest.raises(LogUnavailable, match="is open for reading only"):
        await readers[0].append_many(chained("w"))
    assert not path.with_name("log.db.lock").exists()
    for reader in readers:
        await reader.close()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


async def test_a_log_in_a_folder_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    await filled(tmp_path / "log.db")
    with unwritable(folder, tmp_path / "log.db") as path:
        log = await open_for_reading(path)
        assert await intact(log) == 5
        await log.close()
        with pytest.raises(LogError):
            await open_for_writing(path)


@contextmanager
def unwritable(folder: Path, log: Path) -> Iterator[Path]:
    """A copy of a log where not even root makes files, as far as this user can have that."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", str(folder)], capture_output=True).returncode == 0
    path = folder / "log.db"
    shutil.copy(log, path)
    try:
        if mounted:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        else:
            folder.chmod(0o555)
        yield path
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)
        folder.chmod(0o755)
