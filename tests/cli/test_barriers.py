"""`gated policy barriers`: over a log, the values, where each came closest, and what the condition refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli.command import gated
from core.acts import Acts
from gated.cli.plots import DRAWN, POINTS, Line, Panel, sparkline, svg
from gated.shell.log.sqlite import open_for_writing

POLICY = """
version: 1
agents:
  a:
    checks: [privilege, dcbf]
    allowed_tools: ["*"]
    dcbf: {stability: {step_budget: 6}, barriers: {pace: {expr: "5 - run.step_count"}}}
"""
STRICTER = POLICY.replace("step_budget: 6", "step_budget: 2")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A run of three mails, of which the third is denied, and a search."""
    acts = Acts(POLICY)
    assert [acts.run("send_email", to=str(n)) for n in range(3)] == ["allow", "allow", "deny"]
    assert acts.ask("search") == "allow"
    path = tmp_path / "log.db"

    async def write() -> None:
        opened = await open_for_writing(path)
        policy = acts.world.current
        await opened.put_policy(policy.digest, policy.text)
        await opened.append_many(acts.records)
        await opened.close()

    asyncio.run(write())
    return path


def test_where_each_came_closest_to_its_edge(log: Path) -> None:
    status, text, _ = gated("policy", "barriers", "--log", log, "--json")
    found = json.loads(text)
    assert status == 0
    least = {item["barrier"]: (item["value"], item["call"]) for item in found["closest"]}
    assert least == {
        "privacy": (0.1, "c2"),
        "scope": (0.8, None),
        "safety": (0.9, None),
        "pace": (2, "c4"),
        "stability": (3, "c4"),
        "resource": (9.97, "c4"),
    }
    (curve,) = found["curves"]
    assert [sample["values"]["privacy"] for sample in curve["samples"]] == [0.5, 0.3, 0.3, 0.1, 0.1, 0.1]
    assert [sample["values"]["pace"] for sample in curve["samples"]] == [5, 4, 4, 3, 3, 2]


def test_what_was_let_in_kept_the_condition_and_what_was_asked_did_not(log: Path) -> None:
    found = json.loads(gated("policy", "barriers", "--log", log, "--json")[1])
    assert found["invariance"]["admitted"] == {
        "total_checks": 3,
        "violations": 0,
        "violation_rate": 0.0,
        "forward_invariant": True,
    }
    assert found["invariance"]["asked"] == {
        "total_checks": 4,
        "violations": 1,
        "violation_rate": 0.25,
        "forward_invariant": False,
    }
    (violation,) = found["violations"]
    assert (violation["call"], violation["decision"], violation["breaches"][0]["barrier"]) == ("c3", "deny", "privacy")


def test_another_policy_over_the_same_runs(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "stricter.yaml"
    path.write_text(STRICTER)
    status, text, _ = gated("policy", "barriers", "--log", log, "--policy", path)
    assert status == 1
    assert "calls let in: 3 checked, 1 would leave the safe set (33.3%): not forward invariant" in text
    assert "r1 c4 search allow: stability 0 -> -1 (at least 0)" in text


def test_a_policy_without_the_agent_says_so(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("version: 1\nagents: {b: {}}\n")
    status, _, errors = gated("policy", "barriers", "--log", log, "--policy", path)
    assert (status, errors) == (1, "error: no recorded run fits: the policy has no agent `a`\n")


@pytest.mark.parametrize(("option", "value"), [("--run", "r9"), ("--agent", "b")])
def test_no_run_fits(log: Path, option: str, value: str) -> None:
    assert gated("policy", "barriers", "--log", log, option, value)[0] == 1


def test_the_table_and_the_picture(log: Path, tmp_path: Path) -> None:
    picture = tmp_path / "curves.svg"
    status, text, _ = gated("policy", "barriers", "--log", log, "--svg", picture)
    assert status == 0
    row = next(line for line in text.splitlines() if line.startswith("privacy"))
    assert row.split() == ["privacy", "1", "0.1", "r1", "c2", "4", "█▅▅▂▂▂"]
    drawn = ElementTree.parse(picture).getroot()
    assert len(drawn.findall("{*}polyline")) == 6
    assert any("0.1 in r1" == text.text for text in drawn.findall("{*}text"))


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    assert gated("policy", "barriers", "--log", tmp_path / "none.db")[0] == 2


def test_a_sparkline_that_is_cut_keeps_the_worst() -> None:
    assert sparkline([1.0, 0.5, 0.0]) == "█▅▁"
    assert sparkline([1.0] * 500 + [-0.1] + [1.0] * 500, width=10).count("[bold red]▁[/]") == 1


def test_of_many_curves_those_are_drawn_that_came_closest() -> None:
    lines = [Line(f"r{n}", [1.0, n / 1000]) for n in range(DRAWN + 50)][::-1]
    drawn = ElementTree.fromstring(svg("many", [Panel("b", lines)])).findall("{*}polyline")
    assert [line.findtext("{*}title") for line in drawn] == [f"r{n}" for n in reversed(range(DRAWN))]


def test_a_long_curve_is_thinned_and_keeps_its_least() -> None:
    (line,) = ElementTree.fromstring(svg("long", [Panel("b", [Line("r", [1.0] * 5000 + [-0.5] + [1.0] * 5000)])])).findall(
        "{*}polyline"
    )
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == POINTS
    assert sum(y > min(y for _, y in points) + 1 for _, y in points) == 1
