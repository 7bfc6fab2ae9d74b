"""The whole explanation of one call."""

from __future__ import annotations

from msgspec import Struct

from gated.core.explain.case import Case
from gated.core.explain.search import Way, find_ways
from gated.core.explain.stages import StageReport, report_stages
from gated.core.reading import is_redacted, unread
from gated.events import CallDecided


class Explanation(Struct, frozen=True):
    """`verdict` is what the policy says; `recorded` what the log holds, where it holds the call. `ways` lead to an allow.

    `unread`: the rule that would have to read what was redacted, where there is one; nothing of this is certain then.
    """

    verdict: CallDecided
    recorded: CallDecided | None
    policy: str
    stages: tuple[StageReport, ...]
    ways: tuple[Way, ...]
    unread: str | None = None


def explain(case: Case) -> Explanation:
    """Never raises for a case that can be made."""
    verdict = case.judge(case.draft).decided
    ways = () if verdict.decision == "allow" else find_ways(case)
    return Explanation(verdict, case.recorded, case.draft.policy.digest, report_stages(case), ways, _unread(case))


def _unread(case: Case) -> str | None:
    draft = case.draft
    profile = draft.policy.profile(case.agent)
    found = unread(draft.policy, profile, draft.plea.tool, draft.plea.args)
    if found is not None or case.vault is not None:
        return found
    watched = {touch.machine for touch in profile.machines.touches(draft.plea.tool, draft.plea.args).touches}
    keys = draft.state.order.view(case.run_id)
    hidden = sorted(name for name in watched if any(is_redacted({key: None}) for key in keys.get(name, ())))
    return f"machine `{hidden[0]}` has keys that were redacted" if hidden else None
