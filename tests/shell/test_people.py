"""What people hear of their answers, and what the API tells of tickets and records, also after a restart."""

import json
from pathlib import Path
from typing import Any

import anyio
import msgspec
from nats.aio.client import Client

from cli.test_desk import desk_of
from gated import wire
from gated.cli.desk import sit_down
from gated.core.state import ThreadState
from gated.events import Sender, ThreadId
from patience import PATIENCE
from shell.live import agent, daemon_on, ears, gate, intents, server, tell, write_policy

ANA, BOB = Sender("approver", "ana"), Sender("approver", "bob")


async def ask(client: Client, verb: str, **question: Any) -> Any:
    answer = await client.request(f"gated.api.{verb}", msgspec.json.encode(question), timeout=PATIENCE)
    assert not (answer.headers and "Nats-Service-Error" in answer.headers), answer.headers
    return json.loads(answer.data)


async def open_one(client: Client, run: str, amount: int = 5) -> None:
    heard = await ears(client, "payer")
    await tell(client, agent("payer"), run, intents(("c1", "refund", {"amount": amount})))
    await heard.count(1)


def approval(line: dict[str, Any], decision_id: str, digest: str | None = None) -> wire.Resolution:
    return wire.Resolution(
        ticket=line["ticket"], decision="approve", decision_id=decision_id, args_sha256=digest or line["args_sha256"]
    )


async def test_who_is_too_late_is_told_who_was_first_and_the_agent_is_not(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("agent", "payer") as payer, live.bus.user("approver", "bob") as bob:
        await open_one(payer, "r1")
        told_agent = await ears(payer, "payer")
        told = await bob.subscribe("gated.out.*.*.approver.bob")
        await bob.flush()
        (line,) = (await ask(bob, "tickets.page"))["tickets"]
        async with live.bus.user("approver", "ana") as ana:
            await tell(ana, ANA, "r1", approval(line, "a1"), "m1")
            await told_agent.count(1)
        await tell(bob, BOB, "r1", approval(line, "b1"), "m2")
        answer = await told.next_msg(5)
        said = json.loads(answer.data)
        assert said["code"] == "approvals.already_decided"
        assert answer.headers == {wire.RE: "m2"}
        assert "approve by ana" in said["reason"]
        assert [message.decision for message in await told_agent.count(1) if isinstance(message, wire.Verdict)] == ["allow"]


async def test_the_same_answer_again_is_answered_as_before_to_who_gave_it(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("agent", "payer") as payer, live.bus.user("approver", "ana") as ana:
        await open_one(payer, "r1")
        told = await ana.subscribe("gated.out.*.*.approver.ana")
        await ana.flush()
        (line,) = (await ask(ana, "tickets.page"))["tickets"]
        await tell(ana, ANA, "r1", approval(line, "a1"), "m1")
        await tell(ana, ANA, "r1", approval(line, "a1"), "m2")
        said = json.loads((await told.next_msg(5)).data)
        assert (said["event"], said["state"], said["details"]["answer"]["by"]) == ("closed", "approved", "ana")


async def test_open_tickets_are_listed_again_after_a_restart_and_in_pages(tmp_path: Path) -> None:
    write_policy(tmp_path)
    async with server(tmp_path) as (_, bus):
        async with daemon_on(bus, tmp_path), bus.user("agent", "payer") as payer:
            for number in range(3):
                await open_one(payer, f"r{number}", number)
        async with daemon_on(bus, tmp_path), bus.user("approver", "ana") as ana:
            page = await ask(ana, "tickets.page")
            while not page["complete"]:
                await anyio.sleep(0.01)
                page = await ask(ana, "tickets.page")
            assert sorted(line["run"] for line in page["tickets"]) == ["r0", "r1", "r2"]
            assert {line["preview"] for line in page["tickets"]} == {'{"amount":0}', '{"amount":1}', '{"amount":2}'}
            shown = await ask(ana, "tickets.show", tickets=[page["tickets"][0]["ticket"], "t404"])
            assert shown["tickets"] == page["tickets"][:1]
            rest = await ask(ana, "tickets.page", after=page["after"])
            assert rest["tickets"] == []


async def test_a_page_is_not_complete_where_a_ticket_was_found_while_it_was_made(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("agent", "payer") as payer, live.bus.user("approver", "ana") as ana:
        for number in range(2):
            await open_one(payer, f"r{number}", number)
        known = live.daemon.runs.open_tickets
        late = known._places.popitem()
        known.search_later(late[1].thread, late[1].run)
        look = live.daemon.runs.threads.look

        async def looks_while_the_search_ends(thread: ThreadId) -> ThreadState:
            state = await look(thread)
            await known.search(look)
            return state

        live.daemon.runs.threads.look = looks_while_the_search_ends  # type: ignore[method-assign]
        page = await ask(ana, "tickets.page")
        assert ([line["run"] for line in page["tickets"]], page["complete"]) == (["r0"], False)
        rest = await ask(ana, "tickets.page", after=page["after"])
        assert ([line["run"] for line in rest["tickets"]], rest["complete"]) == (["r1"], True)


async def test_a_list_is_whole_also_while_a_daemon_that_has_just_started_still_searches(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("agent", "payer") as payer, live.bus.user("approver", "ana") as ana:
        for number in range(2):
            await open_one(payer, f"r{number}", number)
        known = live.daemon.runs.open_tickets
        for place in [known._places.popitem()[1] for _ in range(2)]:
            known.search_later(place.thread, place.run)
        assert (await ask(ana, "tickets.page"))["complete"] is False
        lists: list[Any] = []

        async def look() -> None:
            lists.append(await ask(ana, "tickets.list"))

        async with anyio.create_task_group() as tasks, sit_down(desk_of(tmp_path, live.bus, "ana")) as desk:
            tasks.start_soon(look)
            with anyio.move_on_after(0.2) as waited:
                await desk.tickets()
            assert waited.cancelled_caught
            await known.search(live.daemon.runs.look)
            assert [line["run"] for line in await desk.tickets()] == ["r0", "r1"]
    assert sorted(ticket["run"] for ticket in lists[0]) == ["r0", "r1"]


async def test_the_log_is_read_in_pages_by_who_may(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("agent", "worker") as worker, live.bus.user("auditor", "local") as auditor:
        heard = await ears(worker, "worker")
        for number in range(600):
            await tell(worker, agent("worker"), "r1", intents((f"c{number}", "look", {})))
        await heard.count(600)
        for verb, question in (("log.read", {}), ("log.thread", {"thread": "r1"})):
            after, seqs = 0, list[int]()
            while True:
                page = await ask(auditor, verb, **question, after=after)
                seqs += [record["body"]["seq"] for record in page["records"]]
                after = page["after"]
                if page["complete"]:
                    break
            assert seqs == list(range(1, 601))
        assert (await ask(auditor, "log.head"))["position"] == 600
        policy = await ask(auditor, "policy.show", policy=page["records"][0]["body"]["policy"])
        assert policy["text"]["agents"]["worker"]["forbidden_tools"] == ["shell"]
