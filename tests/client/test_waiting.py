"""Waiting for people: across suspension, daemon and bus restarts and the agent's own, exactly one verdict and one execution."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from nats.aio.client import Client

from gated import wire
from gated.client import (
    AlreadyMade,
    Call,
    Denied,
    Expired,
    Gate,
    Refused,
    Rejected,
    Suspended,
    Unreported,
    Verdict,
    current_call,
)
from gated.events import CallDecided, RunId, Sender, ThreadId
from patience import until
from shell.live import Clock, Live, daemon_on, decided, gate, server, tell, write_policy

SHORT = """
version: 1
agents:
  payer: {checks: [privilege], allowed_tools: [refund, read], approval_required: [refund]}
approvals:
  default: {approvers: [group:leads], timeout: TIMEOUT, may_answer: true}
groups: {leads: [ana, bob]}
"""


def policy(timeout: str = "15m") -> str:
    return SHORT.replace("TIMEOUT", timeout)


@asynccontextmanager
async def asking(folder: Path, lives: str = "15m") -> AsyncIterator[tuple[Live, Gate, Client]]:
    """A gate, the agent's connection and bob's."""
    async with gate(folder, policy(lives)) as live, live.bus.agent("payer") as payer, live.bus.user("approver", "bob") as bob:
        yield live, payer, bob


async def answer(bob: Client, verdict: Verdict, decision: Any = "approve", **more: Any) -> None:
    assert verdict.ticket is not None
    digest = verdict.args_sha256
    said = wire.Resolution(ticket=verdict.ticket, decision=decision, decision_id="d", args_sha256=digest, **more)
    await tell(bob, Sender("approver", "bob"), "r", said)
    await bob.flush()


async def suspension(live: Live, call: str = "c") -> Verdict:
    """The suspension of a call, once it is in the log."""

    async def found() -> list[CallDecided] | None:
        return (await decided(live.log)).get(call)

    return wire.verdict((await until(found))[0], "", 0, 0)


async def settled(live: Live) -> bool:
    return not (await live.daemon.runs.look(ThreadId("r"))).runs[RunId("r")].in_flight


# --- the answer reaches whoever waits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("decision", "wanted"), [("approve", None), ("reject", Rejected)])
async def test_a_waiting_call_ends_with_what_a_person_said(tmp_path: Path, decision: str, wanted: type[Denied] | None) -> None:
    ran: list[int] = []
    async with asking(tmp_path) as (live, payer, bob), anyio.create_task_group() as tasks:
        run, caught = payer.run(run="r"), list[BaseException]()

        async def work() -> None:
            try:
                await run.call("refund", {"amount": 2}, lambda amount: ran.append(amount), call="c", wait=True)
            except Denied as denied:
                caught.append(denied)

        tasks.start_soon(work)
        await answer(bob, await suspension(live), decision, note="no receipt")
    assert ran == ([] if wanted else [2])
    assert [type(error) for error in caught] == ([wanted] if wanted else [])
    assert not wanted or "no receipt" in str(caught[0])


async def test_a_call_that_nobody_answers_expires_for_whoever_waits(tmp_path: Path) -> None:
    async with asking(tmp_path, "1s") as (_, payer, _bob):
        with pytest.raises(Expired, match="nobody answered within 1s"):
            await payer.run(run="r").call("refund", {"amount": 1}, lambda amount: pytest.fail("it ran"), wait=True)


async def test_waiting_has_an_end_where_one_is_set_and_the_ticket_stays(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, payer, bob):
        run = payer.run(run="r")
        assert (await run.check("refund", {"amount": 1}, call="c", wait=0.2)).decision == "suspend"
        with pytest.raises(Suspended) as caught:
            await run.call("refund", {"amount": 1}, lambda amount: amount, call="c")
        await answer(bob, caught.value.verdict)
        assert (await run.resume("c")).decision == "allow"


async def test_three_that_wait_together_get_three_verdicts_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answered in the other order: one approved, one rejected, one by time."""
    verdicts: list[Verdict] = []
    async with asking(tmp_path) as (live, payer, bob), anyio.create_task_group() as tasks:
        calls = [Call("refund", {"amount": n}, id=f"c{n}") for n in range(3)]

        async def work() -> None:
            verdicts.extend(await payer.run(run="r").check_batch(calls, wait=True))

        tasks.start_soon(work)
        await answer(bob, await suspension(live, "c2"), "reject")
        await answer(bob, await suspension(live, "c1"))

        async def answered() -> bool:
            made = await decided(live.log)
            return len(made["c1"]) == len(made["c2"]) == 2

        await until(answered)
        Clock(monkeypatch).forward(live, 15 * 60)
    assert [(v.call, v.decision, v.code) for v in verdicts] == [
        ("c0", "deny", "approvals.expired"),
        ("c1", "allow", None),
        ("c2", "deny", "approvals.rejected"),
    ]


async def test_two_that_wait_for_the_same_call_both_hear_and_only_one_makes_it(tmp_path: Path) -> None:
    ran: list[int] = []
    caught: list[BaseException] = []
    async with asking(tmp_path) as (live, payer, bob), anyio.create_task_group() as tasks:
        run = payer.run(run="r")

        async def work() -> None:
            try:
                await run.call("refund", {"amount": 1}, lambda amount: ran.append(amount), call="c", wait=True)
            except AlreadyMade as made:
                caught.append(made)

        tasks.start_soon(work)
        tasks.start_soon(work)
        await answer(bob, await suspension(live))
    assert (ran, len(caught)) == ([1], 1)


# --- edited and answered -------------------------------------------------------------------------------------------------------


async def test_an_edited_call_runs_with_the_edited_arguments(tmp_path: Path) -> None:
    async with asking(tmp_path) as (live, payer, bob), anyio.create_task_group() as tasks:
        results: list[Any] = []

        async def work() -> None:
            results.append(await payer.run(run="r").call("refund", {"amount": 900}, lambda amount: amount, call="c", wait=True))

        tasks.start_soon(work)
        await answer(bob, await suspension(live), args={"amount": 9})
    assert results == [9]


async def test_where_a_person_answered_for_the_tool_it_does_not_run(tmp_path: Path) -> None:
    async with asking(tmp_path) as (live, payer, bob), anyio.create_task_group() as tasks:
        results: list[Any] = []

        async def work() -> None:
            run = payer.run(run="r")
            refund = run.guard(lambda amount: pytest.fail("it ran"), "refund", wait=True)
            results.append(await refund(900))
            suspended = await run.check("refund", {"amount": 1})
            assert suspended.decision == "suspend"

        tasks.start_soon(work)
        (call,) = await until(lambda: decided(live.log))
        await answer(bob, await suspension(live, call), result={"done": "by hand"})
    assert results == [{"done": "by hand"}]


# --- restarts ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("meanwhile", [True, False], ids=["answered before it is back", "answered after"])
@pytest.mark.parametrize("by", ["id", "call", "call again"])
async def test_an_agent_that_restarts_goes_on_with_its_call(tmp_path: Path, by: str, meanwhile: bool) -> None:
    ran: list[int] = []
    async with asking(tmp_path) as (live, first, bob):
        with pytest.raises(Suspended) as caught:
            async with first.run(run="r") as run:
                await run.call("refund", {"amount": 5}, ran.append, call="c")
        if meanwhile:
            await answer(bob, caught.value.verdict)
        async with live.bus.agent("payer") as second, second.run(run="r", resume=True) as run, anyio.create_task_group() as tasks:

            async def work() -> None:
                if by == "call again":
                    await run.call("refund", {"amount": 5}, lambda amount: ran.append(amount), call="c", wait=True)
                    return
                verdict = await run.resume("c" if by == "id" else Call("refund", {"amount": 5}, id="c"))
                assert (verdict.decision, verdict.settled) == ("allow", False)
                ran.append(5)
                await run.report("c", "success")

            tasks.start_soon(work)
            if not meanwhile:
                await anyio.sleep(0.1)
                await answer(bob, caught.value.verdict)
        assert await settled(live)
        async with live.bus.agent("payer") as third:
            run = third.run(run="r", resume=True)
            assert (await run.resume("c")).settled
            with pytest.raises(AlreadyMade):
                await run.call("refund", {"amount": 5}, ran.append, call="c", wait=True)
    assert ran == [5]
    made = await decided(live.log)
    assert [d.decision for d in made["c"]] == ["suspend", "allow"]


async def test_what_the_gate_never_heard_of_cannot_be_resumed_by_its_id_alone(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, payer, _bob):
        run = payer.run(run="r")
        with pytest.raises(Refused, match=r"lifecycle.run_not_open: there is no such run"):
            await run.resume("c")
        assert (await run.resume(Call("read", {}, id="d"))).decision == "allow"
        with pytest.raises(Refused, match=r"ingress\.id: the run knows no call `c`"):
            await run.resume("c")
        with pytest.raises(Refused, match="cannot be the id of a call"):
            await run.resume("a b")


async def test_a_restarted_daemon_still_tells_whoever_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answered while the agent waits and the daemon is away; and expired while it was down: once, with its one verdict."""
    write_policy(tmp_path, policy())
    verdicts: dict[str, Verdict] = {}
    async with AsyncExitStack() as stack:
        _, bus = await stack.enter_async_context(server(tmp_path))
        payer = await stack.enter_async_context(bus.agent("payer"))
        bob = await stack.enter_async_context(bus.user("approver", "bob"))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        run = payer.run(run="r")

        async def work(call: str) -> None:
            verdicts[call] = await run.check("refund", {"call": call}, call=call, wait=True)

        async with daemon_on(bus, tmp_path) as live:
            tasks.start_soon(work, "c")
            tasks.start_soon(work, "d")
            suspended = await suspension(live, "c")
            await suspension(live, "d")
        await answer(bob, suspended)
        Clock(monkeypatch, ahead=15 * 60 + 1)
        async with daemon_on(bus, tmp_path) as live:
            await until(lambda: len(verdicts) == 2)
    assert (verdicts["c"].decision, verdicts["d"].code) == ("allow", "approvals.expired")
    made = await decided(live.log)
    assert {call: [d.decision for d in decisions] for call, decisions in made.items()} == {
        "c": ["suspend", "allow"],
        "d": ["suspend", "deny"],
    }


async def test_a_connection_that_comes_back_brings_the_answer_that_was_missed(tmp_path: Path) -> None:
    verdicts: list[Verdict] = []
    async with asking(tmp_path) as (live, payer, bob), anyio.create_task_group() as tasks:

        async def work() -> None:
            verdicts.append(await payer.run(run="r").check("refund", {}, call="c", wait=True))

        tasks.start_soon(work)
        suspended = await suspension(live)
        transport: Any = payer.line._client._transport
        transport.close()  # the agent alone is cut off, and misses what is said now
        await answer(bob, suspended)
    assert verdicts[0].decision == "allow"


# --- nothing runs that was not decided ------------------------------------------------------------------------------------


async def test_arguments_that_change_while_people_think_do_not_run(tmp_path: Path) -> None:
    args = {"amount": 1}
    async with asking(tmp_path) as (live, payer, bob), anyio.create_task_group() as tasks:
        caught: list[str] = []

        async def work() -> None:
            try:
                await payer.run(run="r").call("refund", args, lambda amount: pytest.fail("it ran"), call="c", wait=True)
            except Exception as error:
                caught.append(str(error))

        tasks.start_soon(work)
        suspended = await suspension(live)
        args["amount"] = 1000
        await answer(bob, suspended)
    assert caught == ["the arguments of `refund` changed after they were decided: the call did not run"]
    assert await settled(live)


async def test_a_result_is_not_lost_where_its_report_is_refused(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, payer, _bob):
        run = payer.run(run="r")

        async def read() -> str:
            call = (await run.check("read", {})).call
            await run.report(call, "success")
            return "text"

        async def twice() -> str:
            await run.report(current_call() or "", "success")
            return await read()

        with pytest.raises(Unreported, match="already_settled") as caught:
            await run.guard(twice, "read")()
    assert caught.value.result == "text"
