"""The call that is explained, the state it met, and drafts: the same with something changed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from gated import canonical
from gated.core import answers, batches, trial
from gated.core.call import Call
from gated.core.calls import call_of
from gated.core.fold import apply, fold
from gated.core.policy import Policy, load
from gated.core.redaction.opened import opened_body
from gated.core.redaction.vault import Vault
from gated.core.stages import semantic
from gated.core.state import ThreadState
from gated.core.turn import Registry, Turn
from gated.core.verdicts import Judged
from gated.documents import DocumentError, parse_document
from gated.events import (
    AgentId,
    Body,
    CallDecided,
    CallId,
    CallRefused,
    IntentsReceived,
    Record,
    ResolutionReceived,
    RunId,
    RunOpened,
    ThreadId,
    TicketOpened,
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
    """`draft` is the call as it was, `known` the policies of the thread's other runs, `at` the time of the call (µs).

    `elsewhere` are the agent's open runs on other threads. The `vault` knows which keys of machines were redacted.
    """

    draft: Draft
    known: Mapping[str, Policy]
    run_id: RunId
    agent: AgentId
    at: int
    recorded: CallDecided | None = None
    elsewhere: int = 0
    vault: Vault | None = None

    def registry(self, draft: Draft) -> Registry:
        run = draft.state.runs.get(self.run_id)
        bound = {} if run is None else {run.policy: draft.policy}
        vault = None if self.vault is None else self.vault.for_trial()
        return Registry(draft.policy, {**self.known, draft.policy.digest: draft.policy, **bound}, vault)

    def judge(self, draft: Draft) -> Judged:
        at, lifted = self.at + draft.later, draft.lifted or None
        registry = self.registry(draft)
        return trial.decide_call(registry, draft.state, self.run_id, draft.plea, self.agent, at, lifted, self.elsewhere)

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
    vault: Vault | None = None,
) -> Case:
    """A call that nobody made: on the state of a run, or as the first of a new one."""
    policies = {**(known or {}), policy.digest: policy}
    found = state or ThreadState(ThreadId(str(run_id)))
    if run_id not in found.runs:
        found = apply(policies, found, run_id, found.seq + 1, at, RunOpened(agent=agent, policy=policy.digest))
    run = found.runs[run_id]
    plea = call_of(replace(wanted, id=wanted.id or CallId("explained")), "explicit", len(run.in_flight))
    draft = Draft(policy, json.loads(policy.text), found, plea, compile=compile)
    return Case(draft, policies, run_id, agent, max(at, found.at), vault=vault)


class _Asked(Struct, frozen=True):
    """How a call was asked for, also by whoever edited it since. `known` is false where it left no trace in the run."""

    wanted: Wanted
    agent: AgentId
    nesting: str
    others: int
    elsewhere: int
    known: bool


def recorded_case(
    records: Iterable[Record],
    known: Mapping[str, Policy],
    run_id: str,
    call: str,
    policy: Policy | None = None,
    compile: Compile = compile_data,
    vault: Vault | None = None,
) -> Case | None:
    """A recorded call on the state that it met; None where the log does not hold it.

    Its latest verdict is explained: one that the run knows before those that left no trace in it, such as a stranger's. A
    `vault` opens what was kept encrypted.
    """
    states: dict[ThreadId, ThreadState] = {}
    asked: dict[ThreadId, _Asked] = {}
    found: Case | None = None
    for record in records:
        body = unseal(record) if vault is None else opened_body(unseal(record), vault)
        state = states.get(body.thread) or ThreadState(body.thread)
        states[body.thread] = fold(known, state, body, record.hash)
        decided = next((d for d in body.decisions if isinstance(d, CallDecided) and d.call == call), None)
        before = asked.get(body.thread)
        if body.run != run_id or decided is None or (before is not None and before.known and not decided.known):
            continue
        now = _asked(body, decided, state, before)
        if now is not None:
            asked[body.thread] = now
            found = replace(_case(body, decided, state, known, now, policy, compile), vault=vault)
    return found


def _asked(body: Body, decided: CallDecided, state: ThreadState, before: _Asked | None) -> _Asked | None:
    run, observation = state.runs.get(body.run), body.observation
    others = 0 if run is None else run.beside(decided.call)
    if isinstance(observation, IntentsReceived):
        for wanted in observation.calls:
            if wanted.id == decided.call and wanted.refused is None:
                agent = AgentId(observation.by.name)
                return _Asked(wanted, agent, observation.nesting, others, observation.open_elsewhere, decided.known)
    if isinstance(observation, ResolutionReceived) and before is not None:
        args, wanted = decided.args, before.wanted
        scores = semantic.again(None if args else wanted.scores, observation.scores.get(decided.call))
        links = observation.links.get(decided.call)
        fresh = replace(wanted, args=wanted.args if args is None else args, scores=scores, links=links)
        return replace(before, wanted=fresh, others=others)
    return before


def _case(
    body: Body,
    decided: CallDecided,
    state: ThreadState,
    known: Mapping[str, Policy],
    asked: _Asked,
    policy: Policy | None,
    compile: Compile,
) -> Case:
    met = _met(body, decided, state, known)
    run = met.runs.get(body.run)
    chosen = policy or known[body.policy if run is None else run.policy]
    calls = met if run is None else _forgetting(met, body.run, decided.call)
    plea = call_of(asked.wanted, asked.nesting, asked.others)
    draft = Draft(chosen, json.loads(chosen.text), calls, plea, compile=compile)
    return Case(draft, known, body.run, asked.agent, body.at, decided, asked.elsewhere)


def _met(body: Body, decided: CallDecided, state: ThreadState, known: Mapping[str, Policy]) -> ThreadState:
    """The state that a call of a record was judged on. A batch that stood or fell whole was judged on a copy, made again here."""
    for decision in body.decisions:
        if decision is decided:
            break
        if isinstance(decision, CallDecided | TicketOpened):
            rehearsed = _rehearsed(Turn(Registry(known[body.policy], known), state, body.run, body.at), body, decided)
            if rehearsed is not None:
                return rehearsed
        state = apply(known, state, body.run, body.seq, body.at, decision)
    return state


def _rehearsed(turn: Turn, body: Body, decided: CallDecided) -> ThreadState | None:
    """What the calls of an atomic batch before this one left to it; None where it was not judged in one."""
    observation = body.observation
    if isinstance(observation, IntentsReceived) and observation.mode == "atomic" and turn.opened is not None:
        asked = {w.id: w for w in reversed(observation.calls) if w.id is not None and w.refused is None}
        if decided.call not in asked or decided.code == "batch.sibling_refused":
            return None
        before = itertools.takewhile(
            lambda id: id != decided.call, (d.call for d in body.decisions if isinstance(d, CallDecided))
        )
        others = len(turn.opened.in_flight)
        refused = any(isinstance(d, CallRefused) for d in body.decisions)
        judge = batches.judge_beside_refused if refused else batches.judge_member
        return batches.rehearsed(turn, (call_of(asked[id], observation.nesting, others) for id in before), judge)
    if isinstance(observation, ResolutionReceived) and turn.opened is not None:
        ticket = turn.opened.tickets.get(observation.ticket)
        if ticket is not None and ticket.atomic and ticket.state == "approved":
            bare = replace(ticket, calls=tuple(replace(waiting, sealed=None) for waiting in ticket.calls))
            return answers.batch_before(turn, bare, observation, decided.call)
    return None


def _forgetting(state: ThreadState, run_id: RunId, call: CallId) -> ThreadState:
    """A call that waited is known already; it is explained as if it were asked for now."""
    run = state.runs[run_id]
    if call not in run.calls:
        return state
    return replace(state, runs=state.runs.set(run_id, replace(run, calls=run.calls.delete(call))))
