"""Every scenario file of the repository holds, and the copies of the published ones are what they are copied from."""

from pathlib import Path

import pytest

from gated.core.scenario import Result, run_document
from gated.documents import Document, parse_document

SCENARIOS = Path(__file__).parents[1] / "scenarios"
ORIGINALS = Path(__file__).parents[3] / "shared" / "conformance"


def _read(path: Path) -> Document:
    return parse_document(path.read_bytes(), file=path.name)


def _results(path: Path) -> list[Result]:
    return list(run_document(_read(path), lambda name: _read(path.parent / name)))


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_scenarios_hold(path: Path) -> None:
    results = _results(path)
    assert results
    assert [(r.scenario, r.failures) for r in results if not r.ok] == []


def test_there_are_all_the_published_scenarios() -> None:
    published = ("approvals", "ceilings", "dcbf", "dfa", "ingress", "order", "privilege", "whole")
    assert sum(len(_results(SCENARIOS / f"{name}.yaml")) for name in published) == 94


def test_the_copies_equal_the_originals() -> None:
    originals = sorted(ORIGINALS.glob("*")) if ORIGINALS.is_dir() else []
    for original in originals:
        assert (SCENARIOS / original.name).read_bytes() == original.read_bytes(), original.name


def test_an_expectation_that_does_not_hold_fails() -> None:
    text = """
policy: {version: 1, agents: {a: {allowed_tools: [T], checks: [privilege]}}}
scenarios:
  - name: wrong on purpose
    steps: [{intent: {tool: U, args: {}}, expect: {decision: allow}}]
    state: {hop_count: 7}
"""
    (result,) = run_document(parse_document(text, file="wrong.yaml"), lambda name: parse_document("", file=name))
    assert [(f.step, f.key, f.expected, f.got) for f in result.failures] == [
        (1, "decision", "allow", "deny"),
        ("state", "hop_count", 7, 1),
    ]
    assert result.failures[0].findings[0].code == "privilege.not_allowed"
