"""`gated stats` and `gated runs timeline` over a log of every kind of ending."""

import asyncio
import json
from pathlib import Path

import pytest

from cli.command import gated
from gated.core.decide import record
from gated.core.policy import load_text
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    AgentId,
    CallId,
    DeadlineReached,
    IntentsReceived,
    Observation,
    OutcomeReported,
    ResolutionReceived,
    RunId,
    RunStarted,
    Sender,
    ThreadId,
    TicketId,
    TicketOpened,
    Wanted,
    unseal,
)
from gated.shell.log.sqlite import open_for_writing

POLICY = """
version: 1
agents:
  a:
    allowed_tools: [Read, Write, pay]
    approval_required: [pay]
machines:
  - {name: file, key: "{path}", initial: unread, transitions: [
      {on: Read, from: "*", to: read}, {on: Write, from: read, to: written}]}
approvals: {default: {timeout: 10m}}
"""
BY, ANA, TIMER = Sender("agent", "a"), Sender("approver", "ana"), Sender("timer", "daemon")
START = 1_700_000_000_000_000


def asks(call: str, tool: str, **args: str) -> IntentsReceived:
    return IntentsReceived(BY, (Wanted(CallId(call), tool, dict(args)),), nesting="explicit")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A run of a quarter of an hour: read, written too early, paid after a minute, a second payment that nobody answered."""
    policy = load_text(POLICY, "policy.yaml")
    registry = Registry(policy, {policy.digest: policy}, Vault(b"k"))

    async def write() -> None:
        state, opened = ThreadState(ThreadId("t1")), await open_for_writing(tmp_path / "log.db")
        await opened.put_policy(policy.digest, policy.text)
        tickets: list[tuple[TicketId, str]] = []

        async def say(seconds: float, said: Observation) -> None:
            nonlocal state
            made, sealed = record(registry, state, RunId("r1"), said, START + int(seconds * 1e6))
            state = made.state
            assert sealed is not None
            tickets.extend((d.ticket, d.args_sha256) for d in unseal(sealed).decisions if isinstance(d, TicketOpened))
            await opened.append_many([sealed])

        await say(0, RunStarted(BY, AgentId("a"), task="pay the bill"))
        await say(1, asks("c1", "Write", path="a"))
        await say(2, asks("c2", "Read", path="a"))
        await say(62, OutcomeReported(BY, CallId("c2"), "success"))
        await say(70, asks("c3", "pay", to="kim"))
        await say(130, ResolutionReceived(ANA, tickets[0][0], "approve", "d1", tickets[0][1]))
        await say(131.5, OutcomeReported(BY, CallId("c3"), "error", "no funds"))
        await say(140, asks("c4", "pay", to="lee"))
        await say(741, DeadlineReached(TIMER, START + 740_000_000))
        await say(745, asks("c5", "shell"))
        await opened.close()

    asyncio.run(write())
    return tmp_path / "log.db"


def test_stats(log: Path) -> None:
    status, text, _ = gated("stats", log, "--json")
    assert status == 0
    said = json.loads(text)
    assert said["verdicts"] == {"allow": 2, "deny": 3, "suspend": 2}
    assert said["codes"] == {
        "order.violation": 1,
        "privilege.approval_required": 2,
        "approvals.expired": 1,
        "privilege.not_allowed": 1,
    }
    stages = {stage: (counted["deny"], counted["suspend"]) for stage, counted in said["stages"].items()}
    assert stages == {"order": (1, 0), "privilege": (1, 2), "approvals": (1, 0)}
    assert said["tools"]["pay"] == {"allow": 1, "deny": 1, "suspend": 2}
    assert said["agents"] == {"a": said["verdicts"]}
    wanted = {"opened": 2, "approved": 1, "rejected": 0, "expired": 1, "cancelled": 0, "superseded": 0, "unanswered": 1}
    assert said["tickets"] == wanted
    assert said["statuses"] == {"success": 1, "error": 1}
    assert said["tool_seconds"] == {"count": 2, "p50": 60.0, "p90": 60.0, "p99": 60.0, "most": 60.0}
    assert said["answer_seconds"]["p50"] == 60.0
    assert (said["records"], said["runs"], said["waiting"], said["in_flight"]) == (10, 1, 0, 0)


def test_stats_for_people_and_of_a_part(log: Path) -> None:
    text = gated("stats", log)[1]
    assert "1 of them without any answer" in text
    assert "privilege.approval_required" in text
    assert json.loads(gated("stats", log, "--json", "--since", "2023-11-14T22:25:00")[1])["records"] == 2
    assert "no records" in gated("stats", log, "--run", "r9")[1]


def test_a_timeline(log: Path) -> None:
    status, text, _ = gated("runs", "timeline", log, "r1")
    assert status == 0
    lines = {line.split()[1]: line for line in text.splitlines() if line.startswith("+") and " c" in line}
    assert "deny order.violation" in lines["c1"]
    assert "success 60s" in lines["c2"]
    assert "file[a] → read" in lines["c2"]
    assert "░" in lines["c3"]
    assert "█" in lines["c3"]
    assert "error 1.5s" in lines["c3"]
    assert "█" not in lines["c4"]
    assert "approved by ana" in text
    assert "barrier resource" in text


def test_a_timeline_as_json(log: Path) -> None:
    said = json.loads(gated("runs", "timeline", log, "r1", "--json")[1])
    spans = {span["call"]: span for span in said["timeline"]["spans"]}
    assert spans["c3"]["admitted_at"] - spans["c3"]["asked_at"] == 60_000_000
    assert spans["c4"]["decision"] == "deny"
    assert said["curve"]["samples"]
    assert gated("runs", "timeline", log, "r9")[0] == 1


def test_cloud_events(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "events.jsonl"
    assert gated("log", "export", log, out, "--format", "cloudevents")[0] == 0
    events = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({(event["source"], event["id"]) for event in events}) == len(events) >= 10
    for event in events:  # what CloudEvents 1.0 requires, and its naming rule for extensions
        assert event["specversion"] == "1.0"
        assert all(event[name] for name in ("id", "source", "type", "time"))
        assert all(name.isascii() and name.isalnum() and name.islower() for name in event)
    denied = next(event for event in events if event.get("gateddecision") == "deny")
    assert (denied["type"], denied["subject"], denied["data"]["code"]) == ("io.gated.call_decided", "r1", "order.violation")
