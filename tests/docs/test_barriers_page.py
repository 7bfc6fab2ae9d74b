"""docs/barriers.md is true: its policy loads and decides, its Python runs, its features and commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from docs.test_documents_run import blocks
from gated.barriers import Monitor, State
from gated.cli import app
from gated.core.barriers.network import PLAIN
from gated.core.runview import View

PAGE = Path(__file__).parents[2] / "docs" / "barriers.md"
TEXT = PAGE.read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (policy,) = [body for kind, _, body in blocks(PAGE) if kind == "yaml"]
    (tmp_path / "policy.yaml").write_text(policy)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_policy_has_the_barriers_that_it_shows(folder: Path) -> None:
    values = Monitor.of(folder / "policy.yaml", "mailer").get_barrier_values(State(tools=["read_secret", "send_email"]))
    assert values == {
        "safety": 0.9,
        "resource": 9.98,
        "scope": 0.8,
        "stability": 48,
        "mail_volume": 0.85,
        "calm": 1,
        "pace": 18,
        "careful": 2.98,
    }


@pytest.mark.usefixtures("folder")
def test_its_python_runs() -> None:
    few, monitor = [body for kind, _, body in blocks(PAGE) if kind == "python"]
    names: dict[str, Any] = {}
    exec(few, names)
    exec(monitor, names)
    said = re.search(r"`state` has (.*?)\.\"", few)
    assert said is not None
    assert {name for name in re.split(r", | and ", said[1]) if not hasattr(View, name)} == set()


def test_its_features_are_those_that_exist() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", TEXT.partition("| feature |")[2].partition("\n## ")[0], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named == {*PLAIN, "count.TOOL", "recent.TOOL"}


@pytest.mark.parametrize("command", [body.split()[1:3] for kind, _, body in blocks(PAGE) if kind == "sh"])
def test_its_commands_exist(command: list[str]) -> None:
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0


def test_its_picture_is_one() -> None:
    assert ElementTree.parse(PAGE.parent / "barriers.svg").getroot().findall("{*}polyline")
