"""What is said is decided on as it is, and recorded without what must not be written; the state stays a fold of the log."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.redaction.recorded import AGENT, ANA, POLICY, TOKEN, VAULT, Gate
from gated import ingress
from gated.core.redaction.cover import revealed
from gated.core.redaction.vault import Unreadable, Vault
from gated.events import (
    AbortRequested,
    AgentId,
    CallDecided,
    CallId,
    IntentsReceived,
    OutcomeReported,
    ResolutionReceived,
    RunId,
    RunStarted,
    Score,
    TicketId,
    TicketOpened,
    Wanted,
)


def test_a_call_is_decided_as_it_is_and_recorded_without_its_secrets() -> None:
    gate = Gate()
    decided = gate.ask("c1", "look", headers={"auth": TOKEN}, list=["x", "4111 1111 1111 1111"], note="plain", n=4111111111111111)
    assert decided.decision == "allow"
    body = gate.body()
    assert isinstance(body.observation, IntentsReceived)
    wanted = body.observation.calls[0]
    assert wanted.args["headers"]["auth"] == {"redacted": "secrets", "sha256": VAULT.digest(TOKEN)}
    assert wanted.args["list"] == ["x", {"redacted": "card", "sha256": VAULT.digest("4111 1111 1111 1111")}]
    assert wanted.args["note"]["redacted"] == "field"
    assert wanted.args["n"]["redacted"] == "card"
    assert body.redacted == (
        "calls[0].args.headers.auth",
        "calls[0].args.list[1]",
        "calls[0].args.note",
        "calls[0].args.n",
        "<machine key>",
    )
    assert wanted.args_sha256 == decided.args_sha256
    assert "secretsecret" not in gate.text()
    gate.restart()


@pytest.mark.parametrize("secret", ["hunter", ["hunter"], [[1, "hunter"]], 712345, [712.345]], ids=str)
def test_whatever_stands_under_a_key_that_tells_is_taken_out(secret: Any) -> None:
    gate = Gate()
    gate.ask("c1", "look", headers={"X-Api-Key": secret}, other="plain", password=None, token=True, secret="")
    assert "hunter" not in gate.text()
    assert "712345" not in gate.text().replace(".", "")
    args = gate.body().observation.calls[0].args  # type: ignore[union-attr]
    assert (args["other"], args["password"], args["token"], args["secret"]) == ("plain", None, True, "")
    gate.restart()


@pytest.mark.parametrize("number", [4111111111111111, 4111111111111111.0, 5e15 + 555555555554444])
@pytest.mark.parametrize("field", ["to", "note"])
def test_a_number_is_taken_out_however_it_is_written(number: float, field: str) -> None:
    gate = Gate()
    for call in ("c1", "c2"):
        gate.ask(call, "send" if field == "to" else "look", **{field: number}, inner=[{"n": number}])
        gate.say(OutcomeReported(AGENT, CallId(call), "success", content={"n": number}, facts={"n": number}))
    assert not [text for text in (f"{int(number)}", f"{number}") if text in gate.text()]
    assert "already wrote to [redacted" in gate.text() or field == "note"
    gate.restart()


def test_the_digest_is_keyed_and_equal_calls_are_known_again() -> None:
    gate, other = Gate(), Gate(vault=Vault(b"other"))
    first, theirs = gate.ask("c1", "look", password="hunter22"), other.ask("c1", "look", password="hunter22")
    assert first.args_sha256 != theirs.args_sha256
    gate.restart()
    assert gate.say(IntentsReceived(AGENT, (Wanted(CallId("c1"), "look", {"password": "hunter22"}),))) == ()
    refused = gate.say(IntentsReceived(AGENT, (Wanted(CallId("c1"), "look", {"password": "hunter23"}),)))
    assert getattr(refused[0], "code", "") == "ingress.id_conflict"


def test_a_machine_knows_a_redacted_key_again_and_nobody_reads_it() -> None:
    gate = Gate()
    assert gate.ask("c1", "send", to="ana@x.example").decision == "allow"
    gate.say(OutcomeReported(AGENT, CallId("c1"), "success"))
    gate.restart()
    again, another = gate.ask("c2", "send", to="ana@x.example"), gate.ask("c3", "send", to="bob@x.example")
    assert (again.decision, again.code) == ("deny", "order.violation")
    assert again.reason is not None
    assert again.reason.startswith("already wrote to [redacted email ")
    assert another.decision == "allow"
    assert "@x.example" not in gate.text()
    assert all("@" not in violation.key for violation in gate.state.order.violations)


def test_a_key_made_of_a_redacted_field_is_one_mark() -> None:
    gate = Gate()
    gate.ask("c1", "look", note="the patient is well")
    touch = next(d.admission for d in gate.body().decisions if isinstance(d, CallDecided))
    assert touch is not None
    assert touch.touches[0].key.startswith("[redacted field ")
    assert "patient" not in gate.text()


def test_a_field_of_one_tool() -> None:
    gate = Gate()
    gate.ask("c1", "send", to="x", body="hello there")
    gate.ask("c2", "Write", body="hello there")
    first, second = gate.body(0).observation, gate.body(1).observation
    assert isinstance(first, IntentsReceived)
    assert isinstance(second, IntentsReceived)
    assert first.calls[0].args["body"]["redacted"] == "field"
    assert second.calls[0].args["body"] == "hello there"


def test_a_waiting_call_runs_with_what_was_asked_also_after_a_restart() -> None:
    gate = Gate()
    asked = gate.ask("c1", "pay", iban="DE89 3704 0044 0532 0130 00", to="ana@x.example")
    assert asked.decision == "suspend"
    opened = next(d for d in gate.body().decisions if isinstance(d, TicketOpened))
    assert opened.calls[0].args["iban"]["redacted"] == "iban"
    assert opened.args_sha256 == asked.args_sha256
    gate.restart()
    made = gate.say(ResolutionReceived(ANA, opened.ticket, "approve", "d1", opened.args_sha256))
    verdict = next(d for d in made if isinstance(d, CallDecided))
    assert verdict.decision == "allow"
    assert "3704" not in gate.text()
    assert "@x.example" not in gate.text()
    gate.restart()


def test_an_edit_keeps_what_the_editor_was_not_shown() -> None:
    gate = Gate()
    gate.ask("c1", "pay", iban="DE89 3704 0044 0532 0130 00", amount=10)
    opened = next(d for d in gate.body().decisions if isinstance(d, TicketOpened))
    shown = opened.calls[0].args
    made = gate.say(ResolutionReceived(ANA, opened.ticket, "approve", "d1", opened.args_sha256, args={**shown, "amount": 5}))
    verdict = next(d for d in made if isinstance(d, CallDecided))
    assert verdict.decision == "allow"
    assert verdict.args is not None
    assert verdict.args["iban"]["redacted"] == "iban"
    assert revealed(verdict, VAULT).args == {"iban": "DE89 3704 0044 0532 0130 00", "amount": 5}
    assert "3704" not in gate.text()
    with pytest.raises(Unreadable):
        revealed(verdict, Vault(b"other"))


def test_an_edit_that_brings_a_secret_in() -> None:
    gate = Gate()
    gate.ask("c1", "pay", amount=10)
    opened = next(d for d in gate.body().decisions if isinstance(d, TicketOpened))
    edit = {"amount": 10, "token": "abcdefgh"}
    made = gate.say(ResolutionReceived(ANA, opened.ticket, "approve", "d1", opened.args_sha256, "for ana@x.example", args=edit))
    verdict = next(d for d in made if isinstance(d, CallDecided))
    assert revealed(verdict, VAULT).args == edit
    assert "abcdefgh" not in gate.text()
    assert "@x.example" not in gate.text()
    gate.restart()


def test_a_repeat_is_known_by_what_it_said_and_not_by_what_was_written_of_it() -> None:
    gate = Gate()
    gate.ask("c1", "pay", amount=10)
    opened = next(d for d in gate.body().decisions if isinstance(d, TicketOpened))
    bare = ResolutionReceived(ANA, opened.ticket, "approve", "d1", opened.args_sha256, args={"amount": 10, "token": "abcdefgh"})
    said = ingress.answer(bare)
    gate.say(said)
    assert said.content_sha256 is not None
    assert said.content_sha256 not in gate.text()  # short secrets could be tried out with it
    gate.restart()
    assert gate.say(said) == ()
    (refused,) = gate.say(ingress.answer(replace(bare, args={"amount": 10, "token": "abcdefgi"})))
    assert getattr(refused, "code", "") == "approvals.already_decided"


def test_a_result_given_for_the_tool() -> None:
    gate = Gate()
    gate.ask("c1", "pay", amount=10)
    opened = next(d for d in gate.body().decisions if isinstance(d, TicketOpened))
    said = ResolutionReceived(
        ANA, opened.ticket, "approve", "d1", opened.args_sha256, result={"to": "ana@x.example"}, answers=True
    )
    verdict = next(d for d in gate.say(said) if isinstance(d, CallDecided))
    assert not verdict.execute
    assert revealed(verdict, VAULT).result == {"to": "ana@x.example"}
    assert "@x.example" not in gate.text()


def test_with_another_key_a_waiting_call_can_only_be_rejected() -> None:
    gate = Gate()
    gate.ask("c1", "pay", iban="DE89 3704 0044 0532 0130 00")
    opened = next(d for d in gate.body().decisions if isinstance(d, TicketOpened))
    gate.vault = Vault(b"a key of later")
    made = gate.say(ResolutionReceived(ANA, opened.ticket, "approve", "d1", opened.args_sha256))
    assert [getattr(d, "code", None) for d in made] == ["approvals.crashed"]
    made = gate.say(ResolutionReceived(ANA, opened.ticket, "reject", "d2", opened.args_sha256))
    assert next(d for d in made if isinstance(d, CallDecided)).code == "approvals.rejected"


def test_outcomes_tasks_notes_and_reasons() -> None:
    gate = Gate()
    gate.say(RunStarted(AGENT, AgentId("a"), task="write to ana@x.example", labels={"for": "+49 30 12345678"}))
    gate.ask("c1", "look", q="x")
    gate.say(
        OutcomeReported(AGENT, CallId("c1"), "error", content={"said": "no user ana@x.example"}, facts={"ssn": "123 45 6789"})
    )
    gate.say(AbortRequested(AGENT, "gave it to bob@y.example"))
    assert "@x.example" not in gate.text()
    assert "@y.example" not in gate.text()
    assert "45 6789" not in gate.text()
    assert gate.state.runs[RunId("r")].task is not None
    gate.restart()


def test_why_a_detector_gave_its_score() -> None:
    gate = Gate()
    scores = {"judge": Score(500_000, "it writes to ana@x.example, and to kim@z.example")}
    gate.say(IntentsReceived(AGENT, (Wanted(CallId("c1"), "look", {"to": "ana@x.example"}, scores=scores),)))
    gate.say(IntentsReceived(AGENT, (Wanted(CallId("c2"), "look", {"to": "kim"}, scores=scores),)))
    assert "@x.example" not in gate.text()
    assert "@z.example" not in gate.text()
    gate.restart()


def test_a_postcondition_reads_the_arguments_as_they_were() -> None:
    gate = Gate()
    gate.ask("c1", "Read", path="bob@y.example")
    gate.restart()
    made = gate.say(OutcomeReported(AGENT, CallId("c1"), "success", "ok"))
    assert getattr(made[0], "breached", None) == ()
    assert "@y.example" not in gate.text()


def test_a_replay_decides_again_what_it_can_read() -> None:
    gate = Gate("version: 1\nagents: {a: {allowed_tools: [look], data_scope: any}}\n")
    gate.say(RunStarted(AGENT, AgentId("a"), task="with password=hunter22"))
    gate.ask("c1", "look", q="x")
    gate.ask("c2", "look", password="hunter22")
    gate.say(OutcomeReported(AGENT, CallId("c2"), "success", content="password=hunter22"))
    replayed = gate.replay()
    assert (replayed.records, replayed.skipped) == (4, 0)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("data_scope: {}", "`data_scope` reads"),
        ("data_scope: any, forbidden_tools: ['look(password ~ \"x\")']", 'the pattern `look(password ~ "x")` reads'),
        ("data_scope: any, approval_required: [look]", "the ticket reads"),
        (
            "data_scope: any, machines: [{name: m, initial: n, transitions: "
            '[{on: look, from: n, to: n, emit: {content: "saw {password}"}}]}]',
            "a text of machine `m` reads",
        ),
        (
            "data_scope: any, machines: [{name: m, initial: n, transitions: [{on: other, from: n, to: y}, "
            '{on: look, from: y, to: n, on_violation: {action: warn, reason: "not {password}"}}]}]',
            "a text of machine `m` reads",
        ),
    ],
)
def test_what_a_rule_would_have_to_read_again_is_not_replayable(rule: str, why: str) -> None:
    gate = Gate(f"version: 1\nagents: {{a: {{allowed_tools: [look, other], {rule}}}}}\n")
    gate.ask("c1", "look", q="x", password="hunter22")
    gate.ask("c2", "other", q="y")
    replayed = gate.replay()
    assert (replayed.records, replayed.skipped) == (1, 1)
    assert why in replayed.not_replayable[0].why
    assert "`c1`" in replayed.not_replayable[0].why


@pytest.mark.parametrize(
    "rules",
    [
        "{data_scope: {}}",
        "{data_scope: any, forbidden_tools: ['look(q ~ \"z\")']}",
        "{data_scope: any, machines: [{name: m, key: '{q}', initial: n, transitions: [{on: look, from: n, to: y}]}]}",
        "{data_scope: any, machines: [{name: m, initial: n, transitions: "
        "[{on: look, from: n, to: y, emit: {content: 'saw {q}'}}, {on: other, from: y, to: n, emit: {content: '{password}'}}]}]}",
    ],
)
def test_what_no_rule_reads_is_decided_again(rules: str) -> None:
    agent = rules.replace("{", "{allowed_tools: [look], ", 1)
    contracts = "[{name: c, on: look, require: 'args.q == \"x\"'}]"
    tools = "{look: {resources: {args: {password: none, list: none}}}}"
    gate = Gate(f"version: 1\nagents: {{a: {agent}}}\ncontracts: {contracts}\ntools: {tools}\n")
    assert gate.ask("c1", "look", q="x", password="hunter22", list=[{"token": "abcdefgh"}]).decision == "allow"
    replayed = gate.replay()
    assert (replayed.records, replayed.skipped) == (1, 0)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"password": "hunter22"}, "contract `c`"),
        ({"q": {"password": "hunter22"}}, "`data_scope`"),
        ({"password=hunter22": 1}, "`data_scope`"),
        ({"x": {"password=hunter22": 1}}, "`data_scope`"),
    ],
)
def test_what_one_rule_reads_is_not(args: dict[str, Any], why: str) -> None:
    contracts = "[{name: c, on: look, require: '!has(args.password) || args.password != \"x\"'}]"
    tools = "{look: {resources: {args: {password: none}}}}"
    gate = Gate(f"version: 1\nagents: {{a: {{allowed_tools: [look]}}}}\ncontracts: {contracts}\ntools: {tools}\n")
    gate.ask("c1", "look", **args)
    replayed = gate.replay()
    assert (replayed.records, replayed.skipped) == (0, 1)
    assert why in replayed.not_replayable[0].why


def test_a_machine_over_facts_does_not_read_a_redacted_content() -> None:
    moves = "{on: look, from: [n, y], to: y, when: {status: success, facts: 'rows = \"1\"'}}"
    machine = f"{{name: m, initial: n, transitions: [{moves}]}}"
    gate = Gate(f"version: 1\nagents: {{a: {{allowed_tools: [look], data_scope: any}}}}\nmachines: [{machine}]\n")
    for call, content, facts in (("c1", "password=hunter22", {"rows": 1}), ("c2", "x", {"rows": 1, "token": "abcdefgh"})):
        gate.ask(call, "look", q="x")
        gate.say(OutcomeReported(AGENT, CallId(call), "success", content, facts))
    replayed = gate.replay()
    assert [item.seq for item in replayed.not_replayable] == [4]
    assert replayed.records == 3


def test_an_approved_call_whose_arguments_are_sealed_is_not_replayable() -> None:
    gate = Gate()
    gate.ask("c1", "pay", iban="DE89 3704 0044 0532 0130 00")
    opened = next(d for d in gate.body().decisions if isinstance(d, TicketOpened))
    gate.say(ResolutionReceived(ANA, opened.ticket, "approve", "d1", opened.args_sha256))
    gate.say(OutcomeReported(AGENT, CallId("c1"), "success"))
    replayed = gate.replay()
    assert (replayed.records, replayed.skipped) == (1, 2)


def test_where_paths_lead_does_not_say_what_was_taken_out() -> None:
    scope = "data_scope: {allowed_paths: [/w], base_path: /w, resolve: true}"
    agent = f"a: {{allowed_tools: [look], checks: [privilege], approval_required: [look], {scope}}}"
    text = f"version: 1\nagents: {{{agent}}}\ntools: {{look: {{resources: {{args: {{path: path}}}}}}}}\n"
    gate, secret = Gate(text), "AKIAIOSFODNN7EXAMPLE"
    links = {f"/w/{secret}/x": f"/w/{secret}/x"}
    wanted = Wanted(CallId("c1"), "look", {"path": f"{secret}/x"}, links=links)
    gate.say(IntentsReceived(AGENT, (wanted,)))
    opened = next(d for d in gate.body().decisions if isinstance(d, TicketOpened))
    assert secret not in gate.text()
    gate.say(ResolutionReceived(ANA, opened.ticket, "approve", "d1", opened.args_sha256, links={CallId("c1"): links}))
    assert next(d for d in gate.body().decisions if isinstance(d, CallDecided)).decision == "allow"
    assert secret not in gate.text()


def test_a_policy_may_switch_it_off() -> None:
    gate = Gate("version: 1\nredact: {detectors: []}\nagents: {a: {allowed_tools: [look]}}\n")
    gate.ask("c1", "look", password="hunter22")
    assert "hunter22" in gate.text()
    assert gate.replay().skipped == 0


def test_an_agent_that_writes_a_mark_itself_is_not_taken_for_redacted() -> None:
    gate = Gate("version: 1\nagents: {a: {allowed_tools: [look]}}\n")
    gate.ask("c1", "look", q={"redacted": "email", "sha256": "0" * 64})
    assert gate.replay().skipped == 0
    assert not isinstance(gate.body().redacted, tuple)


WORDS = ["ana@x.example", "password=hunter22", "4111 1111 1111 1111", "a/b.py", "late", "+49 30 12345678", "ana%40x.example"]
VALUES = st.recursive(
    st.sampled_from(WORDS) | st.integers(0, 9),
    lambda v: st.lists(v, max_size=2) | st.dictionaries(st.sampled_from(["to", "note", "token", "ana@x.example"]), v, max_size=2),
    max_leaves=5,
)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["send", "pay", "look", "Read", "Write"]),
        st.dictionaries(st.sampled_from(["to", "note", "path", "body", "token"]), VALUES, max_size=3),
        st.sampled_from(["success", "error", "none"]),
        VALUES,
    ),
    max_size=6,
)
BARE = POLICY.replace(
    'redact: {detectors: [secrets, email, card, ssn, iban, phone], fields: [note, "send(body)"]}', "redact: {detectors: []}"
)


@given(CALLS)
def test_redaction_changes_no_verdict_and_leaves_nothing(calls: list[tuple[str, dict[str, Any], str, Any]]) -> None:
    gate, bare = Gate(), Gate(BARE)
    for number, (tool, args, status, content) in enumerate(calls):
        verdicts = [one.ask(f"c{number}", tool, **args) for one in (gate, bare)]
        assert [(v.decision, v.code) for v in verdicts[:1]] == [(v.decision, v.code) for v in verdicts[1:]]
        if verdicts[0].decision == "allow" and status != "none":
            said = OutcomeReported(AGENT, CallId(f"c{number}"), status, content)  # type: ignore[arg-type]
            for one in (gate, bare):
                one.say(said)
    for secret in ("ana@x", "ana%40x", "hunter22", "1111 1111", "12345678"):
        assert secret not in gate.text()
    gate.restart()
    gate.replay()


def test_ticket_ids_do_not_depend_on_the_key() -> None:
    asked = [Gate(vault=vault).ask("c1", "pay", password="hunter22") for vault in (VAULT, Vault(b"x"))]
    assert asked[0].ticket == asked[1].ticket != TicketId("")
    assert replace(asked[0], args_sha256="") == replace(asked[1], args_sha256="")
