"""Intents: from the calls that an agent wants to a verdict on each, in order, against all that went before.

The checks ahead of the pipeline come in this order: shape of the message, owner, known id, run ended, calls in flight,
hops, schema of the arguments. What is decided together stands in `batches`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from gated import canonical
from gated.core import pipeline, remembering, waiting
from gated.core.call import Call
from gated.core.fold import ancestors
from gated.core.order import engine
from gated.core.order.touching import NOTHING_TOUCHED, Touched
from gated.core.policy import Policy, Profile
from gated.core.scope import Scope
from gated.core.stages import breaker, ceilings, semantic
from gated.core.stages.lifecycle import ended_reason
from gated.core.state import RunState
from gated.core.turn import Repeat, Turn, Unfollowed, Unscored, may_speak
from gated.core.verdicts import Judged, Judgement, Refused, denied
from gated.events import (
    Admission,
    AgentId,
    CallDecided,
    Finding,
    IntentsReceived,
    Phase,
    RecallRequested,
    RunEnded,
    RunOpened,
    Wanted,
)


def receive_each(turn: Turn, intents: IntentsReceived, barred: tuple[str, str] | None) -> None:
    """Decide the calls of a message one after another, each on what those before it left."""
    run, nesting = turn.opened, intents.nesting
    others = 0 if run is None else len(run.in_flight)
    for wanted in intents.calls:
        if barred is None or wanted.refused is not None:
            receive(turn, wanted, nesting, others)
        else:
            turn.turn_away(denied(call_of(wanted, "inferred", 0), *barred, known=False, hop=False))


def receive(turn: Turn, wanted: Wanted, nesting: str, others: int) -> None:
    """Decide one call of a message to the run of the turn; `others` calls of other messages were in flight when it came."""
    if wanted.refused is not None:
        turn.refuse(wanted.refused, wanted.why or "", wanted.id)
    else:
        each(turn, call_of(wanted, nesting, others))


def call_of(wanted: Wanted, nesting: str, others: int) -> Call:
    """`others` calls of other messages were in flight when its message came."""
    assert wanted.id is not None
    return Call(
        wanted.id,
        wanted.tool,
        wanted.args,
        wanted.args_sha256 or canonical.args_digest(wanted.tool, wanted.args),
        wanted.parent,
        wanted.cost_microusd,
        nesting,
        others,
        wanted.scores,
        wanted.embedding,
        wanted.links,
    )


def open_run(turn: Turn, agent: AgentId, intents: IntentsReceived) -> tuple[str, str] | None:
    """An intent with no start before it opens the run, if its agent may; else why not."""
    if all(wanted.refused is not None for wanted in intents.calls):
        return None
    barred = may_open(turn, agent, by_operator=False, elsewhere=intents.open_elsewhere)
    if barred is None:
        turn.do(RunOpened(agent=agent, policy=turn.registry.current.digest))
    return barred


def may_open(turn: Turn, agent: AgentId, *, by_operator: bool, elsewhere: int = 0) -> tuple[str, str] | None:
    """Why a run of `agent` may not be opened now: code and reason. `elsewhere` are its open runs on other threads."""
    profile = turn.registry.current.agents.get(agent)
    if profile is None:
        return "privilege.no_profile", f"the policy has no profile for agent `{agent}`"
    if profile.operator_opens and not by_operator:
        return "lifecycle.run_not_open", "runs of this agent are opened by an operator"
    if profile.max_open is not None:
        held = turn.state.open_runs.get(agent, 0) + elsewhere
        if held >= profile.max_open:
            return "lifecycle.limit", f"`{agent}` has {held} open runs, {profile.max_open} may be: finish one"
    return None


def each(turn: Turn, call: Call) -> None:
    """Decide a call and apply the verdict: open its ticket, record it, end the run if it must end."""
    judged = judge(turn, call)
    if isinstance(judged, Judged):  # first: an `isinstance` that is no costs ten times as much for these types
        decided = judged.decided
        if not decided.known:
            turn.turn_away(decided)
            return
        if decided.decision == "suspend":
            opened = waiting.ticket_for(turn, (judged,), atomic=False)
            turn.do(opened)
            decided = replace(decided, ticket=opened.ticket)
        turn.do(decided)
        if judged.ends is not None:
            turn.end(judged.ends)
    elif isinstance(judged, Repeat):
        turn.replies.append(judged)
    else:
        turn.refuse(judged.code, judged.reason, call.id)


def recall(turn: Turn, asked: RecallRequested) -> None:
    """The recorded verdict of a call that the run knows; whoever may not speak for the run learns nothing."""
    barred, run = may_speak(turn, AgentId(asked.by.name)), turn.opened
    if barred is not None or run is None:
        turn.refuse(*(barred or ("lifecycle.run_not_open", "there is no such run to ask of")), call=asked.call)
        return
    known = run.known(asked.call)
    if known is None:
        turn.refuse("ingress.id", f"the run knows no call `{asked.call}`", call=asked.call)
    else:
        turn.replies.append(Repeat(asked.call, known.seq, run.policy_at(known.seq), known.state == "settled"))


# --- one call --------------------------------------------------------------------------------------------------------


def judge(turn: Turn, call: Call) -> Judgement:
    """The verdict on one call of an intent, nothing applied."""
    run = turn.opened
    assert run is not None
    known = run.known(call.id)
    if known is not None:
        if known.args_sha256 == call.args_sha256:
            return Repeat(call.id, known.seq, run.policy_at(known.seq), known.state == "settled")
        return Refused("ingress.id_conflict", f"call `{call.id}` is known with another tool or other arguments")
    return bounds(turn, call) or judge_new(turn, call)


def bounds(turn: Turn, call: Call) -> Judged | None:
    """lifecycle and the hop ceiling."""
    run, limits = turn.opened, turn.policy.limits
    assert run is not None
    if run.end:
        code, reason = ended_reason(call.tool, run.end, run.reason)
        known = run.refusals < limits.max_refusals and run.asked() < limits.max_calls
        return Judged(call, denied(call, code, reason, skipped=_enabled(turn.profile), known=known, hop=False))
    if run.asked() >= limits.max_calls:
        reason = f"the run has asked for {limits.max_calls} calls, the most that one run may"
        return Judged(call, denied(call, "lifecycle.limit", reason, skipped=_enabled(turn.profile), known=False, hop=False))
    if len(run.in_flight) >= limits.max_in_flight:
        return _too_many_in_flight(turn.profile, limits.max_in_flight, call)
    hops = turn.profile.ceilings.max_hops
    if hops is not None and run.hop_count >= hops and not turn.profile.ceilings_watched:
        summary = ceilings.hops_summary(hops)
        ends = RunEnded(status="failed", phase=Phase.EXHAUSTED, reason=summary)
        return Judged(call, denied(call, "ceilings.hops", summary, skipped=_enabled(turn.profile)), ends=ends)
    return None


def _enabled(profile: Profile) -> tuple[str, ...]:
    return tuple(stage for stage, _ in profile.stages)


def _too_many_in_flight(profile: Profile, limit: int, call: Call) -> Judged:
    reason = f"{limit} calls of the run are in flight, the most that may be: report their outcomes"
    return Judged(call, denied(call, "lifecycle.in_flight_limit", reason, skipped=_enabled(profile), hop=False))


def judge_new(turn: Turn, call: Call) -> Judged:
    """Schema and pipeline: the verdict on a call that may be decided."""
    run = turn.opened
    assert run is not None
    misfit = schema_misfit(turn.policy, run.tools, call.tool, call.args)
    if misfit is not None:
        return _misfit(turn, call, misfit)
    return judge_by_pipeline(turn, call, frozenset())


def judge_again(turn: Turn, call: Call, lifted: frozenset[str]) -> Judged:
    """A call that waited, decided on the state and the policy of now; it costs no further hop or retry."""
    run, limit = turn.run, turn.policy.limits.max_in_flight
    misfit = schema_misfit(turn.policy, run.tools, call.tool, call.args)
    if len(run.in_flight) >= limit:
        judged = _too_many_in_flight(turn.profile, limit, call)
    elif misfit is not None:
        judged = Judged(call, denied(call, "ingress.schema", misfit, skipped=_enabled(turn.profile)))
    else:
        judged = judge_by_pipeline(turn, call, lifted)
    return replace(judged, decided=replace(judged.decided, hop=False, misfit=False), ends=None)


def schema_misfit(policy: Policy, declared: tuple[str, ...] | None, tool: str, args: Mapping[str, Any]) -> str | None:
    """What a model must correct about the tool's name or its arguments."""
    if (policy.deny_unknown and tool not in policy.known_tools) or (declared is not None and tool not in declared):
        return f"unknown tool `{tool}`"
    schema = policy.schemas.get(tool)
    return None if schema is None else schema.misfit(args)


def _misfit(turn: Turn, call: Call, reason: str) -> Judged:
    profile = turn.profile
    limit = profile.ceilings.max_retries
    verdict = replace(denied(call, "ingress.schema", reason, skipped=_enabled(profile)), misfit=True)
    if limit is None or profile.ceilings_watched or turn.run.retry_count + 1 < limit:
        return Judged(call, verdict)
    summary = ceilings.retries_summary(reason)
    return Judged(call, verdict, ends=RunEnded(status="failed", phase=Phase.EXHAUSTED, reason=summary))


def _without_profile(turn: Turn, call: Call) -> Judged:
    """A run that was bound to a policy that does not know its agent. No mode observes this away."""
    skipped = tuple(stage for stage in _enabled(turn.profile) if stage not in ("breaker", "privilege"))
    reason = f"the policy has no profile for agent `{turn.run.agent}`"
    return Judged(call, denied(call, "privilege.no_profile", reason, skipped=skipped))


def judge_by_pipeline(turn: Turn, call: Call, lifted: frozenset[str]) -> Judged:
    policy, profile, state, run = turn.policy, turn.profile, turn.state, turn.opened
    assert run is not None
    if profile is policy.nobody:
        return _without_profile(turn, call)
    if state.remembered or run.remembered:
        standing = (*state.remembered, *run.remembered)
        lifted |= remembering.lifted(standing, run.policy, run.agent, call.tool, call.args, call.args_sha256)
    if profile.privilege.scope.follows_links:
        _note_unfollowed(turn, call, profile.privilege.scope)
    hearing = hear(turn, call)
    observed = _over_watched_ceiling(run.hop_count, profile) if profile.ceilings_watched else ()
    ruling = pipeline.rule(hearing, lifted, observed)
    if policy.semantic is not None and "semantic" not in ruling.checks_skipped:
        _note_unscored(turn, hearing, policy.semantic)
    if ruling.decision == "allow" and hearing.touched.touches:
        full = engine.full(profile.machines, state.order, turn.run_id, hearing.touched, policy.limits.max_instances)
        if full is not None:
            verdict = denied(call, "lifecycle.limit", full, hop=False)
            return Judged(call, replace(verdict, findings=(*ruling.findings, *verdict.findings)))
    if ruling is pipeline.ALLOWED:
        admission = _admission(hearing, ruling)
        return Judged(call, CallDecided(call.id, call.tool, call.args_sha256, "allow", admission=admission))
    decided = CallDecided(
        call.id,
        call.tool,
        call.args_sha256,
        ruling.decision,
        ruling.stage,
        ruling.code,
        ruling.reason,
        ruling.findings,
        ruling.checks_failed,
        ruling.checks_skipped,
        ruling.would,
        admission=_admission(hearing, ruling) if ruling.decision == "allow" else None,
        phase=Phase.EXHAUSTED if ruling.code == "dfa.step_budget" and _exhausts(profile, ruling) else None,
    )
    return Judged(call, decided, ruling.asks)


def _note_unfollowed(turn: Turn, call: Call, scope: Scope) -> None:
    known = call.links or {}
    paths = tuple(path for path in scope.paths_to_resolve(call.tool, call.args) if path not in known)
    if paths:
        turn.unfollowed += (Unfollowed(call.id, paths),)


def _note_unscored(turn: Turn, hearing: pipeline.Hearing, rules: semantic.SemanticRules) -> None:
    call = hearing.call
    if any(stage == "semantic" for stage, _ in hearing.profile.stages):
        detectors = semantic.unasked(rules, hearing.state.semantic, call.tool, call.args, call.scores)
        if detectors:
            turn.unscored += (Unscored(call.id, call.tool, call.args, detectors),)


def _over_watched_ceiling(hops: int, profile: Profile) -> tuple[Finding, ...]:
    limit = profile.ceilings.max_hops
    if limit is None or hops < limit:
        return ()
    return (Finding("ceilings", "deny", "ceilings.hops", ceilings.hops_summary(limit), authoritative=False),)


def _exhausts(profile: Profile, ruling: pipeline.Ruling) -> bool:
    """Whether the run's own step budget is gone; an ancestor's says nothing of this run's phase."""
    return profile.dfa.exhaust and any(finding.code == "dfa.step_budget" and finding.run is None for finding in ruling.findings)


def hear(turn: Turn, call: Call) -> pipeline.Hearing:
    policy, profile, run, state, at = turn.policy, turn.profile, turn.opened, turn.state, turn.at
    assert run is not None
    reserved = reservation(policy, profile, call.tool, call.estimate_microusd)
    alone = run.parent is None
    return pipeline.Hearing(
        policy,
        profile,
        state,
        turn.run_id,
        run,
        call,
        (call.others > 0 or call.parent is not None) and _is_nested(run, profile, call),
        at,
        turn.writable(_touched(profile, call)) if profile.ordered else NOTHING_TOUCHED,
        reserved,
        alone and profile.room.hold(run.tally, state.tally, call.tool, reserved, at),
        () if alone else seats(turn),
    )


def _is_nested(run: RunState, profile: Profile, call: Call) -> bool:
    """A call whose parent is in flight; and, where nobody vouches for nesting, any that comes while others are."""
    if call.parent is not None and call.parent in run.in_flight:
        return True
    explicit = call.nesting == "explicit" and profile.dfa.trust_nesting
    return not explicit and call.others > 0


def _touched(profile: Profile, call: Call) -> Touched:
    """The machines that the call bears on; what fails here is a crash of the order stage."""
    try:
        return profile.machines.touches(call.tool, call.args)
    except Exception as error:
        reason = "the stage order failed on this call, so it is denied"
        return Touched(findings=(Finding("order", "deny", "order.crashed", reason, error=type(error).__name__),))


def seats(turn: Turn) -> tuple[pipeline.Seat, ...]:
    known, runs = turn.registry.known, turn.state.runs
    above = ancestors(known, turn.state, turn.run_id)
    return tuple(pipeline.Seat(i, runs[i], known[runs[i].policy].profile(runs[i].agent)) for i in above)


def reservation(policy: Policy, profile: Profile, tool: str, estimate: int | None) -> int:
    """What a call of the tool takes from every budget until its cost is known (micro-dollars)."""
    floor = policy.costs.get(tool)
    if estimate is None:
        return profile.dcbf.per_call_microusd if floor is None else floor
    if floor is None or profile.privilege.budget.trust_costs:
        return estimate
    return max(estimate, floor)


def _admission(hearing: pipeline.Hearing, ruling: pipeline.Ruling) -> Admission:
    call, profile, at, touches, circuits = (
        hearing.call,
        hearing.profile,
        hearing.at,
        hearing.touched.touches,
        hearing.state.circuits,
    )
    tool = call.tool
    return Admission(
        hearing.reserved_microusd,
        at + hearing.policy.timeouts.get(tool, profile.call_timeout),
        () if hearing.nested else profile.dfa.paths.get(hearing.run.dfa.phase, ()),
        hearing.nested,
        call.parent,
        pipeline.touches_of(hearing, ruling) if ruling.lifted else touches,
        call.args if profile.contracts.any and profile.contracts.ensures(tool) else None,
        breaker.is_trial(profile.breaker.rule(tool), circuits.get(tool), at) if circuits else False,
        drift=None if call.embedding is None else pipeline.drift_of(profile, hearing.run, call.embedding),
    )
