"""Delivery: what comes twice is answered twice and counts once; people's answers and deadlines reach the agent."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
from nats.aio.msg import Msg

from gated import wire
from gated.client import Call, Verdict
from gated.core.state import ThreadState
from gated.events import RunId, Sender, ThreadId
from gated.shell.bus import Ack
from gated.shell.log.open import open_log
from gated.wire import ReminderMessage, RunStatus
from patience import until
from shell.live import POLICY, Live, agent, daemon_on, decided, ears, gate, intents, server, tell, write_policy

MAIL = intents(("c", "send_email", {"to": "a"}))


async def records(live: Live) -> int:
    async with open_log(str(live.log)) as log:
        return await log.head()


# --- twice is once --------------------------------------------------------------------------------------------------------


async def test_the_same_intent_five_times_is_one_record_and_five_equal_answers(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("agent", "mailer") as mailer:
        heard = await ears(mailer, "mailer")
        for number in range(5):
            await tell(mailer, agent("mailer"), "r", MAIL, f"id-{number}")
        verdicts = [answer for answer in await heard.count(5) if isinstance(answer, Verdict)]
        assert await records(live) == 1
    assert [verdict.replayed for verdict in verdicts] == [False, True, True, True, True]
    assert len({msgspec.structs.replace(verdict, replayed=False) == verdicts[0] for verdict in verdicts}) == 1
    assert [made.decision for made in (await decided(live.log))["c"]] == ["allow"]


async def test_the_same_id_with_other_arguments_never_gets_the_first_ones_answer(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("agent", "mailer") as mailer:
        heard = await ears(mailer, "mailer")
        await tell(mailer, agent("mailer"), "r", MAIL)
        await tell(mailer, agent("mailer"), "r", intents(("c", "send_email", {"to": "b"})))
        first, second = await heard.count(2)
    assert isinstance(first, Verdict)
    assert first.decision == "allow"
    assert isinstance(second, wire.Refusal)
    assert second.code == "ingress.id_conflict"


async def test_a_message_id_that_the_server_has_seen_costs_no_second_look(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("agent", "mailer") as mailer:
        heard = await ears(mailer, "mailer")
        for _ in range(3):
            await tell(mailer, agent("mailer"), "r", MAIL, "same")
        await tell(mailer, agent("mailer"), "r", MAIL, "other")
        first, second = await heard.count(2)
        await anyio.sleep(0.05)
        assert len(heard.heard) == 2
    assert isinstance(first, Verdict)
    assert isinstance(second, Verdict)
    assert (first.replayed, second.replayed) == (False, True)


async def test_an_input_whose_acknowledgement_was_lost_is_answered_from_the_log(tmp_path: Path) -> None:
    """Every kind of input: the same daemon after a rewind, and the next one, which knows nothing but the log."""
    write_policy(tmp_path)
    said = [
        wire.RunStart(task="mails"),
        MAIL,
        wire.Outcome(call="c", status="success", content="sent"),
        intents(("d", "forbidden", {}), ("e", "search", {})),
        wire.RunFinish(),
    ]
    async with server(tmp_path) as (_, bus), bus.user("agent", "mailer") as mailer:
        heard = await ears(mailer, "mailer")
        async with daemon_on(bus, tmp_path) as live:
            lose_acknowledgements(live)
            for number, message in enumerate(said):
                await tell(mailer, agent("mailer"), "r", message, f"id-{number}")
            first = await heard.count(6)
            before = await records(live)
            live.daemon.receiver.rewind()
            again = (await heard.count(12))[6:]
            assert await records(live) == before
        async with daemon_on(bus, tmp_path) as live:
            later = (await heard.count(18))[12:]
            assert await records(live) == before
    assert unmarked(again) == unmarked(first)
    assert unmarked(later) == unmarked(first)
    assert {call: len(made) for call, made in (await decided(live.log)).items()} == {"c": 1, "d": 1, "e": 1}


def lose_acknowledgements(live: Live) -> None:
    async def lost(acks: Sequence[Ack]) -> None:
        pass

    live.daemon.runs.outlet = live.daemon.runs.outlet._replace(acknowledge=lost)


def unmarked(answers: list[wire.Outbound]) -> list[wire.Outbound]:
    return [msgspec.structs.replace(a, replayed=False, settled=False) if isinstance(a, Verdict) else a for a in answers]


async def test_a_connection_that_breaks_again_and_again_loses_no_answer(tmp_path: Path) -> None:
    """What the daemon had written is lost each time; nobody asks again, and every call is answered with one verdict."""
    calls = [f"c{number}" for number in range(400)]
    async with gate(tmp_path) as live, live.bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        client = live.daemon.receiver.client

        async def break_it() -> None:
            for _ in range(8):
                await until(lambda: client.is_connected)
                await anyio.sleep(0.03)
                client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
                await until(lambda: not client.is_connected)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(break_it)
            for number, call in enumerate(calls):
                await tell(worker, agent("worker"), f"r{number % 20}", intents((call, "search", {"q": call})))
                await anyio.sleep(0.002)
        await heard.until(lambda: len({answer.call for _, answer in heard.heard if isinstance(answer, Verdict)}) == len(calls))
    assert {call: len(made) for call, made in (await decided(live.log)).items()} == dict.fromkeys(calls, 1)


async def test_an_outcome_delivered_twice_changes_nothing(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("agent", "mailer") as mailer:
        heard = await ears(mailer, "mailer")
        lose_acknowledgements(live)
        await tell(mailer, agent("mailer"), "r", MAIL)
        await tell(mailer, agent("mailer"), "r", wire.Outcome(call="c", status="success", cost_usd=0.5, tokens=7))
        await heard.count(2)
        before = await state(live)
        live.daemon.receiver.rewind()
        answers = await heard.count(4)
        assert isinstance(answers[3], ReminderMessage)
        assert answers[3] == answers[1]
        assert await state(live) == before
        await tell(mailer, agent("mailer"), "r", wire.Outcome(call="c", status="success", cost_usd=0.5, tokens=7))
        await heard.count(5)
        tally = (await state(live)).runs[RunId("r")].tally
    assert (tally.cost_microusd, tally.tokens) == (500_000, 7)


async def state(live: Live) -> ThreadState:
    return await live.daemon.runs.look(ThreadId("r"))


# --- many at once ---------------------------------------------------------------------------------------------------------


async def test_a_hundred_connections_admit_what_one_would(tmp_path: Path) -> None:
    """The default privacy barrier lets two mails out, however many ask at once and through however many doors."""
    verdicts: list[Verdict] = []

    async with gate(tmp_path) as live:

        async def ask(number: int) -> None:
            async with live.bus.agent("mailer") as connected:
                run = connected.run(run="r")
                for batch in range(10):
                    calls = [Call("send_email", {"to": str(n)}, id=f"c{number}-{batch}-{n}") for n in range(2)]
                    verdicts.extend(await run.check_batch(calls))

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(ask, number)
    assert len(verdicts) == 2000
    assert [verdict.decision for verdict in verdicts].count("allow") == 2
    made = await decided(live.log)
    assert {len(decisions) for decisions in made.values()} == {1}
    assert sum(decisions[0].decision == "allow" for decisions in made.values()) == 2
    assert {v.call: v.decision for v in verdicts} == {call: decisions[0].decision for call, decisions in made.items()}


# --- people and time ------------------------------------------------------------------------------------------------------


async def test_a_suspended_call_is_allowed_once_an_approver_says_so(tmp_path: Path) -> None:
    async with (
        gate(tmp_path) as live,
        live.bus.agent("payer") as payer,
        live.bus.user("approver", "bob") as bob,
        live.bus.user("auditor", "local") as auditor,
    ):
        told: list[wire.TicketMessage] = []

        async def hear(message: Msg) -> None:
            told.append(msgspec.json.decode(message.data, type=wire.TicketMessage))

        await auditor.subscribe("gated.tickets.>", cb=hear)
        await auditor.flush()
        async with payer.run(run="r") as run:
            asked = await run.check("refund", {"amount": 20}, call="c")
            assert (asked.decision, asked.execute, asked.code) == ("suspend", False, "privilege.approval_required")
            assert asked.ticket is not None
            resolution = wire.Resolution(
                ticket=asked.ticket, decision="approve", decision_id="d1", args_sha256=asked.args_sha256, note="fine"
            )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(tell, bob, Sender("approver", "bob"), "r", resolution)
                final = await run.resume(asked)
            assert (final.decision, final.execute, final.ticket) == ("allow", True, asked.ticket)
            assert (await run.check("refund", {"amount": 20}, call="c")).replayed
    assert [made.decision for made in (await decided(live.log))["c"]] == ["suspend", "allow"]
    assert [(notice.event, notice.state) for notice in told] == [("opened", "pending"), ("closed", "approved")]


async def test_a_ticket_that_expired_while_no_daemon_ran_is_denied_once_at_the_start(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY.replace("timeout: 15m", "timeout: 1s"))
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer:
        heard = await ears(payer, "payer")
        async with daemon_on(bus, tmp_path) as live:
            await tell(payer, agent("payer"), "r", intents(("c", "refund", {"amount": 1})))
            await heard.count(1)
        await anyio.sleep(1.1)
        for _ in range(2):
            async with daemon_on(bus, tmp_path) as live:
                answers = await heard.count(2)
                await tell(payer, agent("payer"), "r", wire.RunStart())
                await heard.count(len(answers) + 1)
    verdicts = [message for _, message in heard.heard if isinstance(message, Verdict)]
    assert [(v.decision, v.code) for v in verdicts] == [("suspend", verdicts[0].code), ("deny", "approvals.expired")]
    assert [made.code for made in (await decided(live.log))["c"]] == ["privilege.approval_required", "approvals.expired"]


async def test_a_ticket_expires_while_the_daemon_runs_although_it_was_restarted(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY.replace("timeout: 15m", "timeout: 1s"))
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer:
        heard = await ears(payer, "payer")
        async with daemon_on(bus, tmp_path):
            await tell(payer, agent("payer"), "r", intents(("c", "refund", {"amount": 1})))
            await heard.count(1)
        async with daemon_on(bus, tmp_path) as live:
            _, final = await heard.count(2)
    assert isinstance(final, Verdict)
    assert final.code == "approvals.expired"
    assert len((await decided(live.log))["c"]) == 2


async def test_a_run_that_ends_takes_its_ticket_along(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.agent("payer") as payer:
        async with payer.run(run="r") as run:
            asked = await run.check("refund", {"amount": 20}, call="c")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.abort, "enough")
                final = await run.resume(asked)
    assert final.decision == "deny"
    assert len((await decided(live.log))["c"]) == 2


async def test_a_run_status_is_heard_by_the_one_who_asked(tmp_path: Path) -> None:
    async with gate(tmp_path) as live, live.bus.user("agent", "mailer") as mailer:
        heard = await ears(mailer, "mailer")
        await tell(mailer, agent("mailer"), "r", wire.RunStart(task="t"), "mine")
        (status,) = await heard.count(1)
    assert isinstance(status, RunStatus)
    assert status.status == "open"
