"""The call that is explained, the state it met, and drafts: the same with something changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from gated import canonical
from gated.core import trial
from gated.core.call import Call
from gated.core.calls import call_of
from gated.core.fold import apply, fold
from gated.core.policy import Policy, load
from gated.core.stages import semantic
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.core.verdicts import Judged
from gated.documents import DocumentError, parse_document
from gated.events import (
    AgentId,
    Body,
    CallDecided,
    CallId,
    IntentsReceived,
    Record,
    ResolutionReceived,
    RunId,
    RunOpened,
    ThreadId,
    Wanted,
    unseal,
)
from gated.strict_json import Path

EXPLAINED: Final = RunId("explained")
Kind = Literal["wait", "arguments", "call", "approval", "policy"]


class Change(Struct, frozen=True, omit_defaults=True):
    """One thing to change. `size` ranks it; `path` is the place in the policy, `value` what stands there then."""

    kind: Kind
    text: str
    size: float
    path: Path = ()
    value: Any = None


Compile = Callable[[Any], Policy]
Redo = Callable[["Draft"], "Draft | None"]


def compile_data(data: Any) -> Policy:
    """A policy of plain data that needs nothing from outside. Raises `DocumentError`."""
    return load(parse_document(canonical.encode(data), file="policy.json"))


class Draft(Struct, frozen=True):
    """The call under a policy on a state, after `changes`. `data` is the policy's document; it comes `later` (µs)."""

    policy: Policy
    data: Any
    state: ThreadState
    plea: Call
    lifted: frozenset[str] = frozenset()
    later: int = 0
    compile: Compile = compile_data
    changes: tuple[Change, ...] = ()
    redo: tuple[Redo, ...] = ()  # how each of them is made on another draft

    def changed(self, change: Change, redo: Redo, **fields: Any) -> Draft:
        """The draft with one change more."""
        return replace(self, changes=(*self.changes, change), redo=(*self.redo, redo), **fields)

    @property
    def size(self) -> float:
        return sum(change.size for change in self.changes)


class Case(Struct, frozen=True):
    """`draft` is the call as it was, `known` the policies of the thread's other runs, `at` the time of the call (µs)."""

    draft: Draft
    known: Mapping[str, Policy]
    run_id: RunId
    agent: AgentId
    at: int
    recorded: CallDecided | None = None

    def registry(self, draft: Draft) -> Registry:
        run = draft.state.runs.get(self.run_id)
        bound = {} if run is None else {run.policy: draft.policy}
        return Registry(draft.policy, {**self.known, draft.policy.digest: draft.policy, **bound})

    def judge(self, draft: Draft) -> Judged:
        return trial.decide_call(
            self.registry(draft), draft.state, self.run_id, draft.plea, self.agent, self.at + draft.later, draft.lifted or None
        )

    def allows(self, draft: Draft) -> bool:
        return self.judge(draft).decided.decision == "allow"


def edited(draft: Draft, data: Any, change: Change, redo: Redo) -> Draft | None:
    """The draft under a changed policy; None where that does not load."""
    try:
        policy = draft.compile(data)
    except DocumentError:
        return None
    return draft.changed(change, redo, policy=policy, data=data)


def set_at(data: Any, path: Path, value: Any) -> Any:
    """A copy of plain data with something else at `path`; mappings on the way are made where they are missing."""
    if not path:
        return value
    head, rest = path[0], path[1:]
    if isinstance(head, int):
        copied = list(data)
        copied[head] = set_at(copied[head], rest, value)
        return copied
    inside = data if isinstance(data, dict) else {}
    return {**inside, head: set_at(inside.get(head), rest, value)}


def get_at(data: Any, path: Path) -> Any:
    """What stands at `path`, None where nothing does."""
    for step in path:
        if isinstance(data, dict):
            data = data.get(step) if isinstance(step, str) else None
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


# --- where a case comes from -----------------------------------------------------------------------------------------


def wanted_case(
    policy: Policy,
    agent: AgentId,
    wanted: Wanted,
    *,
    state: ThreadState | None = None,
    run_id: RunId = EXPLAINED,
    known: Mapping[str, Policy] | None = None,
    at: int = 0,
    compile: Compile = compile_data,
) -> Case:
    """A call that nobody made: on the state of a run, or as the first of a new one."""
    policies = {**(known or {}), policy.digest: policy}
    found = state or ThreadState(ThreadId(str(run_id)))
    if run_id not in found.runs:
        found = apply(policies, found, run_id, found.seq + 1, at, RunOpened(agent=agent, policy=policy.digest))
    run = found.runs[run_id]
    plea = call_of(replace(wanted, id=wanted.id or CallId("explained")), "explicit", len(run.in_flight))
    draft = Draft(policy, json.loads(policy.text), found, plea, compile=compile)
    return Case(draft, policies, run_id, agent, max(at, found.at))


def recorded_case(
    records: Iterable[Record],
    known: Mapping[str, Policy],
    run_id: str,
    call: str,
    policy: Policy | None = None,
    compile: Compile = compile_data,
) -> Case | None:
    """A recorded call on the state that it met (its latest verdict is explained); None where the log does not hold it."""
    states: dict[ThreadId, ThreadState] = {}
    asked: dict[ThreadId, tuple[Wanted, str, int]] = {}
    found: Case | None = None
    for record in records:
        body = unseal(record)
        state = states.get(body.thread) or ThreadState(body.thread)
        states[body.thread] = fold(known, state, body, record.hash)
        if body.run != run_id:
            continue
        _note(body, call, state, asked)
        if body.thread in asked:
            found = _decided(body, call, state, known, asked[body.thread], policy, compile) or found
    return found


def _note(body: Body, call: str, state: ThreadState, asked: dict[ThreadId, tuple[Wanted, str, int]]) -> None:
    """How the call was asked for, also by whoever edited it since."""
    run = state.runs.get(body.run)
    others = 0 if run is None else run.beside(CallId(call))
    if isinstance(body.observation, IntentsReceived):
        for wanted in body.observation.calls:
            if wanted.id == call and wanted.refused is None and body.thread not in asked:
                asked[body.thread] = wanted, body.observation.nesting, others
    if isinstance(body.observation, ResolutionReceived) and body.thread in asked:
        wanted, nesting, _ = asked[body.thread]
        args = next(
            (d.args for d in body.decisions if isinstance(d, CallDecided) and d.call == call and d.args is not None), None
        )
        scores = semantic.again(None if args else wanted.scores, body.observation.scores.get(CallId(call)))
        links = body.observation.links.get(CallId(call))
        fresh = replace(wanted, args=wanted.args if args is None else args, scores=scores, links=links)
        asked[body.thread] = fresh, nesting, others


def _decided(
    body: Body,
    call: str,
    state: ThreadState,
    known: Mapping[str, Policy],
    asked: tuple[Wanted, str, int],
    policy: Policy | None,
    compile: Compile,
) -> Case | None:
    for decision in body.decisions:
        if isinstance(decision, CallDecided) and decision.call == call:
            wanted, nesting, others = asked
            run = state.runs.get(body.run)
            digest = body.policy if run is None else run.policy
            agent = AgentId(body.observation.by.name) if run is None else run.agent
            chosen = policy or known[digest]
            calls = state if run is None else _forgetting(state, body.run, CallId(call))
            draft = Draft(chosen, json.loads(chosen.text), calls, call_of(wanted, nesting, others), compile=compile)
            return Case(draft, known, body.run, agent, body.at, recorded=decision)
        state = apply(known, state, body.run, body.seq, body.at, decision)
    return None


def _forgetting(state: ThreadState, run_id: RunId, call: CallId) -> ThreadState:
    """A call that waited is known already; it is explained as if it were asked for now."""
    run = state.runs[run_id]
    if call not in run.calls:
        return state
    return replace(state, runs=state.runs.set(run_id, replace(run, calls=run.calls.delete(call))))
