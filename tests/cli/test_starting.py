"""`gated up` where it cannot: it says which folder, and why. It sets up the process's logging, so it has one of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def up(policy: Path, data: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "gated", "up", "--policy", str(policy), "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stderr


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    policy, taken = tmp_path / "policy.yaml", tmp_path / "taken"
    policy.write_text("version: 1\nagents: {a: {allowed_tools: [look]}}\n")
    taken.write_text("")
    assert up(policy, taken / "here") == (2, f"error: cannot use `{taken / 'here'}`: Not a directory\n")


def test_no_folder_is_left_behind_where_there_is_no_policy(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    assert up(policy, tmp_path / "data") == (
        2,
        f"error: {policy}: there is no such file: `gated policy init` writes a policy to begin with\n",
    )
    assert not (tmp_path / "data").exists()
