"""What went wrong for users of other gates, under "Human approval": each row, and where it is proven.

S is tests/scenarios/pains-approvals.yaml, W tests/client/test_waiting.py, M tests/shell/test_many_tickets.py, H this file.

- an approve between expiry and the sweep succeeds
  S expiry is a comparison of times; an answer in the last moment
- a late approve does nothing, and the log says "approved"
  H nothing in the log says approved
- told to wait after the request has expired
  S after the expiry the agent is told no; W expires for whoever waits
- two approves run the tool twice
  S of two tabs one wins; M a thousand tickets; W only one makes it
- the resumed run executes other arguments than the human saw
  S the same call with other arguments; W arguments that change
- policy tightened during the hold, still dispatched
  S a policy that was tightened; an approver who was taken out of the group
- the approver sees other arguments than those that run
  H after an edit the ticket holds what would run
- decisions matched by position
  S answers are matched by their ticket
- two fresh runs share one pending approval
  S two runs with the same call
- "allow for session" by the tool's name only
  S what is remembered is what the person said; lifts no denial and no other ask
- "approve once" stored for the session
  S approved once is once
- an agent approves its own request
  S nobody approves their own call; tests/deploy the subject's name is the credential's
- a hidden bypass of the self-approval ban
  S who works alone says so; H an approval of one's own is marked in the log
- a restart drops pending approvals
  M what expired while the daemon was down; W a restarted daemon still tells
- the approved tool executes again on a later turn
  S the whole history sent again; W an agent that restarts goes on
- the approval is recorded, the resume asks again
  W an agent that restarts goes on with its call
- one rejection discards the approved siblings
  S three that wait together; W three that wait together
- a queued approval is accepted with no age limit
  H an answer counts from when the bus stored it; W a restarted daemon still tells
- only a digest, nobody can show what is approved
  H a ticket shows what is asked and its digest
- tickets die unseen
  H it is said that a ticket is about to expire
"""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from gated import canonical, wire
from gated.cli import ticket_text
from gated.client import Verdict
from gated.events import CallDecided, Decision, Sender, TicketAnswered, TicketClosed, TicketNoted, unseal
from gated.shell.log.open import open_log
from gated.ticket_views import PREVIEW
from patience import PATIENCE, until
from shell.live import Bus, Clock, agent, daemon_on, gate, intents, server, tell, write_policy

POLICY = """
version: 1
agents:
  payer: {checks: [privilege], owner: ana, allowed_tools: [refund], approval_required: [refund]}
approvals:
  default: {approvers: [user:bob], timeout: TIMEOUT}
  rules:
    - {on: 'refund(amount = "2")', approvers: [user:ana], self_approval: true}
    - {on: 'refund(amount = "3")', approvers: [user:bob, user:ana, user:cy], quorum: 2, self_approval: true}
"""


def policy(timeout: str = "15m") -> str:
    return POLICY.replace("TIMEOUT", timeout)


async def resolve(bus: Bus, name: str, verdict: Verdict, **more: Any) -> None:
    async with bus.user("approver", name) as person:
        ticket, digest = verdict.ticket or "", verdict.args_sha256
        said = wire.Resolution(ticket=ticket, decision="approve", decision_id=f"d-{name}", args_sha256=digest, **more)
        await tell(person, Sender("approver", name), "r", said)
        await person.flush()


async def decisions(log: Path) -> list[Decision]:
    async with open_log(str(log)) as opened:
        return [decision async for _, record in opened.read_all() for decision in unseal(record).decisions]


async def line(bus: Bus, ticket: str | None) -> dict[str, Any]:
    async with bus.user("approver", "bob") as bob:
        answer = await bob.request("gated.api.tickets.show", json.dumps({"tickets": [ticket]}).encode(), timeout=PATIENCE)
    (found,) = json.loads(answer.data)["tickets"]
    return dict(found)


async def test_nothing_in_the_log_says_approved_where_the_answer_came_too_late(tmp_path: Path) -> None:
    write_policy(tmp_path, policy("1s"))
    async with server(tmp_path) as (_, bus), bus.agent("payer") as payer:
        async with daemon_on(bus, tmp_path):
            suspended = await payer.run(run="r").check("refund", {"amount": 1}, call="c")
        await anyio.sleep(1.1)
        await resolve(bus, "bob", suspended)
        async with daemon_on(bus, tmp_path) as live:
            assert (await payer.run(run="r").resume("c")).code == "approvals.expired"
    made = await decisions(live.log)
    assert not [decision for decision in made if isinstance(decision, TicketAnswered)]
    assert [decision.state for decision in made if isinstance(decision, TicketClosed)] == ["expired"]


async def test_an_answer_counts_from_when_the_bus_stored_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In time and taken late is in time; too late is refused however soon the daemon comes to it."""
    write_policy(tmp_path, policy())
    async with server(tmp_path) as (_, bus), bus.agent("payer") as payer:
        async with daemon_on(bus, tmp_path):
            suspended = await payer.run(run="r").check("refund", {"amount": 1}, call="c")
        await resolve(bus, "bob", suspended)
        Clock(monkeypatch, ahead=15 * 60 + 1)
        async with daemon_on(bus, tmp_path):
            assert (await payer.run(run="r").resume("c")).decision == "allow"


async def test_a_ticket_shows_what_is_asked_and_its_digest(tmp_path: Path) -> None:
    async with gate(tmp_path, policy()) as live, live.bus.agent("payer") as payer:
        args = {"amount": 1, "to": "x\u202ey", "why": "z" * 1000}
        suspended = await payer.run(run="r").check("refund", args)
        found = await line(live.bus, suspended.ticket)
    assert found["args_sha256"] == suspended.args_sha256 == canonical.args_digest("refund", args)
    assert found["preview"].startswith('{"amount":1,"to":"x\\u202ey","why":"zzz')
    assert found["args_bytes"] == len(canonical.encode(args)) > len(found["preview"])
    written_out = len("\\u202e") - len("\u202e".encode())
    assert found["hidden_bytes"] == found["args_bytes"] - PREVIEW + written_out


async def test_what_a_preview_hides_is_counted_whatever_it_shows(tmp_path: Path) -> None:
    """Characters that are written out made it as long as the arguments, and much of them was hidden without a word."""
    async with gate(tmp_path, policy()) as live, live.bus.agent("payer") as payer:
        args = {"to": "\u202e" * 230, "why": "z" * 600}
        suspended = await payer.run(run="r").check("refund", args)
        found = await line(live.bus, suspended.ticket)
        short = await payer.run(run="s").check("refund", {"to": "\u202e"})
        whole = await line(live.bus, short.ticket)
    fitting = (PREVIEW - len('{"to":"')) // len("\\u202e")
    assert found["preview"] == '{"to":"' + fitting * "\\u202e"
    assert found["hidden_bytes"] == found["args_bytes"] - len('{"to":"') - fitting * len("\u202e".encode())
    assert f"+{found['hidden_bytes']:,} bytes" in ticket_text.preview(found)
    assert (whole["hidden_bytes"], ticket_text.preview(whole)) == (0, '{"to":"\\u202e"}')


async def test_after_an_edit_the_ticket_holds_what_would_run_and_the_first_what_was_asked(tmp_path: Path) -> None:
    async with gate(tmp_path, policy()) as live, live.bus.agent("payer") as payer:
        run = payer.run(run="r")
        suspended = await run.check("refund", {"amount": 1}, call="c")
        await resolve(live.bus, "bob", suspended, args={"amount": 3})
        edited = await run.resume("c", wait=False)
        found = await line(live.bus, edited.ticket)
        assert (edited.ticket, edited.args, edited.edited) == (f"{suspended.ticket}.2", {"amount": 3}, True)
        assert found["preview"] == '{"amount":3}'
        assert found["args_sha256"] == edited.args_sha256 != suspended.args_sha256
        assert [answer["by"] for answer in found["answers"]] == ["bob"]


async def test_an_approval_of_ones_own_is_marked_in_the_log(tmp_path: Path) -> None:
    async with gate(tmp_path, policy()) as live, live.bus.agent("payer") as payer:
        run = payer.run(run="r")
        suspended = await run.check("refund", {"amount": 2}, call="c")
        await resolve(live.bus, "ana", suspended)
        assert (await run.resume("c")).decision == "allow"
        other = await run.check("refund", {"amount": 1}, call="d")
        await resolve(live.bus, "bob", other)
        assert (await run.resume("d")).decision == "allow"
    marks = [(d.answer.by, d.answer.self_approved) for d in await decisions(live.log) if isinstance(d, TicketAnswered)]
    assert marks == [("ana", True), ("bob", False)]


async def test_it_is_said_that_a_ticket_is_about_to_expire_and_then_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str]] = []
    async with gate(tmp_path, policy("100s")) as live, live.bus.agent("payer") as payer, live.bus.user("approver", "bob") as bob:
        heard, clock = await bob.subscribe("gated.tickets.>"), Clock(monkeypatch)
        await bob.flush()
        run = payer.run(run="r")
        await run.check("refund", {"amount": 1}, call="c")
        for seconds in (80, 20, 0):
            message = json.loads((await heard.next_msg(PATIENCE)).data)
            said.append((message["event"], message["state"]))
            clock.forward(live, seconds)
        final = await run.resume("c")
    assert final.code == "approvals.expired"
    assert said == [("opened", "pending"), ("expiring_soon", "pending"), ("closed", "expired")]
    made = await decisions(live.log)
    assert [type(decision) for decision in made[-3:]] == [TicketNoted, TicketClosed, CallDecided]


async def test_deadlines_do_not_wait_for_what_the_bus_has_lost(tmp_path: Path) -> None:
    """Inputs that grew too old in the stream while the daemon was away hold up no expiry."""
    write_policy(tmp_path, policy("1s"))
    async with server(tmp_path) as (_, bus), bus.agent("payer") as payer:
        async with daemon_on(bus, tmp_path):
            await payer.run(run="r").check("refund", {"amount": 1}, call="c")
        async with bus.user("agent", "payer") as raw, bus.user("daemon") as admin:
            for number in range(3):
                await tell(raw, agent("payer"), "s", intents((f"d{number}", "refund", {"amount": 1})))
            await raw.flush()

            async def stored() -> bool:
                return bool((await admin.jetstream().stream_info(wire.STREAM)).state.messages == 4)

            await until(stored)
            await admin.jetstream().purge_stream(wire.STREAM)
        async with daemon_on(bus, tmp_path):
            assert (await payer.run(run="r").resume("c")).code == "approvals.expired"
