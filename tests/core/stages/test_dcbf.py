"""The short way of the barriers against their values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from gated.core.barriers.entries import (
    BarrierEntry,
    CounterEntry,
    DcbfEntry,
    DriftEntry,
    PrivacyEntry,
    ResourceEntry,
    SafetyEntry,
    StabilityEntry,
)
from gated.core.history import Tally
from gated.core.stages.dcbf import compile_dcbf

TOOLS = st.sampled_from(["sql_query", "http_request", "send_email", "file_read", "Read"])
AMOUNTS = st.sampled_from([-1, -0.2, 0, 0.1, 0.5, 1, 1.5])


@st.composite
def tallies(draw: st.DrawFn) -> Tally:
    counts = draw(st.dictionaries(TOOLS, st.integers(0, 3)))
    small = st.integers(0, 4)
    return Tally(
        0,
        draw(small),
        draw(small),
        draw(small),
        draw(st.integers(0, 3)) * 400_000,
        0,
        Map(counts),
        tuple(draw(st.lists(TOOLS, max_size=6))),
    )


@st.composite
def entries(draw: st.DrawFn) -> DcbfEntry:
    counter = CounterEntry(tools=tuple(draw(st.lists(TOOLS, max_size=2))), per_call=draw(AMOUNTS), budget=draw(AMOUNTS))
    return DcbfEntry(
        safety=SafetyEntry(margin=draw(AMOUNTS), window=draw(st.integers(2, 6))),
        privacy=PrivacyEntry(budget=draw(AMOUNTS), per_call=draw(AMOUNTS)),
        resource=ResourceEntry(limit_usd=draw(AMOUNTS)),
        scope=DriftEntry(max_drift=draw(AMOUNTS)),
        stability=StabilityEntry(step_budget=draw(st.integers(0, 6))),
        barriers={"own": BarrierEntry(counter=counter, margin=draw(AMOUNTS))},
    )


@given(entries(), tallies(), TOOLS, st.integers(0, 2).map(lambda n: n * 300_000))
def test_a_barrier_that_says_it_is_clear_is_at_least_zero_now_and_after(
    entry: DcbfEntry, tally: Tally, tool: str, reserved: int
) -> None:
    rules = compile_dcbf(entry, (), 0)
    for barrier in rules.barriers:
        if barrier.room is not None and barrier.room.holds(tally, tool, reserved):
            assert barrier.value(tally) >= 0, barrier.name
            assert barrier.value(tally.admit(tool, reserved, rules.window)) >= 0, barrier.name
    each = [barrier.room is not None and barrier.room.holds(tally, tool, reserved) for barrier in rules.barriers]
    together = rules.room is not None and rules.room.hold(tally, tally, tool, reserved)
    assert together == (all(each) and rules.room is not None)
