"""Exports: they come back byte for byte, verify and replay by themselves, and name the line that is not right."""

import hashlib
from pathlib import Path

import pytest

from gated.core.chain import export_line, policy_line
from gated.events import Record, ThreadId
from gated.shell.keys import load_or_make
from gated.shell.log import LogConflict, LogDamaged, LogUnavailable, ReadableLog
from gated.shell.log.jsonl import Imported, export_lines, open_export, read_export, take_in
from gated.shell.log.open import open_log
from gated.shell.log.sealing import Sealing
from shell.log.backends import Backend, all_of, chained, intact

T, U = ThreadId("t"), ThreadId("u")
TEXT = b'{"agents":{},"version":"1"}'
DIGEST = hashlib.sha256(TEXT).hexdigest()


async def exported(log: ReadableLog) -> bytes:
    return b"".join([line async for line in export_lines(log)])


def mixed() -> list[Record]:
    one, two = chained("t", 3, policy=DIGEST), chained("u", 2, policy=DIGEST)
    return [one[0], two[0], one[1], two[1], one[2]]


async def made(backend: Backend, folder: Path) -> bytes:
    """The export of a log with everything in it."""
    log = await backend.open(Sealing(load_or_make(folder / "seal.key", "gate"), every=2))
    await log.put_policy(DIGEST, TEXT)
    for record in mixed():
        await log.append_many([record])
    await log.close()
    reader = await backend.reader()
    lines = await exported(reader)
    await reader.close()
    return lines


async def test_an_export_comes_back_byte_for_byte(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = await made(backend, tmp_path)
    assert len(lines.splitlines()) == 1 + 5 + 3
    path = tmp_path / "export.jsonl"
    path.write_bytes(lines)
    (tmp_path / "other").mkdir()
    other = type(backend)(tmp_path / "other", monkeypatch)
    log = await other.open()
    assert await take_in(log, await read_export(path)) == Imported(5, 0)
    assert await all_of(log) == mixed()
    assert await exported(log) == lines
    assert await exported(open_export(path)) == lines
    await log.close()


async def test_an_export_reads_as_the_log_does(backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_bytes(await made(backend, tmp_path))
    log = await backend.reader()
    async with open_log(str(path)) as export:
        assert await intact(export) == await intact(log) == 5
        for after in range(6):
            assert await all_of(export, after) == await all_of(log, after)
            assert [r async for r in export.read(T, after)] == [r async for r in log.read(T, after)]
            assert await export.get(U, after) == await log.get(U, after)
        assert [found async for found in export.tail(3)] == [found async for found in log.read_all(3)]
        assert [t async for t in export.threads()] == [t async for t in log.threads()]
        assert await export.policies() == await log.policies() == {DIGEST: TEXT}
        assert [await export.policy(d) for d in (DIGEST, "x")] == [TEXT, None]
        assert await export.checkpoints() == await log.checkpoints()
        assert await export.load_snapshot(T) is None
    await log.close()


async def test_an_export_of_some_threads_is_whole_in_them_and_not_sealed(backend: Backend, tmp_path: Path) -> None:
    await made(backend, tmp_path)
    log = await backend.reader()
    lines = [line async for line in export_lines(log, {U})]
    assert lines == [policy_line(DIGEST, TEXT) + b"\n", *(export_line(r) + b"\n" for r in chained("u", 2, policy=DIGEST))]
    await log.close()


async def test_an_import_goes_in_whole_or_not_at_all(backend: Backend, tmp_path: Path) -> None:
    path, lines = tmp_path / "export.jsonl", [export_line(r) for r in mixed()]
    log = await backend.open()
    await log.append(U, 0, chained("u", 1))
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(LogConflict, match="record 1 of thread `u`"):
        await take_in(log, await read_export(path))
    path.write_bytes(b"\n".join([*lines[:3], lines[3].replace(b'"search"', b'"delete"'), lines[4]]))
    with pytest.raises(LogDamaged, match="the body does not have the recorded hash, at position 4"):
        await take_in(log, await read_export(path))
    assert await log.head() == 1
    path.write_bytes(policy_line(DIGEST, TEXT) + b"\n" + b"\n".join(lines))
    with pytest.raises(LogConflict):
        await take_in(log, await read_export(path))
    assert await log.policies() == {}
    await log.close()


async def test_checkpoints_are_not_taken_behind_other_records(backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_bytes(await made(backend, tmp_path))
    (tmp_path / "other").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        log = await type(backend)(tmp_path / "other", patch).open()
        await log.append_many(chained("w", 1))
        assert await take_in(log, await read_export(path)) == Imported(5, 3)
        assert await log.checkpoints() == []
        assert await intact(log) == 6
        await log.close()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "not a line of an export"),
        (b"[1]", "not a line of an export"),
        (b'{"a":1}', "the key `hash` is missing"),
        (b"\xff\xfe", "not a line of an export"),
        (b'{"hash":7}', "not a line of an export"),
        (export_line(chained()[0])[:-9], "not a line of an export"),
        (policy_line(DIGEST, b'{"agents":{"x":1}}'), f"the policy does not have the digest `{DIGEST}`"),
        (b'{"checkpoint":"x"}', "the key `position` is missing"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "export.jsonl"
    path.write_bytes(export_line(chained()[0]) + b"\n" + line + b"\n")
    with pytest.raises(LogDamaged) as caught:
        open_export(path)
    assert f"{path}:2: " in str(caught.value)
    assert why in str(caught.value)
    assert caught.value.position == 2


async def test_what_is_no_log_is_said_clearly(tmp_path: Path) -> None:
    for name, why in [
        (str(tmp_path / "none.jsonl"), "cannot read .*: No such file"),
        (str(tmp_path / "none.db"), "there is no log at"),
        ("nats://localhost:1", "cannot connect to `nats://localhost:1`"),
    ]:
        with pytest.raises(LogUnavailable, match=why):
            async with open_log(name):
                pass
