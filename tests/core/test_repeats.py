"""What is published again changes nothing, and what was admitted under one policy settles under it."""

from gated.core.decide import step
from gated.core.policy import Policy, load_text
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    AgentId,
    CallDecided,
    CallId,
    CallRefused,
    IntentsReceived,
    Observation,
    OutcomeReported,
    PolicyBound,
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
