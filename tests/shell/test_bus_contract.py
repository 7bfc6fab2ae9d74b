"""What is on the bus, field by field: others read it who know nothing but the contract."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from gated import wire
from gated.events import Sender
from gated.shell.log.open import open_log
from patience import PATIENCE, until
from shell.live import agent, ears, gate, intents, tell

POLICY = """
version: 1
agents:
  payer:
    owner: olga
    checks: [privilege]
    allowed_tools: [read, refund]
    approval_required: [refund]
    data_scope: any
approvals:
  default: {approvers: [user:ana, user:bob], quorum: 2, timeout: 15m, escalate: {after: 5m, to: [user:bob]}}
"""
ALWAYS = {"call", "decision", "stage", "code", "reason", "findings", "args_sha256", "execute", "policy", "seq", "at"}
ALWAYS |= {"replayed", "authoritative", "checks_failed", "checks_skipped"}
PEOPLE = {name: Sender("approver", name) for name in ("ana", "bob")}


async def overhear(connected: Client, subject: str) -> Callable[[int], Any]:
    """All that is said on a subject, once it is so much."""
    heard: list[dict[str, Any]] = []

    async def note(message: Msg) -> None:
        heard.append(json.loads(message.data))

    async def wait(count: int) -> list[dict[str, Any]]:
        await until(lambda: len(heard) >= count)
        return heard

    await connected.subscribe(subject, cb=note)
    await connected.flush()
    return wait


def answer(ticket: dict[str, Any], decision_id: str, decision: str = "approve") -> wire.Resolution:
    return wire.Resolution(
        ticket=ticket["ticket"],
        decision="approve" if decision == "approve" else "reject",
        decision_id=decision_id,
        args_sha256=ticket["args_sha256"],
    )


async def test_a_verdict_has_all_its_fields_whatever_it_is(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.user("agent", "payer") as payer:
        said = await overhear(payer, "gated.out.*.*.agent.payer")
        await tell(payer, agent("payer"), "r", intents(("c1", "read", {}), ("c2", "shell", {}), ("c3", "refund", {})))
        await tell(payer, agent("payer"), "r", intents(("c1", "read", {})))
        verdicts = await said(4)
    assert [verdict["decision"] for verdict in verdicts] == ["allow", "deny", "suspend", "allow"]
    assert [verdict["replayed"] for verdict in verdicts] == [False, False, False, True]
    for verdict in verdicts:
        assert verdict.keys() >= ALWAYS
        assert verdict["authoritative"] is True
    allowed, denied, suspended, _ = verdicts
    assert [allowed[name] for name in ("stage", "code", "reason", "findings")] == [None, None, None, []]
    assert (denied["stage"], denied["code"], denied["checks_failed"]) == ("privilege", "privilege.not_allowed", ["privilege"])
    assert suspended["ticket"]


async def test_an_auditor_hears_every_record_with_the_hash_that_it_can_check(tmp_path: Path) -> None:
    async with (
        gate(tmp_path, POLICY) as live,
        live.bus.user("agent", "payer") as payer,
        live.bus.user("auditor", "local") as auditor,
    ):
        said = await overhear(auditor, "gated.events.>")
        for call in ("c1", "c2"):
            await tell(payer, agent("payer"), "r", intents((call, "read", {"é": "\u2028"})))
        heard = await said(2)
        async with open_log(str(live.log)) as log:
            stored = [record async for _, record in log.read_all()]
    before = "0" * 64
    for told, record in zip(heard, stored, strict=True):
        body = {key: value for key, value in told.items() if key != "hash"}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert hashlib.sha256(text).hexdigest() == told["hash"] == record.hash
        assert body["prev"] == before
        before = told["hash"]


async def test_a_ticket_opens_with_all_that_a_person_must_know_and_closes_once(tmp_path: Path) -> None:
    async with (
        gate(tmp_path, POLICY) as live,
        live.bus.user("agent", "payer") as payer,
        live.bus.user("approver", "ana") as ana,
        live.bus.user("approver", "bob") as bob,
    ):
        said, heard = await overhear(bob, "gated.tickets.>"), await ears(payer, "payer")
        await tell(payer, agent("payer"), "r", intents(("c1", "refund", {"amount": 3})), thread="t")
        await said(1)
        (verdict,) = await heard.count(1)
        listed = json.loads((await bob.request("gated.api.tickets.list", b"{}", timeout=PATIENCE)).data)
        lines = json.loads((await bob.request("gated.api.tickets.page", b"{}", timeout=PATIENCE)).data)["tickets"]
        await tell(ana, PEOPLE["ana"], "r", answer(listed[0], "a1"), thread="t")
        await said(2)
        await tell(bob, PEOPLE["bob"], "r", answer(listed[0], "b1"), thread="t")
        life = await said(3)
        await heard.count(2)
        await anyio.sleep(0.1)
    assert isinstance(verdict, wire.Verdict)
    assert [(message["event"], message["state"]) for message in life] == [
        ("opened", "pending"),
        ("answered", "pending"),
        ("closed", "approved"),
    ]
    assert [message["details"]["answer"]["by"] for message in life[1:]] == ["ana", "bob"]
    came = {"call": verdict.call, "tool": "refund", "decision": "allow", "ticket": listed[0]["ticket"]}
    assert [message["details"].get("verdicts") for message in life[1:]] == [None, [came]]
    details = life[0]["details"]
    assert listed == [details]
    rule = details["rules"][0]
    assert (rule["approvers"], rule["quorum"]) == (["user:ana", "user:bob"], 2)
    assert rule["escalation"] == {"after": "5m", "to": ["user:bob"]}
    assert details["asks"][0]["reason"] == "`refund` needs an approval"
    plain = {
        name: details[name] for name in ("id", "thread", "run", "agent", "tool", "preview", "args_sha256", "policy", "state")
    }
    assert plain == {
        "id": verdict.ticket,
        "thread": "t",
        "run": "r",
        "agent": "payer",
        "tool": "refund",
        "preview": '{"amount":3}',
        "args_sha256": verdict.args_sha256,
        "policy": verdict.policy,
        "state": "pending",
    }
    assert (details["opened_at"], details["answers"]) == (verdict.at, [])
    assert details["expires_at"] > details["opened_at"]
    assert {name: lines[0][name] for name in plain} == plain
    assert lines[0]["rules"][0]["quorum"] == 2


async def test_a_rejected_ticket_closes_too(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.user("agent", "payer") as payer, live.bus.user("approver", "ana") as ana:
        said = await overhear(ana, "gated.tickets.>")
        await tell(payer, agent("payer"), "r", intents(("c1", "refund", {"amount": 3})))
        (opened,) = await said(1)
        await tell(ana, PEOPLE["ana"], "r", answer(opened["details"], "a1", "reject"))
        assert [(message["event"], message["state"]) for message in await said(2)][1:] == [("closed", "rejected")]


async def test_what_a_person_said_in_the_tools_place_is_there_also_where_it_is_null(tmp_path: Path) -> None:
    policy = POLICY.replace("quorum: 2,", "may_answer: true,")
    async with gate(tmp_path, policy) as live, live.bus.user("agent", "payer") as payer, live.bus.user("approver", "ana") as ana:
        said, told = await overhear(payer, "gated.out.*.*.agent.payer"), await overhear(ana, "gated.tickets.>")
        await tell(payer, agent("payer"), "r", intents(("c1", "refund", {}), ("c2", "read", {})))
        (opened,) = await told(1)
        await tell(ana, PEOPLE["ana"], "r", msgspec.structs.replace(answer(opened["details"], "a1"), result=None))
        suspended, allowed, answered, outcome = await said(4)
    assert (answered["decision"], answered["execute"], answered["result"]) == ("allow", False, None)
    assert ["result" in verdict for verdict in (suspended, allowed)] == [False, False]
    assert (outcome["type"], outcome["call"], outcome["status"], outcome["reminders"]) == ("reminder", "c1", "success", [])
