"""The oracle passes what the product is held to, and behaves on random histories."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from oracle import order, patterns, scope, templates
from oracle.comparison import comparable, comparable_state, shrunk
from oracle.scopes import scopes
from oracle.strategies import apply, histories, policies, thrown

HERE = Path(__file__).parent
SCENARIOS = HERE / "scenarios"
FILES = ("approvals", "barriers", "breaker", "ceilings", "dcbf", "dfa", "ingress", "order", "privilege", "semantic", "whole")
PATTERNS = json.loads((SCENARIOS / "patterns.json").read_text())
KEYS = json.loads((SCENARIOS / "keys.json").read_text())


@pytest.mark.parametrize("name", FILES)
def test_the_published_scenarios_hold(name: str) -> None:
    results = oracle.run_file(SCENARIOS / f"{name}.yaml")
    assert results
    assert [(r.name, r.failures) for r in results if not r.ok] == []


def test_a_scenario_that_does_not_hold_fails(tmp_path: Path) -> None:
    policy = "policy: {version: 1, agents: {a: {allowed_tools: [T]}}}\n"
    steps = "[{intent: {tool: U, args: {}}, expect: {decision: allow}}, {outcome: {call: c1, status: dance}}]"
    path = tmp_path / "wrong.yaml"
    path.write_text(policy + f"scenarios: [{{name: wrong, steps: {steps}, state: {{hop_count: 7}}}}]\n")
    (result,) = oracle.run_file(path)
    assert [failure.split(":")[0] for failure in result.failures] == ["step 1", "step 2", "state"]


def test_it_imports_nothing_of_what_it_is_compared_with() -> None:
    sources = list((HERE / "oracle").glob("*.py"))
    assert sources
    assert [s.name for s in sources if "import gated" in s.read_text() or "from gated" in s.read_text()] == []


@pytest.mark.parametrize("row", PATTERNS["match"], ids=lambda row: f"{row['pattern']} {row['args']}")
def test_patterns(row: dict[str, Any]) -> None:
    assert patterns.matches(row["pattern"], row["tool"], row["args"]) is row["match"]


@pytest.mark.parametrize("text", PATTERNS["errors"])
def test_bad_patterns_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match=r"bad pattern|bad condition|bad regex|unclosed|unbalanced"):
        patterns.parse(text)


@pytest.mark.parametrize(("template", "args", "key"), KEYS["templates"])
def test_templates(template: str, args: dict[str, Any], key: str | None) -> None:
    assert templates.render_key(template, args) == key


@pytest.mark.parametrize("template", KEYS["template_errors"])
def test_bad_templates_are_errors(template: str) -> None:
    with pytest.raises(ValueError, match="bad template"):
        templates.check_template(template)


@pytest.mark.parametrize(("how", "key", "normal"), KEYS["normalizers"])
def test_normalizers(how: str, key: str, normal: str) -> None:
    assert templates.normalise(how, key) == normal


Told = list[tuple[dict[str, Any], Any]]


def told(policy: dict[str, Any], operations: list[dict[str, Any]]) -> tuple[oracle.Gate, Told]:
    gate = oracle.Gate(policy)
    return gate, [(operation, apply(gate, operation)) for operation in operations]


@given(policies(), histories())
def test_the_same_history_is_answered_the_same(policy: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    before = copy.deepcopy((policy, operations))
    assert told(policy, operations)[1] == told(policy, operations)[1]
    assert (policy, operations) == before


@given(policies(), histories())
def test_every_call_gets_one_answer_and_says_why_it_is_no(policy: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    for operation, said in told(policy, operations)[1]:
        if operation["op"] == "intents":
            assert [answer["call"] for answer in said] == [call["id"] for call in operation["calls"]]
            for answer in said:
                assert "refused" in answer or (answer["code"] is None) is (answer["decision"] == "allow")


@given(policies(), histories())
def test_an_admitted_call_settles_once(policy: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    gate, _ = told(policy, operations)
    for thread in gate.threads.values():
        admitted = [(e.run, e.call) for e in thread.log if e.kind == "admitted"]
        settled = [(e.run, e.call) for e in thread.log if e.kind == "settled"]
        assert len(set(admitted)) == len(admitted)
        assert len(set(settled)) == len(settled)
        assert set(settled) <= set(admitted)


@given(policies(observe=False), histories())
def test_default_deny(policy: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    """With nothing allowed nothing is admitted, where the stage that says so is on and enforced."""
    policy["defaults"] |= {"allowed_tools": [], "checks": ["privilege"]}
    for agent in policy["agents"].values():
        agent.pop("allowed_tools", None)
        agent.pop("checks", None)
    gate, _ = told(policy, operations)
    assert [e for thread in gate.threads.values() for e in thread.log if e.kind == "admitted"] == []


@given(policies(), histories())
def test_a_batch_admitted_whole_would_be_admitted_one_by_one(policy: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    gate = oracle.Gate(policy)
    for operation in operations:
        before = copy.deepcopy(gate)
        said = apply(gate, operation)
        if operation.get("mode") == "atomic" and all(a.get("decision") == "allow" for a in said):
            assert apply(before, {**operation, "mode": "each"}) == said


@given(st.data())
def test_possible_states_are_those_of_every_order_and_subset(data: st.DataObject) -> None:
    """Against a walk that knows nothing of kinds, and within the fixpoint over all of them."""
    states = ["s", "t", "u"]
    step = st.fixed_dictionaries({"on": st.just("T"), "from": st.sampled_from(states), "to": st.sampled_from(states)})
    machine = {"name": "m", "initial": "s", "transitions": data.draw(st.lists(step, min_size=1, max_size=4))}
    indexes = st.lists(st.sampled_from(range(len(machine["transitions"]))), min_size=1, max_size=3, unique=True)
    flying = [
        order.Watch(machine, "", tuple(sorted(drawn)), (), False)
        for drawn in data.draw(st.lists(indexes, min_size=0, max_size=4))
    ]

    def walk(state: str, left: list[order.Watch]) -> set[str]:
        ends = [walk(to, left[:i] + left[i + 1 :]) for i, watch in enumerate(left) for to in watch.targets(state)]
        return {state}.union(*ends)

    found = order.possible_states("s", flying)
    assert found == walk("s", flying)
    assert found <= order.fixpoint("s", flying)


@given(scopes(), st.sampled_from(["e.test", "169.254", "w", "hello"]))
def test_another_forbidden_pattern_never_allows_more(
    case: tuple[dict[str, Any], dict[str, str], dict[str, Any]], more: str
) -> None:
    rules, selectors, args = case
    patterns_before = rules.get("forbidden_patterns", [scope.METADATA_ADDRESS])
    if scope.outside(rules, selectors, args) is not None:
        assert scope.outside({**rules, "forbidden_patterns": [*patterns_before, more]}, selectors, args) is not None


@given(scopes())
def test_a_scope_that_allows_nothing_allows_no_more_than_another(
    case: tuple[dict[str, Any], dict[str, str], dict[str, Any]],
) -> None:
    rules, selectors, args = case
    forbidden = {"forbidden_patterns": rules["forbidden_patterns"]} if "forbidden_patterns" in rules else {}
    if scope.outside(forbidden, selectors, args) is None:
        assert scope.outside(rules, selectors, args) is None


def test_a_difference_shrinks_to_what_makes_it() -> None:
    """Two gates that differ in one rule: what is left says which."""

    def differs(policy: dict[str, Any], operations: list[dict[str, Any]]) -> bool:
        try:
            one, other = oracle.Gate(policy), oracle.Gate({**policy, "unknown_tools": "deny"})
            return any(
                comparable(op, apply(one, op)) != comparable(op, apply(other, op)) for op in operations if op["op"] == "intents"
            )
        except (KeyError, TypeError, ValueError):
            return False

    policy, operations = next(case for case in map(thrown, range(100)) if differs(*case))
    policy, operations = shrunk(policy, operations, differs)
    assert len(operations) == 1
    assert len(operations[0]["calls"]) == 1


def test_the_gate_answers_in_what_is_compared() -> None:
    for seed in range(30):
        policy, operations = thrown(seed)
        gate, answers = told(policy, operations)
        assert all(comparable(operation, said) is not None for operation, said in answers)
        for thread in gate.threads.values():
            for run in thread.runs:
                assert comparable_state(gate.state(thread.id, run))["phase"]


WANTED = {
    "ingress": "id id_conflict tool_name args cost schema",
    "lifecycle": "not_thread_owner not_run_owner run_not_open run_exists run_completed run_failed already_settled parent_thread "
    "not_outcome_source in_flight_limit limit",
    "batch": "sibling_denied sibling_suspended sibling_refused",
    "ceilings": "hops",
    "privilege": "no_profile forbidden not_allowed approval_required call_cost total_cost calls tokens time",
    "dfa": "step_budget loop_budget unreachable",
    "order": "violation undeclared missing_key in_flight",
    "contracts": "require error",
    "dcbf": "barrier",
    "breaker": "open",
    "semantic": "unavailable secrets exfiltration injection drift judge",
    "approvals": "rejected expired cancelled unknown_ticket already_decided identity not_authorised digest_mismatch tool_change "
    "may_not_answer remember batch",
}


def test_what_is_thrown_reaches_every_code() -> None:
    """A history that never reaches a rule compares nothing."""
    found: set[str] = set()
    before_semantic = frozenset({"privilege", "dfa", "machines", "contracts", "dcbf"})  # without them more calls get so far
    for policy, history in (*map(thrown, range(600)), *(thrown(seed, without=before_semantic) for seed in range(300))):
        gate, answers = told(policy, history)
        for _, said in answers:
            for answer in said if isinstance(said, list) else [said]:
                found |= {str(answer.get("refused")), str(answer.get("code")), f"replayed {answer.get('replayed')}"}
                found |= {f"would {answer.get('would')}", f"status {answer.get('status')}"}
        found |= {f"ticket {t.state}" for thread in gate.threads.values() for t in thread.tickets}
    wanted = {f"{stage}.{code}" for stage, codes in WANTED.items() for code in codes.split()}
    states = {f"ticket {s}" for s in ("pending", "approved", "rejected", "expired", "cancelled", "superseded")}
    others = {"replayed True", "would deny", "would suspend", "status steer", "status failed", "status complete"}
    assert (wanted | states | others) - found == set()
