"""What-if: recorded verdicts against another policy, on the history as it was recorded."""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from msgspec.structs import replace

from core.acts import Acts, logs_of
from core.gate_of_core import CoreGate
from gated.core.policy import load_text
from gated.core.whatif import Compared, Tally, WhatIf
from gated.events import AgentId, CallId, IntentsReceived, Record, RunId, ThreadId, Wanted, seal, unseal
from oracle.comparison import answers
from oracle.strategies import thrown

OPEN = (
    "version: 1\nagents:\n"
    "  a: {allowed_tools: ['*'], data_scope: any, resource_budget: {max_calls: 100}, dcbf: {remove: [privacy]}}\n"
)


def what_if(records: Iterable[Record], policy: str) -> list[Compared]:
    whatif = WhatIf(load_text(policy, "new.yaml"))
    return [found for record in records for found in whatif.feed(record)]


def told(found: list[Compared]) -> list[tuple[str, str, str, str]]:
    """(call, outcome, recorded, derived) of the calls."""
    return [
        (item.call, item.outcome, item.recorded.decision, item.derived.decision if item.derived else "?")
        for item in found
        if item.what == "call"
    ]


def test_the_same_policy_flips_nothing() -> None:
    acts = Acts(OPEN)
    for number in range(5):
        acts.run("send_email", to=f"p{number}")
    acts.finish()
    found = what_if(acts.records, OPEN)
    assert [item.outcome for item in found] == ["unchanged"] * 6
    assert [item.what for item in found] == ["call"] * 5 + ["finish"]


def test_each_flip_stands_alone_since_the_history_is_what_happened() -> None:
    """A denied read would leave every write unread; but the read did happen, so only it flips."""
    machines = (
        "machines: [{name: rbw, key: '{f}', initial: n, "
        "transitions: [{on: Read, from: '*', to: r}, {on: Write, from: r, to: r}]}]\n"
    )
    acts = Acts(OPEN)
    acts.run("Read", f="a")
    acts.run("Write", f="a")
    acts.run("Write", f="b")
    stricter = OPEN.replace("allowed_tools", "forbidden_tools: [Read], allowed_tools") + machines
    assert told(what_if(acts.records, stricter)) == [
        ("c1", "flipped", "allow", "deny"),
        ("c2", "unchanged", "allow", "allow"),
        ("c3", "flipped", "allow", "deny"),
    ]


def test_what_was_denied_has_not_run() -> None:
    acts = Acts(OPEN.replace("dcbf: {remove: [privacy]}", "dcbf: {}"))
    assert [acts.run("send_email") for _ in range(4)] == ["allow", "allow", "deny", "deny"]
    found = what_if(acts.records, OPEN.replace("remove: [privacy]", "privacy: {budget: 0.6}"))
    assert [outcome for _, outcome, _, _ in told(found)] == ["unchanged", "unchanged", "flipped", "flipped"]


@pytest.mark.parametrize("mode", ["each", "atomic"])
def test_batches(mode: str) -> None:
    acts = Acts(OPEN)
    assert acts.batch([("send_email", {}), ("send_email", {}), ("send_email", {})], mode) == ["allow"] * 3
    found = told(what_if(acts.records, OPEN.replace("{remove: [privacy]}", "{}")))
    derived = [verdict for _, _, _, verdict in found]
    assert derived == (["allow", "allow", "deny"] if mode == "each" else ["deny"] * 3)


def test_siblings_of_a_batch_are_not_nested_calls() -> None:
    acts = Acts(OPEN)
    acts.batch([("T", {})] * 6)
    assert {outcome for _, outcome, _, _ in told(what_if(acts.records, OPEN))} == {"unchanged"}


def test_an_approval_is_void_where_its_people_may_no_longer_give_it_or_the_call_would_be_denied() -> None:
    asks = OPEN.replace("allowed_tools", "approval_required: [pay], allowed_tools")
    people = "approvals: {default: {approvers: [user:cy]}}\n"
    acts = Acts(asks + people)
    assert acts.ask("pay", n=1) == "suspend"
    acts.resolve("c1", "cy")
    acts.end("c1")
    same = what_if(acts.records, asks + people)
    assert [(item.what, item.outcome) for item in same] == [("call", "unchanged"), ("approval", "unchanged")]
    others = what_if(acts.records, asks + people.replace("cy", "dee"))
    assert [(item.what, item.outcome) for item in others] == [("call", "unchanged"), ("approval", "void")]
    denied = what_if(acts.records, asks.replace("approval_required", "forbidden_tools") + people)
    assert [(item.what, item.outcome) for item in denied] == [("call", "flipped"), ("approval", "void")]
    assert "denied" in denied[1].why
    free = what_if(acts.records, OPEN)
    assert [(item.what, item.outcome) for item in free] == [("call", "flipped"), ("approval", "unchanged")]


def test_an_approved_call_is_in_the_history() -> None:
    asks = OPEN.replace("allowed_tools", "approval_required: [pay], allowed_tools")
    acts = Acts(asks)
    acts.ask("pay", n=1)
    acts.resolve("c1", "cy")
    acts.ask("pay", n=2)
    found = told(what_if(acts.records, asks.replace("max_calls: 100", "max_calls: 1")))
    assert [(call, derived) for call, _, _, derived in found] == [("c1", "suspend"), ("c2", "deny")]


def test_steering_at_the_end_flips_too() -> None:
    moves = "[{on: Read, from: n, to: r}, {on: Write, from: r, to: w}]"
    machine = f"machines: [{{name: m, initial: n, terminal: [w], transitions: {moves}}}]\n"
    acts = Acts(OPEN)
    acts.run("Read")
    acts.finish()
    found = what_if(acts.records, OPEN + machine)
    assert [(item.what, item.outcome) for item in found] == [("call", "unchanged"), ("finish", "flipped")]


def test_an_agent_without_a_profile_and_one_whose_runs_an_operator_opens() -> None:
    acts = Acts(OPEN)
    acts.run("T")
    nobody = what_if(acts.records, OPEN.replace("  a:", "  b:"))
    assert [item.derived and item.derived.code for item in nobody] == ["privilege.no_profile"]
    operator = what_if(acts.records, OPEN.replace("allowed_tools", "runs: {opened_by: operator}, allowed_tools"))
    assert [item.derived and item.derived.code for item in operator] == ["lifecycle.run_not_open"]


def test_a_call_turned_away_for_want_of_a_run_is_decided_as_the_first_of_one() -> None:
    closed = OPEN.replace("allowed_tools", "runs: {opened_by: operator}, allowed_tools")
    acts = Acts(closed)
    assert acts.ask("T") == "deny"
    assert told(what_if(acts.records, OPEN)) == [("c1", "flipped", "deny", "allow")]


def redacted(record: Record, args: dict[str, object]) -> Record:
    """The record as redaction leaves it: other arguments, the decisions untouched."""
    body = unseal(record)
    if isinstance(body.observation, IntentsReceived):
        calls = tuple(Wanted(call.id, call.tool, args) for call in body.observation.calls)
        body = replace(body, observation=replace(body.observation, calls=calls))
    return seal(body)


def test_what_was_redacted_is_not_replayable_where_a_rule_reads_it_and_only_there() -> None:
    acts = Acts(OPEN)
    acts.run("pay", iban="DE1")
    records = [redacted(record, {"iban": {"redacted": "iban", "sha256": "0" * 64}}) for record in acts.records]
    assert [item.outcome for item in what_if(records, OPEN)] == ["unchanged"]
    contract = "contracts: [{name: ours, on: pay, require: 'args.iban == \"DE1\"'}]\n"
    (found,) = what_if(records, OPEN + contract)
    assert (found.outcome, found.derived) == ("not_replayable", None)
    assert "contract `ours`" in found.why
    pattern = OPEN.replace("allowed_tools", "forbidden_tools: ['PAY(iban = \"DE2\")'], allowed_tools")
    assert [item.outcome for item in what_if(records, pattern)] == ["not_replayable"]
    assert [item.outcome for item in what_if(records, OPEN + contract.replace("on: pay", "on: other"))] == ["unchanged"]


def test_the_tally_counts_every_outcome() -> None:
    acts = Acts(OPEN)
    acts.run("T")
    acts.run("U")
    tally = Tally()
    for found in what_if(acts.records, OPEN.replace("allowed_tools: ['*']", "allowed_tools: [T]")):
        tally.add(found)
    assert (tally.unchanged, tally.flipped, tally.not_replayable, tally.void) == (1, 1, 0, 0)


ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / "tests/scenarios").glob("*.yaml")), *sorted((ROOT / "examples/policies").glob("*/scenarios.yaml"))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_no_log_flips_under_its_own_policy(file: Path) -> None:
    for name, log in logs_of(file):
        if len({entry.policy.digest for entry in log}) != 1:
            continue  # under more than one policy there is no own one
        whatif = WhatIf(log[0].policy)
        found = [item for entry in log for item in whatif.feed(entry.record)]
        readable = [item for item in found if "redacted" not in item.why]
        assert [(i.call, i.recorded, i.derived, i.why) for i in readable if i.outcome != "unchanged"] == [], name


@pytest.mark.parametrize("block", range(4))
def test_no_thrown_history_flips_under_its_own_policy(block: int) -> None:
    """Dice throw what nobody thinks of: strangers' batches, ids twice in one message, approvals after the last hop."""
    compared = 0
    for seed in range(100 + block * 60, 160 + block * 60):
        policy, operations = thrown(seed)
        gate = CoreGate(policy)
        for operation in operations:
            answers(gate, operation)
        found = list(chain.from_iterable(what_ifs(gate)))
        compared += len(found)
        assert [(i.call, i.recorded, i.derived) for i in found if i.outcome in ("flipped", "void")] == [], seed
    assert compared > 300


def what_ifs(gate: CoreGate) -> Iterator[tuple[Compared, ...]]:
    whatif = WhatIf(gate.world.current)
    return (whatif.feed(entry.record) for entry in gate.world.log)


def test_the_first_call_of_an_id_is_the_one_that_was_decided() -> None:
    acts = Acts(OPEN)
    sender = acts.world.sender
    twice = (Wanted(CallId("c1"), "T", {}), Wanted(CallId("c1"), "Other", {}))
    acts.world.observe(IntentsReceived(sender, twice, "each", "explicit"))
    assert told(what_if(acts.records, OPEN.replace("['*']", "[T]"))) == [("c1", "unchanged", "allow", "allow")]


def test_a_stranger_s_batch_is_turned_away_under_any_policy() -> None:
    acts = Acts(OPEN + "  b: {allowed_tools: ['*'], data_scope: any}\n")
    acts.run("T")
    acts.world.agent = AgentId("b")
    assert acts.batch([("T", {}), ("T", {})], "atomic") == ["deny", "deny"]
    assert [i.outcome for i in what_if(acts.records, OPEN + "  b: {allowed_tools: [T]}\n")] == ["unchanged"] * 3


def test_an_approval_counts_no_hop() -> None:
    asks = OPEN.replace("allowed_tools", "ceilings: {max_hops: 1}, approval_required: [pay], allowed_tools")
    acts = Acts(asks)
    assert acts.ask("pay") == "suspend"
    acts.resolve("c1", "cy")
    assert [(i.what, i.outcome) for i in what_if(acts.records, asks)] == [("call", "unchanged"), ("approval", "unchanged")]


# --- what the auditor's fuzzers found ------------------------------------------------------------------------------------


def approvals(found: list[Compared]) -> list[tuple[str, str, str]]:
    return [(item.call, item.outcome, item.why) for item in found if item.what == "approval"]


ASKS = OPEN.replace("allowed_tools", "approval_required: [pay], allowed_tools")
PEOPLE = "approvals: {default: {approvers: [user:cy], may_answer: true, timeout: 15m}}\n"


def test_an_approval_that_would_have_come_too_late_is_void() -> None:
    acts = Acts(ASKS + PEOPLE)
    acts.ask("pay")
    acts.world.now += 120 * 1_000_000
    acts.resolve("c1", "cy")
    assert approvals(what_if(acts.records, ASKS + PEOPLE.replace("15m", "2m"))) == [("c1", "unchanged", "")]
    ((_, outcome, why),) = approvals(what_if(acts.records, ASKS + PEOPLE.replace("15m", "119s")))
    assert (outcome, why) == ("void", "the ticket would have expired before this answer")


def test_an_answer_for_the_tool_is_void_where_people_may_not_give_one() -> None:
    acts = Acts(ASKS + PEOPLE)
    acts.ask("pay")
    acts.resolve("c1", "cy", result="done")
    assert approvals(what_if(acts.records, ASKS + PEOPLE)) == [("c1", "unchanged", "")]
    ((_, outcome, why),) = approvals(what_if(acts.records, ASKS + PEOPLE.replace("may_answer: true, ", "")))
    assert (outcome, why) == ("void", "nobody could have answered for the tool")


def test_of_an_edit_only_the_editor_s_answer_counts() -> None:
    """Who approved before saw other arguments; under a quorum of two the editor alone lets nothing run."""
    default, rule = "{approvers: [user:cy, user:dee], quorum: 2}", "{on: 'pay(n = \"2\")', approvers: [user:dee], quorum: 1}"
    people = f"approvals: {{default: {default}, rules: [{rule}]}}\n"
    acts = Acts(ASKS + people)
    acts.ask("pay", n="1")
    acts.resolve("c1", "cy")
    acts.resolve("c1", "dee", args={"n": "2"})
    assert approvals(what_if(acts.records, ASKS + people)) == [("c1", "unchanged", "")]
    ((_, outcome, why),) = approvals(what_if(acts.records, ASKS + people.replace('"2"', '"3"')))
    assert (outcome, why) == ("void", "who approved it could not have done so alone")


def test_an_edit_to_no_arguments_is_decided_without_them() -> None:
    acts = Acts(ASKS)
    acts.ask("pay", iban="x")
    acts.resolve("c1", "cy", args={})
    without = ASKS + "contracts: [{name: none, on: pay, require: '!has(args.iban)'}]\n"
    assert approvals(what_if(acts.records, without)) == [("c1", "unchanged", "")]


def test_an_approved_batch_stands_or_falls_whole() -> None:
    acts = Acts(ASKS)
    acts.batch([("T", {}), ("pay", {})], "atomic")
    acts.resolve("c1", "cy")
    found = approvals(what_if(acts.records, ASKS.replace("approval_required: [pay]", "forbidden_tools: [pay]")))
    assert [(call, outcome) for call, outcome, _ in found] == [("c1", "void"), ("c2", "void")]
    assert found[0][2] == "another call of the atomic batch could not have run"


def test_what_people_were_not_asked_about_they_are_asked_again() -> None:
    """Between the call and the answer the time that the trial gives ran out: an ask that was on no ticket."""
    asks = ASKS.replace("resource_budget: {", "resource_budget: {over: ask, max_execution_time_seconds: 9999, ")
    acts = Acts(asks)
    acts.ask("pay")
    acts.world.now += 60 * 1_000_000
    acts.resolve("c1", "cy")
    assert approvals(what_if(acts.records, asks)) == [("c1", "unchanged", "")]
    ((_, outcome, why),) = approvals(what_if(acts.records, asks.replace("9999", "30")))
    assert (outcome, why.split(":")[0]) == ("void", "people would be asked again")


def test_what_was_remembered_holds_under_the_policy_on_trial_unless_its_approval_is_void() -> None:
    acts = Acts(ASKS + PEOPLE)
    acts.ask("pay", n=1)
    acts.resolve("c1", "cy", remember="call")
    assert acts.ask("pay", n=1) == "allow"
    other = ASKS.replace("max_calls: 100", "max_calls: 90")
    assert [i.outcome for i in what_if(acts.records, other + PEOPLE)] == ["unchanged"] * 3
    assert [i.outcome for i in what_if(acts.records, other + PEOPLE.replace("cy", "dee"))] == ["unchanged", "void", "flipped"]


def test_a_call_is_settled_at_what_it_costs_under_the_policy_on_trial() -> None:
    """Only what the outcome says of its cost is a fact: the least that a tool costs is a rule."""
    acts = Acts(OPEN)
    for _ in range(3):
        acts.run("T")
    priced = OPEN.replace("max_calls: 100", "max_calls: 100, max_total_cost_usd: 1.0") + "tools: {T: {cost_usd: 0.4}}\n"
    assert told(what_if(acts.records, priced)) == [
        ("c1", "unchanged", "allow", "allow"),
        ("c2", "unchanged", "allow", "allow"),
        ("c3", "flipped", "allow", "deny"),
    ]


def test_open_runs_are_counted_over_all_threads_as_recorded() -> None:
    few = OPEN.replace("allowed_tools", "runs: {max_open: 2}, allowed_tools")
    acts = Acts(OPEN)
    acts.finish()
    for number in range(3):
        acts.world.speak_for(ThreadId(f"t{number}"), RunId("r"), AgentId("a"))
        acts.run("T")
    assert [i.derived and i.derived.code for i in what_if(acts.records, few) if i.what == "call"] == [
        None,
        None,
        "lifecycle.limit",
    ]
    whatif = WhatIf(load_text(few, "new.yaml"))
    for record in acts.records:  # the same, where only the last thread is followed
        if record.thread != "t2":
            whatif.pass_by(record)
            continue
        codes = [found.derived and found.derived.code for found in whatif.feed(record)]
        assert codes in ([], ["lifecycle.limit"])


def test_a_run_that_a_rule_ended_is_open_no_more() -> None:
    failing = OPEN.replace("allowed_tools", "runs: {max_open: 1}, ceilings: {max_hops: 1}, allowed_tools")
    acts = Acts(failing)
    assert [acts.run("T"), acts.run("T")] == ["allow", "deny"]
    acts.world.speak_for(ThreadId("t"), RunId("r2"), AgentId("a"))
    assert acts.run("T") == "allow"
    assert [i.outcome for i in what_if(acts.records, failing)] == ["unchanged"] * 3


def test_a_run_ends_once() -> None:
    """What is executed ungated after the end fails no run; what the trial would have failed is finished as failed."""
    failing = OPEN.replace("allowed_tools", "on_ungated: fail, allowed_tools")
    acts = Acts(OPEN)
    acts.finish()
    acts.end("c9")
    acts.ask("T")
    assert [i.derived and i.derived.code for i in what_if(acts.records, failing)] == [None, "lifecycle.run_completed"]
    acts = Acts(OPEN)
    acts.end("c9")
    acts.finish()
    assert [(i.what, i.outcome, i.derived and i.derived.decision) for i in what_if(acts.records, failing)] == [
        ("finish", "flipped", "failed")
    ]


def test_a_batch_that_fails_its_run_is_the_last_that_is_decided() -> None:
    few = OPEN.replace("allowed_tools", "ceilings: {max_hops: 1}, allowed_tools")
    acts = Acts(OPEN)
    acts.batch([("T", {}), ("T", {})], "atomic")
    acts.ask("T")
    derived = [item.derived and item.derived.code for item in what_if(acts.records, few)]
    assert derived == ["batch.sibling_denied", "ceilings.hops", "lifecycle.run_failed"]


def test_what_the_end_of_a_run_makes_of_a_call_is_no_second_verdict() -> None:
    few = ASKS.replace("allowed_tools", "ceilings: {max_hops: 1}, allowed_tools")
    acts = Acts(few)
    assert acts.batch([("pay", {}), ("T", {})]) == ["suspend", "deny", "deny"]  # the first is cancelled
    assert [(i.call, i.recorded.decision) for i in what_if(acts.records, few)] == [("c1", "suspend"), ("c2", "deny")]


def test_a_batch_turned_away_for_want_of_a_run_is_decided_as_one() -> None:
    closed = OPEN.replace("allowed_tools", "runs: {opened_by: operator}, allowed_tools")
    acts = Acts(closed)
    acts.batch([("T", {}), ("U", {})], "atomic")
    found = told(what_if(acts.records, OPEN.replace("allowed_tools", "forbidden_tools: [U], allowed_tools")))
    assert [derived for _, _, _, derived in found] == ["deny", "deny"]
    assert [derived for _, _, _, derived in told(what_if(acts.records, OPEN))] == ["allow", "allow"]


def test_what_a_stranger_repeats_is_not_decided_anew() -> None:
    """Where the policy on trial lets agents share the thread, the id is that of a call which the run knows."""
    two = OPEN + "  b: {allowed_tools: ['*'], data_scope: any}\n"
    acts = Acts(two.replace("['*']", "[U]", 1))
    acts.ask("T")
    acts.world.agent, acts.made = AgentId("b"), 0
    acts.ask("T")
    shared = two + "threads: {shared_by: [[a, b]]}\n"
    assert [i.derived and i.derived.code for i in what_if(acts.records, shared)] == [None, "lifecycle.not_run_owner"]
