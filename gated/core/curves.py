"""Barriers over recorded runs: their values after every step, where each came closest to its edge, and whether the condition
held for what agents asked for and for what was let in.

It needs no arguments, only what the decisions recorded. A state is read before a decision is applied (that is what the
barriers were asked about) and sampled after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from gated.core.barriers.barrier import BarrierCall, BarrierState
from gated.core.calls import reservation
from gated.core.fold import advance, ancestors, apply
from gated.core.known import Known
from gated.core.pipeline import barrier_state, drift_of
from gated.core.policy import Policy, Profile
from gated.core.stages import dcbf
from gated.core.state import ThreadState
from gated.events import (
    Body,
    Breach,
    CallDecided,
    CallId,
    CallSettled,
    Decided,
    IntentsReceived,
    Record,
    RunEnded,
    RunId,
    RunOpened,
    ThreadId,
    Wanted,
    unseal,
)


class Sample(Struct, frozen=True):
    """Every barrier of a run after record `seq`; `call` is the call that was admitted or settled in it."""

    seq: int
    at: int
    call: CallId | None
    values: dict[str, float]


class Curve(Struct):
    thread: ThreadId
    run: RunId
    agent: str
    samples: list[Sample]


class Closest(Struct, frozen=True):
    """Where a barrier had its least value."""

    barrier: str
    value: float
    thread: ThreadId
    run: RunId
    agent: str
    seq: int
    call: CallId | None
    runs: int  # that have this barrier


class Asked(Struct, frozen=True):
    """A recorded decision on a call, and the state that the barriers were asked about."""

    thread: ThreadId
    run: RunId
    agent: str
    seq: int
    decision: Decided
    stage: str | None
    rules: dcbf.DcbfRules
    state: BarrierState
    call: CallId
    action: BarrierCall


class Violation(Struct, frozen=True):
    """A call that the condition refuses, out of a state inside the safe set. `decision` is what the log says."""

    thread: ThreadId
    run: RunId
    agent: str
    seq: int
    call: CallId
    tool: str
    decision: Decided
    breaches: tuple[Breach, ...]


class Recorded:
    """Feed it the records of a log in order, or of some threads, each whole.

    With `policy` its barriers are computed instead of those that the runs were bound to; agents that it does not have
    are left out and named in `strangers`. `whole`: states hold a view of the run whether a barrier reads it or not.
    """

    def __init__(
        self,
        known: Mapping[str, Policy],
        policy: Policy | None = None,
        begun: Mapping[ThreadId, ThreadState] = MappingProxyType({}),
        *,
        whole: bool = False,
    ) -> None:
        """`begun` are the states of threads whose first records are not here."""
        window = 0 if policy is None else policy.window
        self._known = Known((digest, replace(p, window=max(p.window, window))) for digest, p in known.items())
        self._policy, self._whole = policy, whole
        self._states = dict(begun)
        self._heard: dict[tuple[ThreadId, RunId, CallId], Wanted] = {}
        self.curves: dict[tuple[ThreadId, RunId], Curve] = {}
        self.strangers: set[str] = set()
        self.ended: dict[tuple[ThreadId, RunId], str] = {}

    def feed(self, record: Record) -> Iterator[Asked]:
        """Follow one record; every decision on a call in it."""
        body = unseal(record)
        state = self._states.get(body.thread) or ThreadState(body.thread)
        self._hear(body)
        for decision in body.decisions:
            if isinstance(decision, CallDecided) and decision.known and body.run in state.runs:
                yield from self._asked(state, body, decision)
            state = apply(self._known, state, body.run, body.seq, body.at, decision)
            if isinstance(decision, RunEnded):
                self.ended[(body.thread, body.run)] = decision.status
            if isinstance(decision, RunOpened | CallSettled) or getattr(decision, "admission", None) is not None:
                self._sample(state, body, getattr(decision, "call", None))
        self._states[body.thread] = advance(state, body.seq, body.at, record.hash, body.input)

    def _hear(self, body: Body) -> None:
        if isinstance(body.observation, IntentsReceived):
            for wanted in body.observation.calls:
                if wanted.id is not None and (wanted.cost_microusd is not None or wanted.embedding is not None):
                    key, near = (body.thread, body.run, wanted.id), wanted.embedding
                    self._heard[key] = Wanted(wanted.id, cost_microusd=wanted.cost_microusd, embedding=near)

    def _profile(self, state: ThreadState, run_id: RunId) -> tuple[Policy, Profile] | None:
        run = state.runs[run_id]
        policy = self._policy or self._known[run.policy]
        profile = policy.agents.get(run.agent)
        if profile is None:
            self.strangers.add(run.agent)
            return None
        return policy, profile

    def _asked(self, state: ThreadState, body: Body, decision: CallDecided) -> Iterator[Asked]:
        found = self._profile(state, body.run)
        if found is None:
            return
        policy, profile = found
        run = state.runs[body.run]
        heard = self._heard.get((body.thread, body.run, decision.call)) or Wanted(decision.call)
        estimate = heard.cost_microusd
        reserved = reservation(policy, profile, decision.tool, estimate)
        if decision.admission is not None:
            reserved = decision.admission.reserved_microusd
        action = BarrierCall(decision.tool, reserved, decision.args_sha256)
        drift = drift_of(profile, run, heard.embedding)
        seen = barrier_state(profile, run, state.tally, body.at, drift, whole=self._whole)
        asked = body.thread, body.run, run.agent, body.seq, decision.decision, decision.stage
        yield Asked(*asked, profile.dcbf, seen, decision.call, action)

    def _sample(self, state: ThreadState, body: Body, call: CallId | None) -> None:
        for run_id in (body.run, *ancestors(self._known, state, body.run)):
            found = self._profile(state, run_id)
            if found is None:
                continue
            run, profile = state.runs[run_id], found[1]
            values = dcbf.get_barrier_values(profile.dcbf, barrier_state(profile, run, state.tally, body.at, run.drift))
            curve = self.curves.setdefault((body.thread, run_id), Curve(body.thread, run_id, run.agent, []))
            curve.samples.append(Sample(body.seq, body.at, call, values))


class Verified:
    """`verify_forward_invariance` over recorded decisions as they come, and the first violations."""

    def __init__(self, keep: int = 100) -> None:
        self.asked, self.admitted = dcbf.Invariance(), dcbf.Invariance()
        self.violations: list[Violation] = []
        self._keep = keep

    def feed(self, asked: Asked) -> None:
        breaches = self.asked.feed(asked.rules, asked.state, asked.action)
        if asked.decision == "allow":
            self.admitted.feed(asked.rules, asked.state, asked.action)
        if breaches and len(self.violations) < self._keep:
            where = asked.thread, asked.run, asked.agent, asked.seq
            self.violations.append(Violation(*where, asked.call, asked.action.tool, asked.decision, breaches))


def closest(curves: Mapping[tuple[ThreadId, RunId], Curve]) -> list[Closest]:
    """For every barrier its least value over all runs; the first of equals. By value, then by name."""
    least: dict[str, Closest] = {}
    runs: dict[str, int] = {}
    for curve in curves.values():
        for name in dict.fromkeys(name for sample in curve.samples for name in sample.values):
            runs[name] = runs.get(name, 0) + 1
        for sample in curve.samples:
            for name, value in sample.values.items():
                if name not in least or value < least[name].value:
                    least[name] = Closest(name, value, curve.thread, curve.run, curve.agent, sample.seq, sample.call, 0)
    return sorted((replace(found, runs=runs[name]) for name, found in least.items()), key=lambda c: (c.value, c.barrier))
