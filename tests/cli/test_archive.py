"""`gated log archive`: finished threads go, and the log, the archive and the gate all go on as if they had not."""

import asyncio
import json
import sqlite3
from pathlib import Path

import anyio
import pytest

from cli.test_cli import gated
from gated.client import Gate
from gated.shell.custody import Copies, open_custody
from gated.shell.log import LogLocked
from gated.shell.log.archive import archive
from gated.shell.log.sqlite import open_for_writing
from shell.live import POLICY, daemon_on, server, write_policy


async def work(worker: Gate, run: str, *, ends: bool) -> None:
    made = worker.run(run=run)
    verdict = await made.check("read", {"run": run})
    await made.report(verdict.call, "success", content="ok")
    if ends:
        await made.finish()


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A log in which two of three runs have ended, with its keys beside it."""
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path), bus.agent("worker") as worker:
        for run, ends in (("done1", True), ("done2", True), ("open", False)):
            await work(worker, run, ends=ends)
    return tmp_path


def verified(log: Path, *more: object) -> dict[str, object]:
    status, text, error = gated("verify", log, "--json", *more)
    assert status == 0, text + error
    found: dict[str, object] = json.loads(text)
    return found


async def run(*arguments: object) -> tuple[int, str, str]:
    """A command, from inside a loop."""
    return await anyio.to_thread.run_sync(lambda: gated(*arguments))


def test_both_parts_verify_and_say_the_same(folder: Path) -> None:
    log, target = folder / "log.db", folder / "old.jsonl"
    before, runs = verified(log), json.loads(gated("runs", "ls", log, "--json")[1])
    status, text, _ = gated("log", "archive", log, target, "--json")
    assert status == 0
    said = json.loads(text)
    assert said["threads"] == 2
    assert said["records"] + said["kept"] == before["records"]
    after = verified(log)
    assert (after["records"], after["root"], after["threads"]) == (before["records"], before["root"], before["threads"])
    assert after["archived"] == said["records"]
    assert int(str(after["checkpoints"])) >= 1
    assert verified(log, "--checkpoint", folder / "checkpoints")["ok"]
    assert verified(target)["records"] == said["records"]
    assert gated("replay", target)[0] == 0
    assert gated("replay", log)[0] == 0
    assert json.loads(gated("runs", "ls", log, "--json")[1]) == runs
    assert gated("log", "archive", log, folder / "again.jsonl")[1].startswith("no thread has finished")
    status, _, error = gated("log", "archive", log, target)
    assert status == 2
    assert "never overwritten" in error


async def test_the_gate_goes_on_after_it(folder: Path) -> None:
    """A late word about an archived run is answered as before, new runs work, and all of it verifies and replays."""
    log = folder / "log.db"
    assert (await run("log", "archive", log, folder / "old.jsonl"))[0] == 0
    async with server(folder) as (_, bus), daemon_on(bus, folder), bus.agent("worker") as worker:
        late = await worker.run(run="done1").check("read", {"late": True})
        assert (late.decision, late.code) == ("deny", "lifecycle.run_completed")
        await work(worker, "fresh", ends=True)
        again = await worker.run(run="open").check("read", {"more": True})
        assert again.decision == "allow"
    assert (await anyio.to_thread.run_sync(verified, log))["ok"]
    assert (await run("replay", log))[0] == 0
    assert (await run("runs", "ls", log))[0] == 0
    assert (await run("log", "archive", log, folder / "second.jsonl"))[0] == 0
    assert (await anyio.to_thread.run_sync(verified, folder / "second.jsonl"))["ok"]
    assert (await anyio.to_thread.run_sync(verified, log))["ok"]
    status, text, _ = await run("what-if", log, "--policy", folder / "policy.yaml", "--json")
    assert status == 0
    assert json.loads(text)["flipped"] == 0


def test_what_went_without_an_archive_is_found(folder: Path) -> None:
    log = folder / "log.db"
    assert gated("log", "archive", log, folder / "old.jsonl")[0] == 0
    with sqlite3.connect(log) as connection:
        connection.execute("drop trigger records_no_delete")
        connection.execute("delete from records where position = (select min(position) from records)")
    connection.close()
    status, text, _ = gated("verify", log)
    assert status == 1
    assert "damaged" in text


def test_a_changed_anchor_is_found_by_the_seal(folder: Path) -> None:
    log = folder / "log.db"
    assert gated("log", "archive", log, folder / "old.jsonl")[0] == 0
    with sqlite3.connect(log) as connection:
        connection.execute("update anchors set hash = replace(hash, substr(hash, 1, 4), '0000') where thread = 'done1'")
    connection.close()
    status, text, _ = gated("verify", log)
    assert status == 1
    assert "not what was sealed" in text


def test_only_what_is_old_goes(folder: Path) -> None:
    log = folder / "log.db"
    assert gated("log", "archive", log, folder / "old.jsonl", "--before", "2001-01-01")[1].startswith("no thread has finished")
    assert not (folder / "old.jsonl").exists()
    assert gated("log", "archive", log, folder / "old.jsonl", "--before", "2100-01-01T00:00:00Z")[0] == 0


def test_a_log_that_is_written_is_left_alone(folder: Path) -> None:
    async def try_it() -> None:
        opened = await open_for_writing(folder / "log.db", open_custody(folder / "keys", Copies()).sealing)
        try:
            with pytest.raises(LogLocked):
                await archive(folder / "log.db", folder / "old.jsonl", 2**62)
        finally:
            await opened.close()

    asyncio.run(try_it())
    assert not (folder / "old.jsonl").exists()


def test_an_export_of_what_is_kept_verifies(folder: Path) -> None:
    log = folder / "log.db"
    assert gated("log", "archive", log, folder / "old.jsonl")[0] == 0
    assert gated("log", "export", log, folder / "kept.jsonl")[0] == 0
    assert verified(folder / "kept.jsonl")["threads"] == 1
