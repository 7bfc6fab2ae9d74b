"""What-if against a gate that is begun anew: the same words under the other policy, for as long as the two histories agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from core.gate_of_core import CoreGate
from gated import canonical
from gated.core.decide import Step, step
from gated.core.fold import advance
from gated.core.policy import Policy, load_text
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.core.whatif import Compared, WhatIf
from gated.documents import DocumentError
from gated.events import (
    AgentId,
    Body,
    CallDecided,
    Decision,
    IntentsReceived,
    Observation,
    RunAnswered,
    RunEnded,
    RunId,
    RunOpened,
    RunStarted,
    ThreadId,
    unseal,
)
from oracle.comparison import answers
from oracle.dice import Dice
from oracle.strategies import asking, thrown

Made = tuple[dict[str, Any], list[dict[str, Any]]]
BLOCK = 60


class Afresh:
    """A gate under one policy that hears what another one heard."""

    def __init__(self, policy: Policy) -> None:
        self._registry = Registry(policy, {policy.digest: policy})
        self._states: dict[ThreadId, ThreadState] = {}
        self._parted: set[ThreadId] = set()
        self._open: dict[tuple[ThreadId, RunId], AgentId] = {}

    def hear(self, body: Body) -> Step | None:
        """What it decides; None once the thread has gone another way."""
        made = None if body.thread in self._parted else self._decide(body)
        for decision in body.decisions:
            if isinstance(decision, RunOpened):
                self._open[(body.thread, body.run)] = decision.agent
            elif isinstance(decision, RunEnded):
                self._open.pop((body.thread, body.run), None)
        if made is None or made.unscored or facts(made.decisions) != facts(body.decisions):
            self._parted.add(body.thread)
        return None if made is None or made.unscored else made

    def _decide(self, body: Body) -> Step:
        state = self._states.get(body.thread) or ThreadState(body.thread)
        made = step(self._registry, state, body.run, self._counted(body.observation, body.thread), body.at)
        self._states[body.thread] = advance(made.state, body.seq, body.at, "", body.input)
        return made

    def _counted(self, said: Observation, thread: ThreadId) -> Observation:
        if not isinstance(said, IntentsReceived | RunStarted):
            return said
        agent = said.agent if isinstance(said, RunStarted) else said.by.name
        return replace(said, open_elsewhere=sum(who == agent and at[0] != thread for at, who in self._open.items()))


def facts(decisions: tuple[Decision, ...]) -> list[tuple[Any, ...]]:
    """What later decisions rest on."""
    names = ("agent", "call", "ticket", "decision", "known", "hop", "misfit", "status", "state", "lapsed", "code")
    kept = (names[:-1] if isinstance(d, CallDecided) else names for d in decisions)
    return [(type(d), *(getattr(d, name, None) for name in of)) for d, of in zip(decisions, kept, strict=True)]


def disagreements(found: tuple[Compared, ...], made: Step) -> Iterator[tuple[Any, Any]]:
    """What-if's word and the gate's, where they differ. Behind a flip, or a hop on one side alone, states part."""
    verdicts: dict[str, CallDecided] = {}
    for decision in (*made.decisions, *made.replies):
        if isinstance(decision, CallDecided):
            verdicts.setdefault(decision.call, decision)
    for item in found:
        said = verdicts.get(item.call)
        if item.outcome == "not_replayable":
            return
        if item.what == "approval":
            if item.recorded.decision == "allow" and (item.outcome == "unchanged") != (
                said is not None and said.decision == "allow"
            ):
                yield item, said
            continue
        assert item.derived is not None
        derived: tuple[Any, ...] = (item.derived.decision, item.derived.code, item.derived.reason)
        if item.what == "finish":
            ends = [d.status for d in made.decisions if isinstance(d, RunAnswered | RunEnded)]
            fresh: tuple[Any, ...] = (ends[0] if ends else "failed", None, None)
        else:
            fresh = ("", None, None) if said is None else (said.decision, said.code, said.reason)
        if derived != fresh:
            yield item, fresh
        hops = [said.stage != "lifecycle" for said in (item.recorded, item.derived)]
        if item.outcome == "flipped" or hops[0] != hops[1]:
            return


def other(policy: dict[str, Any], seed: int, make: Callable[[int], Made]) -> dict[str, Any]:
    """Another policy, or the same with one part of another."""
    pick, another = Dice(seed).pick, make(seed + 100_000)[0]
    if seed % 3 == 0:
        return another
    if seed % 3 == 1:
        key = pick(sorted({*policy, *another} - {"version", "agents"}))
        return {**{k: v for k, v in policy.items() if k != key}, **({key: another[key]} if key in another else {})}
    agent = pick(sorted(policy["agents"]))
    mine, theirs = policy["agents"][agent], another["agents"][agent]
    key = pick(sorted({*mine, *theirs, "role"}))
    changed = {**{k: v for k, v in mine.items() if k != key}, **({key: theirs[key]} if key in theirs else {})}
    return {**policy, "agents": {**policy["agents"], agent: changed}}


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("make", [thrown, asking])
def test_what_if_says_what_a_gate_begun_anew_says(make: Callable[[int], Made], block: int) -> None:
    compared = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        policy, operations = make(seed)
        try:
            tried = load_text(canonical.encode(other(policy, seed, make)), "other.json")
        except DocumentError:
            continue  # parts of two policies that do not fit
        gate = CoreGate(policy)
        for operation in operations:
            answers(gate, operation)
        whatif, afresh = WhatIf(tried), Afresh(tried)
        for entry in gate.world.log:
            found, made = whatif.feed(entry.record), afresh.hear(unseal(entry.record))
            if made is not None:
                compared += len(found)
                assert list(disagreements(found, made)) == [], (seed, entry.record.thread, entry.record.seq)
    assert compared > 100
