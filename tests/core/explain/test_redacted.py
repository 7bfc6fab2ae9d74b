"""Explaining over a log that secrets were taken out of: with the keys by what was said, without them with what is not certain."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.redaction.recorded import AGENT, TOKEN
from core.redaction.test_subjects import ENCRYPTED, Kept
from gated.core.explain import Explanation, explain, recorded_case, wanted_case
from gated.core.redaction.vault import Vault
from gated.events import AgentId, CallId, OutcomeReported, RunId, Wanted

RULES = """contracts:
  - {name: ours, on: send, require: 'args.to.endsWith("@ours.example")', reason: "ours only"}
"""
GUARDED = ENCRYPTED.replace("contracts:\n", RULES)
TO = st.sampled_from(["ana@ours.example", "bob@ours.example", "eve@evil.test", "plain@ours.example and more"])


def of_record(gate: Kept, call: str, vault: Vault | None) -> Explanation:
    found = recorded_case(gate.log, gate.known, "r", call, vault=vault)
    assert found is not None
    return explain(found)


def of_nobody(gate: Kept, tool: str, args: dict[str, Any], vault: Vault | None) -> Explanation:
    """A call on the run as it stands."""
    asked = Wanted(None, tool, args)
    more = {"state": gate.state, "run_id": RunId("r"), "known": gate.known, "vault": vault}
    return explain(wanted_case(gate.policy, AgentId("a"), asked, **more))  # type: ignore[arg-type]


@given(st.lists(st.tuples(TO, st.booleans()), min_size=1, max_size=5))
def test_with_the_keys_a_recorded_call_is_explained_as_it_was_decided(calls: list[tuple[str, bool]]) -> None:
    gate = Kept(GUARDED)
    for number, (to, secret) in enumerate(calls):
        made = gate.ask(f"c{number}", "send", to=to, **({"auth": TOKEN} if secret else {}))
        if made.decision == "allow":
            gate.say(OutcomeReported(AGENT, CallId(f"c{number}"), "success", "sent"))
        found = of_record(gate, f"c{number}", gate.reader())
        assert (found.verdict.decision, found.verdict.code, found.unread) == (made.decision, made.code, None)


def test_without_the_keys_it_is_said_which_rule_cannot_read() -> None:
    gate = Kept(GUARDED)
    assert gate.ask("c1", "send", to="ana@ours.example").decision == "allow"
    found = of_record(gate, "c1", None)
    assert found.verdict.decision == "deny"  # of what stands in the log: the keys are not here
    assert found.unread is not None
    assert "reads the arguments, which were redacted" in found.unread
    gate.forget("thread:t")
    assert of_record(gate, "c1", gate.reader()).unread == found.unread


def test_a_call_that_no_rule_reads_the_redacted_part_of_is_certain() -> None:
    gate = Kept()
    gate.ask("c1", "look", q="ana@ours.example")
    found = of_record(gate, "c1", None)
    assert (found.verdict.decision, found.unread) == ("allow", None)


@pytest.mark.parametrize("to", ["ana@ours.example", "bob@ours.example"])
def test_machines_are_found_by_keys_that_were_redacted(to: str) -> None:
    gate = Kept()
    gate.ask("c1", "send", to="ana@ours.example")
    gate.say(OutcomeReported(AGENT, CallId("c1"), "success", "sent"))
    wanted = "deny" if to == "ana@ours.example" else "allow"
    before = len(gate.log)
    found = of_nobody(gate, "send", {"to": to}, gate.reader())
    assert (found.verdict.decision, found.unread) == (wanted, None)
    assert of_nobody(gate, "send", {"to": to}, None).unread == "machine `once` has keys that were redacted"
    assert of_nobody(gate, "look", {"q": "x"}, None).unread is None
    assert len(gate.log) == before


def test_a_trial_lacks_no_key_to_seal_under() -> None:
    """What leads to an allow is tried with calls that open tickets: those of a run whose subject has no key yet."""
    gate = Kept()
    gate.ask("c1", "look", q="plain")
    found = of_nobody(gate, "pay", {"note": TOKEN}, gate.reader())
    assert (found.verdict.decision, gate.made) == ("suspend", 0)
    assert [change.kind for change in found.ways[0].changes] == ["approval"]
