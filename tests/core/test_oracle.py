"""The core against the slow oracle: random policies and histories, every answer and the state in the end compared whole.

What Hypothesis finds it also shrinks; `HYPOTHESIS_PROFILE=deep` looks at fifty times as many. The histories that are thrown
from dice cost a tenth of that, so more of them are looked at in the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from core.gate_of_core import CoreGate
from oracle import Gate
from oracle.comparison import answers, comparable_state, shrunk
from oracle.strategies import asking, beside, histories, policies, rebinding, thrown

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
BLOCKS = range(100 if DEEP else 4)
BLOCK = 100  # histories


def first_difference(policy: dict[str, Any], operations: list[dict[str, Any]]) -> tuple[Any, Any, Any] | None:
    """The first operation that the two answer differently, and their answers; or a run that they hold differently."""
    slow, fast = Gate(policy), CoreGate(policy)
    for operation in operations:
        expected, got = answers(slow, operation), answers(fast, operation)
        if expected != got:
            return operation, expected, got
    for thread in slow.threads.values():
        for run in thread.runs:
            expected, got = comparable_state(slow.state(thread.id, run)), comparable_state(fast.state(thread.id, run))
            if expected != got:
                return (thread.id, run), expected, got
    return None


def differs(policy: dict[str, Any], operations: list[dict[str, Any]]) -> bool:
    """For shrinking: a policy that no longer loads, or a history that makes no sense, is no difference."""
    if any(operation.get("op") == "intents" and not operation.get("calls") for operation in operations):
        return False  # no message asks for nothing
    try:
        return first_difference(policy, operations) is not None
    except (AssertionError, KeyError, StopIteration, TypeError, ValueError):
        return False


@given(policies(), histories())
def test_the_core_decides_as_the_oracle_does(policy: dict[str, Any], operations: list[dict[str, Any]]) -> None:
    assert first_difference(policy, operations) is None, (policy, operations)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("make", [thrown, rebinding, asking, beside])
def test_the_core_decides_as_the_oracle_does_on_made_histories(
    make: Callable[[int], tuple[dict[str, Any], list[dict[str, Any]]]], block: int
) -> None:
    """Thrown ones; those in which policies change under running runs, and what was recorded before stays; mostly answers; and
    several runs of a thread that agents share."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        policy, operations = make(seed)
        if first_difference(policy, operations) is not None:
            smallest = shrunk(policy, operations, differs)
            pytest.fail(f"seed {seed}, shrunk: {smallest}\n{first_difference(*smallest)}")


def test_a_core_that_decided_otherwise_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: a step budget that is one too large does not go unnoticed."""
    from gated.core.stages import dfa

    honest = dfa.check_steps
    monkeypatch.setattr(dfa, "check_steps", lambda rules, taken, exhausted=False: honest(rules, taken - 1, exhausted=exhausted))
    assert any(first_difference(*thrown(seed)) is not None for seed in range(100))
