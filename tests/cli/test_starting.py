"""`gated up` where it cannot: it says which folder, and why."""

from __future__ import annotations

from pathlib import Path

from cli.test_cli import gated


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    policy, taken = tmp_path / "policy.yaml", tmp_path / "taken"
    policy.write_text("version: 1\nagents: {a: {allowed_tools: [look]}}\n")
    taken.write_text("")
    status, _, error = gated("up", "--policy", policy, "--data", taken / "here")
    assert (status, error) == (2, f"error: cannot use `{taken / 'here'}`: Not a directory\n")


def test_no_folder_is_left_behind_where_there_is_no_policy(tmp_path: Path) -> None:
    status, _, error = gated("up", "--policy", tmp_path / "policy.yaml", "--data", tmp_path / "data")
    assert (status, error) == (2, f"error: {tmp_path / 'policy.yaml'}: cannot be read: No such file or directory\n")
    assert not (tmp_path / "data").exists()
