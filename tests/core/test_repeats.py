"""What is published again changes nothing, and what was admitted under one policy settles under it."""

import pytest

from gated.core.decide import step
from gated.core.policy import Policy, load_text
from gated.core.state import ThreadState
from gated.core.turn import Registry, Repeat
from gated.events import (
    AbortRequested,
    AgentId,
    CallDecided,
    CallId,
    CallRefused,
    IntentsReceived,
    Observation,
    OutcomeReported,
    PolicyBound,
    RecallRequested,
    RunAnswered,
    RunId,
    RunOpened,
    RunStarted,
    Sender,
    ThreadId,
    Wanted,
)

BY, RUN = Sender("agent", "a"), RunId("r")

MACHINE = """
machines:
  - {name: m, key: "{id}", initial: new, transitions: [{on: Confirm, from: new, to: ok}, {on: Delete, from: ok, to: gone}]}
"""


def policy_of(text: str = "") -> Policy:
    return load_text(f"version: 1\nagents: {{a: {{allowed_tools: ['*'], data_scope: any}}}}\n{text}", "policy.yaml")


def say(registry: Registry, state: ThreadState, said: Observation) -> tuple[ThreadState, list[object]]:
    made = step(registry, state, RUN, said, state.at + 1)
    return made.state, [*made.decisions, *made.replies]


def call(tool: str, number: int) -> IntentsReceived:
    return IntentsReceived(BY, (Wanted(CallId(f"c{number}"), tool, {"id": 7}),), nesting="explicit")


def test_a_run_start_that_is_published_again_is_the_same_one() -> None:
    policy = policy_of()
    registry = Registry(policy, {policy.digest: policy})
    start = RunStarted(BY, AgentId("a"), message="m1")
    state, first = say(registry, ThreadState(ThreadId("t")), start)
    assert isinstance(first[0], RunOpened)
    state, again = say(registry, state, start)
    assert again == [RunAnswered(status="open")]
    _, other = say(registry, state, RunStarted(BY, AgentId("a"), message="m2"))
    assert isinstance(other[0], CallRefused)
    assert other[0].code == "lifecycle.run_exists"


def test_a_call_settles_on_the_machines_that_admitted_it() -> None:
    """One confirmation is good for one deletion, also where the run is bound to another policy in between."""
    old, new = policy_of(MACHINE), policy_of()
    registry = Registry(old, {old.digest: old, new.digest: new})
    state = ThreadState(ThreadId("t"))
    for said in (call("Confirm", 1), OutcomeReported(BY, CallId("c1"), "success"), call("Delete", 2)):
        state, _ = say(registry, state, said)
    operator = Sender("operator", "o")
    state, _ = say(registry, state, PolicyBound(operator, new.digest))
    state, _ = say(registry, state, OutcomeReported(BY, CallId("c2"), "success"))
    state, _ = say(registry, state, PolicyBound(operator, old.digest))
    assert state.order.view(RUN) == {"m": {"7": "gone"}}
    _, (verdict,) = say(registry, state, call("Delete", 3))
    assert isinstance(verdict, CallDecided)
    assert verdict.code == "order.violation"


def test_a_recalled_call_gets_its_recorded_verdict_and_whether_it_has_its_outcome() -> None:
    policy = policy_of()
    registry = Registry(policy, {policy.digest: policy})
    state, (opened, _) = say(registry, ThreadState(ThreadId("t")), call("T", 1))
    assert isinstance(opened, RunOpened)
    asked = RecallRequested(BY, CallId("c1"))
    again, answers = say(registry, state, asked)
    assert (again, answers) == (state, [Repeat(CallId("c1"), 1, policy.digest)])
    state, _ = say(registry, state, OutcomeReported(BY, CallId("c1"), "success"))
    assert say(registry, state, asked)[1] == [Repeat(CallId("c1"), 1, policy.digest, settled=True)]
    assert say(registry, state, call("T", 1))[1] == [Repeat(CallId("c1"), 1, policy.digest, settled=True)]


@pytest.mark.parametrize(
    ("by", "run", "called", "code"),
    [
        ("a", "r", "c9", "ingress.id"),
        ("a", "s", "c1", "lifecycle.run_not_open"),
        ("eve", "r", "c1", "lifecycle.not_thread_owner"),
    ],
)
def test_nobody_recalls_what_is_not_theirs_or_not_there(by: str, run: str, called: str, code: str) -> None:
    policy = policy_of()
    registry = Registry(policy, {policy.digest: policy})
    state, _ = say(registry, ThreadState(ThreadId("t")), call("T", 1))
    made = step(registry, state, RunId(run), RecallRequested(Sender("agent", by), CallId(called)), 9)
    (refused,) = made.decisions
    assert isinstance(refused, CallRefused)
    assert (refused.code, refused.call, made.replies) == (code, called, ())


def test_what_a_run_leaves_of_its_own_takes_no_room_whatever_its_policy_is_by_then() -> None:
    old, new = policy_of(MACHINE.replace("{name: m,", "{name: m, scope: run,")), policy_of()
    registry = Registry(old, {old.digest: old, new.digest: new})
    state = ThreadState(ThreadId("t"))
    for said in (call("Confirm", 1), OutcomeReported(BY, CallId("c1"), "success"), call("Delete", 2)):
        state, _ = say(registry, state, said)
    assert state.order.size == 1
    state, _ = say(registry, state, PolicyBound(Sender("operator", "o"), new.digest))
    state, _ = say(registry, state, AbortRequested(BY, "enough"))
    assert state.order.size == 0
    state, _ = say(registry, state, OutcomeReported(BY, CallId("c2"), "success"))
    assert (state.order.size, state.order.view(RUN)) == (0, {"m": {"7": "gone"}})
    assert len(state.order.instances) == 0
