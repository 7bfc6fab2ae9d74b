"""Every key of the policy has a change that flips what is said; a key that decides nothing here is proven elsewhere, by name.

The keys come from the JSON Schema of the policy, so a new one fails here until it has its case.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gated import canonical
from gated.core.policy import load_text
from gated.core.scenario import run_document
from gated.core.schema import policy_schema
from gated.documents import Document, DocumentError, parse_document

HERE = Path(__file__).parent
TESTS = HERE.parent
Case = dict[str, Any]
CASES: list[Case] = yaml.safe_load((HERE / "policy_keys.yaml").read_text())

BASE: dict[str, Any] = {
    "version": 1,
    "agents": {"a": {"allowed_tools": ["T", "U", "W"], "checks": ["privilege"], "data_scope": "any"}},
}

SHOWN = {"AgentEntry.role"}
"""Keys that people read and nothing decides by."""

ELSEWHERE = {
    **dict.fromkeys(
        ("BarrierEntry.python", "BarrierEntry.params", "BarrierEntry.provided_by"), "shell/test_barriers.py"
    ),  # entry points
    "BarrierEntry.weight": "test_barriers.py",  # of the average that no decision rests on
    "DcbfEntry.scope": "shell/test_scope_embeddings.py",  # a model of embeddings
    "DriftEntry.max_drift": "shell/test_scope_embeddings.py",
    "DriftEntry.embeddings": "shell/test_scope_embeddings.py",
    "DriftEntry.scope": "core/stages/test_dcbf.py",
    **dict.fromkeys(("DcbfEntry.neural", "BarrierEntry.neural"), "shell/test_onnx_files.py"),  # model files
    **dict.fromkeys(("NeuralEntry.model", "NeuralEntry.sha256"), "shell/test_onnx_files.py"),
    **dict.fromkeys(("NeuralEntry.features", "NeuralEntry.layers"), "scenarios/learned.yaml"),
    **dict.fromkeys(("LayerEntry.weights", "LayerEntry.bias", "LayerEntry.activation"), "scenarios/learned.yaml"),
    "LayerEntry.slope": "core/test_network.py",
    **dict.fromkeys(("RedactEntry.store", "RedactEntry.subject"), "core/redaction/test_subjects.py"),
    **dict.fromkeys(("PolicyEntry.redact", "RedactEntry.detectors", "RedactEntry.fields"), "core/redaction/test_records.py"),
    **dict.fromkeys(("SemanticEntry.exfiltration", "SemanticEntry.injection", "SemanticEntry.judge"), "scenarios/semantic.yaml"),
    "ToolEntry.sensitive": "scenarios/semantic.yaml",
    **dict.fromkeys(("SemanticEntry.timeout", "DetectorEntry.timeout", "JudgeEntry.timeout"), "shell/test_semantic.py"),
    "JudgeEntry.nats": "shell/test_semantic.py",
    **dict.fromkeys(("JudgeEntry.http", "JudgeEntry.token_from"), "core/stages/test_semantic.py"),
    **dict.fromkeys(("JudgeEntry.thresholds", "JudgeEntry.tools", "JudgeEntry.unavailable"), "core/stages/test_semantic.py"),
}
"""Keys that need more than a scenario has: the test that proves them, in which they stand."""


def keys() -> set[str]:
    schema = policy_schema()
    return {f"{name}.{key}" for name, kind in schema["$defs"].items() for key in kind.get("properties", ())}


def of_one_value() -> set[str]:
    """Keys that can say one thing only, such as `on_timeout: deny`: there is nothing to flip."""
    found = set()
    for name, kind in policy_schema()["$defs"].items():
        for key, rule in kind.get("properties", {}).items():
            if len(rule.get("enum", (1, 2))) == 1:
                found.add(f"{name}.{key}")
    return found


def laid_over(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return copy.deepcopy(above)
    return {key: laid_over(below.get(key), above[key]) if key in above else below[key] for key in {**below, **above}}


def put(policy: Any, path: str, value: Any) -> None:
    *steps, last = path.split(".")
    for step in steps:
        policy = policy[int(step)] if isinstance(policy, list) else policy.setdefault(step, {})
    policy[last] = value


def drop(policy: Any, path: str) -> None:
    *steps, last = path.split(".")
    for step in steps:
        policy = policy[step]
    del policy[last]


def policies(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Without and with the change."""
    before = laid_over(BASE, case.get("policy", {}))
    after = copy.deepcopy(before)
    for path in case.get("drop", ()):
        drop(after, path)
    for path, value in case["change"].items():
        put(after, path, value)
    return before, after


def step(said: Any) -> Any:
    if not isinstance(said, str):
        return said
    asks = said.endswith("?")
    return {"intent" if asks else "run": {"tool": said.rstrip("?"), "args": {}}}


def failures(case: Case, policy: dict[str, Any], expected: dict[str, Any]) -> list[Any]:
    *first, last = [step(said) for said in case["steps"]]
    scenario = {"name": case["key"], "agent": "a", **case.get("scenario", {}), "steps": [*first, {**last, "expect": expected}]}
    text = canonical.encode({"policy": policy, "scenarios": [scenario]})
    (result,) = run_document(parse_document(text, file="case.json"), _nothing)
    return list(result.failures)


def _nothing(name: str) -> Document:
    raise AssertionError(f"a case reads no file, and this one reads `{name}`")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["key"])
def test_a_change_of_the_key_flips_what_is_said(case: Case) -> None:
    before, after = policies(case)
    assert failures(case, before, case["before"]) == []
    if "error" in case:
        with pytest.raises(DocumentError, match=case["error"]):
            load_text(canonical.encode(after), "policy.json")
        return
    assert failures(case, after, case["after"]) == []
    if "differ" not in case:
        assert failures(case, after, case["before"]), "what is said without the change is said with it too"


def test_every_key_has_a_case_or_is_proven_elsewhere() -> None:
    named = {case["key"] for case in CASES}
    assert sorted(keys() - named - ELSEWHERE.keys() - SHOWN - of_one_value()) == []
    assert sorted((named | ELSEWHERE.keys() | SHOWN) - keys()) == []
    for key, file in ELSEWHERE.items():
        assert re.search(rf"\b{key.partition('.')[2]}\b", (TESTS / file).read_text()), key
