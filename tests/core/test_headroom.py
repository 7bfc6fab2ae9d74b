"""Where the headroom of an agent holds, no budget and no barrier that reads a tally has anything to say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from gated.core.barriers.barrier import BarrierCall, BarrierState
from gated.core.headroom import Headroom, all_of, room_of
from gated.core.history import Tally
from gated.core.policy import Policy, load_text
from gated.core.stages import dcbf, dfa, privilege
from gated.events import AgentId, Phase

TOOLS = st.sampled_from(["Read", "send_email"])
FEW = st.integers(0, 6)
MICRODOLLARS = FEW.map(lambda n: n * 100_000)


@st.composite
def tallies(draw: st.DrawFn) -> Tally:
    counts = draw(st.dictionaries(TOOLS, FEW))
    recent = tuple(draw(st.lists(TOOLS, max_size=4)))
    return Tally(draw(FEW) * 500_000, draw(FEW), draw(FEW), draw(FEW), draw(MICRODOLLARS), draw(FEW), Map(counts), recent)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    limits = [f"{name}: {draw(FEW)}" for name in ("max_calls", "max_tokens", "max_execution_time_seconds") if draw(st.booleans())]
    scope = draw(st.sampled_from(["run", "thread"]))
    return load_text(
        "version: 1\nagents:\n  a:\n    allowed_tools: [Read, send_email]\n    data_scope: any\n"
        f"    resource_budget: {{scope: {scope}, max_steps: {draw(FEW)}, max_total_cost_usd: 0.{draw(FEW)}"
        f"{''.join(', ' + limit for limit in limits)}}}\n"
        f"    dcbf: {{stability: {{scope: {draw(st.sampled_from(['run', 'thread']))}, step_budget: {draw(FEW)}}},"
        f" privacy: {{budget: 0.{draw(FEW)}}}, resource: {{limit_usd: 0.{draw(FEW)}}}}}\n",
        "policy.yaml",
    )


@given(policies(), tallies(), tallies(), TOOLS, MICRODOLLARS, FEW.map(lambda n: n * 1_000_000))
def test_where_there_is_room_nobody_who_counts_says_anything(
    policy: Policy, run: Tally, thread: Tally, tool: str, reserved: int, at: int
) -> None:
    profile = policy.agents[AgentId("a")]
    budget, steps, call = profile.privilege.budget, profile.dfa, BarrierCall(tool, reserved)
    counted = thread if budget.thread else run
    said = [
        *privilege.check_budget(budget, counted, at, reserved),
        *dfa.check_steps(steps, counted.steps + counted.in_flight),
        *(found for phase in steps.calm for found in dfa.check_way(steps, dfa.DfaState(phase), False)),
        *dcbf.check(profile.dcbf, BarrierState(run, thread), call),
    ]
    assert Phase.PLANNING in steps.calm
    assert profile.room.hold(run, thread, tool, reserved, at) == (not said)


@given(st.lists(st.tuples(st.booleans(), st.builds(Headroom, FEW, FEW, FEW, FEW, FEW))), tallies(), tallies(), FEW)
def test_there_is_room_together_where_there_is_room_for_each(
    limits: list[tuple[bool, Headroom]], run: Tally, thread: Tally, at: int
) -> None:
    each = [room.holds(thread if of_thread else run, "Read", 1, at) for of_thread, room in limits]
    assert all_of(room_of(*limit) for limit in limits).hold(run, thread, "Read", 1, at) == all(each)
