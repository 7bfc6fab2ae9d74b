"""Reload: a changed policy binds new runs only; a broken one changes nothing and health says so."""

import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats.errors
import pytest
import structlog
from anyio import to_thread
from nats.aio.client import Client

from gated import wire
from gated.client import Gate
from gated.events import Sender
from gated.shell import threads
from gated.shell.onnx_files import write_model
from gated.shell.policies import read_policy
from patience import PATIENCE, until
from shell.live import POLICY, Bus, daemon_on, decided, gate, process, said, server, stop, tell, write_policy

STRICTER = POLICY.replace("forbidden_tools: [shell]", "forbidden_tools: [shell, read]")
LEARNED = 'checks: [privilege, dcbf]\n    dcbf: {neural: {model: m.onnx}}\n    allowed_tools: ["*"]'
BROKEN = POLICY + "surprise: true\n"


async def health(connected: Client) -> dict[str, Any]:
    answer = await connected.request("gated.api.health", b"", timeout=PATIENCE)
    found: dict[str, Any] = json.loads(answer.data)
    return found


async def reads(worker: Gate, run: str) -> str:
    return (await worker.run(run=run).check("read", {})).decision


async def test_a_changed_policy_binds_new_runs_only(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.agent("worker") as worker:
        assert await reads(worker, "old") == "allow"
        write_policy(tmp_path, STRICTER)
        assert await live.daemon.reload() is True
        assert await reads(worker, "new") == "deny"
        assert await reads(worker, "old") == "allow"
        assert await live.daemon.reload() is False
    made = [decision for decisions in (await decided(live.log)).values() for decision in decisions]
    assert [decision.decision for decision in made] == ["allow", "deny", "allow"]


@pytest.mark.parametrize("broken", [BROKEN, "", ": :", "version: 1\nagents: {worker: {checks: [nonsense]}}\n", "\0"])
async def test_a_broken_policy_keeps_the_old_one_and_health_says_why(tmp_path: Path, broken: str) -> None:
    async with gate(tmp_path) as live, live.bus.agent("worker") as worker, live.bus.user("operator", "local") as operator:
        before = await health(operator)
        write_policy(tmp_path, broken)
        assert await live.daemon.reload() is False
        after = await health(operator)
        assert after["policy"] == before["policy"]
        assert "policy.yaml:" in after["reload_failed"]
        assert await reads(worker, "new") == "allow"
        write_policy(tmp_path)
        with structlog.testing.capture_logs() as lines:
            assert await live.daemon.reload() is False
        assert [line["event"] for line in lines] == ["the policy file is whole again: it says what holds"]
        assert (await health(operator))["reload_failed"] == ""
        write_policy(tmp_path, broken)
        assert await live.daemon.reload() is False
        write_policy(tmp_path, STRICTER)
        assert await live.daemon.reload() is True
        assert (await health(operator))["reload_failed"] == ""


async def test_policies_that_nothing_is_bound_to_any_more_leave_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reload left its policy in memory for good."""
    monkeypatch.setattr(threads, "POLICIES", 4)
    monkeypatch.setattr(threads, "UNUSED", 0.0)
    monkeypatch.setattr(threads, "CACHE", 3)
    async with gate(tmp_path) as live, live.bus.agent("worker") as worker:
        held = live.daemon.runs.threads
        for number in range(30):
            write_policy(tmp_path, POLICY.replace("max_calls: 100000", f"max_calls: {number + 2}"))
            assert await live.daemon.reload() is True
            assert await reads(worker, f"r{number}") == "allow"
        assert len(held.registry.known) <= 16
        bound = {digest for state in held.states.values() for digest in state.policies}
        assert bound <= held.registry.known.keys()
        run = worker.run(run="r1", resume=True)  # its thread and its policy are in the log only
        assert [(await run.check("read", {"n": n})).code for n in range(3)] == [None, None, "privilege.calls"]
    assert await decided(live.log)


OPERATOR = Sender("operator", "local")


async def bind(operator: Client, digest: str) -> dict[str, Any] | None:
    """Bind the run `r`; the refusal, where there is one."""
    told = await operator.subscribe("gated.out.*.*.operator.local")
    await tell(operator, OPERATOR, "r", wire.PolicyBind(policy=digest), uuid4().hex)
    try:
        refusal: dict[str, Any] = json.loads((await told.next_msg(0.5)).data)
        return refusal
    except nats.errors.TimeoutError:
        return None
    finally:
        await told.unsubscribe()


async def test_a_run_is_bound_to_a_policy_that_the_log_has_by_then(tmp_path: Path) -> None:
    """And a replay, which knows all policies of the log, says the same of the time before."""
    async with gate(tmp_path) as live, live.bus.agent("worker") as worker, live.bus.user("operator", "local") as operator:
        await reads(worker, "r")
        later = read_policy(write_policy(tmp_path, STRICTER)).digest
        refusal = await bind(operator, later)
        assert refusal is not None
        assert refusal["code"] == "ingress.id"
        assert later in refusal["reason"]
        assert "policy" in refusal["reason"]
        assert await live.daemon.reload() is True
        assert await bind(operator, later) is None
        assert (await worker.run(run="r").check("read", {})).decision == "deny"
    assert await decided(live.log)


async def test_a_run_is_bound_to_a_policy_that_only_the_log_has(tmp_path: Path) -> None:
    earlier = read_policy(write_policy(tmp_path)).digest
    async with server(tmp_path) as (_, bus):
        async with daemon_on(bus, tmp_path):
            pass
        write_policy(tmp_path, STRICTER)
        async with daemon_on(bus, tmp_path) as live, bus.agent("worker") as worker, bus.user("operator", "local") as operator:
            assert await reads(worker, "r") == "deny"
            assert await bind(operator, earlier) is None
            assert await reads(worker, "r") == "allow"
    assert await decided(live.log)


async def test_a_verdict_that_is_replayed_names_the_policy_that_made_it(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.agent("worker") as worker, live.bus.user("operator", "local") as operator:
        run = worker.run(run="r", resume=True)
        first = [await run.check("read", {}, call=f"before{number}") for number in range(2)]
        for text in (STRICTER, POLICY + "tools: {read: {cost_usd: 0.5}}\n"):
            write_policy(tmp_path, text)
            assert await live.daemon.reload() is True
            assert await bind(operator, live.daemon.runs.registry.current.digest) is None
            first += [await run.check("read", {}, call=f"after{len(first)}")]
        again = [await run.resume(verdict) for verdict in first]
        last = await run.check("read", {}, call="before0")
    assert len({verdict.policy for verdict in first}) == 3
    assert [(verdict.policy, verdict.decision, verdict.replayed) for verdict in again] == [
        (verdict.policy, verdict.decision, True) for verdict in first
    ]
    assert last.policy == first[0].policy


async def test_a_policy_that_is_gone_keeps_the_old_one(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("operator", "local") as operator:
        (tmp_path / "policy.yaml").unlink()
        assert await live.daemon.reload() is False
        assert "there is no such file" in (await health(operator))["reload_failed"]


# --- the daemon's process, as people reload it ----------------------------------------------------------------------------


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[Bus, Callable[[signal.Signals], None]]]:
    async with server(folder) as (_, bus):
        with process(bus, folder) as running:
            await to_thread.run_sync(said, folder, "ready")
            yield bus, running.send_signal
            assert await to_thread.run_sync(stop, running) == 0


def replace(folder: Path, text: str) -> None:
    """As editors do."""
    (folder / "policy.yaml.new").write_text(text)
    (folder / "policy.yaml.new").replace(folder / "policy.yaml")


@pytest.mark.parametrize("change", [write_policy, replace])
async def test_a_change_of_the_file_is_noticed(tmp_path: Path, change: Callable[[Path, str], object]) -> None:
    write_policy(tmp_path)
    async with served(tmp_path) as (bus, _), bus.agent("worker") as worker, bus.user("operator", "local") as operator:
        digest = (await health(operator))["policy"]
        assert await reads(worker, "old") == "allow"

        async def changed() -> bool:
            return bool((await health(operator))["policy"] != digest)

        async def failed() -> bool:
            return "surprise" in (await health(operator))["reload_failed"]

        change(tmp_path, BROKEN)
        await until(failed)
        assert not await changed()
        change(tmp_path, STRICTER)
        await until(changed)
        assert not await failed()
        assert (await reads(worker, "new"), await reads(worker, "old")) == ("deny", "allow")
    await decided(tmp_path / "log.db")


async def test_sighup_reloads_a_file_that_was_changed_elsewhere(tmp_path: Path) -> None:
    elsewhere = write_policy(tmp_path / "elsewhere")
    (tmp_path / "policy.yaml").symlink_to(elsewhere)
    async with served(tmp_path) as (bus, send), bus.agent("worker") as worker:
        assert await reads(worker, "old") == "allow"
        write_policy(tmp_path / "elsewhere", STRICTER)
        send(signal.SIGHUP)
        await to_thread.run_sync(said, tmp_path, "policy reloaded")
        assert (await reads(worker, "new"), await reads(worker, "old")) == ("deny", "allow")


async def test_a_run_keeps_its_policy_over_a_restart_with_another(tmp_path: Path) -> None:
    write_policy(tmp_path)
    for text, answers in ((POLICY, ("allow", "allow")), (STRICTER, ("allow", "deny"))):
        write_policy(tmp_path, text)
        async with served(tmp_path) as (bus, _), bus.agent("worker") as worker:
            assert (await reads(worker, "old"), await reads(worker, f"new-{answers[1]}")) == answers
    await decided(tmp_path / "log.db")


async def test_a_change_of_a_model_beside_the_policy_is_noticed(tmp_path: Path) -> None:
    """Its weights are part of the policy. h = most - steps: first no call is safe, then one is."""

    def model(most: float) -> None:
        layer = {"weights": [[-1.0]], "bias": [most], "activation": "none"}
        (tmp_path / "m.onnx").write_bytes(write_model(["steps"], [layer]))

    model(0.5)
    write_policy(tmp_path, POLICY.replace('checks: [privilege]\n    allowed_tools: ["*"]', LEARNED, 1))
    async with served(tmp_path) as (bus, _), bus.agent("worker") as worker, bus.user("operator", "local") as operator:
        digest = (await health(operator))["policy"]
        assert await reads(worker, "old") == "deny"

        async def changed() -> bool:
            return bool((await health(operator))["policy"] != digest)

        model(1.5)
        await until(changed)
        assert (await reads(worker, "new"), await reads(worker, "old")) == ("allow", "deny")
    (tmp_path / "m.onnx").unlink()
    await decided(tmp_path / "log.db")
