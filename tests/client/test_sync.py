"""The sync face against a real gate: the same verdicts and errors, tools on the caller's thread, any thread may call."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.from_thread import start_blocking_portal

from gated import client, wire
from gated.client import Call, Denied, GateUnavailable, Rejected, Suspended, sync
from gated.core.state import RunState
from gated.events import OutcomeReported, RunId, Sender, ThreadId, unseal
from gated.shell.log.open import open_log
from patience import blocking_until
from shell.live import POLICY, Live, decided, gate, tell


@contextmanager
def live_gate(folder: Path, policy: str = POLICY) -> Iterator[tuple[Live, Callable[..., Any]]]:
    """A gate in a thread of its own, and how to do something there."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(gate(folder, policy)) as live:
        yield live, portal.call


@contextmanager
def agent(live: Live, name: str = "worker", seconds: float = 10) -> Iterator[sync.Gate]:
    with sync.connect(live.bus.url, agent=name, timeout=seconds, **live.bus.credentials("agent", name)) as connected:
        yield connected


def state(live: Live, call: Callable[..., Any], run: str = "r") -> RunState:
    found: RunState = call(live.daemon.runs.look, ThreadId(run)).runs[RunId(run)]
    return found


def test_checks_outcomes_and_the_end_of_a_run(tmp_path: Path) -> None:
    with live_gate(tmp_path) as (live, call), agent(live) as worker:
        with worker.run(run="r", task="look") as run:
            assert (run.id, run.thread, worker.agent) == ("r", "r", "worker")
            assert run.check("read", {"path": "a"}, call="c1").decision == "allow"
            assert run.report("c1", "success", content="text").messages() == []
            verdicts = run.check_batch([Call("read"), Call("shell")], mode="atomic")
            assert [verdict.code for verdict in verdicts] == ["batch.sibling_denied", "privilege.forbidden"]
            assert run.resume("c1").settled
            assert [verdict.decision for verdict in run.can_i([Call("read"), Call("shell")]).verdicts] == ["allow", "deny"]
        assert state(live, call).end == "complete"
        with pytest.raises(ValueError, match="mine"), worker.run(run="s"):
            raise ValueError("mine")
        assert state(live, call, "s").reason == "ValueError: mine"


def test_a_guarded_function_runs_on_the_thread_that_calls_it_and_is_reported(tmp_path: Path) -> None:
    threads: list[int] = []
    with live_gate(tmp_path) as (live, call), agent(live) as worker, worker.run(run="r") as run:

        @run.guard
        def read(path: str, lines: int = 10) -> str:
            threads.append(threading.get_ident())
            return f"{lines} lines of {path}"

        @run.guard(tool="Write")
        def write(text: str) -> None:
            raise OSError(f"disk full: {text}")

        assert read("a") == "10 lines of a"
        with pytest.raises(OSError, match="disk full: x"):
            write("x")
        with pytest.raises(Denied, match=r"privilege\.forbidden"):
            run.call("shell", {}, lambda: pytest.fail("it ran"))
        assert threads == [threading.get_ident()]
        assert not state(live, call).in_flight
        assert state(live, call).step_count == 1


def test_a_call_inside_a_tool_is_nested_in_it(tmp_path: Path) -> None:
    with live_gate(tmp_path) as (live, call), agent(live) as worker, worker.run(run="r") as run:
        inner = run.guard(lambda: client.current_call(), "inner")
        outer = run.guard(lambda: (client.current_call(), inner()), "outer")
        one, two = outer()
        seen = {made: decisions[0].admission for made, decisions in call(decided, live.log).items()}
    assert seen[two].parent == one
    assert seen[one].parent is None


def test_many_threads_ask_at_once_and_get_each_its_own(tmp_path: Path) -> None:
    with live_gate(tmp_path) as (live, _), agent(live) as worker, worker.run(run="r") as run:
        echo = run.guard(lambda number: number, "read")
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(echo, range(100))) == list(range(100))


def test_waiting_for_people(tmp_path: Path) -> None:
    async def answer(live: Live, suspended: client.Verdict, decision: Any) -> None:
        async with live.bus.user("approver", "bob") as bob:
            digest, ticket = suspended.args_sha256, suspended.ticket or ""
            said = wire.Resolution(ticket=ticket, decision=decision, decision_id="d", args_sha256=digest)
            await tell(bob, Sender("approver", "bob"), "r", said)
            await bob.flush()

    with live_gate(tmp_path) as (live, call), agent(live, "payer") as payer:
        with pytest.raises(Suspended) as caught, payer.run(run="r") as run:
            run.call("refund", {"amount": 1}, lambda amount: amount, call="c")
        call(answer, live, caught.value.verdict, "approve")
        with payer.run(run="r", resume=True) as run:
            assert run.call("refund", {"amount": 1}, lambda amount: amount, call="c", wait=True) == 1
            suspended = run.check("refund", {"amount": 2}, call="d", wait=0.1)
            assert suspended.decision == "suspend"
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(run.call, "refund", {"amount": 2}, lambda amount: amount, call="d", wait=True)
                call(answer, live, suspended, "reject")
                with pytest.raises(Rejected):
                    waiting.result(10)
            run.detach()
        assert state(live, call).end == ""


def test_without_a_gate_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(GateUnavailable, match="cannot connect"), sync.connect("nats://127.0.0.1:1", agent="a", timeout=0.3):
        pytest.fail("it connected")
    with live_gate(tmp_path) as (live, _):
        with agent(live) as worker:
            run = worker.run(run="r")
            assert run.check("read").decision == "allow"
        with pytest.raises(GateUnavailable, match="the connection was closed"):
            run.call("read", {}, lambda: pytest.fail("it ran"))


def interrupt(live: Live, call: Callable[..., Any]) -> None:
    """Interrupt the main thread once its call waits for people."""
    blocking_until(lambda: call(decided, live.log))
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_caller_stops_waiting_and_the_block_ends(tmp_path: Path) -> None:
    with live_gate(tmp_path) as (live, call), agent(live, "payer") as payer:
        threading.Thread(target=interrupt, args=(live, call)).start()
        with pytest.raises(KeyboardInterrupt), payer.run(run="r") as run:
            run.call("refund", {}, lambda: pytest.fail("it ran"), call="c", wait=True)
        assert not payer._gate._questions
        assert state(live, call).reason == "KeyboardInterrupt"


def test_what_cannot_be_guarded_says_so(tmp_path: Path) -> None:
    async def later() -> None:
        await anyio.lowlevel.checkpoint()

    def many() -> Iterator[int]:
        yield 1

    with live_gate(tmp_path) as (live, _), agent(live) as worker:
        run = worker.run(run="r")
        with pytest.raises(TypeError, match=r"`later` is async: guard it with a run of `gated\.client`"):
            run.guard(later)
        with pytest.raises(TypeError, match="`many` is a generator"):
            run.guard(many)
        with pytest.raises(TypeError, match="is no function"):
            run.guard("read")  # type: ignore[arg-type]


MACHINE = """
version: 1
agents:
  worker: {checks: [order], allowed_tools: ["*"]}
machines:
  - name: whole
    initial: unread
    terminal: [read]
    transitions:
      - {on: read, from: "*", to: read, when: {facts: 'complete = "true"'}, emit: {content: "read whole"}}
      - {on: read, from: "*", to: unread}
"""


def test_facts_reminders_and_the_word_on_the_end(tmp_path: Path) -> None:
    with live_gate(tmp_path, MACHINE) as (live, _), agent(live) as worker, worker.run(run="r") as run:
        run.guard(lambda: "text", "read", facts=lambda text: {"complete": text == "text"})()
        assert [reminder.content for reminder in run.take_reminders()] == ["read whole"]
        run.call("read", {}, lambda: "te", facts=lambda text: {"complete": text == "text"})
        assert run.take_reminders() == ()
        assert run.status is None
    assert run.status is not None
    assert run.status.status == "steer"


def test_a_tool_that_is_not_done_when_it_returns_is_no_success(tmp_path: Path) -> None:
    """Found by trying: an async function in a plain run was reported as a success, and never ran."""

    async def later() -> None:
        pytest.fail("it ran where nobody waited for it")

    async def ended(live: Live) -> list[str]:
        async with open_log(str(live.log)) as log:
            said = [unseal(record).observation async for _, record in log.read_all()]
        return [observed.status for observed in said if isinstance(observed, OutcomeReported)]

    with live_gate(tmp_path) as (live, call), agent(live) as worker, worker.run(run="r") as run:
        with pytest.raises(TypeError, match="`read` returned what is still to be awaited"):
            assert run.call("read", {}, later)
        with pytest.raises(TypeError, match="`read` returned what is still to be awaited"):
            run.guard(lambda: later(), "read")()
        with pytest.raises(TypeError, match="`read` returned a generator"):
            run.guard(lambda: (number for number in range(3)), "read")()
        assert call(ended, live) == ["error"] * 3
