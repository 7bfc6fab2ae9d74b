"""The pages on stages are true: their policies load, their scenarios hold."""

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from gated import canonical
from gated.core.policy import load_text
from gated.core.scenario import run_document
from gated.documents import parse_document

DOCS = Path(__file__).parents[2] / "docs"
AGENTS = 'agents:\n  a: {allowed_tools: ["*"], checks: [privilege, semantic], data_scope: any}\n'


def blocks(name: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)


def test_the_semantic_page() -> None:
    policy, scenarios = blocks("semantic.md")
    whole = load_text(f"version: 1\n{policy}{AGENTS}", "docs/semantic.md")
    assert whole.semantic is not None
    assert [detector.name for detector in whole.semantic.detectors] == ["secrets", "exfiltration", "injection", "drift", "judge"]
    own = {"version": 1, "semantic": {"secrets": {}, "injection": {}}, "tools": {"post": {"outbound": True}}}
    document = {"policy": {**own, **yaml.safe_load(AGENTS)}, **yaml.safe_load(scenarios)}
    results = list(
        run_document(parse_document(canonical.encode(document), file="docs/semantic.json"), lambda name: pytest.fail(name))
    )
    assert [(result.scenario, result.failures) for result in results] == [("a key does not leave", ())]


def test_the_breaker_page() -> None:
    (policy,) = blocks("breaker.md")
    whole = load_text("version: 1\n" + policy, "docs/breaker.md")
    rules = {str(name): profile.breaker.rule("fetch") for name, profile in whole.agents.items()}
    assert rules["batch"] is None
    assert rules["patient"] is not None
    assert rules["patient"].failures == 20


def test_the_data_scope_page() -> None:
    policy, scenarios = blocks("data-scope.md")
    document = {"policy": yaml.safe_load(policy), **yaml.safe_load(scenarios)}
    results = list(
        run_document(parse_document(canonical.encode(document), file="docs/data-scope.json"), lambda name: pytest.fail(name))
    )
    assert [(r.scenario, r.failures) for r in results] == [("an outbox that leads elsewhere", ())]


def test_the_contracts_page() -> None:
    contracts, scenarios = blocks("contracts.md")
    agents = 'version: 1\nagents: {a: {allowed_tools: ["*"], checks: [privilege, contracts], data_scope: any}}\n'
    text = "policy:\n" + textwrap.indent(agents + contracts, "  ") + scenarios
    results = list(run_document(parse_document(text, file="docs/contracts.yaml"), lambda name: pytest.fail(name)))
    assert [r.failures for r in results] == [(), ()]


def test_the_machines_page() -> None:
    machines, scenarios = blocks("machines.md")
    agents = 'version: 1\nagents: {a: {allowed_tools: ["*"], checks: [order]}}\n'
    text = "policy:\n" + textwrap.indent(agents + machines, "  ") + scenarios
    results = list(run_document(parse_document(text, file="docs/machines.yaml"), lambda name: pytest.fail(name)))
    assert [r.failures for r in results] == [(), (), (), ()]
