"""The connection: refusals are noticed at once and concern what they name; what was closed for good is made anew."""

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gated import client, wire
from gated.client import GateUnavailable, Refused, Verdict
from gated.client import question as question_module
from patience import PATIENCE, until
from shell.live import Live, daemon_on, decided, gate, server, write_policy


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing below may rest on asking again after a while."""
    monkeypatch.setattr(question_module, "AGAIN", 60.0)
    monkeypatch.setattr(question_module, "RECALL", 60.0)


@asynccontextmanager
async def as_another(live: Live, agent: str = "mailer") -> AsyncIterator[client.Gate]:
    """The name of one agent with the credentials of another."""
    async with client.connect(
        live.bus.url, agent=agent, timeout=10 * PATIENCE, **live.bus.credentials("agent", "worker")
    ) as other:
        yield other


async def test_what_the_server_does_not_let_through_is_noticed_at_once(tmp_path: Path) -> None:
    async with gate(tmp_path) as live:
        with anyio.fail_after(PATIENCE), pytest.raises(GateUnavailable, match=r"refused to (take it|let this agent hear)"):
            async with as_another(live) as other:
                await other.run(run="r").check("read")
    assert await decided(live.log) == {}


async def test_a_refusal_concerns_only_what_it_names(tmp_path: Path) -> None:
    """A word of the server about another subject, of any case, does not stop this agent's other runs."""
    async with gate(tmp_path) as live, live.bus.agent("worker") as worker:
        with worker.question(worker.run(run="Mine").origin, wire.RunFinish(), [None]) as mine:
            worker.denied("publish", "gated.in.other.other.agent.worker", "permissions violation")
            assert not mine._denied
            worker.denied("publish", "gated.in.mine.mine.agent.worker", "permissions violation")
            assert mine._denied
        assert (await worker.run(run="Mine").check("read")).decision == "allow"


async def test_a_connection_that_was_closed_for_good_is_made_anew_and_the_question_asked_again(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.agent("worker") as worker, anyio.create_task_group() as tasks:
        verdicts: list[Verdict] = []

        async def ask(run: str) -> None:
            verdicts.append(await worker.run(run=run).check("read"))

        await worker.line._client.close()
        for number in range(5):
            tasks.start_soon(ask, f"r{number}")
        await until(lambda: len(verdicts) == 5)
        tasks.cancel_scope.cancel()
    assert {verdict.decision for verdict in verdicts} == {"allow"}


async def test_whoever_is_cancelled_leaves_nothing_behind_and_harms_nobody(tmp_path: Path) -> None:
    """While it connects, while it asks, while it waits for people and while it closes."""
    async with gate(tmp_path) as live:
        for patience in (0.0, 0.005, 0.02):
            with anyio.move_on_after(patience):
                async with live.bus.agent("worker"):
                    await anyio.sleep_forever()
        async with live.bus.agent("payer") as payer:
            run = payer.run(run="r")
            for number in range(20):
                with anyio.move_on_after(number / 2000):
                    await run.check("refund", {"n": number}, call=f"c{number}", wait=True)
            assert not payer._questions
            assert not payer._by_call
            with anyio.move_on_after(0.05):
                await run.resume("c19")
            assert (await run.check("refund", {"n": 19}, call="c19")).decision == "suspend"
    made = await decided(live.log)
    assert {len(decisions) for decisions in made.values()} == {1}


async def test_a_gate_that_comes_back_in_another_place_is_found_by_its_folder(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with AsyncExitStack() as stack:
        async with server(tmp_path) as (_, bus), daemon_on(bus, tmp_path):
            worker = await stack.enter_async_context(client.connect(agent="worker", data=tmp_path))
            assert (await worker.run(run="r").check("read", call="c1")).decision == "allow"
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", int(bus.url.rpartition(":")[2])))  # and so another port is chosen
            taken.listen()
            async with server(tmp_path) as (_, moved), daemon_on(moved, tmp_path):
                assert moved.url != bus.url
                assert (await worker.run(run="r").check("read", call="c2")).decision == "allow"


async def test_a_closed_gate_answers_at_once(tmp_path: Path) -> None:
    async with gate(tmp_path) as live:
        async with live.bus.agent("worker") as worker:
            run = worker.run(run="r")
        with pytest.raises(GateUnavailable, match="the connection was closed"):
            await run.check("read")


@pytest.mark.parametrize(
    ("args", "more", "code"),
    [
        ({"x": float("nan")}, {}, "ingress.args"),
        ({"x": [1, {"y": float("inf")}]}, {}, "ingress.args"),
        ({"x": Path("a")}, {}, "ingress.args"),
        ({"x": {1: 2}}, {}, "ingress.args"),
        ({"x": "\ud800"}, {}, "ingress.args"),
        ({}, {"cost_usd": float("nan")}, "ingress.cost"),
        ({}, {"cost_usd": -1.0}, "ingress.cost"),
        ({}, {"call": "a b"}, "ingress.id"),
    ],
)
async def test_what_json_would_change_on_the_way_is_refused_before_it_is_sent(
    tmp_path: Path, args: dict[str, Any], more: dict[str, Any], code: str
) -> None:
    async with gate(tmp_path) as live, live.bus.agent("worker") as worker:
        with pytest.raises(Refused) as caught:
            await worker.run(run="r").check("read", args, **more)
        assert caught.value.code == code
    assert await decided(live.log) == {}


@pytest.mark.parametrize(
    "result",
    [float("nan"), {1, 2}, list(range(20_000)), "x" * 2_000_000, "\ud800", {"deep": 1}, None, 10**400],
    ids=["nan", "set", "many", "long", "surrogate", "plain", "none", "big"],
)
async def test_any_result_of_a_tool_is_reported(tmp_path: Path, result: Any) -> None:
    async with gate(tmp_path) as live, live.bus.agent("worker") as worker, worker.run(run="r") as run:
        assert (await run.guard(lambda: result, "read")()) is result
        state = await live.daemon.runs.look(run.thread)
        assert state.runs[run.id].step_count == 1
