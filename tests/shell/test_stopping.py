"""A stop, a reload and a watch in bad times: a log that cannot be written, a bus that is away, decisions that nobody heard."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from gated.client import Verdict
from gated.events import DeadlineReached
from gated.shell import bus as bus_
from gated.shell import daemon, watching
from gated.shell.answering import Answering
from gated.shell.connection import BusError
from gated.shell.log import LogUnavailable, sqlite_file
from gated.shell.log.open import open_log
from gated.shell.said import Settled
from gated.shell.watching import changes_in
from patience import PATIENCE, until
from shell.live import POLICY, agent, daemon_on, decided, ears, gate, intents, server, tell, write_policy

ASKING = """
version: 1
agents: {worker: {checks: [privilege], allowed_tools: [pay], approval_required: [pay]}}
approvals: {default: {approvers: [user:ana], timeout: 1s}}
"""


@contextmanager
def locked(log: Path) -> Iterator[None]:
    """Another program holds the file: nothing can be written."""
    other = sqlite3.connect(log, isolation_level=None, check_same_thread=False)
    other.execute("begin immediate")
    try:
        yield
    finally:
        other.rollback()
        other.close()


async def test_a_daemon_stops_although_its_log_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: it waited for the log for ever. What it had taken is decided after the next start, once."""
    monkeypatch.setattr(daemon, "DRAIN_SECONDS", 1.0)
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.2)
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        with anyio.fail_after(2 * PATIENCE), ExitStack() as trouble:
            async with daemon_on(bus, tmp_path) as live:
                trouble.enter_context(locked(live.log))
                await tell(worker, agent("worker"), "r", intents(("c", "read", {})))
                await until(lambda: live.daemon.runs.health.why)
                live.daemon.stop()
        assert heard.heard == []
        async with daemon_on(bus, tmp_path):
            await heard.count(1)
    assert [made.decision for made in (await decided(tmp_path / "log.db"))["c"]] == ["allow"]


async def test_what_is_delivered_again_while_the_log_cannot_be_written_is_decided_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for an acknowledgement for a second here, and says everything again, in any order."""
    monkeypatch.setattr(bus_, "ACK_WAIT", 1.0)
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.2)
    calls = [f"c{number}" for number in range(60)]
    async with gate(tmp_path) as live, live.bus.user("agent", "worker") as worker:
        heard, runs = await ears(worker, "worker"), live.daemon.runs
        await tell(worker, agent("worker"), "r", intents(("first", "read", {})))
        await heard.count(1)
        with locked(live.log):
            for number, call in enumerate(calls):
                await tell(worker, agent("worker"), f"r{number % 3}", intents((call, ("read", "shell")[number % 2], {})))
            await until(lambda: runs.health.why)
            assert "is locked" in runs.health.why
            taken = live.daemon.receiver._expected
            await until(lambda: live.daemon.receiver._expected >= taken + len(calls))  # all of it once more, and further
            assert len(heard.heard) == 1
        await heard.until(lambda: {v.call for _, v in heard.heard if isinstance(v, Verdict)} == {"first", *calls})
        await until(lambda: runs.health.why == "")
    made = await decided(live.log)
    assert {call: len(decisions) for call, decisions in made.items()} == dict.fromkeys(["first", *calls], 1)
    for _, verdict in heard.heard:
        assert isinstance(verdict, Verdict)
        assert verdict.decision == made[verdict.call][0].decision


async def test_a_daemon_stops_although_the_bus_is_away(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (running, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path):
            await tell(worker, agent("worker"), "r", intents(("c", "read", {})))
            await heard.count(1)
            running.process.kill()
            await running.wait()
    assert len((await decided(tmp_path / "log.db"))["c"]) == 1


async def test_what_a_failing_daemon_decided_and_never_said_is_said_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by reading: closing its log sealed it, and a sealed log was taken for one of which all had been said."""
    write_policy(tmp_path, ASKING)
    answered = Answering.answered

    def failing(self: Answering, item: Settled) -> bool:
        if isinstance(item.said.observation, DeadlineReached):
            raise RuntimeError("an error that nobody thought of")
        return answered(self, item)

    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")

        async def fail() -> None:
            async with daemon_on(bus, tmp_path):
                await tell(worker, agent("worker"), "r", intents(("c", "pay", {})))
                await anyio.sleep(PATIENCE)

        with monkeypatch.context() as broken:
            broken.setattr(Answering, "answered", failing)
            with pytest.raises(BaseExceptionGroup):
                await fail()
        async with daemon_on(bus, tmp_path):
            said = await heard.count(2)
    assert [answer.code for answer in said if isinstance(answer, Verdict)] == ["privilege.approval_required", "approvals.expired"]
    async with open_log(str(tmp_path / "log.db")) as log:
        assert (await log.checkpoints())[-1].position == await log.head()


async def test_a_daemon_ends_where_the_server_ended_its_connection_for_good(tmp_path: Path) -> None:
    """Found by reading: the client closes itself on a revoked login, and the daemon went on as if it were connected."""

    async def revoked() -> None:
        async with gate(tmp_path) as live:
            await live.daemon.receiver.client._process_err("'User Authentication Revoked'")
            await anyio.sleep(PATIENCE)

    with pytest.raises(BaseExceptionGroup) as ended, anyio.fail_after(2 * PATIENCE):
        await revoked()
    assert ended.group_contains(BusError, match="ended the connection for good: .*Revoked", depth=1)


async def test_a_reload_that_cannot_write_the_policy_into_the_log_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by reading: with a full disk, a change of the policy file ended the daemon."""

    async def full(digest: str, text: bytes) -> None:
        raise LogUnavailable("cannot write: the disk is full")

    async with gate(tmp_path) as live:
        before = live.daemon.runs.registry.current.digest
        write_policy(tmp_path, POLICY.replace("max_calls: 100000", "max_calls: 7"))
        with monkeypatch.context() as trouble:
            trouble.setattr(live.daemon.runs.log, "put_policy", full)
            assert await live.daemon.reload() is False
        assert live.daemon.runs.health.reload_failed == "cannot write: the disk is full"
        assert live.daemon.runs.registry.current.digest == before
        assert await live.daemon.reload() is True


@pytest.mark.parametrize("error", [OSError("inotify watch limit reached"), RuntimeError("the watcher failed")])
async def test_what_cannot_be_watched_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def failing(*_: object, **__: object) -> object:
        raise error

    monkeypatch.setattr(watching, "awatch", failing)
    assert [changed async for changed in changes_in(tmp_path, until=anyio.Event())] == []
