"""`gated log archive`: finished threads go, and the log, the archive and the gate all go on as if they had not."""

import asyncio
import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import anyio
import pytest

from cli.command import gated
from gated import wire
from gated.client import Gate
from gated.core.state import ThreadState
from gated.events import ThreadId
from gated.shell.custody import Copies, open_custody
from gated.shell.faults import OfArchiving
from gated.shell.log import LogLocked
from gated.shell.log import archive as archiving
from gated.shell.log.archive import Archived, archive
from gated.shell.log.sqlite import SqliteLog, open_for_writing
from shell.live import POLICY, agent, daemon_on, ears, intents, server, tell, write_policy


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


async def test_a_verdict_that_is_in_an_archive_is_refused_and_the_gate_lives(folder: Path) -> None:
    """Asking for it again ended the daemon, and each one after it: the question came again at every start."""
    assert (await run("log", "archive", folder / "log.db", folder / "old.jsonl"))[0] == 0
    asked = (line.get("observation", {}) for line in map(json.loads, (folder / "old.jsonl").read_text().splitlines()))
    call = next(said["calls"][0]["id"] for said in asked if said.get("calls"))
    async with server(folder) as (_, bus), daemon_on(bus, folder), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        await tell(worker, agent("worker"), "done1", wire.Recall(call=call))
        await tell(worker, agent("worker"), "done1", intents((call, "read", {"run": "done1"})))
        await tell(worker, agent("worker"), "later", intents(("c1", "read", {})))
        *refused, verdict = await heard.count(3)
        assert [(said.code, said.call) for said in refused if isinstance(said, wire.Refusal)] == [
            ("lifecycle.run_completed", call)
        ] * 2
        assert isinstance(verdict, wire.Verdict)


async def test_an_export_says_what_it_leaves_out(folder: Path) -> None:
    """What follows on an archived thread was left out without a word, of a run all of it."""
    log, out = folder / "log.db", folder / "all.jsonl"
    assert json.loads((await run("log", "export", log, out, "--json"))[1])["left_out"] == 0
    assert (await run("log", "archive", log, folder / "old.jsonl"))[0] == 0
    async with server(folder) as (_, bus), daemon_on(bus, folder), bus.agent("worker") as worker:
        await worker.run(run="done1").check("read", {"late": True})
    status, text, error = await run("log", "export", log, out)
    assert (status, "1 record left out, on a thread that was archived" in error, "left out" in text) == (0, True, False)
    assert json.loads((await run("log", "export", log, out, "--json"))[1])["left_out"] == 1
    assert (await anyio.to_thread.run_sync(verified, out))["records"] == 2
    assert json.loads((await run("log", "export", log, out, "--run", "open", "--json"))[1])["left_out"] == 0
    status, _, error = await run("log", "export", log, folder / "none.jsonl", "--run", "done1")
    assert (status, "the run's thread was archived" in error, (folder / "none.jsonl").exists()) == (1, True, False)


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (
            "drop trigger records_no_delete; delete from records where position = (select min(position) from records)",
            "damaged",  # what went without an archive
        ),
        (
            "update anchors set hash = replace(hash, substr(hash, 1, 4), '0000') where thread = 'done1'",
            "not what was sealed",
        ),
    ],
)
def test_what_was_done_to_an_archived_log_is_found(folder: Path, statements: str, said: str) -> None:
    log = folder / "log.db"
    assert gated("log", "archive", log, folder / "old.jsonl")[0] == 0
    with closing(sqlite3.connect(log)) as connection:
        connection.executescript(statements)
    status, text, _ = gated("verify", log)
    assert status == 1
    assert said in text


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


def test_a_log_that_is_being_read_stays_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: the newest records were in the WAL that a reader kept, and went with it."""
    monkeypatch.setattr(archiving, "BUSY_SECONDS", 0.1)
    log, target = folder / "log.db", folder / "old.jsonl"
    before = verified(log)
    with closing(sqlite3.connect(log, isolation_level=None)) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from records").fetchall()
        status, _, error = gated("log", "archive", log, target)
        assert (status, "is being read" in error, target.exists()) == (2, True, False)
    assert verified(log) == before
    assert gated("log", "archive", log, target)[0] == 0


def test_what_is_written_between_the_archive_and_the_new_file_is_not_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, target, renew = folder / "log.db", folder / "old.jsonl", archiving._renew

    def late(path: Path, gone: dict[ThreadId, ThreadState]) -> Archived:
        with closing(sqlite3.connect(path)) as daemon:
            daemon.execute("update heads set seq = seq + 1 where thread = 'done1'")
            daemon.commit()
        return renew(path, gone)

    monkeypatch.setattr(archiving, "_renew", late)
    status, _, error = gated("log", "archive", log, target)
    assert (status, "was written to meanwhile" in error, target.exists()) == (2, True, False)
    assert json.loads(gated("verify", log, "--json")[1])["archived"] == 0


@pytest.mark.parametrize("point", get_args(OfArchiving))
def test_a_kill_leaves_the_old_log_or_the_new(folder: Path, point: str) -> None:
    """Whatever the log says then, it and the archive hold every record; archiving again goes on from there."""
    log, target = folder / "log.db", folder / "old.jsonl"
    before = verified(log)
    command = [sys.executable, "-m", "gated", "log", "archive", str(log), str(target)]
    killed = subprocess.run(command, env={**os.environ, "GATED_FAULT": point}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    after = verified(log)
    assert (after["root"], after["records"]) == (before["root"], before["records"])
    assert (after["archived"] == 0) == (point != "replaced")
    assert gated("verify", target)[0] == 0
    target.unlink()
    assert gated("log", "archive", log, target)[0] == 0
    assert verified(log)["root"] == before["root"]


def test_half_an_archive_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(log: SqliteLog, threads: object) -> AsyncIterator[bytes]:
        yield b"{"
        raise OSError(errno.ENOSPC, "No space left on device")

    log, target, before = folder / "log.db", folder / "old.jsonl", verified(folder / "log.db")
    with monkeypatch.context() as disk:
        disk.setattr(archiving, "export_lines", full)
        status, _, error = gated("log", "archive", log, target)
    assert (status, f"cannot write `{target}`: No space left" in error, target.exists()) == (2, True, False)
    assert gated("log", "archive", log, folder / "nowhere" / "old.jsonl")[0] == 2
    assert verified(log) == before


def test_an_export_of_what_is_kept_verifies(folder: Path) -> None:
    log = folder / "log.db"
    assert gated("log", "archive", log, folder / "old.jsonl")[0] == 0
    assert gated("log", "export", log, folder / "kept.jsonl")[0] == 0
    assert verified(folder / "kept.jsonl")["threads"] == 1
