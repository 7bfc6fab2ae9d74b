"""`gated verify` with seals: signatures are checked, and a head kept elsewhere shows a cut tail and another history."""

import asyncio
import hashlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from cli.command import gated
from gated.core.checkpoint import split_notes
from gated.shell.custody import Copies, open_custody
from gated.shell.log.sqlite import open_for_writing
from shell.log.backends import chained

RECORDS = 25
POLICY = b'{"agents":{},"version":1}'
DIGEST = hashlib.sha256(POLICY).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log that was sealed every ten records and at stop, its keys, and the checkpoints elsewhere."""
    custody = open_custody(tmp_path / "keys", Copies(every=10, file=tmp_path / "elsewhere"))

    async def write() -> None:
        opened = await open_for_writing(tmp_path / "log.db", custody.sealing)
        await opened.put_policy(DIGEST, POLICY)
        for record in chained("t", RECORDS, policy=DIGEST):
            await opened.append_many([record])
        await opened.close()

    asyncio.run(write())
    return tmp_path


def cut(log: Path, after: int) -> None:
    """Someone with the file cuts its end off, and the seals of it."""
    with sqlite3.connect(log) as connection:
        for table in ("records", "checkpoints"):
            connection.execute(f"drop trigger {table}_no_delete")
            connection.execute(f"delete from {table} where position > ?", (after,))
    connection.close()


def test_a_sealed_log_is_intact(folder: Path) -> None:
    status, text, _ = gated("verify", folder / "log.db", "--json")
    assert status == 0
    said = json.loads(text)
    assert (said["records"], said["checkpoints"], said["unverified"]) == (RECORDS, 3, 0)
    status, text, _ = gated("verify", folder / "log.db", "--checkpoint", folder / "elsewhere")
    assert status == 0
    assert "6 checkpoints checked" in text


@pytest.mark.parametrize("after", [24, 20, 3])
def test_a_cut_tail_is_found_with_a_head_kept_elsewhere(folder: Path, after: int) -> None:
    cut(folder / "log.db", after)
    assert gated("verify", folder / "log.db")[0] == 0
    status, text, _ = gated("verify", folder / "log.db", "--checkpoint", folder / "elsewhere")
    assert status == 1
    assert f"the log has {after} records, a checkpoint 25: its end was cut off" in text


def test_another_history_under_another_key_is_found(folder: Path) -> None:
    """Who has the log but not its key can write a whole history of their own, and seal it with a key of their own."""
    shutil.copy(folder / "keys" / "seal.key.pub", folder / "ours.pub")
    for file in (*folder.glob("log.db*"), *folder.glob("keys/*")):
        file.unlink()
    custody = open_custody(folder / "keys", Copies(every=10))

    async def write() -> None:
        opened = await open_for_writing(folder / "log.db", custody.sealing)
        await opened.put_policy(DIGEST, POLICY)
        for record in chained("other", RECORDS, policy=DIGEST):
            await opened.append_many([record])
        await opened.close()

    asyncio.run(write())
    theirs = folder / "keys" / "seal.key.pub"
    theirs.unlink()
    status, text, _ = gated("verify", folder / "log.db", "--key", folder / "ours.pub")
    assert status == 1
    assert "no known key signed the checkpoint" in text
    status, text, _ = gated("verify", folder / "log.db", "--checkpoint", folder / "elsewhere", "--key", folder / "ours.pub")
    assert status == 1


def test_a_changed_record_is_found_also_before_since(folder: Path) -> None:
    with sqlite3.connect(folder / "log.db") as connection:
        connection.execute("drop trigger records_no_update")
        connection.execute("update records set hash = replace(hash, substr(hash, 1, 1), 'f') where position = 12")
    connection.close()
    status, text, _ = gated("verify", folder / "log.db", "--since", folder / "elsewhere")
    assert status == 1
    assert "position 1" in text


def test_since_hashes_only_what_came_after(folder: Path) -> None:
    (folder / "first").write_text(split_notes((folder / "elsewhere").read_text())[0])
    with sqlite3.connect(folder / "log.db") as connection:
        connection.execute("drop trigger records_no_update")
        connection.execute("update records set body = cast('{}' as blob) where position in (3, 13)")
    connection.close()
    status, text, _ = gated("verify", folder / "log.db", "--since", folder / "first")
    assert status == 1
    assert "position 13" in text


def test_without_a_key_the_seals_are_not_checked_and_it_says_so(folder: Path) -> None:
    (folder / "keys" / "seal.key.pub").rename(folder / "away.pub")
    status, text, _ = gated("verify", folder / "log.db")
    assert status == 0
    assert "3 checkpoints not checked" in text
    status, _, error = gated("verify", folder / "log.db", "--checkpoint", folder / "elsewhere")
    assert status == 2
    assert "--key" in error
    assert gated("verify", folder / "log.db", "--checkpoint", folder / "elsewhere", "--key", folder / "away.pub")[0] == 0


@pytest.mark.parametrize("text", ["", "x", "{}", "{", "gated\n1\nAA\n"])
def test_what_is_no_checkpoint_is_refused(folder: Path, text: str) -> None:
    file = folder / "odd"
    file.write_text(text)
    status, _, error = gated("verify", folder / "log.db", "--since", file)
    assert status == 2
    assert "odd" in error.replace("\n", "")
    assert gated("verify", folder / "log.db", "--checkpoint", file)[0] == 2


@pytest.mark.parametrize("option", ["--checkpoint", "--since"])
def test_a_file_without_checkpoints_shows_nothing_and_is_refused(folder: Path, option: str) -> None:
    """Whoever empties the file that is kept elsewhere, and cuts the log, would not be found."""
    (folder / "emptied").write_text("\n")
    cut(folder / "log.db", 20)
    status, _, error = gated("verify", folder / "log.db", option, folder / "emptied")
    assert (status, error) == (2, f"error: `{folder / 'emptied'}` holds no checkpoint: nothing would be compared with it\n")


def test_a_blank_line_behind_the_last_checkpoint_cuts_nothing(folder: Path) -> None:
    kept = folder / "kept"
    kept.write_text((folder / "elsewhere").read_text() + "\n")
    assert gated("verify", folder / "log.db", "--checkpoint", kept)[0] == 0


def test_a_false_signature_is_refused(folder: Path) -> None:
    notes = (folder / "elsewhere").read_text()
    (folder / "elsewhere").write_text(notes.replace("records 10", "records 11", 1))
    status, _, error = gated("verify", folder / "log.db", "--checkpoint", folder / "elsewhere")
    assert status == 2
    assert "does not fit" in error


def changed(log: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(log) as connection:
        connection.execute(statement, values)
    connection.close()


def test_a_policy_that_was_changed_is_found(folder: Path) -> None:
    path = folder / "log.db"
    changed(path, "update policies set text = ?", POLICY.replace(b"{}", b'{"mallory":{}}'))
    status, said, _ = gated("verify", path)
    assert (status, f"the policy `{DIGEST}` does not have this digest" in said) == (1, True)
    status, _, error = gated("replay", path)
    assert (status, "the log was changed" in error) == (2, True)


def test_a_policy_that_was_taken_out_is_found_at_the_first_record_that_names_it(folder: Path) -> None:
    path = folder / "log.db"
    changed(path, "delete from policies")
    found = json.loads(gated("verify", path, "--json")[1])["damage"]
    assert (found["position"], found["thread"], found["seq"]) == (1, "t", 1)
    assert DIGEST in found["what"]


def test_a_file_that_is_damaged_on_the_disk_is_called_damaged(folder: Path) -> None:
    path = folder / "log.db"
    raw = path.read_bytes()
    path.write_bytes(raw[:100] + bytes(len(raw) - 100))
    status, text, error = gated("verify", path)
    assert (status, error) == (1, "")
    assert text.startswith("damaged: ")
