"""States that come into memory and leave it: what was decided and is not durable yet is never let go of."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from gated.core import decide as core
from gated.core import state as states
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.events import GENESIS, CallId, IntentsReceived, Record, RunId, Sender, ThreadId, Wanted
from gated.shell import threads
from gated.shell.log.sqlite import open_for_writing
from gated.shell.policies import read_policy
from gated.shell.threads import Threads
from patience import until
from shell.live import POLICY, agent, daemon_on, decided, ears, intents, server, tell, write_policy

ASKING = """
version: 1
agents: {worker: {checks: [privilege], allowed_tools: [T], approval_required: [T], resource_budget: {max_calls: 1000}}}
approvals: {default: {approvers: [user:bob]}}
"""


def _record(thread: ThreadId) -> Record:
    return Record(thread, RunId("r"), 1, 1, "intents_received", GENESIS, "a" * 64, b"{}")


async def test_a_thread_that_is_spoken_of_while_it_leaves_memory_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: its newest state went with it, and its next input was decided on the one before."""
    monkeypatch.setattr(threads, "CACHE", 0)
    thread = ThreadId("t")
    log = await open_for_writing(tmp_path / "log.db")
    try:
        held = Threads(log, read_policy(write_policy(tmp_path)), Vault(b"k" * 32))
        await log.append_many([_record(thread)])
        old = replace(ThreadState(thread), seq=1)
        new, save = replace(old, seq=2), log.save_snapshot
        held.keep(old)

        async def meanwhile(of: ThreadId, seq: int, data: bytes) -> None:
            await save(of, seq, data)
            held.keep(new)

        monkeypatch.setattr(log, "save_snapshot", meanwhile)
        monkeypatch.setattr(threads, "CACHE", 0)
        await held.settle_down((), lambda thread: False)
        assert held.states == {thread: new}
        monkeypatch.setattr(log, "save_snapshot", save)
        await log.append_many([_record(ThreadId("other"))])
        held.states[thread] = replace(new, seq=1)
        await held.settle_down((), lambda thread: False)
        assert held.states == {}
    finally:
        await log.close()


async def test_what_stays_in_memory_is_bounded_by_records_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand threads may stay, but not ten thousand long ones; who was not spoken of for longest leaves first."""
    monkeypatch.setattr(threads, "HELD", 1000)
    log = await open_for_writing(tmp_path / "log.db")
    try:
        held = Threads(log, read_policy(write_policy(tmp_path)), Vault(b"k" * 32))
        await log.append_many([_record(ThreadId(f"t{number}")) for number in range(5)])
        monkeypatch.setattr(log, "get", lambda thread, seq: _found(thread))
        for number in range(5):
            held.keep(replace(ThreadState(ThreadId(f"t{number}")), seq=300))
        await held.settle_down((), lambda thread: thread == "t0")
        assert sorted(held.states) == ["t0", "t2", "t3", "t4"]  # one is busy
        held.keep(replace(ThreadState(ThreadId("t4")), seq=5000))
        await held.settle_down((), lambda thread: False)
        assert sorted(held.states) == ["t4"]
        assert await log.load_snapshot(ThreadId("t0")) is not None
    finally:
        await log.close()


async def _found(thread: ThreadId) -> Record:
    return _record(thread)


async def test_a_snapshot_that_is_slow_to_make_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made in slices beside everything else, and at the thread's own pace; who leaves memory waits for it."""
    policy, thread = read_policy(write_policy(tmp_path, ASKING)), ThreadId("t")
    log = await open_for_writing(tmp_path / "log.db")
    try:
        await log.put_policy(policy.digest, policy.text)
        held = Threads(log, policy, Vault(b"k" * 32))
        state, records = ThreadState(thread), list[Record]()
        for number in range(300):
            observation = IntentsReceived(Sender("agent", "worker"), (Wanted(CallId(f"c{number}"), "T", {}),))
            step, made = core.record(held.registry, state, RunId("r"), observation, number + 1)
            state = step.state
            records += [] if made is None else [made]
        await log.append_many(records)
        held.keep(state)
        monkeypatch.setattr(threads, "SLOW", 599)
        monkeypatch.setattr(threads, "SNAPSHOT", 10)
        assert held.newest(10**9) == []  # nor does a hand-over wait for it
        monkeypatch.setattr(threads, "OF_WAITING", 1)
        await held.settle_down([thread], lambda thread: False)
        assert held._slow == {}  # of 600 rows that wait, and 300 records
        monkeypatch.setattr(threads, "OF_WAITING", 2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(held.keep_snapshots)
            await held.settle_down([thread], lambda thread: False)
            assert await log.load_snapshot(thread) is None
            await until(lambda: not held._slow)
            assert await log.load_snapshot(thread) == (300, states.dump(state))
            monkeypatch.setattr(threads, "CACHE", 0)
            held._saved[thread] = 299
            await held.settle_down((), lambda thread: False)
            assert list(held.states) == [thread]
            await until(lambda: held._saved[thread] == 300)
            await held.settle_down((), lambda thread: False)
            assert held.states == {}
            tasks.cancel_scope.cancel()
    finally:
        await log.close()


async def test_threads_that_are_only_looked_at_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "CACHE", 5)
    log = await open_for_writing(tmp_path / "log.db")
    try:
        held = Threads(log, read_policy(write_policy(tmp_path)), Vault(b"k" * 32))
        for number in range(100):
            await held.look(ThreadId(f"t{number}"))
        assert len(held._saved) <= 2 * 5 + 1
    finally:
        await log.close()


async def test_a_run_that_is_bound_to_a_policy_of_before_comes_back_from_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by reading: what follows on the snapshot was folded before the run's policy was known, and the daemon ended."""
    monkeypatch.setattr(threads, "SNAPSHOT", 2)
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path) as live:
            for number in range(2):
                await tell(worker, agent("worker"), "r", intents((f"c{number}", "read", {})))
            await heard.count(2)
            await until(lambda: live.daemon.runs.log.load_snapshot(ThreadId("r")))
            write_policy(tmp_path, POLICY.replace("max_calls: 100000", "max_calls: 7"))
            assert await live.daemon.reload() is True
            await tell(worker, agent("worker"), "r", intents(("c2", "read", {})))
            await heard.count(3)
        async with daemon_on(bus, tmp_path):
            await tell(worker, agent("worker"), "r", intents(("c3", "read", {})))
            await heard.count(4)
    assert {call: d[0].decision for call, d in (await decided(tmp_path / "log.db")).items()} == {
        f"c{n}": "allow" for n in range(4)
    }
