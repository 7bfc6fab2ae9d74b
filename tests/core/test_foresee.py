"""The question "can I?": what is left, what would be decided, and that asking takes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from core.acts import Acts
from core.gate_of_core import CoreGate
from gated import wire
from gated.core.scenario import steps
from gated.core.scenario.format import CallEntry
from gated.core.scenario.world import World
from gated.core.state import dump
from gated.events import AgentId, CallRefused, CanIAsked, Remaining, RunId, Sender, ThreadId, Wanted
from gated.ingress import wanted_from
from gated.wire import Origin
from oracle.comparison import answers
from oracle.strategies import thrown

POLICY = """
version: 1
agents:
  a:
    allowed_tools: [T, mail]
    data_scope: any
    checks: [privilege, dfa, dcbf]
    ceilings: {max_hops: 9, max_retries: 2}
    resource_budget: {max_calls: 5, max_steps: 6, max_total_cost_usd: 0.10, max_tokens: 100, max_execution_time_seconds: 60}
    dcbf: {privacy: {tools: [mail], budget: 0.5, per_call: 0.2}}
"""


def asked(world: World, *tools: str) -> Remaining:
    wanted = tuple(wanted_from({"id": f"q{n}", "tool": tool, "args": {}}) for n, tool in enumerate(tools))
    (answer,) = world.observe(CanIAsked(world.sender, wanted, "explicit"))
    assert isinstance(answer, Remaining)
    return answer


def test_a_plan_of_five_with_three_left() -> None:
    """pains.md: fan-out starts, the budget ends half way."""
    acts = Acts(POLICY)
    acts.run("T")
    acts.run("T")
    before = asked(acts.world, *["T"] * 5)
    assert (before.status, before.calls, before.left("max_calls")) == ("open", 3, 3)
    assert [verdict.decision for verdict in before.verdicts] == ["allow"] * 3 + ["deny"] * 2
    assert {verdict.code for verdict in before.verdicts} == {None, "privilege.calls"}
    assert asked(acts.world, *["T"] * 5) == before
    assert acts.batch([("T", {})] * 5) == ["allow"] * 3 + ["deny"] * 2


def test_every_limit_says_what_is_used_and_left() -> None:
    acts = Acts(POLICY)
    acts.ask("mail")
    acts.end(status="error", tokens=40)
    acts.ask("T")
    acts.world.now += 10_000_000
    found = {limit.key: (limit.code, limit.unit, limit.limit, limit.used, limit.left) for limit in asked(acts.world).limits}
    assert found == {
        "limits.max_calls": ("lifecycle.limit", "calls", 100_000, 2, 99_998),
        "max_hops": ("ceilings.hops", "calls", 9, 2, 7),
        "max_retries": ("lifecycle.run_failed", "errors", 2, 1, 1),
        "max_total_cost_usd": ("privilege.total_cost", "usd", 0.10, 0.02, 0.08),
        "max_calls": ("privilege.calls", "calls", 5, 2, 3),
        "max_tokens": ("privilege.tokens", "tokens", 100, 40, 60),
        "max_execution_time_seconds": ("privilege.time", "seconds", 60, 10, 50),
        "max_steps": ("dfa.step_budget", "calls", 6, 1, 5),
        "max_loops_per_phase": ("dfa.loop_budget", "loops", 3, 0, 3),
    }
    assert asked(acts.world).barriers["privacy"] == pytest.approx(0.3)


def test_what_is_only_observed_is_said_and_bounds_nothing() -> None:
    acts = Acts(POLICY.replace("    data_scope", "    modes: {privilege: observe}\n    data_scope"))
    found = asked(acts.world, *["T"] * 6)
    assert (found.calls, found.left("max_calls")) == (6, None)
    assert [limit.enforced for limit in found.limits if limit.key == "max_calls"] == [False]
    assert (found.verdicts[-1].decision, found.verdicts[-1].would) == ("allow", "deny")


def test_a_child_is_told_of_its_parents_budget() -> None:
    acts = Acts(POLICY)
    acts.run("T")
    acts.world.speak_for(ThreadId("t"), RunId("r2"), AgentId("a"))
    steps.start(acts.world, parent="r1", by="agent:a")
    found = [(limit.run, limit.left) for limit in asked(acts.world).limits if limit.key == "max_calls"]
    assert found == [(None, 5), ("r1", 4)]
    assert asked(acts.world).calls == 4


def test_a_run_that_has_ended_has_nothing_left() -> None:
    acts = Acts(POLICY)
    acts.finish()
    found = asked(acts.world, "T")
    assert (found.status, found.calls, found.limits, found.left("max_calls")) == ("complete", 0, (), None)
    assert found.verdicts[0].code == "lifecycle.run_completed"


@pytest.mark.parametrize(("run", "agent"), [("r1", "b"), ("nobody", "a")])
def test_a_stranger_learns_nothing_and_leaves_nothing(run: str, agent: str) -> None:
    acts = Acts(POLICY + "  b: {allowed_tools: [T]}\n")
    acts.world.speak_for(ThreadId("t"), RunId(run), AgentId(agent))
    records = len(acts.records)
    (answer,) = acts.world.observe(CanIAsked(Sender("agent", agent), (Wanted(None, "T"),)))
    assert isinstance(answer, CallRefused)
    assert answer.code == ("lifecycle.run_not_open" if run == "nobody" else "lifecycle.not_thread_owner")
    assert len(acts.records) == records


def test_detectors_are_not_asked_for_a_question_and_it_says_so() -> None:
    acts = Acts(POLICY.replace("dcbf]", "dcbf, semantic]") + "semantic: {secrets: {}}\n")
    (verdict,) = asked(acts.world, "T").verdicts
    assert (verdict.decision, verdict.unsure) == ("allow", ("semantic",))
    assert acts.ask("T") == "suspend", "nobody scored it"


def _question(gate: CoreGate, operation: dict[str, Any]) -> list[Any] | None:
    """What would be said to the intents of an operation; None where its agent may not ask, or there is no run yet."""
    world = gate._at(operation["thread"], operation["run"], operation["agent"], operation["at"])
    calls = tuple(CallEntry(**{k: v for k, v in call.items() if k != "scores"}) for call in operation["calls"])
    before, log = {name: dump(state) for name, state in world.threads.items()}, len(world.log)
    wanted = tuple(steps._wanted(call, n, world.current.limits.of_messages) for n, call in enumerate(calls))
    (answer,) = world.observe(CanIAsked(world.sender, wanted, operation.get("nesting", "inferred")))
    assert ({name: dump(world.threads[name]) for name in before}, len(world.log)) == (before, log)
    return list(answer.verdicts) if isinstance(answer, Remaining) else None


def test_what_is_foreseen_is_what_is_decided_then_and_asking_changes_nothing() -> None:
    compared = 0
    for seed in (*range(150), 21131, 21515):  # in the last two a later call of the message ends the run
        policy, operations = thrown(seed, without=frozenset({"semantic"}))
        gate = CoreGate(policy)
        for operation in operations:
            each = operation["op"] == "intents" and operation.get("mode", "each") == "each"
            ids = [call.get("id") for call in operation.get("calls", ())]
            foreseen = _question(gate, operation) if each and len(set(ids)) == len(ids) else None
            said = answers(gate, operation)["said"]
            if foreseen is None:
                continue
            for verdict in foreseen:
                (got,) = [one for one in said if one["call"] == verdict.call] or [None]
                if got is None or got.get("replayed"):
                    continue
                compared += 1
                expected = got["refused"] if "refused" in got else (got["decision"], got["stage"], got["code"], got["would"])
                told = (verdict.decision, verdict.stage, verdict.code, verdict.would)
                assert (verdict.code if "refused" in got else told) == expected, (seed, operation)
    assert compared > 300


def test_each_call_of_a_question_has_its_own_answer_whatever_its_id() -> None:
    acts = Acts(POLICY)
    acts.run("T")
    calls = [("c1", "T", {}), ("c1", "T", {"n": 1}), ("new", "T", {}), ("new", "T", {"n": 1}), ("new", "T", {})]
    wanted = [wanted_from({"id": name, "tool": tool, "args": args}) for name, tool, args in calls]
    wanted += [wanted_from({"id": name}, position) for position, name in ((5, "a b"), (6, "c d"))]
    (answer,) = acts.world.observe(CanIAsked(acts.world.sender, tuple(wanted), "explicit"))
    assert isinstance(answer, Remaining)
    known = (None, "the call is known: its verdict stands")
    conflict = "ingress.id_conflict"
    assert [(said.decision, said.code) for said in answer.verdicts] == [
        ("allow", None),
        ("refused", conflict),
        ("allow", None),
        ("refused", conflict),
        ("allow", None),
        ("refused", "ingress.id"),
        ("refused", "ingress.id"),
    ]
    assert [(answer.verdicts[place].code, answer.verdicts[place].reason) for place in (0, 4)] == [known, known]
    assert [str(said.reason).partition(" ")[0] for said in answer.verdicts[5:]] == ["calls[5].id", "calls[6].id"]


def test_a_question_is_of_at_most_a_hundred_calls_and_of_agents_only() -> None:
    def read(role: Any, calls: int) -> str:
        origin = Origin(ThreadId("t"), RunId("r"), Sender(role, "a"))
        data = wire.encode(wire.CanI(calls=[{"id": f"c{n}", "tool": "T", "args": {}} for n in range(calls)]))
        return type(wire.read(origin, data)).__name__

    assert (read("agent", 100), read("agent", 101), read("operator", 1)) == ("CanIAsked", "MessageRefused", "MessageRefused")
