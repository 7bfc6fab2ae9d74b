"""Contracts: what is found, what denies whatever the policy says, and what is refused when they are loaded."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from gated.core.call import Call
from gated.core.expressions import Expression
from gated.core.policy import load_text
from gated.core.runview import View
from gated.core.stages.contracts import (
    ContractEntry,
    ContractError,
    ContractSet,
    check,
    compile_contracts,
    ensure,
    fails_run,
)
from gated.documents import DocumentError
from gated.events import CallId, Finding, Phase, Status

VIEW: Final = View("payer", Phase.IDLE, 0, Map(), 0, None, {}, False, (), 1)


def rules(*entries: dict[str, Any]) -> ContractSet:
    named = [{"name": f"c{position}", **entry} for position, entry in enumerate(entries)]
    return compile_contracts(msgspec.convert(named, list[ContractEntry]))


def found(contracts: ContractSet, tool: str, args: dict[str, Any]) -> tuple[Finding, ...]:
    return check(contracts, VIEW, Call(CallId("c"), tool, args, "d" * 64))


def outcome(contracts: ContractSet, tool: str, status: Status, content: Any = None, **facts: Any) -> tuple[Finding, ...]:
    return ensure(contracts, VIEW, tool, {"id": 1}, status, content, facts)


# --- before the call ---------------------------------------------------------------------------------------------------


def test_what_holds_finds_nothing() -> None:
    assert found(rules({"on": "pay", "require": "args.amount <= 10"}), "pay", {"amount": 10}) == ()


@pytest.mark.parametrize("otherwise", ["deny", "ask", "warn"])
def test_what_does_not_hold_is_a_finding_that_names_the_contract(otherwise: str) -> None:
    contracts = rules({"name": "cap", "on": "pay", "require": "args.amount <= 10", "otherwise": otherwise, "reason": "too much"})
    (finding,) = found(contracts, "pay", {"amount": 11})
    assert (finding.stage, finding.outcome, finding.code) == ("contracts", otherwise, "contracts.require")
    assert (finding.contract, finding.reason, finding.authoritative) == ("cap", "too much", True)


def test_without_a_reason_the_expression_is_it() -> None:
    (finding,) = found(rules({"on": "pay", "require": "args.amount <= 10"}), "pay", {"amount": 11})
    assert finding.reason == "contract `c0` does not hold: args.amount <= 10"


@pytest.mark.parametrize("otherwise", ["deny", "ask", "warn"])
@pytest.mark.parametrize(
    ("require", "args"),
    [
        ("args.missing <= 10", {}),
        ("args.amount <= 10", {"amount": "5"}),
        ("args.amount", {"amount": 5}),
        ("args.amount <= 10 ? 'yes' : 'no'", {"amount": 5}),
        ("1 / args.amount > 0", {"amount": 0}),
        ("args.path == 'ok'", {"path": "ok\0evil"}),
        ("args.l.all(a, args.l.all(b, a == b))", {"l": [1] * 5000}),
        ("'900' > 100", {}),
        ("1", {}),
        ("run.counts[args.x] < 3", {"x": "never"}),
    ],
)
def test_what_cannot_be_evaluated_denies_whatever_otherwise_says(otherwise: str, require: str, args: dict[str, Any]) -> None:
    contracts = rules({"on": "pay", "require": require, "otherwise": otherwise, "reason": "mine"})
    (finding,) = found(contracts, "pay", args)
    assert (finding.outcome, finding.code, finding.contract) == ("deny", "contracts.error", "c0")
    assert finding.reason.startswith("contract `c0` cannot be evaluated: ")


@pytest.mark.parametrize("env", ["prod", ["prod"], 5, None, {"prod": 1}])
def test_a_type_mismatch_never_lifts_a_forbidding_rule(env: Any) -> None:
    """pains.md: deny if `args.env in [prod]`; `["prod"]` and 5 slipped through."""
    for text in ("!(args.env in ['prod'])", "args.env != 'prod'", "type(args.env) == string && !(args.env in ['prod'])"):
        assert found(rules({"on": "deploy", "require": text}), "deploy", {"env": env})
    assert found(rules({"on": "deploy", "require": "!args.env.startsWith('prod')"}), "deploy", {"env": env})


def test_on_matches_widely() -> None:
    contracts = rules({"on": 'sh(cmd ~ "rm *")', "require": "false"}, {"on": "Wire(*)", "require": "false"})
    assert found(contracts, "SH", {"cmd": "RM x"})
    assert found(contracts, "wire", {})
    assert not found(contracts, "sh", {"cmd": "ls"})


def test_an_observed_contract_is_not_authoritative() -> None:
    contracts = rules({"on": "pay", "require": "false", "mode": "observe"}, {"on": "pay", "require": "args.x", "mode": "observe"})
    assert [f.authoritative for f in found(contracts, "pay", {})] == [False, False]


def test_all_findings_come_in_the_order_of_the_file() -> None:
    contracts = rules(
        {"on": "p*", "require": "false", "otherwise": "warn"},
        {"on": "pay", "require": "args.nope"},
        {"on": "/p.*/", "require": "false", "otherwise": "ask"},
        {"on": "other", "require": "false"},
    )
    assert [(f.contract, f.outcome) for f in found(contracts, "pay", {})] == [("c0", "warn"), ("c1", "deny"), ("c2", "ask")]


def test_only_contracts_about_the_tool_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 contracts of which two apply cost one evaluation where both hold, and say each what is wrong where one does not."""
    contracts = rules(*({"on": f"tool{n % 10}", "require": f"args.n != {n}"} for n in range(20)))
    asked: list[str] = []
    test = Expression.test

    def spy(self: Expression, values: Any, *, either: bool) -> bool:
        asked.append(self.text)
        return test(self, values, either=either)

    monkeypatch.setattr(Expression, "test", spy)
    assert found(contracts, "tool3", {"n": 1}) == ()
    assert asked == ["(args.n != 3\n) && (args.n != 13\n)"]
    asked.clear()
    assert [finding.contract for finding in found(contracts, "TOOL3", {"n": 13})] == ["c13"]
    assert asked == ["(args.n != 3\n) && (args.n != 13\n)", "args.n != 3", "args.n != 13"]
    assert len(contracts.about("tool3")) == 2
    assert contracts.about("unknown") == ()


REQUIREMENTS: Final = (
    "args.n < 3",
    "args.n",  # a boolean for some arguments only
    "args.n == 1 || args.to == 'x' // never mind ) && (",
    "has(args.to) ? args.to != 'y' : true",
    "[1, 2].exists(k, k == args.n)",
    "args['to'].size() < 2",
    "'900' > 100",
    "run.counts[tool] == 0",
)
PATTERNS: Final = ("pay", "PAY", "p*", "*", 'pay(to="x")', "pay*")


@given(
    st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(REQUIREMENTS)), min_size=1, max_size=5),
    st.dictionaries(st.sampled_from(["n", "to"]), st.sampled_from([0, 1, 5, True, "x", "y", "a\0b", None])),
)
def test_preconditions_that_are_evaluated_at_once_find_what_each_finds(
    asked: list[tuple[str, str]], args: dict[str, Any]
) -> None:
    entries = [{"name": f"c{n}", "on": on, "require": require} for n, (on, require) in enumerate(asked)]
    each = [finding for entry in entries for finding in found(rules(entry), "pay", args)]
    assert list(found(rules(*entries), "pay", args)) == each


@given(st.dictionaries(st.sampled_from(["amount", "to"]), st.none() | st.integers() | st.floats() | st.text() | st.booleans()))
def test_only_a_true_requirement_lets_a_call_pass(args: dict[str, Any]) -> None:
    contracts = rules({"on": "pay", "require": "args.amount <= 10 && args.to.endsWith('@ours')"})
    amount, to = args.get("amount"), args.get("to")
    good = not isinstance(amount, bool) and isinstance(amount, int | float) and amount <= 10
    good = good and isinstance(to, str) and to.endswith("@ours") and "\0" not in to and amount != float("-inf")
    if good and isinstance(to, str) and any("\ud800" <= c <= "\udfff" for c in to):
        good = False
    assert (found(contracts, "pay", args) == ()) == good


# --- after the call ----------------------------------------------------------------------------------------------------


def test_a_postcondition_that_holds() -> None:
    contracts = rules({"on": "read", "ensure": "result.status == 'success' && result.content != '' && result.facts.complete"})
    assert outcome(contracts, "read", "success", "text", complete=True) == ()
    assert contracts.ensures("READ")
    assert not contracts.ensures("write")


@pytest.mark.parametrize(
    ("ensure_text", "content"),
    [
        ("result.content == 'x'", "y"),
        ("result.facts.complete", None),
        ("result.content.size() > 0", 5),
        ("result.content", "x"),
        ("result.status == 'error'", None),
        ("result.content == 'ok'", "ok\0"),
        ("args.id == 2 || run.failed", None),
    ],
)
def test_a_breach_is_one_also_where_it_cannot_be_evaluated(ensure_text: str, content: Any) -> None:
    contracts = rules({"name": "whole", "on": "read", "ensure": ensure_text})
    (finding,) = outcome(contracts, "read", "success", content)
    assert (finding.code, finding.outcome, finding.contract) == ("contracts.ensure", "warn", "whole")
    assert finding.reason.startswith("postcondition of `whole` does not hold: ")


def test_only_an_enforced_breach_that_says_so_fails_the_run() -> None:
    breach = {"on": "read", "ensure": "false"}
    for entry, fails in [
        (breach, False),
        ({**breach, "on_breach": "fail"}, True),
        ({**breach, "on_breach": "fail", "mode": "observe"}, False),
    ]:
        contracts = rules({"on": "read", "ensure": "true", "on_breach": "fail"}, entry)
        findings = outcome(contracts, "read", "success")
        assert len(findings) == 1
        assert fails_run(contracts, findings, "read") is fails
    assert not fails_run(rules({"on": "read", "ensure": "true", "on_breach": "fail"}), (), "read")


def test_a_requirement_is_not_asked_after_the_call_nor_a_postcondition_before() -> None:
    contracts = rules({"on": "read", "ensure": "false"}, {"on": "read", "require": "false"})
    assert [f.contract for f in found(contracts, "read", {})] == ["c1"]
    assert [f.contract for f in outcome(contracts, "read", "success")] == ["c0"]


# --- loading -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "path", "said"),
    [
        ({"on": "pay", "require": "args.x >"}, (1, "require"), "args.x >"),
        ({"on": "pay", "require": "run.stepcount > 1"}, (1, "require"), "did you mean"),
        ({"on": "pay", "require": "result.status == 'error'"}, (1, "require"), "result"),
        ({"on": "pay", "ensure": "result.text == 'x'"}, (1, "ensure"), "result.text"),
        ({"on": "pay(", "require": "true"}, (1, "on"), "pay"),
        ({"on": "pay"}, (1,), "neither"),
        ({"on": "pay", "require": "true", "name": "c0"}, (1, "name"), "declared twice"),
        ({"on": "pay", "ensure": "true", "otherwise": "ask"}, (1, "otherwise"), "no `require`"),
        ({"on": "pay", "require": "true", "on_breach": "fail"}, (1, "on_breach"), "no `ensure`"),
    ],
)
def test_a_mistake_is_a_load_error_with_its_place(entry: dict[str, Any], path: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ContractError) as caught:
        rules({"on": "pay", "require": "true"}, entry)
    assert caught.value.path == path
    assert said in str(caught.value)


def test_in_a_policy_a_mistake_has_file_and_line() -> None:
    text = """\
version: 1
contracts:
  - name: cap
    on: pay
    require: "arg.amount <= 10"
"""
    with pytest.raises(DocumentError, match=r"rules\.yaml:5.*did you mean `args`"):
        load_text(text, "rules.yaml")


@pytest.mark.parametrize("entry", [{"whenn": "true"}, {"otherwise": "allow"}, {"mode": "off"}, {"on_breach": "stop"}])
def test_unknown_keys_and_values_are_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        rules({"on": "pay", "require": "true", **entry})
