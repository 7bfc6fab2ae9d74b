"""Many people, many tickets, kills and restarts: every ticket ends once, in time, and its agent hears it once."""

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, get_args

import anyio
import msgspec
import pytest
from anyio import to_thread
from nats.aio.client import Client
from nats.aio.msg import Msg

from gated import wire
from gated.client import Call, Verdict
from gated.events import CallDecided, Record, Sender, TicketClosed, TicketNoted, unseal
from gated.shell.faults import Point
from gated.shell.log.open import open_log
from patience import until
from shell.live import USERS, Clock, daemon_on, decided, process, server, stop, tell, write_policy
from shell.test_crash import dead

PEOPLE = [f"p{number}" for number in range(50)]
RUNS, CALLS = 20, 50

POLICY = """
version: 1
agents:
  payer: {checks: [privilege], allowed_tools: [refund], approval_required: [refund], resource_budget: {max_calls: 2000}}
approvals: {default: {approvers: [group:people], timeout: TIMEOUT}}
groups: {people: [PEOPLE]}
limits: {max_in_flight: 1000}
"""


def policy(timeout: str = "15m") -> str:
    return POLICY.replace("TIMEOUT", timeout).replace("PEOPLE", ", ".join([*PEOPLE, "bob"]))


async def answer(person: Client, name: str, verdict: Verdict, run: str, decision: Any, decision_id: str) -> None:
    assert verdict.ticket is not None
    digest = verdict.args_sha256
    said = wire.Resolution(ticket=verdict.ticket, decision=decision, decision_id=decision_id, args_sha256=digest)
    await tell(person, Sender("approver", name), run, said)


async def records(log: Path) -> list[Record]:
    async with open_log(str(log)) as opened:
        return [record async for _, record in opened.read_all()]


async def test_a_thousand_tickets_answered_at_random_by_fifty_people_end_once_each(tmp_path: Path) -> None:
    """Every person answers forty tickets twice, so every ticket is answered by two people, four times in all."""
    dice = random.Random(7)
    write_policy(tmp_path, policy())
    finals: dict[str, list[Verdict]] = defaultdict(list)
    told: Counter[str] = Counter()

    async def hear(message: Msg) -> None:
        said = msgspec.json.decode(message.data)
        told[said.get("code") or f"{said['event']} {said['state']}"] += 1

    async with server(tmp_path, users=[*USERS, *(("approver", name) for name in PEOPLE)]) as (_, bus):
        async with daemon_on(bus, tmp_path) as live, bus.agent("payer") as payer:
            asked = [
                await payer.run(run=f"r{run}").check_batch([Call("refund", {"n": n}, id=f"c{run}-{n}") for n in range(CALLS)])
                for run in range(RUNS)
            ]
            suspended = [(f"r{run}", verdict) for run, verdicts in enumerate(asked) for verdict in verdicts]
            assert Counter(verdict.decision for _, verdict in suspended) == {"suspend": RUNS * CALLS}

            async def wait(run: int) -> None:
                ids = [f"c{run}-{n}" for n in range(CALLS)]
                for verdict in await payer.run(run=f"r{run}").check_batch(
                    [Call("refund", {"n": n}, id=call) for n, call in enumerate(ids)], wait=True
                ):
                    finals[verdict.call].append(verdict)

            async def person(number: int) -> None:
                name = PEOPLE[number]
                mine = [suspended[(number * 20 + at) % len(suspended)] for at in range(40)]
                async with bus.user("approver", name) as own:
                    await own.subscribe(f"gated.out.*.*.approver.{name}", cb=hear)
                    await own.flush()
                    for at, (run, verdict) in enumerate(dice.sample(mine, 40)):
                        decision = dice.choice(["approve", "reject"])
                        for again in range(2):
                            await answer(own, name, verdict, run, decision, f"d{at}-{again}")
                    await own.flush()
                    await settled.wait()

            settled = anyio.Event()
            async with anyio.create_task_group() as people:
                async with anyio.create_task_group() as agents:
                    for number in range(len(PEOPLE)):
                        people.start_soon(person, number)
                    for run in range(RUNS):
                        agents.start_soon(wait, run)
                await until(lambda: sum(told.values()) == 3 * len(suspended))
                settled.set()
    made = await decided(live.log)
    assert {len(decisions) for decisions in made.values()} == {2}
    assert len(made) == len(finals) == RUNS * CALLS
    for call, (verdict,) in finals.items():
        assert verdict.decision == made[call][1].decision != "suspend"
    assert told == {"approvals.already_decided": 3 * RUNS * CALLS}


@pytest.mark.parametrize("point", get_args(Point))
async def test_a_daemon_killed_between_an_answer_and_its_verdict_gives_one_verdict(tmp_path: Path, point: str) -> None:
    write_policy(tmp_path, policy())
    async with server(tmp_path) as (_, bus), bus.user("approver", "bob") as bob, bus.agent("payer") as payer:
        verdicts: list[Verdict] = []
        with process(bus, tmp_path, f"{point}:2") as first:
            run = payer.run(run="r")
            suspended = await run.check("refund", {}, call="c")
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    verdicts.append(await run.resume("c", timeout=30))

                await answer(bob, "bob", suspended, "r", "approve", "d1")
                await bob.flush()
                await dead(first)
                with process(bus, tmp_path) as last:
                    tasks.start_soon(wait)
                    await answer(bob, "bob", suspended, "r", "reject", "d2")
                    await bob.flush()
                    await until(lambda: verdicts)
                    assert await to_thread.run_sync(stop, last) == 0
    assert [verdict.decision for verdict in verdicts] == ["allow"]
    assert [made.decision for made in (await decided(tmp_path / "log.db"))["c"]] == ["suspend", "allow"]


async def test_what_expired_while_the_daemon_was_down_expires_at_once_one_event_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40
    write_policy(tmp_path, policy())
    async with server(tmp_path) as (_, bus), bus.agent("payer") as payer:
        with process(bus, tmp_path) as first:
            for run in range(4):
                calls = [Call("refund", {"n": n}, id=f"c{run}-{n}") for n in range(count // 4)]
                await payer.run(run=f"r{run}").check_batch(calls)
            first.kill()
        Clock(monkeypatch, ahead=15 * 60 + 1)
        async with daemon_on(bus, tmp_path):
            verdicts = [
                verdict
                for run in range(4)
                for verdict in await payer.run(run=f"r{run}", resume=True).check_batch(
                    [Call("refund", {"n": n}, id=f"c{run}-{n}") for n in range(count // 4)], wait=True
                )
            ]
    assert [(verdict.code, verdict.decision) for verdict in verdicts] == [("approvals.expired", "deny")] * count
    made = [decision for record in await records(tmp_path / "log.db") for decision in unseal(record).decisions]
    closed = [decision for decision in made if isinstance(decision, TicketClosed)]
    assert len({decision.ticket for decision in closed}) == len(closed) == count
    assert not [decision for decision in made if isinstance(decision, TicketNoted)]
    assert Counter(decision.call for decision in made if isinstance(decision, CallDecided)) == {v.call: 2 for v in verdicts}
