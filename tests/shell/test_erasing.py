"""Erasing a subject's data through the real daemon and the command, with kills between every two steps of it."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread

from cli.command import gated
from gated import wire
from gated.core.redaction.subjects import Held, KeysAtHand, Unkeyed
from gated.core.redaction.vault import Vault
from gated.events import DataErased, Sender, unseal
from gated.shell import keyring
from gated.shell.erasing import Subjects
from gated.shell.keyring import Erasure, Keyring
from gated.shell.keys import KeyFileError
from gated.shell.log import LogUnavailable
from gated.shell.log.open import open_log
from patience import PATIENCE, until
from shell.live import POLICY, Bus, agent, daemon_on, ears, intents, overhear, process, said, server, stop, tell, write_policy

SECRET = "hunter22"
ARGS = {"to": "kim", "login": f"password={SECRET}"}
ENCRYPTED = POLICY.replace("version: 1\n", "version: 1\nredact: {store: encrypted}\n", 1)
OPERATOR = Sender("operator", "local")
ASKED = Erasure("thread:t", OPERATOR, ())


async def run(*arguments: object) -> tuple[int, str, str]:
    """A command, from inside a loop."""
    return await to_thread.run_sync(lambda: gated(*arguments))


async def erasures(log: Path) -> list[tuple[str, str]]:
    """The runs that say that data was erased."""
    async with open_log(str(log)) as opened:
        return [
            (body.run, str(body.observation.by))
            async for _, stored in opened.read_all()
            for body in [unseal(stored)]
            if any(isinstance(decision, DataErased) for decision in body.decisions)
        ]


async def replayed(log: Path) -> dict[str, Any]:
    status, text, error = await run("replay", log, "--json")
    assert status == 0, text + error
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture
async def waiting(tmp_path: Path) -> AsyncIterator[tuple[Bus, Path, str, str]]:
    """A server, and a log in which a call with a secret waits for people: its ticket and digest."""
    write_policy(tmp_path, ENCRYPTED)
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer:
        heard = await ears(payer, "payer")
        async with daemon_on(bus, tmp_path):
            await tell(payer, agent("payer"), "r1", intents(("c1", "refund", ARGS)))
            suspended = (await heard.count(1))[0]
            assert isinstance(suspended, wire.Verdict)
        yield bus, tmp_path, str(suspended.ticket), suspended.args_sha256


def resolution(ticket: str, digest: str, **more: Any) -> bytes:
    said = {"type": "resolution", "ticket": ticket, "decision": "approve", "decision_id": "d1", "args_sha256": digest}
    return json.dumps({**said, **more}).encode()


async def test_an_edited_call_reaches_the_agent_whole_after_a_restart(waiting: tuple[Bus, Path, str, str]) -> None:
    bus, folder, ticket, digest = waiting
    async with bus.user("agent", "payer") as payer, bus.user("approver", "ana") as ana:
        heard = await ears(payer, "payer")
        async with daemon_on(bus, folder) as live:
            view = (await live.daemon.runs.look("r1")).runs["r1"].tickets[ticket]  # type: ignore[arg-type,index]
            edited = {**view.calls[0].args, "to": "lee"}
            await tell(ana, Sender("approver", "ana"), "r1", resolution(ticket, digest, args=edited))
            verdict = (await heard.count(1))[0]
    assert isinstance(verdict, wire.Verdict)
    assert (verdict.decision, verdict.args) == ("allow", {**ARGS, "to": "lee"})
    on_disk = b"".join(path.read_bytes() for path in folder.glob("log.db*"))
    assert SECRET.encode() not in on_disk
    found = await replayed(folder / "log.db")
    assert (found["records"], found["not_replayable"]) == (2, 0)


async def test_an_operator_erases_while_the_daemon_runs(waiting: tuple[Bus, Path, str, str]) -> None:
    bus, folder, ticket, digest = waiting
    log = folder / "log.db"
    async with bus.user("agent", "payer") as payer, bus.user("approver", "ana") as ana:
        heard = await ears(payer, "payer")
        refusals = await overhear(ana, "gated.out.*.*.approver.ana")
        async with daemon_on(bus, folder):
            status, text, error = await run(
                *("log", "erase", log, "--thread", "r1", "--yes", "--json", "--reason", "asked by letter")
            )
            assert status == 0, text + error
            done = json.loads(text.splitlines()[-1])
            assert (done["subject"], len(done["keys"]), done["runs"]) == ("thread:r1", 1, 1)
            denied = (await heard.count(1))[0]
            await tell(ana, Sender("approver", "ana"), "r1", resolution(ticket, digest))
            await until(lambda: refusals)
            again = await run("log", "erase", log, "--thread", "r1", "--yes")
    assert isinstance(denied, wire.Verdict)
    assert (denied.decision, denied.code) == ("deny", "approvals.cancelled")
    assert denied.reason == "its arguments were erased with the data of `thread:r1`"
    assert refusals[0]["code"] == "approvals.already_decided"
    assert (again[0], "erased already" in again[1]) == (1, True)
    await holds(folder)


async def holds(folder: Path, by: str = "operator:local") -> None:
    """The data is gone, the log says so once, verifies, and says what it cannot derive any more."""
    log = folder / "log.db"
    assert await erasures(log) == [("r1", by)]
    assert not await to_thread.run_sync(lambda: list(folder.glob("*/subjects/*.key")))
    assert (await run("verify", log))[0] == 0
    found = await replayed(log)
    assert [("erased with the key" in item["why"], item["seq"]) for item in found["not_replayable_records"]] == [(True, 1)]
    shown = await run("log", "show", log, "1", "--reveal")
    assert SECRET not in shown[1]
    assert "erased" in shown[2]


POINTS = ("condemned", "destroyed", "decided", "appended", "published")


@pytest.mark.parametrize("point", POINTS)
async def test_a_daemon_killed_while_it_erases_says_it_once_and_whole(waiting: tuple[Bus, Path, str, str], point: str) -> None:
    bus, folder, _, _ = waiting
    (folder / "keys").rename(folder / "log.db.keys")
    async with bus.user("operator", "local") as operator:
        with process(bus, folder, fault=point) as killed:
            said(folder, "ready")
            await tell(operator, OPERATOR, "r1", wire.Erase(subject="thread:r1", reason="asked by letter"))
            assert await to_thread.run_sync(killed.wait, PATIENCE) == -signal.SIGKILL
        with process(bus, folder) as running:
            said(folder, "ready", 2)
            await until(lambda: erasures(folder / "log.db"))
            assert stop(running) == 0
    await holds(folder)


@pytest.mark.parametrize("point", ["condemned", "destroyed"])
@pytest.mark.parametrize("then", ["the command", "the daemon"])
async def test_a_command_killed_while_it_erases_is_finished_later(
    waiting: tuple[Bus, Path, str, str], point: str, then: str
) -> None:
    bus, folder, _, _ = waiting
    log = folder / "log.db"
    command = [sys.executable, "-m", "gated", "log", "erase", str(log), "--thread", "r1", "--yes"]
    killed = await to_thread.run_sync(lambda: subprocess.run(command, env={**os.environ, "GATED_FAULT": point}, check=False))
    assert killed.returncode == -signal.SIGKILL
    assert await erasures(log) == []
    shown = await run("log", "show", log, "1", "--reveal")
    assert SECRET not in shown[1], "what is condemned opens nothing, whether its file is there or not"
    if then == "the command":
        status, text, error = await run("log", "erase", log, "--thread", "r1", "--yes")
        assert status == 0, text + error
    else:
        async with daemon_on(bus, folder):
            await until(lambda: erasures(log))
        async with daemon_on(bus, folder):
            pass  # which finds that all is told
    await holds(folder)
    assert Keyring(folder / "keys" / "subjects").untold() == []


async def test_what_is_not_kept_cannot_be_erased(waiting: tuple[Bus, Path, str, str]) -> None:
    _, folder, _, _ = waiting
    log = folder / "log.db"
    assert (await run("log", "erase", log, "--thread", "other", "--yes"))[0] == 1
    assert (await run("log", "erase", log, "--thread", "r1"))[0] == 1, "nobody was there to be asked"
    assert (await run("log", "erase", log, "--yes"))[0] == 2
    assert (await run("log", "erase", log, "--thread", "r1", "--keys", folder / "none", "--yes"))[0] == 2
    (folder / "elsewhere").mkdir()
    missed = await run("log", "erase", log, "--thread", "r1", "--keys", folder / "elsewhere", "--yes")
    assert (missed[0], "nothing was erased" in missed[2]) == (2, True)
    assert await erasures(log) == []
    found = json.loads((await run("log", "subjects", log, "--json"))[1])
    assert found == [{"subject": "thread:r1", "runs": 1, "records": 1, "erased": 0}]


async def test_an_archive_and_an_export_are_erased_with_the_log(tmp_path: Path) -> None:
    write_policy(tmp_path, ENCRYPTED)
    log, old, copy = tmp_path / "log.db", tmp_path / "old.jsonl", tmp_path / "copy.jsonl"
    async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path), bus.agent("worker") as worker:
        for name in ("done", "open"):
            made = worker.run(run=name)
            verdict = await made.check("connect", ARGS)
            await made.report(verdict.call, "success", content="ok")
            if name == "done":
                await made.finish()
    keys = ("--keys", tmp_path / "keys")
    assert (await run("log", "export", log, copy))[0] == 0
    assert (await run("log", "archive", log, old))[0] == 0
    position = 2 if SECRET in (await run("log", "show", old, "2", "--reveal", *keys))[1] else 1
    assert SECRET in (await run("log", "show", old, position, "--reveal", *keys))[1]
    for thread in ("done", "open"):
        status, text, error = await run("log", "erase", log, "--thread", thread, "--yes")
        assert status == 0, text + error
    assert await erasures(log) == [("done", "operator:local"), ("open", "operator:local")]
    for where in (log, old, copy):
        assert (await run("verify", where))[0] == 0
        for at in range(1, 12):
            assert SECRET not in (await run("log", "show", where, at, "--reveal", *keys))[1]
    found = json.loads((await run("replay", copy, "--json", *keys))[1])
    assert found["ok"]
    listed = (await run("log", "ls", log))[1]
    assert "the data of thread:done" in listed
    assert "erased by operator:local: the data of thread:open" in (await run("runs", "show", log, "open"))[1]


# --- the keys --------------------------------------------------------------------------------------------------------


def test_a_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "subjects"
    one, other = Keyring(folder), Keyring(folder)
    one.supply("h", make=False)
    assert one.at_hand.held["h"] == Held()
    one.supply("h", make=True)
    other.supply("h", make=True)
    made, same = one.at_hand.held["h"].key, other.at_hand.held["h"].key
    assert made is not None
    assert same is not None
    assert made.id == same.id
    assert stat.S_IMODE((folder / "h.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0
    (folder / "h.key").chmod(0o644)
    with pytest.raises(LogUnavailable, match="chmod 600"):
        one.supply("h", make=False)


def test_a_key_that_another_process_erased_is_used_no_more(tmp_path: Path) -> None:
    mine, theirs = Keyring(tmp_path), Keyring(tmp_path)
    mine.supply("h", make=True)
    assert mine.at_hand.find("h", to_seal=True).key is not None
    assert mine.is_current()
    (gone,) = theirs.erase("h", ASKED)
    assert not mine.is_current()
    with pytest.raises(Unkeyed):
        mine.at_hand.find("h", to_seal=True)
    mine.supply("h", make=True)
    held = mine.at_hand.held["h"]
    assert held.key is not None
    assert (held.key.id != gone, held.erased) == (True, (gone,))
    assert theirs.erase("h", ASKED) == (gone, held.key.id)
    assert theirs.erase("h", ASKED) == (gone, held.key.id), "again: nothing more"
    assert theirs.erase("nobody", ASKED) == ()


@pytest.mark.parametrize("text", ["", "abc", "zz" * 32, "00" * 31])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "h.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="32 bytes in hex"):
        Keyring(tmp_path).find("h", to_seal=False)


async def test_without_a_folder_of_keys_nothing_is_decided_under_it() -> None:
    def decide() -> None:
        raise Unkeyed("h", to_seal=True)

    assert KeysAtHand().held == {}
    with pytest.raises(LogUnavailable, match="folder of keys"):
        await Subjects(None, Vault(b"k" * 32)).keyed(decide)


async def test_a_gate_does_not_start_where_it_can_make_no_keys(tmp_path: Path) -> None:
    write_policy(tmp_path, ENCRYPTED)
    async with server(tmp_path) as (_, bus):
        (tmp_path / "keys").mkdir()
        (tmp_path / "keys" / "subjects").write_text("in the way")
        with pytest.raises(LogUnavailable, match="cannot be used"):
            async with daemon_on(bus, tmp_path):
                pass


def test_what_is_known_of_subjects_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a soak: of each subject it was remembered for good how its key was read."""
    monkeypatch.setattr(keyring, "CACHE", 5)
    ring = Keyring(tmp_path)
    for number in range(50):
        ring.supply(f"h{number}", make=True)
        ring.at_hand.used.clear()
        ring.at_hand.find(f"h{number}", to_seal=True)
        assert ring.is_current()
        if number % 2:
            ring.erase(f"h{number}", ASKED)
        assert len(ring._read_as) <= 5
        assert set(ring.at_hand.held) <= set(ring._read_as)
