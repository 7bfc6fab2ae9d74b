"""How long an approve takes to reach the agent that waits for it, through the public SDK: from publish to the awaited verdict."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import nats
from nats.aio.client import Client

from gated import client, wire
from gated.events import RunId, Sender, ThreadId

POLICY = """
version: 1
limits: {max_in_flight: 1000000, max_calls: 1000000}
agents:
  a:
    allowed_tools: [refund]
    approval_required: [refund]
    resource_budget: {max_steps: 1000000, max_calls: 1000000, max_total_cost_usd: 1000000}
    dcbf: {stability: {step_budget: 1000000}, resource: {limit_usd: 1000000}}
approvals: {default: {approvers: [user:bob]}}
"""


async def measure(folder: Path, seconds: float) -> list[float]:
    """ms of each approve, one at a time, the first half second left out."""
    bus = json.loads((folder / "bus" / "bus.json").read_text())
    password = bus["users"]["approver:bob"]
    bob = await nats.connect(bus["url"], user="approver:bob", password=password, inbox_prefix="_INBOX.approver.bob")
    spent: list[float] = []
    began = time.perf_counter()
    async with client.connect(agent="a", data=folder) as gate, gate.run(run="r") as run:
        origin = wire.Origin(ThreadId("r"), RunId("r"), Sender("approver", "bob"))
        number = 0
        while time.perf_counter() < began + 0.5 + seconds:
            number += 1
            suspended = await run.check("refund", {"amount": number}, call=f"c{number}")
            waiting = asyncio.create_task(run.resume(suspended))
            await asyncio.sleep(0.005)  # it waits, and nothing else is under way
            spent.append(await _approve(bob, wire.in_subject(origin), suspended, waiting))
            await run.report(suspended.call, "success")
    await bob.close()
    return spent[len(spent) // 10 :]


async def _approve(bob: Client, subject: str, suspended: client.Verdict, waiting: asyncio.Task[client.Verdict]) -> float:
    ticket, digest = suspended.ticket or "", suspended.args_sha256
    said = wire.Resolution(ticket=ticket, decision="approve", decision_id=suspended.call, args_sha256=digest)
    started = time.perf_counter()
    await bob.publish(subject, wire.encode(said))
    verdict = await waiting
    assert verdict.decision == "allow"
    return (time.perf_counter() - started) * 1000
