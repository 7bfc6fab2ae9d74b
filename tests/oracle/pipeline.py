"""The pipeline: every stage in order, deny beats suspend beats allow. decisions.md §2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oracle import breaker, ceilings, contracts, dcbf, dfa, ingress, lifecycle, order, privilege, semantic
from oracle.findings import Finding, Question
from oracle.rules import STAGES

CHECKS: dict[str, Callable[[Question], list[Finding]]] = {
    "privilege": privilege.check,
    "dfa": dfa.check,
    "order": order.check,
    "contracts": contracts.check,
    "dcbf": dcbf.check,
    "semantic": semantic.check,
}
Lifted = Callable[[Finding], bool]


@dataclass
class Decision:
    decision: str = "allow"
    deciding: Finding | None = None
    would: str | None = None
    """What it would be if what is observed were enforced, where that is stricter."""
    findings: list[Finding] = field(default_factory=list)
    asks: list[Finding] = field(default_factory=list)
    """Acted-on asks that nothing lifts."""
    lifted: list[Finding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def decide(question: Question, lifted: Lifted, *, again: bool = False) -> Decision:
    """`again`: an approval runs it on the state of now; the call has its hop already."""
    profile_missing = question.run.policy.profile(question.run.agent) is None
    policy = question.run.policy
    enabled = [s for s in STAGES if policy.enabled(question.run.agent, s) and (s != "semantic" or "semantic" in policy.doc)]
    steps: list[tuple[str, Callable[[Question], list[Finding]]]] = [
        ("lifecycle", lifecycle.ended),
        ("lifecycle", lifecycle.full),
        ("ceilings", (lambda _: []) if again else ceilings.hops),
        ("ingress", ingress.schema),
        ("breaker", breaker.check),
        ("privilege", _no_profile if profile_missing else (lambda _: [])),
        *((stage, CHECKS[stage]) for stage in enabled),
    ]
    result = Decision()
    for position, (_, check) in enumerate(steps):
        found = check(question)
        result.findings += found
        denial = next((f for f in found if f.outcome == "deny" and f.authoritative), None)
        if denial is not None:  # the first deny ends the pipeline
            result.decision, result.deciding = "deny", denial
            on = [*([breaker.STAGE] if breaker.configured(question.run) else []), *enabled]
            result.skipped = [stage for stage in on if stage not in dict(steps[: position + 1])]
            return result
        asks = [f for f in found if f.outcome == "ask" and f.authoritative]
        result.lifted += [f for f in asks if lifted(f)]
        result.asks += [f for f in asks if not lifted(f)]  # a suspend does not end it
    if result.asks:
        result.decision, result.deciding = "suspend", result.asks[0]
    result.would = _would(result)
    return result


def _no_profile(question: Question) -> list[Finding]:
    return [Finding("privilege", "deny", "privilege.no_profile", f"`{question.run.agent}` has no profile")]


def _would(result: Decision) -> str | None:
    """ambiguous: whether `would` stands where what is observed is no stricter than the verdict. Only where it is."""
    observed = [f.outcome for f in result.findings if not f.authoritative]
    if "deny" in observed:
        return "deny"
    return "suspend" if "ask" in observed and result.decision == "allow" else None


def verdict_of(call: str, result: Decision) -> dict[str, Any]:
    deciding = result.deciding
    failed = [f.stage for f in result.findings if f.authoritative and f.outcome in ("deny", "ask") and f not in result.lifted]
    return {
        "call": call,
        "decision": result.decision,
        "stage": deciding.stage if deciding else None,
        "code": deciding.code if deciding else None,
        "reason": deciding.reason if deciding else None,
        "would": result.would,
        "machine": deciding.machine if deciding else None,
        "detector": deciding.detector if deciding else None,
        "barriers": [name for f in result.findings if f.authoritative for name in f.barriers],
        "checks_failed": list(dict.fromkeys(failed)),
        "checks_skipped": result.skipped,
        "replayed": False,
        "ticket": None,
    }


def refused_verdict(call: str, stage: str, code: str, reason: str) -> dict[str, Any]:
    """A denial that no stage of the pipeline made."""
    finding = Finding(stage, "deny", code, reason)
    found = [] if stage == "approvals" else [finding]  # people's word is no check that failed
    return verdict_of(call, Decision("deny", finding, findings=found))
