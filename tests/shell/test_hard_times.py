"""One machine in trouble: a slow disk, a clock that is set back and forth. Verdicts are late, never wrong."""

import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import anyio
import pytest
import structlog

from gated import wire
from gated.client import Verdict
from gated.events import Sender
from gated.shell import connection, threads, timers
from gated.shell.log import sqlite_writer
from patience import PATIENCE, until
from shell.live import POLICY, Clock, agent, decided, ears, gate, intents, tell


async def test_on_a_slow_disk_what_waited_is_committed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that takes until it is let go: a hundred calls cost some syncs, not a hundred, and the daemon answers meanwhile."""
    real, commits = sqlite_writer.Writer._commit, 0
    go = Event()

    def slow(self: sqlite_writer.Writer, batch: list[sqlite_writer._Write]) -> dict[int, Exception]:
        nonlocal commits
        commits += 1
        go.wait(PATIENCE)
        return real(self, batch)

    async with gate(tmp_path) as live, live.bus.user("agent", "worker") as worker, live.bus.user("operator", "local") as operator:
        heard = await ears(worker, "worker")
        monkeypatch.setattr(sqlite_writer.Writer, "_commit", slow)
        for number in range(100):
            await tell(worker, agent("worker"), f"r{number}", intents((f"c{number}", "search", {"q": "a"})))
        await until(lambda: commits)
        health = await operator.request("gated.api.health", b"", timeout=PATIENCE)
        assert b'"ok":true' in health.data
        assert heard.heard == []
        go.set()
        assert len(await heard.count(100)) == 100
        assert commits < 60
    assert len(await decided(live.log)) == 100


@pytest.mark.parametrize("step", [-3600, -3, 3600])
async def test_a_clock_that_is_set_changes_no_answer_that_was_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The times of the events say whether an answer is in time. A clock set forward ends the waiting early, with a denial."""
    policy = POLICY.replace("timeout: 15m", "timeout: 10m")
    async with gate(tmp_path, policy) as live, live.bus.user("agent", "payer") as payer, live.bus.user("approver", "bob") as bob:
        heard = await ears(payer, "payer")
        clock = Clock(monkeypatch)
        await tell(payer, agent("payer"), "r", intents(("c", "refund", {"amount": 5})))
        (asked,) = await heard.count(1)
        assert isinstance(asked, Verdict)
        clock.forward(live, step)
        await anyio.sleep(0.3)
        if step < 0:
            answer = wire.Resolution(
                ticket=str(asked.ticket), decision="approve", decision_id="d", args_sha256=asked.args_sha256, note="in time"
            )
            await tell(bob, Sender("approver", "bob"), "r", answer)
        second = (await heard.count(2))[1]
        assert isinstance(second, Verdict)
        assert (second.decision, second.code) == (("allow", None) if step < 0 else ("deny", "approvals.expired"))
    assert [made.decision for made in (await decided(live.log))["c"]] == ["suspend", second.decision]


async def test_a_timer_that_slept_while_the_clock_was_set_forward_notices_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a machine was suspended: it slept for as long as the deadline had been away."""
    assert timers.LONGEST <= 60
    monkeypatch.setattr(timers, "LONGEST", 0.05)
    async with gate(tmp_path) as live, live.bus.user("agent", "payer") as payer:
        heard = await ears(payer, "payer")
        clock = Clock(monkeypatch)
        await tell(payer, agent("payer"), "r", intents(("c", "refund", {"amount": 5})))
        await heard.count(1)
        clock.ahead += 3600
        last = (await heard.count(2))[1]
    assert isinstance(last, Verdict)
    assert last.code == "approvals.expired"


@pytest.mark.parametrize(("ahead", "said"), [(300, True), (-300, True), (0, False)])
async def test_a_clock_that_is_not_the_buss_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int, said: bool
) -> None:
    monkeypatch.setattr(connection, "time", SimpleNamespace(time=lambda: time.time() + ahead, monotonic=time.monotonic))
    with structlog.testing.capture_logs() as lines:
        async with gate(tmp_path):
            pass
    found = [line["ahead_s"] for line in lines if "clock" in line["event"]]
    assert [round(seconds / 100) * 100 for seconds in found] == ([ahead] if said else [])


# --- a week, with a fast clock ----------------------------------------------------------------------------------------


async def test_memory_is_bounded_by_what_is_open_and_not_by_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six rounds of 300 runs, half an hour of the timers' clock between them: nothing of a round is left after its deadlines."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(threads, "CACHE", 100)
    sizes = []
    async with gate(tmp_path) as live, live.bus.user("agent", "worker") as worker, live.bus.user("agent", "payer") as payer:
        heard, asked = await ears(worker, "worker"), await ears(payer, "payer")
        runs = live.daemon.runs
        for week in range(6):
            for number in range(250):
                name = f"w{week}-{number}"
                await tell(worker, agent("worker"), name, intents((name, "search", {"q": "a"})))
                await tell(worker, agent("worker"), name, wire.Outcome(call=name, status="success"))
                await tell(worker, agent("worker"), name, wire.RunFinish())
            for number in range(50):  # nobody answers: they expire
                name = f"p{week}-{number}"
                await tell(payer, agent("payer"), name, intents((name, "refund", {"amount": 5})))
            await heard.count((week + 1) * 750)
            await asked.count(week * 100 + 50)
            clock.forward(live, 1800)
            await asked.count((week + 1) * 100)
            await until(lambda: not runs.timers._deadlines and not runs.timers._armed and not runs.health.waiting)
            sizes.append(
                (len(runs.threads.states), len(runs.timers._armed), len(runs.timers._deadlines), len(runs.answering.open_tickets))
            )
    assert {size[1:] for size in sizes} == {(0, 0, 0)}
    assert max(size[0] for size in sizes) < 400  # of 1,800 threads; what a last batch left over leaves with the next one
