"""The SDK against a real gate: verdicts, guarded tools, ends of runs, and that no tool runs without a verdict."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gated import client, wire
from gated.client import AlreadyMade, Call, Denied, Gate, GateUnavailable, Refused, Run, Verdict
from gated.client import question as question_module
from gated.client.question import Question
from gated.core.state import RunState
from gated.events import RunId, ThreadId
from patience import PATIENCE, until
from shell.live import Live, daemon_on, decided, gate, server, write_policy


@asynccontextmanager
async def worker_run(folder: Path) -> AsyncIterator[tuple[Live, Run]]:
    async with gate(folder) as live, live.bus.agent("worker") as worker, worker.run(run="r") as run:
        yield live, run


async def state(live: Live) -> RunState:
    return (await live.daemon.runs.look(ThreadId("r"))).runs[RunId("r")]


# --- verdicts -------------------------------------------------------------------------------------------------------------


async def test_a_check_gives_the_verdict_whatever_it_is(tmp_path: Path) -> None:
    async with worker_run(tmp_path) as (_, run):
        allowed = await run.check("read", {"path": "a"}, call="c1")
        denied = await run.check("shell", {})
    assert (allowed.call, allowed.decision, allowed.execute, allowed.replayed) == ("c1", "allow", True, False)
    assert (denied.decision, denied.execute, denied.stage) == ("deny", False, "privilege")
    assert denied.reason


async def test_a_batch_has_one_verdict_a_call_in_order(tmp_path: Path) -> None:
    tools = ["read", "shell", "write", "shell"]
    async with worker_run(tmp_path) as (_, run):
        verdicts = await run.check_batch([Call(tool, {}, id=f"c{at}") for at, tool in enumerate(tools)])
        atomic = await run.check_batch([Call("read"), Call("shell")], mode="atomic")
    assert [(v.call, v.decision) for v in verdicts] == [("c0", "allow"), ("c1", "deny"), ("c2", "allow"), ("c3", "deny")]
    assert [v.decision for v in atomic] == ["deny", "deny"]


async def test_what_is_left_can_be_asked_without_taking_anything(tmp_path: Path) -> None:
    policy = """
version: 1
agents:
  worker: {allowed_tools: [read], data_scope: any, resource_budget: {max_calls: 3}}
"""
    async with gate(tmp_path, policy) as live, live.bus.agent("worker") as worker, worker.run(run="r") as run:
        await run.check("read", {}, call="c1")
        records = live.daemon.runs.health.records
        for _ in range(2):
            left = await run.can_i([Call("read")] * 3 + [Call("shell")])
            assert (left.status, left.calls, left.left("max_calls")) == ("open", 2, 2)
            assert [verdict.decision for verdict in left.verdicts] == ["allow", "allow", "deny", "deny"]
            assert [verdict.code for verdict in left.verdicts][2:] == ["privilege.calls", "privilege.not_allowed"]
        assert (await run.can_i()).verdicts == ()
        assert live.daemon.runs.health.records == records
        assert (await state(live)).refusals == 0
    async with gate(tmp_path / "2", policy) as live, live.bus.agent("worker") as worker:
        with pytest.raises(Refused, match="run_not_open"):
            await worker.run(run="r", resume=True).can_i()


async def test_checks_at_once_get_each_its_own(tmp_path: Path) -> None:
    async with worker_run(tmp_path) as (_, run):
        verdicts = await asyncio.gather(*(run.check("read", {"n": n}, call=f"c{n}") for n in range(50)))
    assert [verdict.call for verdict in verdicts] == [f"c{n}" for n in range(50)]


@pytest.mark.parametrize(("tool", "call", "code"), [("a b", "c", "ingress.tool_name"), ("réad", "c", "ingress.tool_name")])
async def test_a_bad_name_is_refused_and_the_run_goes_on(tmp_path: Path, tool: str, call: str, code: str) -> None:
    async with worker_run(tmp_path) as (_, run):
        with pytest.raises(Refused) as caught:
            await run.check(tool, {}, call=call)
        assert caught.value.code == code
        assert (await run.check("read")).decision == "allow"


async def test_of_a_batch_with_a_call_that_is_refused_the_other_verdicts_are_not_lost(tmp_path: Path) -> None:
    async with worker_run(tmp_path) as (live, run):
        await run.check("read", {"n": 1}, call="c1")
        with pytest.raises(Refused, match=r"ingress\.id_conflict") as caught:
            await run.check_batch([Call("read", {"n": 2}, id="c1"), Call("write", {}, id="c2")])
        (other,) = caught.value.verdicts
        assert (other.call, other.decision) == ("c2", "allow")
        with pytest.raises(Refused, match=r"ingress\.tool_name"):
            await run.check_batch([Call("no name!"), Call("write", {}, id="c3")])
    assert sorted(await decided(live.log)) == ["c1", "c2"]


async def test_a_payload_that_is_too_large_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with worker_run(tmp_path) as (live, run):
        with pytest.raises(Refused, match=r"ingress.too_large: the message has 1200\d+ bytes, at most 1048576 are taken"):
            await run.check("read", {"a": "x" * 1_200_000})
        assert (await run.check("read", {"a": "x" * 1_000_000})).decision == "allow"
    assert len(await decided(live.log)) == 1


# --- guarded tools --------------------------------------------------------------------------------------------------------


async def test_a_guarded_function_runs_with_its_bound_arguments_and_is_reported(tmp_path: Path) -> None:
    def read(book: str, lines: int = 10) -> str:
        return f"{lines} lines of {book}"

    async def write(book: str) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"wrote": book}

    async with worker_run(tmp_path) as (live, run):
        assert await run.guard(read)("a") == "10 lines of a"
        assert await run.guard(write, "Write")(book="b") == {"wrote": "b"}
        assert not (await state(live)).in_flight
    tools = [made.tool for decisions in (await decided(live.log)).values() for made in decisions]
    assert tools == ["read", "Write"]


async def test_a_denied_tool_does_not_run(tmp_path: Path) -> None:
    ran: list[str] = []
    async with worker_run(tmp_path) as (_, run):
        with pytest.raises(Denied) as caught:
            await run.guard(ran.append, "shell")("rm")
    assert ran == []
    assert caught.value.verdict.decision == "deny"


async def test_a_tools_own_error_reaches_the_caller_and_the_gate(tmp_path: Path) -> None:
    def read() -> None:
        raise KeyError("no such thing")

    async with worker_run(tmp_path) as (live, run):
        with pytest.raises(KeyError, match="no such thing"):
            await run.guard(read)()
        assert not (await state(live)).in_flight


async def test_a_cancelled_tool_is_reported_and_stays_cancelled(tmp_path: Path) -> None:
    started = anyio.Event()

    async def read() -> None:
        started.set()
        await anyio.sleep_forever()

    async with worker_run(tmp_path) as (live, run):
        task = asyncio.ensure_future(run.guard(read)())
        await started.wait()
        assert len((await state(live)).in_flight) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        async def reported() -> bool:
            return not (await state(live)).in_flight

        await until(reported)


async def test_a_call_inside_a_tool_names_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[wire.Intents] = []
    question = Gate.question

    def listening(self: Gate, origin: Any, message: Any, wanted: Any) -> Any:
        if isinstance(message, wire.Intents):
            said.append(message)
        return question(self, origin, message, wanted)

    monkeypatch.setattr(Gate, "question", listening)
    async with worker_run(tmp_path) as (_, run):
        inner = run.guard(lambda: "deep", "inner")

        async def outer() -> str:
            return str(await inner())

        assert await run.guard(outer)() == "deep"
        await run.check("after")
    (first,), (second,), (third,) = (message.calls for message in said)
    assert (first.parent, second.parent, third.parent) == (None, first.id, None)


# --- the end of a run -----------------------------------------------------------------------------------------------------


async def test_a_block_that_ends_finishes_and_one_that_raises_aborts(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.agent("worker") as worker:
        async with worker.run(run="r"):
            pass
        assert (await state(live)).end == "complete"
        with pytest.raises(ValueError, match="mine"):
            async with worker.run(run="s"):
                raise ValueError("mine")
        ended = (await live.daemon.runs.look(ThreadId("s"))).runs[RunId("s")]
    assert (ended.end, ended.reason) == ("aborted", "ValueError: mine")


async def test_tasks_that_only_wait_for_people_leave_the_run_open(tmp_path: Path) -> None:
    """Found by reading: a group of tasks raises a group of `Suspended`, and the run was aborted, its tickets cancelled."""

    async def both(run: Run, second: str) -> None:
        tools = (run.guard(lambda: None, "refund"), run.guard(lambda: None, second))
        raised = await asyncio.gather(*(tool() for tool in tools), return_exceptions=True)
        raise BaseExceptionGroup("two tasks", [error for error in raised if error is not None])

    policy = """
version: 1
agents:
  worker: {allowed_tools: [refund, pay], approval_required: [refund, pay], data_scope: any}
approvals:
  default: {approvers: [user:bob]}
"""
    async with gate(tmp_path, policy) as live, live.bus.agent("worker") as worker:
        with pytest.raises(BaseExceptionGroup):
            async with worker.run(run="r") as run:
                await both(run, "pay")
        assert (await state(live)).end == ""
        with pytest.raises(BaseExceptionGroup):
            async with worker.run(run="r", resume=True) as run:
                await both(run, "shell")
        assert (await state(live)).end == "aborted"


async def test_a_run_whose_opening_is_cancelled_does_not_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a session of `gated mcp` that was stopped between the gate's record of its run and the answer."""

    async def opened() -> bool:
        return RunId("r") in (await live.daemon.runs.look(ThreadId("r"))).runs

    async with gate(tmp_path) as live, live.bus.agent("worker") as worker:
        with monkeypatch.context() as patched:
            patched.setattr(Question, "hear", lambda *_: None)
            opening = asyncio.ensure_future(worker.run(run="r").__aenter__())
            await until(opened)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert (await state(live)).end == "aborted"


async def test_a_generator_that_a_function_gives_back_is_no_success(tmp_path: Path) -> None:
    async def many() -> AsyncIterator[int]:
        yield 1

    async with worker_run(tmp_path) as (_, run):
        with pytest.raises(TypeError, match="`read` returned a generator"):
            await run.guard(lambda: many(), "read")()
        with pytest.raises(TypeError, match="`read` returned a generator"):
            await run.call("read", {}, lambda: (number for number in range(3)))


async def test_a_run_of_another_event_loop_says_so_at_once(tmp_path: Path) -> None:
    """CrewAI and other frameworks run an async tool in a loop of their own: there no answer would ever be heard."""
    async with worker_run(tmp_path) as (_, run):

        def elsewhere() -> None:
            asyncio.run(run.call("read", {}, lambda: pytest.fail("it ran")))

        with pytest.raises(RuntimeError, match=r"connected in another event loop.*`gated\.client\.sync`"):
            await anyio.to_thread.run_sync(elsewhere)


async def test_a_paused_call_stays_in_flight_and_is_made_once_it_goes_on(tmp_path: Path) -> None:
    async with worker_run(tmp_path) as (live, run):
        first = await run.admit("read", {}, call="c1")
        run.paused(first.call)
        assert len((await state(live)).in_flight) == 1
        assert await run.call("read", {}, lambda: "done", call="c1") == "done"
        with pytest.raises(AlreadyMade):
            await run.admit("read", {}, call="c1")


STEERING = """
version: 1
agents:
  worker: {checks: [order], allowed_tools: ["*"], machines: [tested]}
machines:
  - name: tested
    initial: idle
    terminal: [passed]
    transitions:
      - {on: change, from: [idle, changed, passed], to: changed}
      - {on: test, from: [changed], to: passed}
continuation: {message: "Finish: {summary}"}
"""


async def test_a_run_that_is_steered_goes_on(tmp_path: Path) -> None:
    async with gate(tmp_path, STEERING) as live, live.bus.agent("worker") as worker, worker.run(run="r") as run:
        await run.guard(lambda: None, "change")()
        steered = await run.finish()
        assert steered.status == "steer"
        assert steered.message.startswith("Finish: tested")
        await run.guard(lambda: None, "test")()
        assert (await run.finish()).status == "complete"


async def test_an_ended_run_takes_no_more_calls(tmp_path: Path) -> None:
    async with worker_run(tmp_path) as (_, run):
        assert (await run.finish()).status == "complete"
        assert (await run.check("read")).decision == "deny"


# --- no gate, no tool -----------------------------------------------------------------------------------------------------


async def test_without_a_daemon_no_tool_runs(tmp_path: Path) -> None:
    write_policy(tmp_path)
    ran: list[int] = []
    async with server(tmp_path) as (_, bus):
        async with daemon_on(bus, tmp_path), bus.agent("worker") as worker:
            assert (await worker.run(run="r").check("read")).decision == "allow"
        async with bus.agent("worker", 1) as worker:
            with pytest.raises(GateUnavailable, match=r"no verdict within 1s"):
                await worker.run(run="r").call("read", {"x": 1}, ran.append)
            with pytest.raises(GateUnavailable, match=r"no verdict within 0s"):
                await worker.run(run="r").check("read", timeout=0)
    assert ran == []


async def test_a_bus_that_is_not_there_is_unavailable_in_time() -> None:
    said = r"cannot connect to `nats://127\.0\.0\.1:1`"
    with anyio.fail_after(PATIENCE), pytest.raises(GateUnavailable, match=said) as caught:
        async with client.connect("nats://127.0.0.1:1", agent="worker", timeout=0.3):
            pytest.fail("it connected")
    assert caught.value.__suppress_context__


async def test_a_daemon_that_comes_back_in_time_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_module, "AGAIN", 0.1)
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus):
        async with daemon_on(bus, tmp_path):
            pass
        async with bus.agent("worker") as worker, anyio.create_task_group() as tasks:
            verdicts: list[Verdict] = []

            async def ask() -> None:
                verdicts.append(await worker.run(run="r").check("read", call="c"))

            tasks.start_soon(ask)
            await anyio.sleep(0.5)
            assert verdicts == []
            async with daemon_on(bus, tmp_path) as live:
                await until(lambda: verdicts)
    assert len((await decided(live.log))["c"]) == 1


async def test_an_agent_cannot_speak_as_another(tmp_path: Path) -> None:
    """`mailer`'s credentials and `worker`'s name: the server refuses, and the tool does not run."""
    async with gate(tmp_path) as live:
        stranger = live.bus.credentials("agent", "mailer")
        async with client.connect(live.bus.url, agent="worker", timeout=PATIENCE, **stranger) as other:
            with pytest.raises(GateUnavailable, match="permissions violation"):
                await other.run(run="r").check("read")
    assert await decided(live.log) == {}


async def test_a_folder_without_a_gate_or_without_the_agent_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GateUnavailable, match="start one with `gated up`") as caught:
        async with client.connect(agent="worker", data=tmp_path):
            pytest.fail("it connected")
    assert caught.value.__suppress_context__  # nobody reads four tracebacks to learn that there is no gate
    async with gate(tmp_path):
        with pytest.raises(GateUnavailable, match="the policy must name the agent"):
            async with client.connect(agent="nobody", data=tmp_path):
                pytest.fail("it connected")
        async with client.connect(agent="worker", data=tmp_path) as own:
            assert (await own.run().check("read")).decision == "allow"
