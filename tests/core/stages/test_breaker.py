"""The circuit breaker: what an event says of it, bounded memory, old snapshots, and what is refused when it is loaded.

Its behaviour over a run stands in `tests/scenarios/breaker.yaml`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gated.core import state as states
from gated.core.decide import record
from gated.core.policy import Policy, load_text
from gated.core.replay import replay
from gated.core.stages import breaker
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.core.writing import write_json
from gated.documents import DocumentError
from gated.events import (
    CallDecided,
    CallId,
    CallSettled,
    Circuit,
    IntentsReceived,
    Observation,
    OutcomeReported,
    Record,
    RunId,
    Sender,
    ThreadId,
    Wanted,
    unseal,
)

BY = Sender("agent", "a")
SECOND = 1_000_000
HEAD = 'version: 1\nagents: {a: {checks: [privilege], allowed_tools: ["*"]}}\n'
POLICY = HEAD + "breaker: {failures: 2, window: 60s, cooldown: 30s}\n"


def play(policy: Policy, *said: tuple[int, Observation]) -> tuple[list[Record], ThreadState]:
    registry, state, records = Registry(policy, {policy.digest: policy}), ThreadState(ThreadId("t")), list[Record]()
    for position, (at, observation) in enumerate(said, 1):
        made, sealed = record(registry, state, RunId("r"), observation, at * SECOND, position)
        assert sealed is not None
        records.append(sealed)
        state = made.state
    return records, state


def asked(call: str, tool: str = "search") -> Observation:
    return IntentsReceived(BY, (Wanted(CallId(call), tool, {}),))


def failed(call: str) -> Observation:
    return OutcomeReported(BY, CallId(call), "error", content="502")


def errors(tool: str, number: int) -> list[tuple[int, Observation]]:
    return [(n, said) for n in range(number) for said in (asked(f"{tool}{n}", tool), failed(f"{tool}{n}"))]


def decisions(records: list[Record]) -> list[Any]:
    return [decision for sealed in records for decision in unseal(sealed).decisions]


def test_the_event_holds_the_breaker_as_it_was_found_and_as_it_was_left() -> None:
    policy = load_text(POLICY, "p.yaml")
    records, state = play(policy, *errors("search", 2), (5, asked("x")), (31, asked("t")), (31, asked("y")))
    opened = Circuit((0, SECOND), 31 * SECOND)
    assert [d.circuit for d in decisions(records) if isinstance(d, CallSettled)] == [Circuit((0,)), opened]
    verdicts = {str(d.call): d for d in decisions(records) if isinstance(d, CallDecided)}
    (finding,) = verdicts["x"].findings
    assert (finding.code, finding.circuit, finding.retry) == ("breaker.open", opened, True)
    assert finding.reason == "`search` kept failing (2 errors): no calls for another 26s"
    assert verdicts["x"].checks_skipped == ("privilege",)
    assert verdicts["t"].admission is not None
    assert verdicts["t"].admission.trial
    (finding,) = verdicts["y"].findings
    assert finding.circuit == Circuit((0, SECOND), 31 * SECOND, (RunId("r"), CallId("t")))
    assert finding.reason == "`search` failed before and one call is trying it now: wait for its outcome"
    assert replay(records, {policy.digest: policy}.get) is None
    assert states.load(states.dump(state)) == state


def test_a_snapshot_from_before_there_were_breakers_loads() -> None:
    _, state = play(load_text(HEAD, "p.yaml"), (0, asked("c")))
    old = json.loads(write_json(state))
    del old["circuits"]
    assert states.load(json.dumps(old).encode()) == state


def test_a_policy_without_a_breaker_has_no_such_stage_and_keeps_nothing() -> None:
    policy = load_text(HEAD + "breaker: off\n", "p.yaml")
    records, state = play(policy, *errors("search", 30), (30, asked("x")))
    assert [name for profile in policy.agents.values() for name, _ in profile.stages] == ["privilege"]
    assert decisions(records)[-1].decision == "allow"
    assert not state.circuits


def test_a_thread_keeps_so_many_circuits_and_forgets_closed_ones_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "MAX_CIRCUITS", 3)
    policy = load_text(POLICY, "p.yaml")
    _, state = play(policy, *errors("open", 2), *((10 + n, said) for n in range(9) for _, said in errors(f"t{n}", 1)))
    assert set(state.circuits) == {"open", "t7", "t8"}


def test_a_circuit_keeps_as_many_times_as_it_counts() -> None:
    rule = breaker.compile_rule(breaker.BreakerEntry(failures=3, window="1h"))
    circuit: Circuit | None = None
    for at in range(10):
        circuit = breaker.settle(rule, circuit, (RunId("r"), CallId("c")), "error", at) or circuit
    assert circuit == Circuit((0, 1, 2), 2 + 30 * SECOND)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("breaker: {failures: 0}", 3, ">= 1"),
        ("breaker: {failures: 101}", 3, "<= 100"),
        ("breaker:\n  window: soon", 4, "`soon` is not a duration"),
        ("breaker:\n  failures: 2\n  cooldown: 0s", 5, "`cooldown` is longer than 0s"),
        ("breaker: {failure: 3}", 3, "unknown key `failure`"),
        ("breaker: on", 3, "`breaker`"),
        ("tools:\n  fetch:\n    breaker: {window: 1y}", 5, "`1y` is not a duration"),
        ("defaults:\n  breaker: {window: 1y}", 4, "`1y` is not a duration"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(text: str, line: int, says: str) -> None:
    with pytest.raises(DocumentError) as caught:
        load_text(HEAD + text + "\n", "p.yaml")
    assert caught.value.line == line
    assert says in str(caught.value)
