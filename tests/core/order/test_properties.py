"""What holds for every machine: a slow reading of the page agrees, machines only narrow, batches gain nothing."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.order.harness import R1, R2, Thread, machine, said, step
from gated.core.order.machines import Machine
from gated.core.order.state import OrderState
from gated.core.order.touching import MachineSet
from gated.core.state import ThreadState, dump, load
from gated.events import CallId, Finding, RunId, ThreadId

STATES, TOOLS = "abcd", ("T", "U", "V")
SOURCES = st.one_of(st.just("*"), st.lists(st.sampled_from(STATES), min_size=1, max_size=3, unique=True))
WHEN = st.sampled_from(["any", "success", "error", {"content": "x*"}, {"status": "any", "content": "y*"}])
TRANSITIONS = st.builds(
    lambda on, source, to, when, action: step(on, source, to, when=when, on_violation=action),
    st.sampled_from(TOOLS),
    SOURCES,
    st.sampled_from(STATES),
    WHEN,
    st.sampled_from(["deny", "ask", "warn"]),
)


def entries(max_transitions: int = 5) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "initial": st.sampled_from(STATES),
            "scope": st.sampled_from(["thread", "run"]),
            "strict": st.booleans(),
            "on_unmatched": st.one_of(st.none(), st.sampled_from(STATES)),
            "transitions": st.lists(TRANSITIONS, min_size=1, max_size=max_transitions),
        }
    )


MACHINES = entries().map(lambda entry: machine(**entry))
CALLS = st.tuples(st.sampled_from(TOOLS), st.sampled_from([R1, R2]), st.booleans())
OUTCOMES = st.tuples(st.sampled_from(["success", "error", "not_run"]), st.sampled_from(["x1", "y1", "z"]))


# --- the oracle ------------------------------------------------------------------------------------------------------


def targets(one: Machine, tool: str, forced: bool, state: str) -> set[str]:
    """Where a call may lead from a state, read off the file."""
    found: set[str] = set()
    first = True
    for item in one.entry.transitions:
        if item.on == tool:
            if item.from_ == "*" or state in item.from_ or (forced and first):
                found |= {item.to, one.entry.on_unmatched or item.to}
            first = False
    return found


def states_by_then(one: Machine, state: str, calls: list[tuple[str, bool]]) -> set[str]:
    found = {state}
    for order in permutations(calls):
        here = {state}
        for tool, forced in order:
            here |= {target for at in here for target in targets(one, tool, forced, at)}
            found |= here
    return found


def expected(one: Machine, states: set[str], tool: str) -> list[tuple[str, str]]:
    matching = [item for item in one.entry.transitions if item.on == tool]
    if not matching:
        return [("deny", "order.undeclared")] if one.entry.strict else []
    allowing = {at for at in states if any(item.from_ == "*" or at in item.from_ for item in matching)}
    if allowing == states:
        return []
    action = str(matching[0].on_violation)
    if not allowing:
        return [(action, "order.violation")]
    return [("warn" if action == "warn" else "deny", "order.in_flight")]


@given(MACHINES, st.lists(CALLS, max_size=5), st.sampled_from(TOOLS))
def test_a_slow_reading_of_the_page_agrees(one: Machine, calls: list[tuple[str, RunId, bool]], tool: str) -> None:
    thread = Thread(one)
    admitted: list[tuple[str, bool]] = []
    for number, (flying, run, approved) in enumerate(calls):
        for touch in thread.machines.touches(flying, {}).touches:
            forced = touch.exact[:1] if approved else ()
            thread.admit(CallId(f"c{number}"), (type(touch)(touch.machine, touch.key, touch.exact, overrides=forced),), run)
            if one.scope == "thread" or run == R1:
                admitted.append((flying, approved))
    states = states_by_then(one, one.initial, admitted)
    assert said(thread.gate(tool)) == expected(one, states, tool)


# --- machines only narrow --------------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(CALLS, st.one_of(st.none(), OUTCOMES)), max_size=8)


def play(thread: Thread, steps: list[tuple[tuple[str, RunId, bool], tuple[str, str] | None]]) -> list[tuple[Finding, ...]]:
    """Calls, some of which end at once, the others later or never."""
    found = []
    for number, ((tool, run, approved), outcome) in enumerate(steps):
        found.append(thread.call(tool, run=run, call=f"c{number}", approved=approved))
        if outcome is not None and thread.touches:
            run, call = sorted(thread.touches)[number % len(thread.touches)]
            thread.end(call, outcome[0], outcome[1], run=run)  # type: ignore[arg-type]
    return found


@given(entries(), entries(), STEPS, st.sampled_from(TOOLS))
def test_another_machine_never_allows_more(first: dict[str, Any], second: dict[str, Any], steps: list[Any], tool: str) -> None:
    both = Thread(machine("first", **first), machine("second", **second))
    play(both, steps)
    alone = Thread(machine("first", **first), order=both.order)
    found = both.gate(tool)
    assert [finding for finding in found if finding.machine == "first"] == list(alone.gate(tool))


@given(MACHINES, st.lists(st.sampled_from(TOOLS), min_size=1, max_size=5), st.data())
def test_a_batch_gets_nothing_that_its_calls_one_by_one_might_not(one: Machine, batch: list[str], data: st.DataObject) -> None:
    """Whatever calls that were admitted before it ran, in whatever order and with whatever outcome, the call is allowed."""
    thread = Thread(one)
    for number, tool in enumerate(batch):
        before, earlier = thread.order, dict(thread.touches)
        findings = thread.call(tool, call=f"c{number}")
        if findings:
            continue
        alone = Thread(one, order=before)
        alone.touches = earlier
        for run, call in data.draw(st.permutations(sorted(earlier))):
            status, content = data.draw(OUTCOMES)
            alone.end(call, status, content, run=run)  # type: ignore[arg-type]
        assert alone.gate(tool) == ()


# --- what is kept of an argument ---------------------------------------------------------------------------------------

SCALARS = st.sampled_from(["", "a", "A", "7", "null", "true", "1.5", "../a", 7, 1.5, True, None])
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(st.sampled_from(["x", "A"]), SCALARS, max_size=2))
WATCHING = [
    machine("named", key="{f}", strict=True, transitions=[step('T(f ~ "a")', "s", "t"), step('T(f !~ "7")', "s", "u")]),
    machine("warns", key="{f}", key_normalizer="path", transitions=[step('T(f = "a")', "t", "t", on_violation="warn")]),
    machine("says", transitions=[step("T", "*", "t", emit={"content": "<{f}>"})]),
    machine("lacks", key="{f.x}", on_missing_key="ask", transitions=[step("T", "*", "t")]),
]


@given(st.lists(VALUES, max_size=8))
def test_what_is_kept_of_an_argument_is_what_its_calls_touch(values: list[Any]) -> None:
    kept = MachineSet(WATCHING)
    for value in values:
        for args in ({"f": value, "g": 1}, {"g": value}):
            watches = kept._by_name["T"]
            assert kept.touches("T", args) == kept.touched(watches, "T", args)
            assert kept._kept.keys() == {"T"}


# --- the state -------------------------------------------------------------------------------------------------------


def through_a_snapshot(order: OrderState) -> OrderState:
    return load(dump(ThreadState(ThreadId("t"), order=order))).order


@given(st.lists(entries(3), min_size=1, max_size=3), STEPS, STEPS)
def test_a_snapshot_is_the_state_and_goes_on_alike(first: list[Any], steps: list[Any], more: list[Any]) -> None:
    machines = [machine(f"m{number}", **entry) for number, entry in enumerate(first)]
    thread = Thread(*machines)
    play(thread, steps)
    again = Thread(*machines, order=through_a_snapshot(thread.order))
    assert again.order == thread.order
    again.touches = dict(thread.touches)
    fresh = [((tool, RunId(f"{run}x"), approved), outcome) for (tool, run, approved), outcome in more]
    assert play(again, fresh) == play(thread, fresh)
    assert dump(ThreadState(ThreadId("t"), order=again.order)) == dump(ThreadState(ThreadId("t"), order=thread.order))


@given(st.lists(entries(3), min_size=1, max_size=3), STEPS)
def test_sizes_and_kinds_are_what_they_count(found: list[Any], steps: list[Any]) -> None:
    thread = Thread(*(machine(f"m{number}", **entry) for number, entry in enumerate(found)))
    play(thread, steps)
    sites = [site for keys in thread.order.instances.values() for site in keys.values()]
    assert thread.order.size == sum(len(site.instances) for site in sites)
    for site in sites:
        for name, instance in site.instances.items():
            kinds = Counter(flight.kinds[name] for flight in site.flights if name in flight.kinds)
            assert instance.moved or kinds
            assert site.kinds_of(name) == tuple(sorted(kinds.items()))


@given(MACHINES, st.lists(CALLS, max_size=6))
def test_calls_that_were_never_run_leave_nothing(one: Machine, calls: list[tuple[str, RunId, bool]]) -> None:
    thread = Thread(one)
    for number, (tool, run, approved) in enumerate(calls):
        thread.call(tool, run=run, call=f"c{number}", approved=approved)
    for run, call in sorted(thread.touches):
        thread.end(call, "not_run", run=run)
    assert thread.order.size == 0
    assert len(thread.order.instances) == 0
