"""The whole explanation of one call."""

from __future__ import annotations

from msgspec import Struct

from gated.core.explain.case import Case
from gated.core.explain.search import Way, find_ways
from gated.core.explain.stages import StageReport, report_stages
from gated.events import CallDecided


class Explanation(Struct, frozen=True):
    """`verdict` is what the policy says; `recorded` what the log holds, where it holds the call. `ways` lead to an allow."""

    verdict: CallDecided
    recorded: CallDecided | None
    policy: str
    stages: tuple[StageReport, ...]
    ways: tuple[Way, ...]


def explain(case: Case) -> Explanation:
    """Never raises for a case that can be made."""
    verdict = case.judge(case.draft).decided
    ways = () if verdict.decision == "allow" else find_ways(case)
    return Explanation(verdict, case.recorded, case.draft.policy.digest, report_stages(case), ways)
