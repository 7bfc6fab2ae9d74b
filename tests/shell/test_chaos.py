"""A minute of chaos: three workers, agents that never give up, faults at random, and what must hold afterwards."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_a_minute_of_chaos_loses_doubles_and_reorders_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "--seconds", "60", "--seed", "11", "--json", "--keep", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout, done.stderr[-2000:]
    told = json.loads(done.stdout)
    wrong = ("lost", "duplicate", "out_of_order", "over_admitted", "contradicted", "damaged", "unfinished")
    assert {key: told[key] for key in wrong} == dict.fromkeys(wrong, 0), told
    assert told["intents"] > 200
    assert sum(told["faults"].values()) > 5
    assert done.returncode == 0
