"""Hops and retries. decisions.md §4."""

from __future__ import annotations

from oracle import tally
from oracle.findings import Finding, Question
from oracle.history import Run, Thread
from oracle.values import shown


def hops(question: Question) -> list[Finding]:
    """With `max_hops: 8` eight calls may be asked for; the ninth is denied and the run fails."""
    run = question.run
    limit = (run.profile.get("ceilings") or {}).get("max_hops")
    if limit is None or tally.hops(question.thread, run.id) < limit:
        return []
    reason = f"stopped after {limit} steps without a final answer"
    authoritative = not run.policy.observed(run.agent, "ceilings")
    return [Finding("ceilings", "deny", "ceilings.hops", reason, authoritative=authoritative)]


def gave_up(thread: Thread, run: Run, last_error: str) -> str | None:
    """The summary of the run's failure, when the newest error was the last that it may make."""
    limit = (run.profile.get("ceilings") or {}).get("max_retries")
    if limit is None or run.policy.observed(run.agent, "ceilings"):
        return None
    if tally.consecutive_errors(thread, run.id) < limit:
        return None
    return f"gave up: {shown(last_error)}"
