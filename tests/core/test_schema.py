"""The schema that editors use: complete, and in agreement with what loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from gated.core.policy import load
from gated.core.schema import policy_schema
from gated.core.schema_words import WORDS
from gated.documents import DocumentError, parse_document

ROOT = Path(__file__).parents[2]
SCHEMA = policy_schema()
POLICIES = [*ROOT.glob("examples/**/policy.yaml"), *ROOT.glob("tests/scenarios/*.yaml")]


def policy_in(file: Path) -> Any:
    data = parse_document(file.read_bytes(), file=str(file)).data
    return data["policy"] if "scenarios" in data else data


@pytest.mark.parametrize("file", POLICIES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_policy_of_the_repository_fits(file: Path) -> None:
    data = policy_in(file)
    if isinstance(data, str):
        pytest.skip("names its policy")
    validator = jsonschema_rs.Draft202012Validator(SCHEMA)
    assert [error.message for error in validator.iter_errors(data)] == []


def test_every_key_is_described_and_no_description_is_left_over() -> None:
    keys = {(name, key) for name, rule in SCHEMA["$defs"].items() for key in rule.get("properties", ())}
    assert keys - set(WORDS) == set(), "write what they mean in gated/core/schema_words.py"
    assert set(WORDS) - keys == set()


@pytest.mark.parametrize(
    "text",
    [
        "version: 2",
        "version: 1\nagent: {}",
        "version: 1\nmode: enforced",
        "version: 1\nagents: {a: {allowed_tools: T}}",
        "version: 1\nagents: {a: {resource_budget: {max_calls: -1}}}",
        "version: 1\nagents: {a: {checks: [privileges]}}",
        "version: 1\nmachines: [{name: m, initial: s, transitions: [{on: T, form: s, to: t}]}]",
        "version: 1\ntools: {T: {resources: {args: {a: file}}}}",
        "version: 1\ncontracts: [{name: c, on: T, require: 'true', otherwise: block}]",
        "version: 1\nagents: {a: {outcomes_from: 'runner:'}}",
    ],
)
def test_what_does_not_load_does_not_fit(text: str) -> None:
    document = parse_document(text, file="p.yaml")
    assert not jsonschema_rs.Draft202012Validator(SCHEMA).is_valid(document.data)
    with pytest.raises(DocumentError):
        load(document)


def test_choices_are_listed() -> None:
    agent = SCHEMA["$defs"]["AgentEntry"]["properties"]
    assert set(agent["mode"]["enum"]) == {"enforce", "observe"}
    assert "privilege" in agent["checks"]["items"]["enum"]
    assert SCHEMA["$defs"]["AgentEntry"]["additionalProperties"] is False


def test_the_file_that_the_examples_name_is_this_schema() -> None:
    """Written by `gated policy schema > examples/policies/policy.schema.json`."""
    assert json.loads((ROOT / "examples/policies/policy.schema.json").read_text()) == SCHEMA
    for file in ROOT.glob("examples/policies/*/policy.yaml"):
        first = file.read_text().splitlines()[0]
        if "yaml-language-server" in first:
            assert (file.parent / first.partition("$schema=")[2]).resolve() == ROOT / "examples/policies/policy.schema.json"
