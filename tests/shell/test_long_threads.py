"""Of a thread that grows long people are warned, before it is a trouble; while it is read others go on."""

import random
from collections import defaultdict
from pathlib import Path

import anyio
import pytest
import structlog

from gated import wire
from gated.shell import loading, threads
from gated.shell.damaged import DAMAGED
from shell.live import agent, daemon_on, decided, ears, gate, intents, server, tell, write_policy
from shell.test_damaged_threads import harm


async def test_of_a_thread_that_grows_long_people_are_warned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SNAPSHOT", 2)
    monkeypatch.setattr(threads, "LONG", 10)
    with structlog.testing.capture_logs() as lines:
        async with gate(tmp_path) as live, live.bus.user("agent", "worker") as worker:
            heard = await ears(worker, "worker")
            for number in range(25):
                await tell(worker, agent("worker"), "r", intents((f"c{number}", "read", {})), thread="t")
                await heard.count(number + 1)
    warned = [line for line in lines if line["event"].startswith("a thread grows long")]
    assert [(line["log_level"], line["thread"], line["records"] // 10) for line in warned] == [
        ("warning", "t", 1),
        ("warning", "t", 2),
    ]


async def test_other_threads_are_answered_while_a_long_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was read whole before anything else was decided: 100,000 records held every other thread for seconds."""
    write_policy(tmp_path)
    begun, go_on = anyio.Event(), anyio.Event()

    async def between_slices() -> None:
        begun.set()
        await go_on.wait()

    monkeypatch.setattr(loading, "SLICE", 5)
    monkeypatch.setattr(loading, "checkpoint", between_slices)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path):
            for number in range(12):
                await tell(worker, agent("worker"), "long", intents((f"c{number}", "read", {})))
            await heard.count(12)
        heard.heard.clear()
        async with daemon_on(bus, tmp_path) as live:
            for call in ("c12", "c3", "c13"):
                await tell(worker, agent("worker"), "long", intents((call, "read", {})))
            for number in range(3):
                await tell(worker, agent("worker"), f"other{number}", intents((f"o{number}", "read", {})))
            meanwhile = await heard.count(3)
            assert begun.is_set()
            assert [said.call for said in meanwhile if isinstance(said, wire.Verdict)] == ["o0", "o1", "o2"]
            assert "long" not in live.daemon.runs.threads.states
            go_on.set()
            later = (await heard.count(6))[3:]
            told = [(said.call, said.decision, said.replayed) for said in later if isinstance(said, wire.Verdict)]
            assert told == [("c12", "allow", False), ("c3", "allow", True), ("c13", "allow", False)]
    assert {call: len(made) for call, made in (await decided(tmp_path / "log.db")).items() if call[0] == "c"} == {
        f"c{number}": 1 for number in range(14)
    }


@pytest.mark.parametrize("seed", range(3))
async def test_threads_long_and_short_keep_their_order_and_get_one_verdict_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(loading, "SLICE", 2)
    write_policy(tmp_path)
    asked: dict[str, list[str]] = defaultdict(list)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard, said = await ears(worker, "worker"), 0
        for _ in range(3):
            monkeypatch.setattr(threads, "CACHE", dice.choice([1, 2, 10]))
            async with daemon_on(bus, tmp_path):
                for _ in range(60):
                    name = f"t{dice.choice([0, 0, 0, 1, 1, 2, 3])}"
                    asked[name].append(f"{name}-{len(asked[name])}")
                    await tell(worker, agent("worker"), name, intents((asked[name][-1], "read", {})))
                    said += 1
                    if dice.random() < 0.1:
                        await heard.count(said)
                await heard.count(said)
    for name, calls in asked.items():
        told = [message for subject, message in heard.heard if subject.split(".")[2] == name]
        assert [message.call for message in told if isinstance(message, wire.Verdict)] == calls
    assert {call: len(made) for call, made in (await decided(tmp_path / "log.db")).items()} == {
        call: 1 for calls in asked.values() for call in calls
    }


async def test_a_long_thread_that_is_damaged_far_behind_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_policy(tmp_path)
    monkeypatch.setattr(loading, "SLICE", 3)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path):
            for number in range(12):
                await tell(worker, agent("worker"), "long", intents((f"c{number}", "read", {})))
            await heard.count(12)
        harm(tmp_path / "log.db", lambda log: log.execute("update records set body = x'ff' where thread = 'long' and seq = 11"))
        heard.heard.clear()
        async with daemon_on(bus, tmp_path):
            for call in ("a", "b"):
                await tell(worker, agent("worker"), "long", intents((call, "read", {})))
            refused = await heard.count(2)
            assert [(said.code, said.call) for said in refused if isinstance(said, wire.Refusal)] == [
                (DAMAGED, "a"),
                (DAMAGED, "b"),
            ]
