"""The properties that the gate stands on, each by its name."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gated.core import state as states
from gated.core.decide import record, step
from gated.core.fold import fold
from gated.core.policy import Policy, load_text
from gated.core.replay import replay
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    AgentId,
    CallDecided,
    CallId,
    DeadlineReached,
    FinishRequested,
    IntentsReceived,
    Observation,
    OutcomeReported,
    Record,
    RunId,
    RunStarted,
    Sender,
    ThreadId,
    Wanted,
    unseal,
)

TOOLS = ("Read", "Write", "send_email", "http_request", "pay", "other")
TEMPLATE = """
version: 1
threads: {{shared_by: [[a, b]]}}
limits: {{max_in_flight: 4}}
agents:
  a: {{allowed_tools: [Read, Write, send_email, http_request, pay], forbidden_tools: [{forbidden}], approval_required: [{asks}],
      resource_budget: {{max_steps: 5, max_total_cost_usd: 0.1, max_calls: 9, max_loops_per_phase: 1}},
      ceilings: {{max_hops: 12, max_retries: 2}}, data_scope: any, call_timeout: 5s}}
  b: {{allowed_tools: ["*"], data_scope: any, resource_budget: {{max_calls: 3}}}}
machines:
  - {{name: rbw, key: "{{f}}", initial: n, terminal: [w], transitions: [
      {{on: Read, from: "*", to: r}}, {{on: Write, from: r, to: w, on_violation: {violation}}}]}}
"""

AGENTS = st.sampled_from([Sender("agent", "a"), Sender("agent", "a"), Sender("agent", "b"), Sender("agent", "stranger")])
IDS = st.sampled_from([CallId(f"c{n}") for n in range(8)])
CALLS = st.builds(
    Wanted,
    id=IDS,
    tool=st.sampled_from(TOOLS),
    args=st.sampled_from([{}, {"f": "x"}, {"f": "y"}]),
    parent=st.none() | IDS,
    cost_microusd=st.none() | st.sampled_from([0, 20_000, 90_000]),
)
OBSERVATIONS = st.one_of(
    st.builds(
        IntentsReceived,
        by=AGENTS,
        calls=st.lists(CALLS, min_size=1, max_size=4).map(tuple),
        mode=st.sampled_from(["each", "atomic"]),
        nesting=st.sampled_from(["explicit", "inferred"]),
    ),
    st.builds(OutcomeReported, by=AGENTS, call=IDS, status=st.sampled_from(["success", "error", "not_run"])),
    st.builds(FinishRequested, by=AGENTS),
    st.builds(DeadlineReached, by=st.just(Sender("timer", "t")), due=st.just(0)),
    st.builds(RunStarted, by=st.just(Sender("agent", "a")), agent=st.just(AgentId("a"))),
)
HISTORIES = st.lists(st.tuples(st.sampled_from(["r1", "r2"]), OBSERVATIONS, st.integers(0, 4_000_000)), max_size=25)


def policy_of(*, forbidden: str = "", asks: str = "pay", violation: str = "deny") -> Policy:
    return load_text(TEMPLATE.format(forbidden=forbidden, asks=asks, violation=violation), "policy.yaml")


POLICY = policy_of()
STRICTER = policy_of(forbidden="send_email")


def play(policy: Policy, history: list[tuple[str, Observation, int]]) -> tuple[list[Record], ThreadState]:
    registry = Registry(policy, {policy.digest: policy})
    state, records, at = ThreadState(ThreadId("t")), list[Record](), 0
    for position, (run, said, later) in enumerate(history, 1):
        at += later
        made, sealed = record(registry, state, RunId(run), said, at, position)
        state = made.state
        records += [sealed] if sealed is not None else []
    return records, state


def decided(records: list[Record]) -> list[CallDecided]:
    return [d for sealed in records for d in unseal(sealed).decisions if isinstance(d, CallDecided)]


@given(HISTORIES)
def test_replay_of_a_log_is_the_log(history: list[Any]) -> None:
    records, _ = play(POLICY, history)
    assert replay(records, {POLICY.digest: POLICY}.get) is None


@given(HISTORIES)
def test_the_fold_is_the_state_that_deciding_left(history: list[Any]) -> None:
    records, left = play(POLICY, history)
    state = ThreadState(ThreadId("t"))
    for sealed in records:
        state = fold({POLICY.digest: POLICY}, state, unseal(sealed), sealed.hash)
    assert states.dump(state) == states.dump(left)
    assert states.dump(states.load(states.dump(state))) == states.dump(state)


@given(HISTORIES)
def test_one_terminal_verdict_a_call_and_nothing_in_flight_that_was_not_allowed(history: list[Any]) -> None:
    records, state = play(POLICY, history)
    allowed = [d.call for d in decided(records) if d.admission is not None]
    for run in state.runs.values():
        assert all(call in allowed for call in run.in_flight)
    per_run: dict[tuple[str, str], int] = {}
    for sealed in records:
        for d in unseal(sealed).decisions:
            if isinstance(d, CallDecided) and d.known:
                per_run[(sealed.run, d.call)] = per_run.get((sealed.run, d.call), 0) + 1
    waited = {
        (sealed.run, d.call)
        for sealed in records
        for d in unseal(sealed).decisions
        if isinstance(d, CallDecided) and d.decision == "suspend"
    }
    assert all(count == 1 or key in waited for key, count in per_run.items())


@given(HISTORIES)
def test_limits_hold_whatever_comes(history: list[Any]) -> None:
    _, state = play(POLICY, history)
    for run in state.runs.values():
        if run.agent == "a":
            assert run.tally.calls <= 9
            assert run.tally.steps + run.tally.in_flight <= 5
            assert run.tally.cost_microusd <= 100_000
            assert len(run.in_flight) <= 4
            assert run.tally.counts.get("send_email", 0) + run.tally.counts.get("http_request", 0) <= 2
            assert run.tally.in_flight == len(run.in_flight)
            assert run.hop_count <= 13


@given(HISTORIES)
def test_default_deny(history: list[Any]) -> None:
    records, _ = play(load_text("version: 1\n", "empty.yaml"), history)
    assert all(d.decision == "deny" and d.code == "privilege.no_profile" for d in decided(records))


@given(HISTORIES, OBSERVATIONS)
def test_adding_a_deny_rule_never_allows_more(history: list[Any], last: Observation) -> None:
    """On one and the same state, what the stricter policy allows the other allows too."""
    _, state = play(POLICY, history)
    plain = step(Registry(POLICY, {POLICY.digest: POLICY}), state, RunId("r1"), last, state.at)
    bound = {POLICY.digest: STRICTER, STRICTER.digest: STRICTER}
    strict = step(Registry(STRICTER, bound), state, RunId("r1"), last, state.at)
    if isinstance(last, IntentsReceived) and len(last.calls) > 1:
        return
    loose = {d.call for d in plain.decisions if isinstance(d, CallDecided) and d.decision == "allow"}
    tight = {d.call for d in strict.decisions if isinstance(d, CallDecided) and d.decision == "allow"}
    assert tight <= loose


@given(HISTORIES, st.lists(CALLS, min_size=2, max_size=4, unique_by=lambda call: call.id))
def test_an_atomic_batch_gets_what_its_calls_get_one_by_one_or_nothing(history: list[Any], calls: list[Wanted]) -> None:
    _, state = play(POLICY, history)
    registry = Registry(POLICY, {POLICY.digest: POLICY})
    by = Sender("agent", "a")
    whole = step(registry, state, RunId("r1"), IntentsReceived(by, tuple(calls), "atomic", "explicit"), state.at)
    each = step(registry, state, RunId("r1"), IntentsReceived(by, tuple(calls), "each", "explicit"), state.at)
    together = {d.call for d in whole.decisions if isinstance(d, CallDecided) and d.decision == "allow"}
    apart = {d.call for d in each.decisions if isinstance(d, CallDecided) and d.decision == "allow"}
    assert together <= apart
    fresh = {d.call for d in whole.decisions if isinstance(d, CallDecided)}
    assert not together or together == fresh


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_bytes_give_an_observation_and_deciding_it_never_raises(raw: str | bytes) -> None:
    from gated import wire

    data = raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")
    for role in ("agent", "approver", "operator", "runner"):
        origin = wire.Origin(ThreadId("t"), RunId("r1"), Sender(role, "a"))
        said = wire.read(origin, data)
        made = step(Registry(POLICY, {POLICY.digest: POLICY}), ThreadState(ThreadId("t")), RunId("r1"), said, 1)
        assert made.decisions or made.replies
