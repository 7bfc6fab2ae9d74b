"""The policies in examples/ load without a warning that matters, and do what their scenarios say."""

from pathlib import Path

import pytest

from gated.core.scenario import run_document
from gated.shell.policies import read_document

POLICIES = sorted((Path(__file__).parents[1] / "examples" / "policies").iterdir())


@pytest.mark.parametrize("folder", POLICIES, ids=lambda folder: folder.name)
def test_the_policy_does_what_its_scenarios_say(folder: Path) -> None:
    results = list(run_document(read_document(folder / "scenarios.yaml"), lambda name: read_document(folder / name)))
    assert len(results) >= 2
    assert [(r.scenario, r.failures) for r in results if not r.ok] == []
