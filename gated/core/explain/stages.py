"""What every stage says of a call, each asked by itself: also those that a denial before them would have spared."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from gated.core import calls, trial
from gated.core.explain.case import Case, Draft
from gated.core.pipeline import CHECKS, source_of
from gated.core.policy_file import StageName
from gated.core.stages import ceilings
from gated.core.turn import Turn, may_speak
from gated.events import Finding

Says = Literal["ok", "warn", "ask", "deny", "off"]


class StageReport(Struct, frozen=True):
    """`asked` is false where the verdict was made before the stage was reached; `observed`: it is not acted on."""

    stage: str
    says: Says
    findings: tuple[Finding, ...] = ()
    asked: bool = True
    observed: bool = False


def report_stages(case: Case, draft: Draft | None = None) -> tuple[StageReport, ...]:
    """In the order of the pipeline."""
    draft = draft or case.draft
    found = [*_before(case, draft), *_pipeline(case, draft)]
    reports: list[StageReport] = []
    denied = False
    for report in found:
        reports.append(replace(report, asked=not denied))
        denied = denied or (report.says == "deny" and not report.observed)
    return tuple(reports)


def findings_of(case: Case, draft: Draft) -> list[Finding]:
    """Everything that keeps the call from being allowed."""
    reports = report_stages(case, draft)
    return [f for report in reports if report.says in ("ask", "deny") for f in report.findings if f.authoritative]


def _before(case: Case, draft: Draft) -> list[StageReport]:
    """lifecycle, the hop ceiling and the schema of the arguments, which stand before the pipeline."""
    turn = Turn(case.registry(draft), draft.state, case.run_id, case.at + draft.later)
    barred = may_speak(turn, case.agent)
    if turn.opened is None:
        barred = barred or calls.may_open(turn, case.agent, by_operator=False, elsewhere=case.elsewhere)
        state = trial.opened(turn.registry, draft.state, case.run_id, case.agent, turn.at)
        turn = Turn(turn.registry, state, case.run_id, turn.at)
    reports = [_lifecycle(turn, draft, barred)]
    hops = turn.profile.ceilings.max_hops
    if hops is None:
        reports.append(StageReport("ceilings", "off"))
    else:
        over = turn.run.hop_count >= hops
        finding = (Finding("ceilings", "deny", "ceilings.hops", ceilings.hops_summary(hops)),) if over else ()
        reports.append(_report("ceilings", finding, turn.profile.ceilings_watched))
    misfit = calls.schema_misfit(turn.policy, turn.run.tools, draft.plea.tool, draft.plea.args)
    reports.insert(0, _report("ingress", () if misfit is None else (Finding("ingress", "deny", "ingress.schema", misfit),)))
    return reports


def _lifecycle(turn: Turn, draft: Draft, barred: tuple[str, str] | None) -> StageReport:
    if barred is not None:
        return _report("lifecycle", (Finding("lifecycle", "deny", *barred),))
    bound = calls.bounds(turn, draft.plea)
    denied = bound is not None and bound.decided.stage == "lifecycle"
    return _report("lifecycle", bound.decided.findings if bound is not None and denied else ())


def _pipeline(case: Case, draft: Draft) -> list[StageReport]:
    profile = draft.policy.profile(case.agent)
    if case.agent not in draft.policy.agents:
        reason = f"the policy has no profile for agent `{case.agent}`"
        return [_report("privilege", (Finding("privilege", "deny", "privilege.no_profile", reason),))]
    enabled = dict(profile.stages)
    reports: list[StageReport] = []
    for stage in dict.fromkeys((*CHECKS, *get_args(StageName))):
        if stage not in enabled:
            reports.append(StageReport(stage, "off"))
            continue
        alone = replace(draft, policy=trial.only(draft.policy, case.agent, stage))
        registry, at = case.registry(alone), case.at + draft.later
        turn = Turn(registry, trial.opened(registry, alone.state, case.run_id, case.agent, at), case.run_id, at)
        judged = calls.judge_by_pipeline(turn, draft.plea, draft.lifted)
        findings = judged.decided.findings
        found = tuple(f for f in findings if not (f.outcome == "ask" and source_of(f) in draft.lifted))
        reports.append(_report(stage, found, enabled[stage]))
    return reports


def _report(stage: str, findings: tuple[Finding, ...], observed: bool = False) -> StageReport:
    outcomes = {finding.outcome for finding in findings}
    order: tuple[Says, ...] = ("deny", "ask", "warn")
    says: Says = next((outcome for outcome in order if outcome in outcomes), "ok")
    watched = observed or (bool(findings) and all(not f.authoritative for f in findings))
    return StageReport(stage, says, findings, observed=watched)
