"""Barriers for those who design them: values, the average that can mask a breach, forward invariance."""

from __future__ import annotations

from pathlib import Path

import pytest

from gated.barriers import Action, Monitor, State

POLICY = """
version: 1
agents:
  mailer: {}
  own:
    dcbf:
      remove: [safety, scope, stability, resource]
      barriers: {pace: {expr: "4 - run.step_count", weight: 3, margin: 0.5}}
  halves: {dcbf: {kappa: 0.5, barriers: {pace: {expr: "8 - run.step_count"}}}}
tools: {pay: {cost_usd: 6}}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


def test_every_barrier_has_a_value(policy: Path) -> None:
    monitor = Monitor.of(policy, "mailer")
    assert monitor.get_barrier_values(State()) == {"safety": 0.9, "privacy": 0.5, "resource": 10, "scope": 0.8, "stability": 50}
    two = State(tools=["file_read", "send_email"], in_flight=1)
    assert monitor.get_barrier_values(two) == {
        "safety": -0.1,
        "privacy": 0.3,
        "resource": 9.98,
        "scope": 0.8,
        "stability": 48,
    }
    assert monitor.get_barrier_values(State(tools=["pay"]))["resource"] == 4
    assert monitor.get_barrier_values(State(tools=["pay"], cost_usd="9.99"))["resource"] == 0.01


def test_the_average_masks_a_breach(policy: Path) -> None:
    monitor = Monitor.of(policy, "mailer")
    breached = State(tools=["file_read", "send_email"])
    assert monitor.get_barrier_values(breached)["safety"] < 0
    assert monitor.evaluate_state(breached) == pytest.approx((-0.1 + 0.3 + 9.98 + 0.8 + 48) / 5)


def test_weights_count_in_the_average_only(policy: Path) -> None:
    monitor = Monitor.of(policy, "own")
    state = State(tools=["x", "x"])
    assert monitor.get_barrier_values(state) == {"privacy": 0.5, "pace": 1.5}
    assert monitor.evaluate_state(state) == pytest.approx((1 * 0.5 + 3 * 1.5) / 4)


def test_forward_invariance_counts_what_the_condition_refuses(policy: Path) -> None:
    monitor = Monitor.of(policy, "mailer")
    states = [State(), State(tools=["send_email"] * 2), State(tools=["send_email"] * 3), State(tools=["file_read"])]
    report = monitor.verify_forward_invariance(states, [Action("send_email")] * 4)
    assert report == {"total_checks": 3, "violations": 2, "violation_rate": 2 / 3, "forward_invariant": False}
    report = monitor.verify_forward_invariance(states[:1], [Action("x")])
    assert report == {"total_checks": 1, "violations": 0, "violation_rate": 0.0, "forward_invariant": True}
    assert monitor.verify_forward_invariance([], [])["total_checks"] == 0


def test_kappa_counts_too(policy: Path) -> None:
    """From 2 to 1 is half of it, from 1 to 0 is all."""
    monitor = Monitor.of(policy, "halves")
    report = monitor.verify_forward_invariance([State(tools=["x"] * 6), State(tools=["x"] * 7)], [Action("x"), Action("x")])
    assert (report["total_checks"], report["violations"]) == (2, 1)


def test_a_cost_that_breaks_the_limit(policy: Path) -> None:
    monitor = Monitor.of(policy, "mailer")
    spent = State(cost_usd=9.5)
    assert monitor.verify_forward_invariance([spent], [Action("x", 0.5)])["violations"] == 0
    assert monitor.verify_forward_invariance([spent], [Action("x", 0.500001)])["violations"] == 1
    assert monitor.verify_forward_invariance([spent], [Action("pay")])["violations"] == 1


def test_states_and_actions_come_in_pairs(policy: Path) -> None:
    with pytest.raises(ValueError, match="shorter"):
        Monitor.of(policy, "mailer").verify_forward_invariance([State(), State()], [Action("x")])


def test_an_agent_that_is_not_there(policy: Path) -> None:
    with pytest.raises(LookupError, match="no agent `nobody`: it has `halves`, `mailer`, `own`"):
        Monitor.of(policy, "nobody")
