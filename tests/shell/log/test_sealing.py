"""A log that is sealed while it is written: the seals hold, and a cut tail or another history shows against a kept one."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gated.core.chain import Damage
from gated.core.checkpoint import Checkpoint, SealedChecker, split_notes, verify
from gated.events import Record, ThreadId
from gated.shell.keys import Signer, load_or_make
from gated.shell.log import EventLog, ReadableLog
from gated.shell.log.sealing import SHARE, Sealing
from gated.shell.log.sqlite import open_for_writing
from shell.log.backends import Backend, all_of, chained

T = ThreadId("t")


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return load_or_make(tmp_path / "seal.key", "example.org/gate")


async def sealed(log: ReadableLog, signer: Signer) -> list[Checkpoint]:
    notes = await log.checkpoints()
    found = [verify(note.note, [signer.key]) for note in notes]
    assert [made.records for made in found] == [note.position for note in notes]
    return found


def check(records: list[Record], checkpoints: list[Checkpoint]) -> Damage | None:
    checker = SealedChecker(checkpoints)
    found = (checker.feed(position, record) for position, record in enumerate(records, 1))
    return next((damage for damage in found if damage is not None), None) or checker.finish()


async def one_by_one(log: EventLog, records: list[Record]) -> None:
    for record in records:
        await log.append(record.thread, record.seq - 1, [record])


async def test_a_log_is_sealed_every_so_many_records_and_at_stop(backend: Backend, signer: Signer, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.txt"
    log = await backend.open(Sealing(signer, every=10, file=file))
    await one_by_one(log, [*chained("t", 14), *chained("u", 9)])
    await log.close()
    log = await backend.open(Sealing(signer, every=10, file=file))
    await one_by_one(log, chained("v", 9))
    await log.close()
    reader = await backend.reader()
    records, checkpoints = await all_of(reader), await sealed(reader, signer)
    assert [c.records for c in checkpoints] == [10, 20, 23, 32]
    assert [c.threads for c in checkpoints] == [1, 2, 2, 3]
    assert [c.head for c in checkpoints] == [records[c.records - 1].hash for c in checkpoints]
    assert check(records, checkpoints) is None
    assert split_notes(file.read_text()) == [note.note for note in await reader.checkpoints()]
    await reader.close()


async def test_a_log_where_nothing_came_is_not_sealed_again(backend: Backend, signer: Signer) -> None:
    for records in (chained(), [], []):
        log = await backend.open(Sealing(signer))
        await log.append_many(records)
        await log.close()
    reader = await backend.reader()
    assert [c.records for c in await sealed(reader, signer)] == [3]
    await reader.close()


async def test_a_cut_tail_and_another_history_show(backend: Backend, signer: Signer) -> None:
    log = await backend.open(Sealing(signer, every=4))
    await one_by_one(log, [*chained("t", 5), *chained("u", 4)])
    await log.close()
    reader = await backend.reader()
    records, checkpoints = await all_of(reader), await sealed(reader, signer)
    await reader.close()
    assert [c.records for c in checkpoints] == [4, 8, 9]
    cut = check(records[:8], checkpoints)
    assert cut == Damage(8, "", 0, "the log has 8 records, a checkpoint 9: its end was cut off")
    forged = [*chained("t", 5, text="forged"), *records[5:]]
    other = check(forged, checkpoints)
    assert other is not None
    assert (other.position, other.what) == (4, "the log up to here is not the one that was sealed")
    swapped = check([*records[:3], records[5], records[3], records[4], *records[6:]], checkpoints)
    assert swapped is not None
    assert swapped.position == 4


async def test_a_seal_that_cannot_be_filed_holds_up_no_record(backend: Backend, signer: Signer, tmp_path: Path) -> None:
    log = await backend.open(Sealing(signer, every=2, file=tmp_path / "missing" / "notes.txt"))
    await one_by_one(log, chained("t", 5))
    await log.close()
    reader = await backend.reader()
    assert [c.records for c in await sealed(reader, signer)] == [2, 4, 5]
    await reader.close()


async def test_a_seal_that_cannot_be_written_is_tried_again(
    tmp_path: Path, signer: Signer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.db"
    log = await open_for_writing(path, Sealing(signer, every=2))
    with closing(sqlite3.connect(path)) as hand, hand:
        hand.execute("create trigger full before insert on checkpoints begin select raise(abort, 'no room'); end")
    await one_by_one(log, chained("t", 3))
    with closing(sqlite3.connect(path)) as hand, hand:
        hand.execute("drop trigger full")
    await one_by_one(log, chained("t", 7)[3:])
    assert await log.head() == 7
    await log.close()
    log = await open_for_writing(path)
    assert [c.records for c in await sealed(log, signer)] == [4, 6, 7]
    await log.close()
    assert capsys.readouterr().out.count("cannot seal the log") == 1


def test_many_threads_make_seals_rarer(signer: Signer) -> None:
    sealing = Sealing(signer, every=10)
    assert [sealing.due(n, 0) for n in (9, 10)] == [False, True]
    sealing.seal(1000, "0" * 64, {ThreadId(f"t{n}"): (1, "0" * 64) for n in range(100 * SHARE)})
    assert [sealing.due(1000 + n, 1000) for n in (10, 99, 100)] == [False, False, True]
