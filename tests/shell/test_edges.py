"""Exactly-once and fail-closed at the edges: the longest names, the largest messages, batches, kills around an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

import anyio
import msgspec
import pytest
from anyio import to_thread
from nats.aio.client import Client
from nats.aio.msg import Msg

from gated import wire
from gated.client import Verdict
from gated.events import Record, Sender, ThreadId
from gated.shell.faults import Point
from gated.shell.log import LogUnavailable
from gated.shell.log.open import open_log
from patience import PATIENCE
from shell.live import (
    Bus,
    Ears,
    Live,
    agent,
    daemon_on,
    decided,
    ears,
    gate,
    intents,
    process,
    server,
    stop,
    tell,
    write_policy,
)

POLICY = """
version: 1
agents:
  worker:
    checks: [privilege]
    allowed_tools: [read, ask, typed]
    approval_required: [ask]
    data_scope: {allowed_paths: [/w]}
tools: {typed: {schema: {properties: {s: {type: integer}}}}}
approvals: {default: {approvers: [group:leads], timeout: 1h}}
groups: {leads: [bob]}
"""
LONG = "x" * 128
BOB = Sender("approver", "bob")


def full(call: str, tool: str, key: str = "s", fill: str = "a") -> bytes:
    """An intent of exactly the largest payload."""
    empty = wire.encode(intents((call, tool, {key: ""})))
    return wire.encode(intents((call, tool, {key: fill * (wire.MAX_PAYLOAD - len(empty))})))


async def approve(bus: Bus, run: str, ticket: str, digest: str, decision_id: str = "d") -> None:
    async with bus.user("approver", "bob") as bob:
        answer = wire.Resolution(ticket=ticket, decision="approve", decision_id=decision_id, args_sha256=digest)
        await tell(bob, BOB, run, answer)
        await bob.flush()


class Audited(NamedTuple):
    """A gate, an agent of it, what that agent hears, and the records that auditors hear of."""

    live: Live
    worker: Client
    heard: Ears
    events: list[dict[str, Any]]


@asynccontextmanager
async def audited(folder: Path) -> AsyncIterator[Audited]:
    events: list[dict[str, Any]] = []

    async def note(message: Msg) -> None:
        events.append(json.loads(message.data))

    async with (
        gate(folder, POLICY) as live,
        live.bus.user("agent", "worker") as worker,
        live.bus.user("auditor", "local") as auditor,
    ):
        heard = await ears(worker, "worker")
        await auditor.subscribe("gated.events.>", cb=note)
        await auditor.flush()
        yield Audited(live, worker, heard, events)


@pytest.mark.parametrize(
    ("tool", "key", "code"),
    [
        ("read", "s", None),
        ("ask", "s", "privilege.approval_required"),
        ("typed", "s", "ingress.schema"),
        ("read", "/etc/x", "privilege.data_scope"),
        ("shell", "s", "privilege.not_allowed"),
    ],
)
async def test_the_largest_message_gets_its_verdict_whatever_it_is(tmp_path: Path, tool: str, key: str, code: str | None) -> None:
    async with audited(tmp_path) as (_, worker, heard, events):
        await tell(worker, agent("worker"), "r", full("c", tool, key))
        (verdict,) = await heard.count(1)
        assert isinstance(verdict, Verdict)
        assert (verdict.call, verdict.code) == ("c", code)
        assert len(verdict.reason or "") < 1000
        await heard.until(lambda: len(events) == 1)
        assert (events[0]["thread"], events[0]["seq"]) == ("r", 1)


async def test_of_a_record_that_the_bus_does_not_take_auditors_hear_that_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with audited(tmp_path) as (live, worker, heard, events):
        monkeypatch.setattr(live.daemon.receiver.client, "_max_payload", 1_500_000)
        await tell(worker, agent("worker"), "r", full("c", "ask"))
        assert isinstance((await heard.count(1))[0], Verdict)
        await heard.until(lambda: len(events) == 1)
        async with open_log(str(tmp_path / "log.db")) as log:
            (stored,) = [stored async for _, stored in log.read_all()]
    (event,) = events
    assert event == {
        **{name: getattr(stored, name) for name in ("thread", "run", "seq", "at", "kind", "prev", "hash")},
        "bytes": len(stored.body),
        "omitted": True,
    }


async def test_a_log_that_cannot_be_read_for_a_while_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.user("agent", "worker") as worker:
        heard, runs, left = await ears(worker, "worker"), live.daemon.runs, [3, 3]
        load, get = runs.log.load_snapshot, runs.log.get

        async def late_load(thread: ThreadId) -> tuple[int, bytes] | None:
            left[0] -= 1
            if left[0] >= 0:
                raise LogUnavailable("the disk is away")
            return await load(thread)

        async def late_get(thread: ThreadId, seq: int) -> Record | None:
            left[1] -= 1
            if left[1] >= 0:
                raise LogUnavailable("the disk is away")
            return await get(thread, seq)

        monkeypatch.setattr(runs.log, "load_snapshot", late_load)
        await tell(worker, agent("worker"), "r", intents(("c", "read", {})))
        assert [a.decision for a in await heard.count(1) if isinstance(a, Verdict)] == ["allow"]
        assert left[0] < 0
        assert runs.health.why == ""
        monkeypatch.setattr(runs.log, "get", late_get)  # a repeat is answered out of the log
        await tell(worker, agent("worker"), "r", intents(("c", "read", {})))
        assert [a.replayed for a in await heard.count(2) if isinstance(a, Verdict)] == [False, True]
        assert left[1] < 0
    assert len((await decided(tmp_path / "log.db"))["c"]) == 1


async def test_a_batch_of_more_calls_than_a_message_may_hold_is_refused_whole(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        many: list[tuple[str, str, dict[str, Any]]] = [(f"c{n}", "read", {}) for n in range(10_000)]
        await tell(worker, agent("worker"), "r", intents(*many))
        (refusal,) = await heard.count(1)
        assert isinstance(refusal, wire.Refusal)
        assert refusal.code in ("ingress.shape", "ingress.too_large")
        assert any(limit in refusal.reason for limit in ("1000", "10000", str(wire.MAX_PAYLOAD)))
        await tell(worker, agent("worker"), "r", intents(("sound", "read", {})))
        assert isinstance((await heard.count(2))[1], Verdict)


@pytest.mark.parametrize("mode", ["each", "atomic"])
async def test_the_largest_batch_gets_one_verdict_a_call(tmp_path: Path, mode: str) -> None:
    policy = POLICY.replace("version: 1", "version: 1\nlimits: {max_in_flight: 10000}")
    async with gate(tmp_path, policy) as live, live.bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        batch = msgspec.structs.replace(intents(*((f"c{n}", "read", {}) for n in range(1000))), mode=mode)
        await tell(worker, agent("worker"), "r", batch)
        answers = await heard.count(1000)
        assert {a.call for a in answers if isinstance(a, Verdict) and a.decision == "allow"} == {f"c{n}" for n in range(1000)}


async def test_the_longest_names_go_all_the_way(tmp_path: Path) -> None:
    """Thread, run and call of 128 characters: asked, restarted, approved, reported, and looked up."""
    write_policy(tmp_path, POLICY)
    run, thread, call = "r" * 128, "t" * 128, "c" * 128
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path):
            await tell(worker, agent("worker"), run, intents((call, "ask", {})), thread=thread)
            (first,) = await heard.count(1)
            assert isinstance(first, Verdict)
            assert first.ticket is not None
        async with daemon_on(bus, tmp_path) as live, bus.user("approver", "bob") as bob:
            answer = wire.Resolution(ticket=first.ticket, decision="approve", decision_id=LONG, args_sha256=first.args_sha256)
            await tell(bob, BOB, run, answer, thread=thread)
            await bob.flush()
            second = (await heard.count(2))[1]
            assert isinstance(second, Verdict)
            assert (second.call, second.decision) == (call, "allow")
            await tell(worker, agent("worker"), run, wire.Outcome(call=call, status="success"), thread=thread)
            await heard.count(3)
            state = await live.daemon.runs.look(ThreadId(thread))
            assert [run.step_count for run in state.runs.values()] == [1]
    assert [d.decision for d in (await decided(tmp_path / "log.db"))[call]] == ["suspend", "allow"]


@pytest.mark.parametrize("point", get_args(Point))
async def test_an_approval_is_used_once_although_the_daemon_dies_of_it(tmp_path: Path, point: str) -> None:
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path):
            await tell(worker, agent("worker"), "r", intents(("c", "ask", {})))
            (first,) = await heard.count(1)
        assert isinstance(first, Verdict)
        assert first.ticket is not None
        await approve(bus, "r", first.ticket, first.args_sha256)
        with process(bus, tmp_path, point) as dying:
            assert await to_thread.run_sync(dying.wait, PATIENCE) < 0
        await approve(bus, "r", first.ticket, first.args_sha256, "another")
        with process(bus, tmp_path) as last:
            await heard.until(lambda: any(isinstance(a, Verdict) and a.decision == "allow" for _, a in heard.heard), 20)
            await anyio.sleep(0.2)
            assert await to_thread.run_sync(stop, last) == 0
    decisions = (await decided(tmp_path / "log.db"))["c"]
    assert [d.decision for d in decisions] == ["suspend", "allow"]
    allowed = {(a.call, a.seq) for _, a in heard.heard if isinstance(a, Verdict) and a.decision == "allow"}
    assert len(allowed) == 1


async def test_a_reload_in_the_middle_of_many_messages_leaves_no_call_without_its_one_verdict(tmp_path: Path) -> None:
    """A run keeps the policy it was opened under, and every verdict names the policy that made it."""
    write_policy(tmp_path, POLICY)
    tight = POLICY.replace("allowed_tools: [read, ask, typed]", "allowed_tools: [ask]")
    async with gate(tmp_path, POLICY) as live, live.bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        for number in range(300):
            await tell(worker, agent("worker"), f"r{number % 30 + 30 * (number > 150)}", intents((f"c{number}", "read", {})))
            if number == 150:
                await heard.count(150)
                write_policy(tmp_path, tight)
                assert await live.daemon.reload()
        answers = [a for a in await heard.count(300) if isinstance(a, Verdict)]
    assert len({a.call for a in answers}) == len(answers) == 300
    by_policy = {policy: {a.decision for a in answers if a.policy == policy} for policy in {a.policy for a in answers}}
    assert sorted(map(sorted, by_policy.values())) == [["allow"], ["deny"]]
    assert {call: len(made) for call, made in (await decided(tmp_path / "log.db")).items() if len(made) != 1} == {}
