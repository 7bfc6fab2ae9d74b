"""The null gate: the same bus, the same log, the same daemon, and a decision that always says allow. What a gate cannot beat."""

from __future__ import annotations

from gated.canonical import args_digest
from gated.core.decide import Step
from gated.core.fold import advance
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import GENESIS, VERSION, Body, CallDecided, CallId, IntentsReceived, Observation, Record, RunId, kind_of, seal


def record(
    registry: Registry, state: ThreadState, run_id: RunId, observation: Observation, at: int, input: int = 0
) -> tuple[Step, Record | None]:
    if not isinstance(observation, IntentsReceived):
        return Step((), (), state, at), None
    decisions = tuple(CallDecided(CallId(str(w.id)), w.tool, args_digest(w.tool, w.args), "allow") for w in observation.calls)
    body = Body(
        VERSION, state.thread, run_id, state.seq + 1, at, kind_of(observation), observation, decisions,
        registry.current.digest, state.head or GENESIS, input=input,
    )  # fmt: skip
    sealed = seal(body)
    return Step(decisions, (), advance(state, body.seq, at, sealed.hash, input), at), sealed
