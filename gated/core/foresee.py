"""The question "can I?": what is left of every budget of a run, and what would be decided on some calls. Nothing is consumed.

INVARIANT: nothing here decides for the record: calls are judged on a turn of their own, which is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from gated.core import calls
from gated.core.history import Tally
from gated.core.pipeline import Seat, barrier_state
from gated.core.policy import Profile
from gated.core.stages import dcbf
from gated.core.state import Known, KnownAs, RunState
from gated.core.turn import Registry, Repeat, Turn, may_speak
from gated.events import (
    MILLION,
    AgentId,
    CallDecided,
    CallId,
    CallRefused,
    CanIAsked,
    Decided,
    Foreseen,
    Limit,
    Remaining,
    Unit,
)
from gated.units import rfc3339


def can_i(turn: Turn, asked: CanIAsked) -> None:
    """Answer the agent of the run; whoever may not speak for it learns nothing. Nothing is recorded, not even a refusal."""
    barred, run = may_speak(turn, AgentId(asked.by.name)), turn.opened
    if barred is None and run is None:
        barred = "lifecycle.run_not_open", "there is no such run to ask about"
    if barred is not None:
        turn.replies.append(CallRefused(*barred))
    else:
        turn.replies.append(remaining(turn, asked))


def remaining(turn: Turn, asked: CanIAsked | None = None) -> Remaining:
    """What is left to the run of the turn, which is open or has ended, and the verdicts on the calls that are asked about."""
    run, profile = turn.run, turn.profile
    limits = () if run.end else tuple(_limits(turn))
    counted = [int(limit.left) for limit in limits if limit.unit == "calls" and limit.enforced]
    state = barrier_state(profile, run, turn.state.tally, turn.at, run.drift)
    return Remaining(
        status=run.end or "open",
        calls=0 if run.end else min(counted),
        limits=limits,
        barriers=dcbf.get_barrier_values(profile.dcbf, state) if "dcbf" in dict(profile.stages) else {},
        verdicts=() if asked is None else tuple(_verdicts(turn, asked)),
        policy=run.policy,
        at=rfc3339(turn.at),
    )


# --- what is left ----------------------------------------------------------------------------------------------------


def _limits(turn: Turn) -> Iterator[Limit]:
    run, profile, caps, ceilings = turn.run, turn.profile, turn.policy.limits, turn.profile.ceilings
    yield _limit("limits.max_calls", "lifecycle.limit", "calls", caps.max_calls, run.asked())
    if ceilings.max_hops is not None:
        hops = _limit("max_hops", "ceilings.hops", "calls", ceilings.max_hops, run.hop_count)
        yield replace(hops, enforced=not profile.ceilings_watched)
    if ceilings.max_retries is not None:
        retries = _limit("max_retries", "lifecycle.run_failed", "errors", ceilings.max_retries, run.retry_count)
        yield replace(retries, enforced=not profile.ceilings_watched)
    yield from _budgets(turn, profile, run, None)
    if "dfa" in dict(profile.stages):
        loops = _limit("max_loops_per_phase", "dfa.loop_budget", "loops", profile.dfa.max_loops, run.dfa.loops)
        yield replace(loops, enforced=not dict(profile.stages)["dfa"])
    for seat in calls.seats(turn):
        yield from _budgets(turn, seat.profile, seat.run, seat)


def _budgets(turn: Turn, profile: Profile, run: RunState, seat: Seat | None) -> Iterator[Limit]:
    """The cumulative limits of the run, or of an ancestor in whose budgets its calls count."""
    where = {"run": None if seat is None else seat.run_id}
    stages = dict(profile.stages)
    if "privilege" in stages:
        budget = profile.privilege.budget
        place = where | {"scope": "thread" if budget.thread else "run", "enforced": not stages["privilege"]}
        for limit in _privilege(profile, turn.state.tally if budget.thread else run.tally, turn.at):
            yield replace(limit, **place)
    if "dfa" in stages:
        rules = profile.dfa
        tally = turn.state.tally if rules.thread_steps else run.tally
        steps = _limit("max_steps", "dfa.step_budget", "calls", rules.max_steps, tally.steps + tally.in_flight)
        yield replace(steps, scope="thread" if rules.thread_steps else "run", enforced=not stages["dfa"], **where)


def _privilege(profile: Profile, tally: Tally, at: int) -> Iterator[Limit]:
    budget = profile.privilege.budget
    if budget.max_total is not None:
        spent = budget.max_total / MILLION, tally.cost_microusd / MILLION
        left = max(0, budget.max_total - tally.cost_microusd) / MILLION
        yield replace(_limit("max_total_cost_usd", "privilege.total_cost", "usd", *spent), left=left)
    if budget.max_calls is not None:
        yield _limit("max_calls", "privilege.calls", "calls", budget.max_calls, tally.calls)
    if budget.max_tokens is not None:
        yield _limit("max_tokens", "privilege.tokens", "tokens", budget.max_tokens, tally.tokens)
    if budget.max_time is not None:
        passed = budget.max_time / MILLION, (at - tally.opened_at) / MILLION
        left = max(0, budget.max_time - (at - tally.opened_at)) / MILLION
        yield replace(_limit("max_execution_time_seconds", "privilege.time", "seconds", *passed), left=left)


def _limit(key: str, code: str, unit: Unit, limit: float, used: float) -> Limit:
    return Limit(key=key, code=code, unit=unit, limit=limit, used=used, left=max(0, limit - used))


# --- what would be decided -------------------------------------------------------------------------------------------


def _verdicts(turn: Turn, asked: CanIAsked) -> Iterator[Foreseen]:
    """Of each call, decided on what those before it would leave."""
    trial = Turn(_without_detectors(turn), turn.state, turn.run_id, turn.at)
    others = len(trial.run.in_flight)
    for wanted in asked.calls:
        decided, replied = len(trial.decisions), len(trial.replies)
        calls.receive(trial, wanted, asked.nesting, others)
        # what comes first is of the call: others that wait are cancelled behind it, where it ends the run
        first = next(each for each in (*trial.decisions[decided:], *trial.replies[replied:]) if isinstance(each, _ANSWERS))
        said = _foreseen(turn, first) if isinstance(first, CallDecided) else _untaken(trial, first)
        yield replace(said, tool=wanted.tool)
    turn.unfollowed += trial.unfollowed


_ANSWERS: Final = (CallDecided, CallRefused, Repeat)


def _untaken(trial: Turn, answer: CallRefused | Repeat) -> Foreseen:
    if isinstance(answer, CallRefused):
        return _refused(answer)
    known = trial.run.known(answer.call)
    assert known is not None
    return _repeated(answer.call, known)


def _refused(refused: CallRefused) -> Foreseen:
    stage = refused.code.partition(".")[0]
    return Foreseen(call=refused.call or "", tool="", decision="refused", stage=stage, code=refused.code, reason=refused.reason)


def _repeated(call: CallId, known: Known) -> Foreseen:
    """A call that was asked for before, or earlier in the question: its verdict stands."""
    decision = _STANDS[known.state]
    return Foreseen(call=call, tool=known.tool, decision=decision, reason="the call is known: its verdict stands")


_STANDS: Final[Mapping[KnownAs, Decided]] = {"denied": "deny", "suspended": "suspend", "admitted": "allow", "settled": "allow"}


def _foreseen(turn: Turn, decided: CallDecided) -> Foreseen:
    return Foreseen(
        call=decided.call,
        tool=decided.tool,
        decision=decided.decision,
        stage=decided.stage,
        code=decided.code,
        reason=decided.reason,
        would=decided.would,
        unsure=() if decided.decision == "deny" else tuple(_unsure(turn)),
    )


def _unsure(turn: Turn) -> Iterator[str]:
    """What stands outside the core, and is not asked for the sake of a question."""
    if "semantic" in dict(turn.profile.stages):
        yield "semantic"
    if turn.profile.dcbf.drift and "dcbf" in dict(turn.profile.stages):
        yield "dcbf.scope"


def _without_detectors(turn: Turn) -> Registry:
    """Detectors cost time and money, so a question leaves their stage out, and says so."""
    run, profile, policy = turn.run, turn.profile, turn.policy
    if "semantic" not in dict(profile.stages) or profile is policy.nobody:
        return turn.registry
    alone = profile.staged(tuple(item for item in profile.stages if item[0] != "semantic"))
    trial = replace(policy, agents={**policy.agents, run.agent: alone})
    return replace(turn.registry, known={**turn.registry.known, run.policy: trial})
