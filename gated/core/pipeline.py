"""The pipeline: one call through every enabled stage of its agent, in the table's order.

The first acted-on denial ends it; an ask does not, so that nobody is asked about what would be denied anyway. A stage that
raises, or answers with what is no finding, denies. A new stage is a file, a field of the profile and a row of `CHECKS`; one that
remembers has more to add (docs/decisions/stages.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from gated.core.barriers.barrier import NOT_COMPARABLE, BarrierCall, BarrierState
from gated.core.call import Call
from gated.core.embedding import EmbeddingError, cosine
from gated.core.history import RECENT, Tally
from gated.core.order import engine
from gated.core.order.touching import Touched
from gated.core.policy import Policy, Profile
from gated.core.policy_file import StageName, Watchable
from gated.core.runview import View
from gated.core.stages import breaker, contracts, dcbf, dfa, privilege, semantic
from gated.core.state import RunState, ThreadState
from gated.events import MILLION, Decided, Embedding, Finding, Phase, RunId, Touch


class Seat(Struct, frozen=True, gc=False):
    """An ancestor of the run whose budgets and barriers the call counts in too."""

    run_id: RunId
    run: RunState
    profile: Profile

    def says(self, stage: StageName, found: Iterable[Finding]) -> tuple[Finding, ...]:
        """Its findings, as far as it has the stage enabled; observed where it only observes."""
        watched = dict(self.profile.stages).get(stage)
        if watched is None:
            return ()
        return tuple(replace(f, run=self.run_id, authoritative=f.authoritative and not watched) for f in found)


class Hearing(Struct, frozen=True, gc=False):
    """All that the stages may look at while one call is decided. `at` in µs.

    `roomy`: neither a budget nor a barrier that reads a tally has anything to say.
    """

    policy: Policy
    profile: Profile
    state: ThreadState
    run_id: RunId
    run: RunState
    call: Call
    nested: bool
    at: int
    touched: Touched
    reserved_microusd: int  # what an admission takes from every budget
    roomy: bool
    ancestors: tuple[Seat, ...] = ()


class Ruling(Struct, frozen=True, gc=False):
    """What the pipeline made of a call. `asks` are the findings that a person must answer, `lifted` those answered."""

    decision: Decided
    stage: str | None
    code: str | None
    reason: str | None
    findings: tuple[Finding, ...]
    checks_failed: tuple[str, ...]
    checks_skipped: tuple[str, ...]
    would: Literal["deny", "suspend"] | None
    asks: tuple[Finding, ...]
    lifted: tuple[Finding, ...]


def _breaker(hearing: Hearing) -> tuple[Finding, ...]:
    tool = hearing.call.tool
    return breaker.check(hearing.profile.breaker.rule(tool), hearing.state.circuits.get(tool), tool, hearing.at)


def _privilege(hearing: Hearing) -> tuple[Finding, ...]:
    rules, call = hearing.profile.privilege, hearing.call
    found = privilege.check(rules, call, hearing.policy.costs)
    if hearing.roomy:
        return found
    state, at, reserved = hearing.state, hearing.at, hearing.reserved_microusd
    counted = state.tally if rules.budget.thread else hearing.run.tally
    found = privilege.to_first_denial((*found, *privilege.check_budget(rules.budget, counted, at, reserved)))
    for seat in hearing.ancestors:
        budget = seat.profile.privilege.budget
        tally = state.tally if budget.thread else seat.run.tally
        found += seat.says("privilege", privilege.check_budget(budget, tally, at, reserved))
    return found


def _dfa(hearing: Hearing) -> tuple[Finding, ...]:
    rules, run = hearing.profile.dfa, hearing.run
    own = dfa.check_steps(rules, _taken(hearing, rules, run), exhausted=run.phase is Phase.EXHAUSTED)
    found = own
    for seat in hearing.ancestors:
        found += seat.says("dfa", dfa.check_steps(seat.profile.dfa, _taken(hearing, seat.profile.dfa, seat.run)))
    return found if own else found + dfa.check_way(rules, run.dfa, hearing.nested)


def _taken(hearing: Hearing, rules: dfa.DfaRules, run: RunState) -> int:
    tally = hearing.state.tally if rules.thread_steps else run.tally
    return tally.steps + tally.in_flight


def _order(hearing: Hearing) -> tuple[Finding, ...]:
    touched, call = hearing.touched, hearing.call
    if not touched.touches and not touched.findings:
        return ()
    return engine.gate(hearing.profile.machines, hearing.state.order, hearing.run_id, call.tool, touched, call.args)


def _contracts(hearing: Hearing) -> tuple[Finding, ...]:
    rules = hearing.profile.contracts
    if not rules.any or not rules.about(hearing.call.tool):
        return ()
    return contracts.check(rules, contract_view(hearing.profile, hearing.run, hearing.at, rules.recent), hearing.call)


def contract_view(profile: Profile, run: RunState, at: int, recent: bool = True) -> View:
    """`recent` is false where nothing reads the newest calls."""
    return View(
        agent=profile.name,
        phase=run.phase,
        step_count=run.step_count,
        counts=run.own.counts,
        cost_microusd=run.own.cost_microusd,
        task=run.task,
        labels=run.labels,
        failed=run.failed,
        recent=tuple((r.tool, r.status, r.args_sha256) for r in run.recent) if recent else (),
        at=at,
    )


def _dcbf(hearing: Hearing) -> tuple[Finding, ...]:
    if hearing.roomy and hearing.profile.dcbf.roomy:
        return ()
    found = _barriers(hearing, hearing.profile, hearing.run)
    for seat in hearing.ancestors:
        found += seat.says("dcbf", _barriers(hearing, seat.profile, seat.run))
    return found


def _barriers(hearing: Hearing, profile: Profile, run: RunState) -> tuple[Finding, ...]:
    call = hearing.call
    state = barrier_state(profile, run, hearing.state.tally, hearing.at, drift_of(profile, run, call.embedding))
    return dcbf.check(profile.dcbf, state, BarrierCall(call.tool, hearing.reserved_microusd, call.args_sha256))


def barrier_state(
    profile: Profile, run: RunState, thread: Tally, at: int, drift: int | None = None, *, whole: bool = False
) -> BarrierState:
    """What the barriers of a run's agent are computed from; `thread` is the tally of its thread, `at` in µs.

    `drift` is that of the call in question from the run's task. `whole`: with a view of the run, whether a barrier reads it
    or not.
    """
    rules = profile.dcbf
    if not rules.seeing and not whole:
        return BarrierState(run.tally, thread)
    tally, recent = run.tally, _newest(run) if rules.recent or whole else ()
    view = View(
        profile.name,
        run.phase,
        tally.steps + tally.in_flight,
        tally.counts,
        tally.cost_microusd,
        run.task,
        run.labels,
        run.failed,
        recent,
        at,
    )
    return BarrierState(tally, thread, view, drift)


def drift_of(profile: Profile, run: RunState, embedding: Embedding | None) -> int | None:
    """How far a call is from the run's task, in millionths; None where one of them has no embedding, or no barrier asks."""
    if embedding is None or run.embedding is None or not profile.dcbf.drift:
        return None
    try:
        return MILLION - cosine(run.embedding, embedding)
    except EmbeddingError:
        return NOT_COMPARABLE


def _newest(run: RunState) -> tuple[tuple[str, str, str], ...]:
    """The newest calls, those in flight last, in the order in which they were admitted."""
    flying = sorted(run.in_flight.values(), key=lambda entry: (entry.seq, entry.ordinal))[-RECENT:]
    ended = tuple((r.tool, str(r.status), r.args_sha256) for r in run.recent)
    return (*ended, *((entry.tool, "in_flight", entry.args_sha256) for entry in flying))[-RECENT:]


def _semantic(hearing: Hearing) -> tuple[Finding, ...]:
    rules = hearing.policy.semantic
    return () if rules is None else semantic.check(rules, hearing.state.semantic, hearing.call)


CHECKS: Final[Mapping[str, Callable[[Hearing], tuple[Finding, ...]]]] = {
    "breaker": _breaker,
    "privilege": _privilege,
    "dfa": _dfa,
    "order": _order,
    "contracts": _contracts,
    "dcbf": _dcbf,
    "semantic": _semantic,
}

ALLOWED: Final = Ruling("allow", None, None, None, (), (), (), None, (), ())

_OUTCOMES: Final = frozenset({"deny", "ask", "warn"})


def rule(hearing: Hearing, lifted: frozenset[str], observed: tuple[Finding, ...] = ()) -> Ruling:
    """Decide the call. `lifted` are the sources of asks that people have answered, `observed` findings made before."""
    findings: list[Finding] = list(observed)
    failed: list[str] = []
    asks: list[Finding] = []
    answered: list[Finding] = []
    profile = hearing.profile
    calm = hearing.roomy and not hearing.nested and hearing.run.dfa.phase in profile.dfa.calm
    for stage, watched in profile.heard_in_calm if calm else profile.heard:
        try:
            found = CHECKS[stage](hearing)
            if found == ():  # the usual case
                continue
            _prove(found)
        except Exception as error:  # fail closed
            found = _crashed(stage, error)
        denied: Finding | None = None
        for finding in found:
            if watched and finding.authoritative:
                finding = replace(finding, authoritative=False)
            findings.append(finding)
            if not finding.authoritative or finding.outcome == "warn":
                continue
            if finding.outcome == "ask" and source_of(finding) in lifted:
                answered.append(finding)
                continue
            if stage not in failed:
                failed.append(stage)
            if finding.outcome == "deny":
                denied = denied or finding
            else:
                asks.append(finding)
        if denied is not None:
            return _ruling("deny", denied, findings, failed, _after(profile.stages, stage), (), ())
    if asks:
        return _ruling("suspend", asks[0], findings, failed, (), tuple(asks), tuple(answered))
    if not findings:
        return ALLOWED
    return _ruling("allow", None, findings, failed, (), (), tuple(answered))


def _after(stages: tuple[tuple[Watchable, bool], ...], stage: Watchable) -> tuple[str, ...]:
    names = [name for name, _ in stages]
    return tuple(names[names.index(stage) + 1 :])


def _ruling(
    decision: Decided,
    decider: Finding | None,
    findings: list[Finding],
    failed: list[str],
    skipped: tuple[str, ...],
    asks: tuple[Finding, ...],
    lifted: tuple[Finding, ...],
) -> Ruling:
    return Ruling(
        decision,
        decider.stage if decider else None,
        decider.code if decider else None,
        decider.reason if decider else None,
        tuple(findings),
        tuple(failed),
        skipped,
        _would(decision, findings),
        asks,
        lifted,
    )


def _prove(found: tuple[Finding, ...]) -> None:
    """Raises `TypeError` where a stage answered with something else than findings."""
    if found.__class__ is not tuple:
        raise TypeError(f"{found!r} is no tuple of findings")
    for finding in found:
        if finding.__class__ is not Finding or finding.outcome not in _OUTCOMES:
            raise TypeError(f"{finding!r} is no finding")


def _crashed(stage: str, error: Exception) -> tuple[Finding, ...]:
    reason = f"the stage {stage} failed on this call, so it is denied"
    return (Finding(stage, "deny", f"{stage}.crashed", reason, error=type(error).__name__),)


def _would(decision: Decided, findings: list[Finding]) -> Literal["deny", "suspend"] | None:
    """What the verdict would have been but for stages that only observe, where that is another."""
    would: Literal["suspend"] | None = None
    for finding in findings:
        if not finding.authoritative:
            if finding.outcome == "deny" and decision != "deny":
                return "deny"
            if finding.outcome == "ask" and decision == "allow":
                would = "suspend"
    return would


def source_of(finding: Finding) -> str:
    """What asked: an approval lifts asks of the same source and nothing else."""
    parts = (finding.code, finding.machine, finding.contract, finding.pattern, finding.run, finding.detector)
    return " ".join(part for part in parts if part)


def touches_of(hearing: Hearing, ruling: Ruling) -> tuple[Touch, ...]:
    """The machine instances that a call bears on that is admitted after asks: the answered let their transitions fire."""
    asked = frozenset((f.machine, f.key) for f in ruling.lifted if f.machine is not None)
    return engine.override(hearing.touched, asked)
