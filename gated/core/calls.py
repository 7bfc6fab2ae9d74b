"""Intents: from the calls that an agent wants to a verdict on each, in order, against all that went before.

The checks ahead of the pipeline come in this order: shape of the message, owner, known id, run ended, calls in flight,
hops, schema of the arguments. What is decided together stands in `batches`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

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
from gated.core.turn import Repeat, Turn, Unfollowed, Unscored, may_speak
from gated.core.verdicts import Judged, Judgement, Plea, Refused, denied
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
    run = turn.opened
    others = len(run.in_flight) if run is not None else 0
    for wanted in intents.calls:
        if wanted.refused is not None:
            turn.refuse(wanted.refused, wanted.why or "", wanted.id)
        elif barred is not None:
            turn.turn_away(denied(plead(wanted, "inferred", 0), *barred, known=False, hop=False))
        else:
            each(turn, plead(wanted, intents.nesting, others))


def plead(wanted: Wanted, nesting: str, others: int) -> Plea:
    assert wanted.id is not None
    return Plea(
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
    if turn.opened is not None or all(wanted.refused is not None for wanted in intents.calls):
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


def each(turn: Turn, plea: Plea) -> None:
    judged = judge(turn, plea)
    match judged:
        case Judged():
            if judged.decided.known:
                settle_judgement(turn, judged)
            else:
                turn.turn_away(judged.decided)
        case Repeat():
            turn.replies.append(judged)
        case Refused():
            turn.refuse(judged.code, judged.reason, plea.id)
        case _:
            assert_never(judged)


def settle_judgement(turn: Turn, judged: Judged) -> None:
    """Apply a verdict: open its ticket, record it, end the run if it must end."""
    decided = judged.decided
    if decided.decision == "suspend":
        opened = waiting.ticket_for(turn, (judged,), atomic=False)
        turn.do(opened)
        decided = replace(decided, ticket=opened.ticket)
    turn.do(decided)
    if judged.ends is not None:
        turn.end(judged.ends)


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


def judge(turn: Turn, plea: Plea) -> Judgement:
    """The verdict on one call of an intent, nothing applied."""
    run = turn.run
    known = run.known(plea.id)
    if known is not None:
        if known.args_sha256 == plea.args_sha256:
            return Repeat(plea.id, known.seq, run.policy_at(known.seq), known.state == "settled")
        return Refused("ingress.id_conflict", f"call `{plea.id}` is known with another tool or other arguments")
    return bounds(turn, plea) or judge_new(turn, plea)


def bounds(turn: Turn, plea: Plea) -> Judged | None:
    """lifecycle and the hop ceiling."""
    run, limits = turn.run, turn.policy.limits
    if run.end:
        code, reason = ended_reason(plea.tool, run.end, run.reason)
        known = run.refusals < limits.max_refusals and run.asked < limits.max_calls
        return Judged(plea, denied(plea, code, reason, skipped=_enabled(turn.profile), known=known, hop=False))
    if run.asked >= limits.max_calls:
        reason = f"the run has asked for {limits.max_calls} calls, the most that one run may"
        return Judged(plea, denied(plea, "lifecycle.limit", reason, skipped=_enabled(turn.profile), known=False, hop=False))
    if len(run.in_flight) >= limits.max_in_flight:
        return _too_many_in_flight(turn.profile, limits.max_in_flight, plea)
    hops = turn.profile.ceilings.max_hops
    if hops is not None and run.hop_count >= hops and not turn.profile.ceilings_watched:
        summary = ceilings.hops_summary(hops)
        ends = RunEnded(status="failed", phase=Phase.EXHAUSTED, reason=summary)
        return Judged(plea, denied(plea, "ceilings.hops", summary, skipped=_enabled(turn.profile)), ends=ends)
    return None


def _enabled(profile: Profile) -> tuple[str, ...]:
    return tuple(stage for stage, _ in profile.stages)


def _too_many_in_flight(profile: Profile, limit: int, plea: Plea) -> Judged:
    reason = f"{limit} calls of the run are in flight, the most that may be: report their outcomes"
    return Judged(plea, denied(plea, "lifecycle.in_flight_limit", reason, skipped=_enabled(profile), hop=False))


def judge_new(turn: Turn, plea: Plea) -> Judged:
    """Schema and pipeline: the verdict on a call that may be decided."""
    misfit = schema_misfit(turn.policy, turn.run.tools, plea.tool, plea.args)
    if misfit is not None:
        return _misfit(turn, plea, misfit)
    return judge_by_pipeline(turn, plea, frozenset())


def judge_again(turn: Turn, plea: Plea, lifted: frozenset[str]) -> Judged:
    """A call that waited, decided on the state and the policy of now; it costs no further hop or retry."""
    run, limit = turn.run, turn.policy.limits.max_in_flight
    misfit = schema_misfit(turn.policy, run.tools, plea.tool, plea.args)
    if len(run.in_flight) >= limit:
        judged = _too_many_in_flight(turn.profile, limit, plea)
    elif misfit is not None:
        judged = Judged(plea, denied(plea, "ingress.schema", misfit, skipped=_enabled(turn.profile)))
    else:
        judged = judge_by_pipeline(turn, plea, lifted)
    return replace(judged, decided=replace(judged.decided, hop=False, misfit=False), ends=None)


def schema_misfit(policy: Policy, declared: tuple[str, ...] | None, tool: str, args: Mapping[str, Any]) -> str | None:
    """What a model must correct about the tool's name or its arguments."""
    if (policy.deny_unknown and tool not in policy.known_tools) or (declared is not None and tool not in declared):
        return f"unknown tool `{tool}`"
    schema = policy.schemas.get(tool)
    return None if schema is None else schema.misfit(args)


def _misfit(turn: Turn, plea: Plea, reason: str) -> Judged:
    profile = turn.profile
    limit = profile.ceilings.max_retries
    verdict = replace(denied(plea, "ingress.schema", reason, skipped=_enabled(profile)), misfit=True)
    if limit is None or profile.ceilings_watched or turn.run.retry_count + 1 < limit:
        return Judged(plea, verdict)
    summary = ceilings.retries_summary(reason)
    return Judged(plea, verdict, ends=RunEnded(status="failed", phase=Phase.EXHAUSTED, reason=summary))


def _without_profile(turn: Turn, plea: Plea) -> Judged:
    """A run that was bound to a policy that does not know its agent. No mode observes this away."""
    skipped = tuple(stage for stage in _enabled(turn.profile) if stage not in ("breaker", "privilege"))
    reason = f"the policy has no profile for agent `{turn.run.agent}`"
    return Judged(plea, denied(plea, "privilege.no_profile", reason, skipped=skipped))


def judge_by_pipeline(turn: Turn, plea: Plea, lifted: frozenset[str]) -> Judged:
    if turn.profile is turn.policy.nobody:
        return _without_profile(turn, plea)
    hearing = hear(turn, plea)
    run, profile = hearing.run, hearing.profile
    if turn.state.remembered or run.remembered:
        standing = (*turn.state.remembered, *run.remembered)
        lifted |= remembering.lifted(standing, run.policy, run.agent, plea.tool, plea.args, plea.args_sha256)
    if profile.privilege.scope.follows_links:
        _note_unfollowed(turn, hearing.call, profile.privilege.scope)
    ruling = pipeline.rule(hearing, lifted, _watched_ceiling(run.hop_count, profile))
    if hearing.policy.semantic is not None and "semantic" not in ruling.checks_skipped:
        _note_unscored(turn, hearing, hearing.policy.semantic)
    if hearing.touched.touches and ruling.decision == "allow":
        limit = hearing.policy.limits.max_instances
        full = engine.full(profile.machines, turn.state.order, turn.run_id, hearing.touched, limit)
        if full is not None:
            verdict = denied(plea, "lifecycle.limit", full, hop=False)
            return Judged(plea, replace(verdict, findings=(*ruling.findings, *verdict.findings)))
    decided = CallDecided(
        call=plea.id,
        tool=plea.tool,
        args_sha256=plea.args_sha256,
        decision=ruling.decision,
        stage=ruling.stage,
        code=ruling.code,
        reason=ruling.reason,
        findings=ruling.findings,
        checks_failed=ruling.checks_failed,
        checks_skipped=ruling.checks_skipped,
        would=ruling.would,
        admission=_admission(turn, hearing, ruling) if ruling.decision == "allow" else None,
        phase=_exhausted(profile, ruling),
    )
    return Judged(plea, decided, asks=ruling.asks)


def _note_unfollowed(turn: Turn, call: Call, scope: Scope) -> None:
    known = call.links or {}
    paths = tuple(path for path in scope.paths_to_resolve(call.tool, call.args) if path not in known)
    if paths:
        turn.unfollowed.append(Unfollowed(call.id, paths))


def _note_unscored(turn: Turn, hearing: pipeline.Hearing, rules: semantic.SemanticRules) -> None:
    call = hearing.call
    if any(stage == "semantic" for stage, _ in hearing.profile.stages):
        detectors = semantic.unasked(rules, hearing.state.semantic, call.tool, call.args, call.scores)
        if detectors:
            turn.unscored.append(Unscored(call.id, call.tool, call.args, detectors))


def _watched_ceiling(hops: int, profile: Profile) -> tuple[Finding, ...]:
    limit = profile.ceilings.max_hops
    if not profile.ceilings_watched or limit is None or hops < limit:
        return ()
    return (Finding("ceilings", "deny", "ceilings.hops", ceilings.hops_summary(limit), authoritative=False),)


def _exhausted(profile: Profile, ruling: pipeline.Ruling) -> Phase | None:
    """Where the run's own step budget is gone; an ancestor's says nothing of this run's phase."""
    if not profile.dfa.exhaust or ruling.code != "dfa.step_budget":
        return None
    own = any(finding.code == "dfa.step_budget" and finding.run is None for finding in ruling.findings)
    return Phase.EXHAUSTED if own else None


def hear(turn: Turn, plea: Plea) -> pipeline.Hearing:
    policy, run, profile = turn.policy, turn.run, turn.profile
    return pipeline.Hearing(
        policy=policy,
        profile=profile,
        state=turn.state,
        run_id=turn.run_id,
        run=run,
        call=call_of(policy, profile, plea),
        nested=_nested(turn, profile, plea),
        at=turn.at,
        touched=turn.writable(_touched(profile, plea)) if profile.ordered else NOTHING_TOUCHED,
        ancestors=seats(turn) if run.parent is not None else (),
    )


def _touched(profile: Profile, plea: Plea) -> Touched:
    """The machines that the call bears on; what fails here is a crash of the order stage."""
    try:
        return profile.machines.touches(plea.tool, plea.args)
    except Exception as error:
        reason = "the stage order failed on this call, so it is denied"
        return Touched(findings=(Finding("order", "deny", "order.crashed", reason, error=type(error).__name__),))


def seats(turn: Turn) -> tuple[pipeline.Seat, ...]:
    known, runs = turn.registry.known, turn.state.runs
    above = ancestors(known, turn.state, turn.run_id)
    return tuple(pipeline.Seat(i, runs[i], known[runs[i].policy].profile(runs[i].agent)) for i in above)


def call_of(policy: Policy, profile: Profile, plea: Plea) -> Call:
    """The call as the stages see it, with what its admission would take."""
    floor, reserved = reservation(policy, profile, plea.tool, plea.cost_microusd)
    estimate, scores, near = plea.cost_microusd, plea.scores, plea.embedding
    said = (plea.id, plea.tool, plea.args, plea.args_sha256, plea.parent)
    return Call(*said, estimate, floor, reserved, scores, near, plea.links)


def reservation(policy: Policy, profile: Profile, tool: str, estimate: int | None) -> tuple[int | None, int]:
    """What the policy says the tool costs at least, and what a call of it takes from every budget (micro-dollars)."""
    floor = policy.costs.get(tool)
    if estimate is None:
        return floor, profile.dcbf.per_call_microusd if floor is None else floor
    if floor is None or profile.privilege.budget.trust_costs:
        return floor, estimate
    return floor, max(estimate, floor)


def _nested(turn: Turn, profile: Profile, plea: Plea) -> bool:
    """A call whose parent is in flight; and, where nobody vouches for nesting, any that comes while others are."""
    if plea.parent is not None and plea.parent in turn.run.in_flight:
        return True
    explicit = plea.nesting == "explicit" and profile.dfa.trust_nesting
    return not explicit and plea.others > 0


def _admission(turn: Turn, hearing: pipeline.Hearing, ruling: pipeline.Ruling) -> Admission:
    call, profile, circuits = hearing.call, hearing.profile, hearing.state.circuits
    timeout = hearing.policy.timeouts.get(call.tool, profile.call_timeout)
    path = () if hearing.nested else profile.dfa.paths.get(hearing.run.dfa.phase, ())
    return Admission(
        reserved_microusd=call.reserved_microusd,
        due=turn.at + timeout,
        path=path,
        nested=hearing.nested,
        parent=call.parent,
        touches=pipeline.touches_of(hearing, ruling),
        args=call.args if profile.contracts.ensures(call.tool) else None,
        trial=bool(circuits) and breaker.is_trial(profile.breaker.rule(call.tool), circuits.get(call.tool), turn.at),
        drift=pipeline.drift_of(profile, hearing.run, call.embedding),
    )
