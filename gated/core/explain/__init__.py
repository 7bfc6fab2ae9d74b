"""Why a call got its verdict, and the smallest change that would have allowed it.

    explain(case) -> Explanation      # every stage's finding, also of stages after the first denial; ways to an allow

INVARIANT: a way is only reported if the core, given the changed policy, arguments or history, allows the call.
"""

from gated.core.explain.case import Case, Change, recorded_case, wanted_case
from gated.core.explain.search import Way, find_ways
from gated.core.explain.stages import StageReport, report_stages
from gated.core.explain.whole import Explanation, explain

__all__ = [
    "Case",
    "Change",
    "Explanation",
    "StageReport",
    "Way",
    "explain",
    "find_ways",
    "recorded_case",
    "report_stages",
    "wanted_case",
]
