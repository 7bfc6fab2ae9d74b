"""What a barrier is told that a call would lead to is what it leads to: else the condition would be about another state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.acts import Acts
from gated.core.barriers.barrier import BarrierCall, successor
from gated.core.pipeline import barrier_state
from gated.core.stages.dcbf import get_barrier_values
from gated.events import AgentId, CallId

POLICY = """
version: 1
agents:
  a:
    checks: [dcbf]
    dcbf:
      safety: {pairs: [[x, y]], window: 3}
      privacy: {budget: 1000, tools: [x]}
      stability: {step_budget: 1000}
      neural: {model: m, features: [steps, in_flight, calls, count.x, recent.y, errors, tools],
               layers: [{weights: [[1, 10, 100, 1000, 10000, 100000, 1000000]], bias: [1]}]}
      barriers:
        steps: {expr: "1000 - run.step_count"}
        money: {expr: "1000.0 - run.cost_usd"}
        counts: {expr: "1000 - 3 * run.counts.x - 5 * run.counts.y"}
        recent: {expr: "1000 + size(recent.filter(r, r.tool == 'x')) * 7 + size(recent.filter(r, r.status == 'in_flight')) * 11"}
        newest: {expr: "size(recent) > 0 && recent[size(recent) - 1].tool == 'y' ? 2 : 1"}
        thread: {expr: "1000 - run.step_count - run.counts.x", scope: thread}
"""
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from("xyz")),
        st.tuples(st.just("end"), st.sampled_from(["success", "error", "not_run"])),
    ),
    max_size=25,
)


@given(MOVES)
def test_the_predicted_values_are_those_after_admission(moves: list[tuple[str, str]]) -> None:
    acts, flying = Acts(POLICY), list[str]()
    profile = acts.world.current.agents[AgentId("a")]
    for kind, what in moves:
        run = acts.world.run_state
        assert run is not None
        before = barrier_state(profile, run, acts.world.state.tally, acts.world.now)
        if kind == "end":
            if flying:
                acts.end(flying.pop(0), what)
            continue
        if acts.ask(what, n=acts.made) != "allow":
            continue
        call = f"c{acts.made}"
        flying.append(call)
        after = acts.world.run_state
        assert after is not None
        digest = after.in_flight[CallId(call)].args_sha256
        asked = BarrierCall(what, 10_000, digest)
        predicted = successor(before, asked, profile.dcbf.window)
        found = barrier_state(profile, after, acts.world.state.tally, acts.world.now)
        assert get_barrier_values(profile.dcbf, predicted) == get_barrier_values(profile.dcbf, found)
        assert replace(predicted, run=found.run, thread=found.thread) == found
