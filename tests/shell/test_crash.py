"""Kills under load, of the daemon at every fault point and of the bus: every intent gets one verdict, none is lost or changed."""

import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import get_args

import anyio
import msgspec
import pytest
from anyio import to_thread
from nats.aio.msg import Msg

from gated import wire
from gated.client import Verdict
from gated.core.decide import record
from gated.core.fold import fold
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import CallDecided, DeadlineReached, RunId, Sender, ThreadId, unseal
from gated.shell.faults import Point
from gated.shell.log.open import open_log
from gated.shell.log.sqlite import open_for_writing
from gated.shell.policies import read_policy
from patience import PATIENCE, until
from ports import own_port
from shell.live import Bus, agent, daemon_on, decided, ears, intents, process, server, stop, tell, write_policy

RUNS, CALLS = 8, 25
TOOLS = ("read", "shell")  # allowed and forbidden


class Load:
    """Agents that ask, one call after another on each of their runs, and report; and all that was said to them."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.heard: list[Verdict] = []
        self.ended = 0

    @asynccontextmanager
    async def on(self, bus: Bus) -> AsyncIterator[None]:
        """Ask while the block runs and until every verdict is there."""
        async with bus.user("agent", "worker") as listener, bus.agent("worker") as gate:
            heard = await ears(listener, "worker")

            async def work(number: int) -> None:
                async with gate.run(run=f"r{number}") as run:
                    for at in range(CALLS):
                        verdict = await run.check(TOOLS[at % 2], {"n": at}, call=f"c{number}-{at}")
                        self.verdicts[verdict.call] = verdict
                        if verdict.decision == "allow":
                            await run.report(verdict.call, "success", content=at)
                self.ended += 1

            async with anyio.create_task_group() as tasks:
                for number in range(RUNS):
                    tasks.start_soon(work, number)
                yield
            self.heard = [answer for _, answer in heard.heard if isinstance(answer, Verdict)]

    async def done(self, share: float = 1.0) -> None:
        """Until so much of it has its verdicts; all of it is done once its runs have ended too."""
        await until(lambda: len(self.verdicts) >= share * RUNS * CALLS and (share < 1 or self.ended == RUNS), seconds=120)

    async def hold(self, log: Path) -> None:
        """One decision a call in the log, and everybody heard that one, however often."""
        made = await decided(log)
        assert len(made) == RUNS * CALLS
        assert {call: len(decisions) for call, decisions in made.items() if len(decisions) != 1} == {}
        assert self.verdicts.keys() == made.keys()
        for verdict in [*self.verdicts.values(), *self.heard]:
            assert _same(verdict, made[verdict.call][0]), verdict
            first = msgspec.structs.replace(self.verdicts[verdict.call], replayed=False, settled=False)
            assert msgspec.structs.replace(verdict, replayed=False, settled=False) == first
        for call, (decision,) in made.items():
            assert decision.decision == ("deny" if int(call.rpartition("-")[2]) % 2 else "allow")


def _same(verdict: Verdict, decision: CallDecided) -> bool:
    fields = ("decision", "stage", "code", "reason", "args_sha256")
    return all(getattr(verdict, field) == getattr(decision, field) for field in fields)


async def dead(running: subprocess.Popen[bytes]) -> None:
    assert await to_thread.run_sync(running.wait, PATIENCE) == -signal.SIGKILL


@pytest.mark.parametrize("point", get_args(Point))
async def test_a_daemon_killed_at_a_fault_point_loses_and_changes_nothing(tmp_path: Path, point: str) -> None:
    write_policy(tmp_path)
    load = Load()
    async with server(tmp_path) as (_, bus):
        async with load.on(bus):
            with process(bus, tmp_path, f"{point}:15") as first:
                await dead(first)
            with process(bus, tmp_path) as last:
                await load.done()
                assert await to_thread.run_sync(stop, last) == 0
    await load.hold(tmp_path / "log.db")


@pytest.mark.parametrize("point", get_args(Point))
async def test_what_was_said_once_is_answered_although_the_daemon_dies(tmp_path: Path, point: str) -> None:
    """No client that asks again: what the bus stored is decided once, and its verdict comes out."""
    write_policy(tmp_path)
    calls = [f"c{number}" for number in range(60)]
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path):
            pass  # makes the stream
        for number, call in enumerate(calls):
            await tell(worker, agent("worker"), f"r{number % 7}", intents((call, TOOLS[number % 2], {"n": number})))
        await worker.flush()
        with process(bus, tmp_path, point) as first:
            await dead(first)
        with process(bus, tmp_path) as last:
            await until(lambda: {answer.call for _, answer in heard.heard if isinstance(answer, Verdict)} == {*calls})
            assert await to_thread.run_sync(stop, last) == 0
    made = await decided(tmp_path / "log.db")
    assert {call: len(decisions) for call, decisions in made.items()} == dict.fromkeys(calls, 1)
    for _, verdict in heard.heard:
        assert isinstance(verdict, Verdict)
        assert _same(verdict, made[verdict.call][0])


ASKING = """
version: 1
agents: {worker: {checks: [privilege], allowed_tools: [pay], approval_required: [pay]}}
"""


async def expire_unheard(path: Path) -> None:
    """Append what the timer of the one open ticket decides, as a daemon that dies before it says so."""
    policy = read_policy(path / "policy.yaml")
    event_log = await open_for_writing(path / "log.db")
    try:
        state = ThreadState(ThreadId("r"))
        async for stored in event_log.read(ThreadId("r")):
            state = fold({policy.digest: policy}, state, unseal(stored), stored.hash)
        (ticket,) = state.runs[RunId("r")].tickets.values()
        due = ticket.expires_at + 1
        registry = Registry(policy, {policy.digest: policy})
        _, expired = record(registry, state, RunId("r"), DeadlineReached(Sender("timer", "daemon"), due), due)
        assert expired is not None
        await event_log.append_many([expired], [(ThreadId("r"), RunId("r"), 0)])
    finally:
        await event_log.close()


async def test_what_a_timer_decided_just_before_the_daemon_died_is_said_at_the_next_start(tmp_path: Path) -> None:
    """No input comes again for it: the verdict, the ticket's end and the record for auditors come out of the log, once."""
    write_policy(tmp_path, ASKING)
    events: list[bytes] = []

    async def note(message: Msg) -> None:
        events.append(message.data)

    async with (
        server(tmp_path) as (_, bus),
        bus.user("agent", "worker") as worker,
        bus.user("auditor", "local") as auditor,
    ):
        heard = await ears(worker, "worker")
        await auditor.subscribe("gated.events.>", cb=note)
        await auditor.flush()
        async with daemon_on(bus, tmp_path):
            await tell(worker, agent("worker"), "r", intents(("c", "pay", {})))
            await heard.count(1)
        await expire_unheard(tmp_path)
        for _ in range(2):
            async with daemon_on(bus, tmp_path):
                await heard.until(lambda: len(heard.heard) > 1)
        codes = [answer.code for _, answer in heard.heard if isinstance(answer, Verdict)]
        assert codes == ["privilege.approval_required", "approvals.expired"]
        async with open_log(str(tmp_path / "log.db")) as log:
            stored = [wire.record_event(stored) async for _, stored in log.read_all()]
        await heard.until(lambda: len(events) == len(stored))
    assert sorted(events) == sorted(stored)


async def test_a_killed_bus_that_comes_back_loses_and_changes_nothing(tmp_path: Path) -> None:
    write_policy(tmp_path)
    load = Load()
    async with AsyncExitStack() as stack:
        port = own_port()
        running, bus = await stack.enter_async_context(server(tmp_path, port))
        with process(bus, tmp_path) as daemon:
            async with load.on(bus):
                for share in (0.2, 0.5):
                    await load.done(share)
                    running.process.kill()
                    await stack.aclose()
                    running, _ = await stack.enter_async_context(server(tmp_path, port))
                await load.done()
            assert await to_thread.run_sync(stop, daemon) == 0
    await load.hold(tmp_path / "log.db")
