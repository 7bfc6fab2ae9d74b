"""A recorded call is explained on the state that it was judged on: the verdict made again is the recorded one."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.acts import Acts, logs_of
from gated.core.explain import Case, recorded_case
from gated.core.policy import Policy
from gated.core.scenario.world import Entry
from gated.events import AgentId, CallDecided, IntentsReceived, Record, RunId, unseal

SCENARIOS = Path(__file__).parents[2] / "scenarios"
POLICY = """
version: 1
agents:
  a:
    allowed_tools: [plan, pay, send_email]
    approval_required: [pay]
    resource_budget: {max_calls: 1}
    dcbf: {privacy: {budget: 0.3, per_call: 0.2}}
approvals: {default: {approvers: [user:bob]}}
"""
ROOM = POLICY.replace("max_calls: 1", "max_calls: 9")


def explained(acts: Acts, call: str) -> CallDecided:
    found = recorded_case(acts.records, acts.world.known, "r1", call)
    assert found is not None
    return found.judge(found.draft).decided


def test_a_call_of_a_denied_atomic_batch_is_explained_after_its_siblings() -> None:
    acts = Acts(POLICY)
    assert acts.batch([("plan", {}), ("plan", {"again": True})], "atomic") == ["deny", "deny"]
    first, second = explained(acts, "c1"), explained(acts, "c2")
    assert (first.decision, second.decision, second.code) == ("allow", "deny", "privilege.calls")


def test_a_call_of_a_suspended_atomic_batch_is_explained_after_its_siblings() -> None:
    acts = Acts(ROOM)
    assert acts.batch([("send_email", {}), ("pay", {})], "atomic") == ["suspend", "suspend"]
    found = recorded_case(acts.records, acts.world.known, "r1", "c2")
    assert found is not None
    assert list(found.draft.state.runs[found.run_id].in_flight) == ["c1"]
    assert explained(acts, "c2").code == "privilege.approval_required"


def test_a_call_of_an_approved_atomic_batch_is_explained_after_its_siblings() -> None:
    acts = Acts(ROOM)
    assert acts.batch([("send_email", {}), ("pay", {}), ("plan", {})], "atomic") == ["suspend"] * 3
    assert acts.ask("send_email") == "allow"
    acts.resolve("c2", "bob")
    last = explained(acts, "c1")
    assert (last.decision, last.code) == ("deny", "dcbf.barrier")
    assert explained(acts, "c3").decision == "allow"


def test_a_batch_that_was_refused_was_not_judged() -> None:
    acts = Acts(POLICY)
    acts.batch([("plan", {}), ("pl an", {})], "atomic")
    assert explained(acts, "c1").decision == "allow"


def test_a_stranger_that_asks_with_the_id_later_does_not_take_the_explanation() -> None:
    acts = Acts(ROOM.replace("agents:", "threads: {shared_by: [[a, b]]}\nagents:\n  b: {allowed_tools: [plan]}"))
    acts.ask("plan")
    acts.world.speak_for(acts.world.thread, RunId("r1"), AgentId("b"))
    acts.made = 0
    assert acts.ask("plan") == "deny"
    assert explained(acts, "c1").decision == "allow"


def judged(log: list[Entry]) -> list[tuple[Case, CallDecided]]:
    """Every call of a log that a stage or nobody stood against when it was asked for."""
    known: dict[str, Policy] = {entry.policy.digest: entry.policy for entry in log}
    records: list[Record] = [entry.record for entry in log]
    found = []
    for position, record in enumerate(records):
        body = unseal(record)
        for decided in body.decisions if isinstance(body.observation, IntentsReceived) else ():
            if isinstance(decided, CallDecided) and decided.stage not in ("batch", "approvals"):
                case = recorded_case(records[: position + 1], known, body.run, decided.call)
                if case is not None and case.recorded == decided:
                    found.append((case, decided))
    return found


@pytest.mark.parametrize("file", sorted(SCENARIOS.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_calls_of_the_scenarios_get_the_recorded_verdict(file: Path) -> None:
    for name, log in logs_of(file):
        for case, decided in judged(log):
            again = case.judge(case.draft).decided
            assert (again.decision, again.code) == (decided.decision, decided.code), (name, decided.call)
