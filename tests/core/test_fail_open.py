"""The list of pains, "Decisions that fail open (or lie)": each row, and where it is proven.

| row | where |
|---|---|
| deny and an error at once; evaluator skips it | `test_a_stage_that_answers_what_is_no_finding_denies` |
| a type error discards the forbidding rule | `test_a_type_error_in_a_rule_denies`, tests/scenarios/contracts.yaml |
| an unreachable engine reported as "abstain" | tests/scenarios/semantic.yaml (`semantic.unavailable`), tests/shell |
| the parser drops conditions | `test_a_misspelt_key_is_a_load_error_wherever_it_stands` |
| no policies loaded: everything allowed | `test_an_empty_policy_denies_everything`, tests/shell/test_empty_policy.py |
| one bad file skipped, a weaker set swapped in | `test_one_broken_file_breaks_the_folder`, tests/shell/test_reload.py |
| a host that does not know the gate's word | tests/client/test_unknown_words.py |
| a key parsed and never used | tests/core/test_policy_keys.py |
| an evaluation error denies and leaves no event | `test_a_stage_that_raises_denies_and_says_so_in_the_log` |
| contradictory settings, said in a log line only | `test_contradictory_settings_are_load_errors` |
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.acts import Acts
from gated.core import pipeline
from gated.core.policy import load, load_text
from gated.core.policy_file import PolicyEntry
from gated.documents import DocumentError, parse_document
from gated.events import CallDecided, Finding, unseal
from gated.shell.policies import read_policy

OPEN = "version: 1\nagents: {a: {allowed_tools: ['*'], data_scope: any}}\n"


SEMANTIC = "semantic: {secrets: {}}\n"  # nobody answers here, so it suspends
EVERY_OTHER_STAGE = """
breaker: {}
contracts: [{name: c, on: T, require: "true"}]
machines: [{name: m, initial: s, transitions: [{on: T, from: "*", to: s}]}]
"""


def decided(acts: Acts) -> CallDecided:
    found = [d for record in acts.records for d in unseal(record).decisions if isinstance(d, CallDecided)]
    return found[-1]


JUNK: tuple[Any, ...] = (
    None,
    True,
    "allow",
    (("deny", "error"),),
    (Finding("dfa", "deny", "dfa.step_budget", "spent"), ValueError("and an error")),
    (Finding("dfa", "abstain", "dfa.odd", "who knows"),),  # type: ignore[arg-type]
    [None],
)


@pytest.mark.parametrize("answer", JUNK, ids=repr)
def test_a_stage_that_answers_what_is_no_finding_denies(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    acts = Acts(OPEN)
    assert acts.ask("T") == "allow"  # in flight from now on, so that the stages that count are asked about the next
    monkeypatch.setitem(pipeline.CHECKS, "dfa", lambda hearing: answer)
    assert acts.ask("T") == "deny"
    assert decided(acts).code == "dfa.crashed"


@pytest.mark.parametrize("stage", sorted(pipeline.CHECKS))
def test_a_stage_that_raises_denies_and_says_so_in_the_log(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(hearing: object) -> tuple[Finding, ...]:
        raise ZeroDivisionError("the engine is gone")

    acts = Acts(OPEN + EVERY_OTHER_STAGE + (SEMANTIC if stage == "semantic" else ""))
    acts.ask("T")  # in flight from now on, so that the stages that count are asked about the next
    monkeypatch.setitem(pipeline.CHECKS, stage, broken)
    assert acts.ask("T") == "deny"
    verdict = decided(acts)
    assert (verdict.code, verdict.findings[-1].error) == (f"{stage}.crashed", "ZeroDivisionError")


@pytest.mark.parametrize("env", ["prod", ["prod"], 5, None, {"a": 1}, True])
def test_a_type_error_in_a_rule_denies(env: Any) -> None:
    """`deny if args.env in [prod]`, asked with values of every type: none of them slips by."""
    rule = "contracts: [{name: no-prod, on: T, require: '!(args.env in [\"prod\"])'}]\n"
    typed = "contracts: [{name: no-prod, on: T, require: 'type(args.env) == string && !(args.env in [\"prod\"])'}]\n"
    plain = "contracts: [{name: no-prod, on: T, require: '!args.env.startsWith(\"prod\")'}]\n"
    forbids = OPEN.replace("{a: {", "{a: {forbidden_tools: ['T(env = \"prod\")'], ")
    assert Acts(OPEN + plain).ask("T", env=env) == "deny"
    assert Acts(OPEN + typed).ask("T", env=env) == "deny"
    assert Acts(OPEN + rule).ask("T", env=env) == "deny"
    assert Acts(OPEN + rule).ask("T") == "deny"
    if "prod" in str(env):
        assert Acts(forbids).ask("T", env=env) == "deny"


def test_a_misspelt_key_is_a_load_error_wherever_it_stands() -> None:
    """Every struct of the file refuses a key that it does not know: none of them passes one over."""
    schema = msgspec.json.schema(PolicyEntry)
    mappings = [name for name, rule in schema["$defs"].items() if "properties" in rule]
    assert len(mappings) > 30
    assert [name for name in mappings if schema["$defs"][name].get("additionalProperties") is not False] == []
    with pytest.raises(DocumentError, match="unknown key `whenn`"):
        load_text(OPEN + "machines: [{name: m, initial: s, transitions: [{on: T, from: s, to: s, whenn: error}]}]\n", "p.yaml")


@pytest.mark.parametrize("text", ["version: 1\n", "version: 1\nagents: {}\n", "version: 1\nagents: {a: {}}\n"])
def test_an_empty_policy_denies_everything(text: str) -> None:
    assert Acts(text).ask("T") == "deny"


def test_one_broken_file_breaks_the_folder(tmp_path: Path) -> None:
    (tmp_path / "1.yaml").write_text(OPEN)
    (tmp_path / "2.yaml").write_text("contracts: [{name: c, on: T, require: 'args.x <'}]\n")
    with pytest.raises(DocumentError, match=r"2\.yaml:1"):
        read_policy(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("agents: {a: {allowed_tools: [T], machines: [ghost]}}", "there is no machine `ghost`"),
        ("agents: {a: {dcbf: {remove: [privcy]}}}", "there is no barrier `privcy`"),
        ("agents: {a: {data_scope: {allowed_tables: {db: [t]}}}}", "is not in `allowed_databases`"),
        ("contracts: [{name: c, on: T, ensure: 'true', otherwise: ask}]", "`otherwise` and no `require`"),
        ("contracts: [{name: c, on: T, require: 'result.status == \"success\"'}]", "names `result.status`, which does not exist"),
        ("approvals: {default: {approvers: [group:ghosts]}}", "group `ghosts` does not exist"),
        ("approvals: {default: {approvers: [user:a], stages: [[user:b]]}}", "stages"),
        ("threads: {shared_by: [[ghost, other]]}", "there is no agent `ghost`"),
    ],
)
def test_contradictory_settings_are_load_errors(text: str, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        load(parse_document(f"version: 1\n{text}\n", file="p.yaml"))
    assert words in str(caught.value)
    assert caught.value.line == 2
