"""A minute of chaos: three workers, agents that never give up, faults at random, and what must hold afterwards."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from benchmarks.chaos.agents import Asked
from benchmarks.chaos.verifier import Found, check, check_open
from gated.events import (
    GENESIS,
    AgentId,
    Body,
    CallDecided,
    CallId,
    Decision,
    IntentsReceived,
    Phase,
    RunEnded,
    RunId,
    RunOpened,
    Sender,
    ThreadId,
    kind_of,
)
from gated.wire import Verdict

ROOT = Path(__file__).parents[2]


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_a_minute_of_chaos_loses_doubles_and_reorders_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "--seconds", "60", "--seed", "11", "--json", "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout, done.stderr[-2000:]
    told = json.loads(done.stdout)
    wrong = ("lost", "duplicate", "out_of_order", "over_admitted", "contradicted", "damaged", "unfinished")
    assert {key: told[key] for key in wrong} == dict.fromkeys(wrong, 0), told
    assert told["intents"] > 200
    assert sum(told["faults"].values()) > 5
    assert done.returncode == 0


# --- the verifier itself: what is wrong, it must find ------------------------------------------------------------------


def _body(seq: int, place: int, *calls: tuple[str, Literal["allow", "deny"]], thread: str = "t") -> Body:
    decisions = tuple(CallDecided(CallId(call), "send_email", "d" * 64, decision) for call, decision in calls)
    said = IntentsReceived(Sender("agent", "a"), ())
    return Body(1, ThreadId(thread), RunId(thread), seq, seq, kind_of(said), said, decisions, "p", GENESIS, input=place)


def _asked(**heard: list[tuple[str, int]]) -> dict[str, Asked]:
    made = {}
    for call, verdicts in heard.items():
        made[call] = Asked("t", "send_email", 0.0)
        for decision, seq in verdicts:
            fields = {
                "call": call,
                "decision": decision,
                "args_sha256": "d" * 64,
                "execute": True,
                "policy": "p",
                "seq": seq,
                "at": "",
            }
            made[call].verdicts.append(msgspec.convert({"type": "verdict", **fields}, Verdict))
    return made


@pytest.mark.parametrize(
    ("bodies", "asked", "wrong"),
    [
        ([_body(1, 1, ("a", "allow"))], _asked(a=[("allow", 1)]), {}),
        ([_body(1, 1, ("a", "allow"))], _asked(a=[]), {"lost": 1}),
        ([], _asked(a=[("allow", 1)]), {"lost": 1}),
        ([_body(1, 1, ("a", "allow")), _body(2, 2, ("a", "allow"))], _asked(a=[("allow", 1)]), {"duplicate": 1}),
        ([_body(1, 1, ("a", "deny"))], _asked(a=[("allow", 1)]), {"contradicted": 1}),
        ([_body(1, 2, ("a", "allow"))], _asked(a=[("allow", 1)]), {"out_of_order": 1}),
        (
            [_body(1, 2, ("b", "allow")), _body(2, 1, ("a", "allow"))],
            _asked(a=[("allow", 2)], b=[("allow", 1)]),
            {"out_of_order": 1},
        ),
        (
            [_body(n, n, (name, "allow")) for n, name in enumerate("abc", 1)],
            _asked(a=[("allow", 1)], b=[("allow", 2)], c=[("allow", 3)]),
            {"over_admitted": 1},
        ),
    ],
    ids=["right", "unheard", "unrecorded", "twice", "contradicted", "late input", "overtaken", "three mails"],
)
def test_the_verifier_finds_what_is_wrong(bodies: list[Body], asked: dict[str, Asked], wrong: dict[str, int]) -> None:
    inputs = {place: b'{"calls": [{"id": "%s"}]}' % name.encode() for place, name in enumerate("abc", 1)}
    found = check(Found(intents=len(asked)), bodies, asked, {"send_email": 2}, inputs)
    kinds = ("lost", "duplicate", "out_of_order", "over_admitted", "contradicted", "damaged")
    assert {kind: getattr(found, kind) for kind in kinds if getattr(found, kind)} == wrong


def test_the_verifier_counts_the_runs_that_are_open_at_once() -> None:
    opened, ended = RunOpened(AgentId("a"), "p"), RunEnded("complete", Phase.ANSWERING)
    said = IntentsReceived(Sender("agent", "a"), ())

    def over(*story: tuple[str, Decision]) -> int:
        bodies = [
            Body(1, ThreadId(thread), RunId(thread), n, n, kind_of(said), said, (decision,), "p", GENESIS)
            for n, (thread, decision) in enumerate(story, 1)
        ]
        check_open(found := Found(), bodies, {"a": 2})
        return found.over_admitted

    assert over(("t", opened), ("u", opened), ("t", ended), ("v", opened)) == 0
    assert over(("t", opened), ("u", opened), ("v", opened), ("t", ended)) == 1
