"""Which records of a log are wanted: whose run, which call, which verdict, when."""

import json
from pathlib import Path

import pytest

from cli.test_cli import gated, log
from gated.cli.log_lines import Selection, Wanted
from gated.events import (
    GENESIS,
    AgentId,
    Body,
    CallDecided,
    CallId,
    DeadlineReached,
    Decided,
    Decision,
    IntentsReceived,
    Observation,
    RunId,
    RunOpened,
    Sender,
    ThreadId,
    kind_of,
)

__all__ = ["log"]
ANA, TIMER = Sender("agent", "ana"), Sender("timer", "daemon")


def verdict(tool: str, decision: Decided) -> CallDecided:
    return CallDecided(CallId(tool), tool, "0" * 64, decision)


def body(seq: int, said: Observation, *decisions: Decision, run: str = "r1") -> Body:
    return Body(1, ThreadId("t"), RunId(run), seq, seq * 10, kind_of(said), said, decisions, "p", GENESIS)


BODIES = [
    body(1, IntentsReceived(ANA, ()), RunOpened(AgentId("ana"), "p"), verdict("read", "allow"), verdict("write", "deny")),
    body(2, IntentsReceived(Sender("agent", "bob"), ()), RunOpened(AgentId("bob"), "p"), verdict("read", "allow"), run="r2"),
    body(3, IntentsReceived(ANA, ()), verdict("read", "deny"), run="r2"),  # a stranger's
    body(4, DeadlineReached(TIMER, 40), verdict("mail", "deny")),
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(), [1, 2, 3, 4]),
        (Wanted(run="r2"), [2, 3]),
        (Wanted(agent="ana"), [1, 3, 4]),
        (Wanted(agent="ana", decision="deny"), [1, 3, 4]),
        (Wanted(agent="daemon"), []),
        (Wanted(tool="read"), [1, 2, 3]),
        (Wanted(tool="read", decision="deny"), [3]),
        (Wanted(since=20), [2, 3, 4]),
        (Wanted(since=20, until=40), [2, 3]),
    ],
)
def test_what_is_wanted_is_taken(wanted: Wanted, found: list[int]) -> None:
    selection = Selection(wanted)
    assert [body.seq for body in BODIES if selection.takes(body)] == found


def test_records_have_their_hash_and_lines_are_whole_by_a_pipe(log: Path) -> None:
    records = json.loads(gated("log", "ls", log, "--json")[1])
    assert [record["hash"] for record in records[:-1]] == [record["prev"] for record in records[1:]]
    lines = gated("log", "ls", log, "--tool", "send_email", "--decision", "deny")[1].splitlines()
    assert [line.split()[5:8] for line in lines[1:]] == [["deny", "send_email", "dcbf.barrier"]]
    assert gated("log", "ls", log, "--until", "1970-01-01T00:00:01Z")[1].count("\n") == 2
