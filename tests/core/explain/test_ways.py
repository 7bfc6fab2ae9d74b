"""Every code's smallest ways to an allow, each of which the core confirms; and what every stage says."""

import json
from typing import Any

import pytest

from core.acts import Acts
from gated import canonical
from gated.core.explain import Case, Explanation, explain, recorded_case, wanted_case
from gated.core.explain.case import set_at
from gated.core.policy import load, load_text
from gated.core.scenario import steps
from gated.core.scenario.format import SwitchEntry
from gated.documents import parse_document
from gated.events import AgentId, RunId, Score, Wanted

POLICY = """
version: 1
agents:
  a:
    allowed_tools: [Read, Write, pay, send_email, plan, typed, keyed, deploy, post]
    forbidden_tools: ["Read(*secret*)"]
    approval_required: ["pay(to = \\"eve\\")"]
    data_scope: {allowed_paths: [/workspace], allowed_databases: [shop], allowed_tables: {shop: [orders]}}
    resource_budget: {max_cost_usd: 0.5, max_total_cost_usd: 1, max_calls: 9}
tools:
  Read: {resources: {args: {file_path: path}}}
  Write: {resources: {args: {file_path: path}}}
  typed:
    schema:
      properties: {n: {type: integer}, mode: {enum: [slow, fast]}}
      required: [n, mode]
      additionalProperties: false
machines:
  - name: read-before-write
    key: "{file_path}"
    initial: unread
    transitions: [{on: Read, from: "*", to: read}, {on: Write, from: read, to: read}]
  - {name: ids, key: "{id}", on_missing_key: deny, initial: n, transitions: [{on: keyed, from: "*", to: n}]}
contracts:
  - {name: cap, on: pay, require: "args.amount <= 100"}
  - {name: planned, on: deploy, require: "run.counts.plan >= 1"}
  - {name: not-eve, on: post, require: "!(args.to in ['eve'])"}
"""


def ask(tool: str, args: dict[str, Any] | None = None, policy: str = POLICY, agent: str = "a", **more: Any) -> Explanation:
    return explain(wanted_case(load_text(policy, "p.yaml"), AgentId(agent), Wanted(None, tool, args or {}, **more)))


def ways(explanation: Explanation) -> list[list[str]]:
    return [[change.text for change in way.changes] for way in explanation.ways]


ONE_CALL: list[tuple[str, dict[str, Any], dict[str, Any], str, list[str]]] = [
    ("other", {}, {}, "privilege.not_allowed", ["add `other` to `agents.a.allowed_tools`"]),
    (
        "Read",
        {"file_path": "/workspace/secret"},
        {},
        "privilege.forbidden",
        ["take `Read(*secret*)` out of `agents.a.forbidden_tools`"],
    ),
    ("plan", {"t": "shop.staff"}, {}, "privilege.data_scope", ["add `staff` to `agents.a.data_scope.allowed_tables.shop`"]),
    ("plan", {"u": "https://x.test/a"}, {}, "privilege.data_scope", ["give `u` inside `/workspace`, such as `/workspace/a`"]),
    ("plan", {}, {"cost_microusd": 700_000}, "privilege.call_cost", ["raise `agents.a.resource_budget.max_cost_usd` to 0.7"]),
    ("pay", {"to": "eve", "amount": 1}, {}, "privilege.approval_required", ['an approval: `pay(to = "eve")` needs an approval']),
    ("Write", {"file_path": "/workspace/a"}, {}, "order.violation", ['call `Read` with {"file_path":"/workspace/a"} first']),
    ("keyed", {}, {}, "order.missing_key", ["give the argument `id`"]),
    ("pay", {"to": "bob", "amount": 500}, {}, "contracts.require", ["set the argument `amount` to 100"]),
    ("pay", {"to": "bob"}, {}, "contracts.error", ["set the argument `amount` to 100"]),
    ("deploy", {}, {}, "contracts.require", ["call `plan` with {} first"]),
    ("post", {"to": "eve"}, {}, "contracts.require", ['set the argument `to` to another text, such as "example"']),
    ("post", {"to": ["eve"]}, {}, "contracts.error", ['set the argument `to` to another text, such as "example"']),
    (
        "typed",
        {"n": "5", "mode": "fast", "x": 1},
        {},
        "ingress.schema",
        ["leave out the argument `x`", "set the argument `n` to 5"],
    ),
    ("typed", {}, {}, "ingress.schema", ['set the argument `mode` to "slow"', "set the argument `n` to 1"]),
]


@pytest.mark.parametrize(("tool", "args", "more", "code", "first"), ONE_CALL)
def test_the_smallest_way_of_a_call_on_its_own(
    tool: str, args: dict[str, Any], more: dict[str, Any], code: str, first: list[str]
) -> None:
    found = ask(tool, args, **more)
    assert found.verdict.code == code
    assert sorted(ways(found)[0]) == sorted(first)


def test_a_policy_change_that_is_reported_is_one_under_which_the_call_is_allowed() -> None:
    """Checked from the outside: the edits are put into the document, the document is loaded, the call is made."""
    checked = 0
    for tool, args, more, _, _ in ONE_CALL:
        for way in ask(tool, args, **more).ways:
            data = json.loads(load_text(POLICY, "p.yaml").text)
            if any(change.kind != "policy" for change in way.changes):
                continue
            for change in way.changes:
                data = set_at(data, change.path, change.value)
            changed = load(parse_document(canonical.encode(data), file="changed.json"))
            case = wanted_case(changed, AgentId("a"), Wanted(None, tool, args, **more))
            assert case.judge(case.draft).decided.decision == "allow", way
            checked += 1
    assert checked >= 10


def test_ways_are_ranked_and_none_holds_another() -> None:
    found = ask("Write", {"file_path": "/etc/passwd"}).ways
    assert [way.size for way in found] == sorted(way.size for way in found)
    places = [{(change.kind, change.path) for change in way.changes} for way in found]
    assert not any(a <= b for i, a in enumerate(places) for j, b in enumerate(places) if i != j)


def test_every_stage_says_what_it_finds_also_after_the_first_denial() -> None:
    found = ask("pay", {"to": "bob", "amount": 500}, cost_microusd=700_000)
    says = {report.stage: (report.says, report.asked) for report in found.stages}
    assert says["privilege"] == ("deny", True)
    assert says["contracts"] == ("deny", False)
    assert says["dcbf"] == ("ok", False)
    assert says["ceilings"] == ("off", True)
    assert found.verdict.checks_skipped == ("dfa", "order", "contracts", "dcbf")


def test_an_agent_that_has_no_profile() -> None:
    found = ask("plan", agent="nobody")
    assert found.verdict.code == "privilege.no_profile"
    assert ways(found)[0] == ["add the agent `nobody` with `plan` allowed"]


def test_an_allowed_call_needs_no_change() -> None:
    found = ask("plan")
    assert (found.verdict.decision, found.ways) == ("allow", ())


def recorded(acts: Acts, call: str) -> Case:
    found = recorded_case(acts.records, acts.world.known, "r1", call)
    assert found is not None
    return found


def test_the_first_tool_of_a_machine_is_named_for_a_recorded_call_and_its_state_is_the_one_it_met() -> None:
    acts = Acts(POLICY)
    acts.run("Read", file_path="/workspace/a")
    acts.ask("Write", file_path="/workspace/b")
    acts.run("Read", file_path="/workspace/b")
    assert acts.ask("Write", file_path="/workspace/b") == "allow"
    assert explain(recorded(acts, "c2")).verdict.code == "order.violation"
    assert explain(recorded(acts, "c4")).verdict.decision == "allow"


def test_what_is_in_flight_is_waited_for() -> None:
    acts = Acts(POLICY)
    acts.batch([("Read", {"file_path": "/workspace/a"}), ("Write", {"file_path": "/workspace/a"})])
    found = explain(recorded(acts, "c2"))
    assert found.verdict.code == "order.in_flight"
    assert ways(found)[0] == ["wait until `c1` has ended well"]


def test_a_barrier_is_raised_by_just_what_it_lacks() -> None:
    acts = Acts(POLICY)
    for _ in range(3):
        acts.run("send_email")
    found = explain(recorded(acts, "c3"))
    assert found.verdict.code == "dcbf.barrier"
    assert ways(found)[0] == ["raise `agents.a.dcbf.privacy.budget` to 0.6"]


@pytest.mark.parametrize("kappa", [0.5, 0.25])
def test_a_barrier_with_a_margin_is_raised_by_the_least_that_will_do(kappa: float) -> None:
    policy = POLICY.replace("    resource_budget", f"    dcbf: {{kappa: {kappa}, privacy: {{budget: 0.2}}}}\n    resource_budget")
    first = ways(ask("send_email", policy=policy))[0]
    assert first == [f"raise `agents.a.dcbf.privacy.budget` to {0.2 / kappa:g}"]


def test_a_dangerous_pair() -> None:
    policy = POLICY.replace(
        "    resource_budget", "    dcbf: {safety: {pairs: [[plan, deploy]]}, remove: [privacy]}\n    resource_budget"
    )
    acts = Acts(policy)
    acts.run("plan")
    acts.ask("deploy")
    assert ways(explain(recorded(acts, "c2")))[0] == ["take [plan, deploy] out of `agents.a.dcbf.safety.pairs`"]


def test_budgets_are_raised_to_the_least_that_lets_the_call_through() -> None:
    acts = Acts(POLICY)
    for _ in range(10):
        acts.run("plan")
    found = explain(recorded(acts, "c10"))
    assert found.verdict.code == "privilege.calls"
    assert ways(found)[0] == ["raise `agents.a.resource_budget.max_calls` to 10"]
    steps = Acts(POLICY.replace("max_calls: 9", "max_calls: 99, max_steps: 2"))
    for _ in range(3):
        steps.run("plan")
    assert ways(explain(recorded(steps, "c3")))[0] == ["raise `agents.a.resource_budget.max_steps` to 3"]


def test_a_default_is_edited_where_it_stands() -> None:
    policy = "version: 1\ndefaults: {allowed_tools: [x]}\nagents: {a: {resource_budget: {max_calls: 3}}}\n"
    assert ways(ask("y", policy=policy))[0] == ["add `y` to `defaults.allowed_tools`"]


def test_a_run_that_has_ended_and_one_of_another_agent() -> None:
    acts = Acts(POLICY)
    acts.run("plan")
    acts.finish()
    acts.ask("plan")
    found = explain(recorded(acts, "c2"))
    assert found.verdict.code == "lifecycle.run_completed"
    assert ways(found)[0] == ["ask in a new run: this one has ended"]


def test_the_hop_ceiling() -> None:
    acts = Acts(POLICY.replace("    resource_budget", "    ceilings: {max_hops: 1}\n    resource_budget"))
    acts.run("plan")
    acts.ask("plan")
    found = explain(recorded(acts, "c2"))
    assert found.verdict.code == "ceilings.hops"
    assert ways(found)[0] == ["raise `agents.a.ceilings.max_hops` to 2"]


def test_an_open_breaker_is_waited_for() -> None:
    acts = Acts(POLICY.replace("agents:", "breaker: {failures: 1, cooldown: 30s}\nagents:"))
    acts.ask("plan")
    acts.end(status="error")
    acts.ask("plan")
    found = explain(recorded(acts, "c2"))
    assert found.verdict.code == "breaker.open"
    assert ways(found)[0] == ["wait until the breaker's 30s have passed"]


def test_what_a_detector_says_is_a_persons_to_answer_or_a_threshold_s() -> None:
    policy = POLICY + "semantic: {secrets: {}}\n"
    found = explain(
        wanted_case(load_text(policy, "p.yaml"), AgentId("a"), Wanted(None, "plan", {}, scores={"secrets": Score(700_000)}))
    )
    assert found.verdict.code == "semantic.secrets"
    assert ways(found)[0][0].startswith("an approval: ")
    assert ["`semantic.secrets.thresholds`: never"] in ways(found)
    denied = explain(
        wanted_case(load_text(policy, "p.yaml"), AgentId("a"), Wanted(None, "plan", {}, scores={"secrets": Score(950_000)}))
    )
    assert ways(denied)[0] == ["`semantic.secrets.thresholds`: never"]


def test_another_policy_may_explain_a_recorded_call() -> None:
    acts = Acts(POLICY)
    acts.run("plan")
    other = load_text(POLICY.replace("plan, ", ""), "other.yaml")
    case = recorded_case(acts.records, acts.world.known, "r1", "c1", other)
    assert case is not None
    found = explain(case)
    assert (found.recorded and found.recorded.decision, found.verdict.decision) == ("allow", "deny")


def test_observed_findings_are_told_and_stand_in_nobodys_way() -> None:
    policy = POLICY.replace("    resource_budget", "    modes: {order: observe}\n    resource_budget")
    found = ask("Write", {"file_path": "/workspace/a"}, policy)
    order = next(report for report in found.stages if report.stage == "order")
    assert (found.verdict.decision, order.says, order.observed, found.ways) == ("allow", "deny", True, ())


def test_a_call_that_was_never_made_is_in_no_log() -> None:
    acts = Acts(POLICY)
    assert recorded_case(acts.records, acts.world.known, "r1", "c1") is None
    assert recorded_case([], {}, RunId("r1"), "c1") is None


def test_a_limit_of_the_parent_s_is_changed_where_the_parent_s_agent_has_it() -> None:
    policy = (
        "version: 1\nthreads: {shared_by: [[boss, a]]}\nagents:\n"
        "  boss: {allowed_tools: [plan], resource_budget: {max_calls: 1}}\n  a: {allowed_tools: [plan]}\n"
    )
    acts = Acts(policy, "boss")
    acts.run("plan")
    steps.switch(acts.world, SwitchEntry(run="child", agent="a", thread="t", parent="r1"))
    assert acts.ask("plan") == "deny"
    case = recorded_case(acts.records, acts.world.known, "child", "c2")
    assert case is not None
    found = explain(case)
    assert found.verdict.findings[0].run == "r1"
    assert ways(found)[0] == ["raise `agents.boss.resource_budget.max_calls` to 2"]


def test_a_thread_that_belongs_to_another_agent() -> None:
    policy = "version: 1\nagents: {a: {allowed_tools: [plan]}, b: {allowed_tools: [plan]}}\n"
    acts = Acts(policy)
    acts.run("plan")
    acts.world.speak_for(acts.world.thread, RunId("r2"), AgentId("b"))
    assert acts.ask("plan") == "deny"
    case = recorded_case(acts.records, acts.world.known, "r2", "c2")
    assert case is not None
    found = explain(case)
    assert found.verdict.code == "lifecycle.not_thread_owner"
    assert ways(found)[0] == ["add `[a, b]` to `threads.shared_by`"]


def test_a_call_that_was_turned_away_for_want_of_a_run() -> None:
    acts = Acts("version: 1\nagents: {a: {allowed_tools: [plan], runs: {opened_by: operator}}}\n")
    assert acts.ask("Write") == "deny"
    found = explain(recorded(acts, "c1"))
    assert found.verdict.code == "lifecycle.run_not_open"
    says = {report.stage: report.says for report in found.stages}
    assert (says["lifecycle"], says["privilege"]) == ("deny", "deny")
    assert ways(found)[0] == ["`agents.a.runs.opened_by: agent`", "add `Write` to `agents.a.allowed_tools`"]
