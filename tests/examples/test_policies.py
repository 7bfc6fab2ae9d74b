"""The policies in examples/ load without a warning that matters, and do what their scenarios say."""

from pathlib import Path

import pytest

from gated.core.lint import lint
from gated.core.scenario import run_document
from gated.shell.policies import read_document, read_policy

POLICIES = sorted(folder for folder in (Path(__file__).parents[2] / "examples" / "policies").iterdir() if folder.is_dir())
MACHINES = {"dry-run-before-publish", "no-secrets-then-network", "plan-first", "read-before-write", "tests-before-deploy"}
PACKS = {
    "browsing-research",
    "chat-ops",
    "coding-agent",
    "data-analyst",
    "mailbox-assistant",
    "payments",
    "travel-booking",
}


@pytest.mark.parametrize("folder", POLICIES, ids=lambda folder: folder.name)
def test_the_policy_does_what_its_scenarios_say(folder: Path) -> None:
    results = list(run_document(read_document(folder / "scenarios.yaml"), lambda name: read_document(folder / name)))
    assert len(results) >= 2
    assert [(r.scenario, r.failures) for r in results if not r.ok] == []


@pytest.mark.parametrize("folder", POLICIES, ids=lambda folder: folder.name)
def test_nothing_is_found_in_it(folder: Path) -> None:
    """A lone machine is shown without a scope, which the linter says; a pack has none to spare."""
    warnings = [item.message for item in lint(read_policy(folder / "policy.yaml")) if item.level == "warning"]
    assert warnings == (["`data_scope: any` switches the scope check off"] if folder.name in MACHINES else [])


def test_every_pack_is_there() -> None:
    assert {folder.name for folder in POLICIES} >= PACKS
