"""Whose thread, whose run, and whether it still runs. decisions.md §3."""

from __future__ import annotations

from oracle.findings import Finding, Question
from oracle.history import Run, Thread
from oracle.rules import Policy


def stranger(policy: Policy, thread: Thread | None, run: str, agent: str) -> str | None:
    """The code for who may not speak here. The thread's owner comes first, then the run's, then the profile.

    ambiguous: where an agent without a profile speaks on another's thread. Owner first: it "learns nothing else".
    """
    if thread is not None and thread.owner != agent and not policy.share_a_thread(thread.owner, agent):
        return "lifecycle.not_thread_owner"
    known = thread.runs.get(run) if thread else None
    if known is not None and known.agent != agent:
        return "lifecycle.not_run_owner"
    return None


def opening(policy: Policy, threads: dict[str, Thread], agent: str, *, by_operator: bool) -> str | None:
    """The code for why this agent may not open a run here."""
    profile = policy.profile(agent)
    if profile is None:
        return "privilege.no_profile"
    rules = profile.get("runs") or {}
    if rules.get("opened_by", "agent") == "operator" and not by_operator:
        return "lifecycle.run_not_open"
    open_runs = [r for t in threads.values() for r in t.runs.values() if r.agent == agent and not t.ending(r.id)]
    if "max_open" in rules and len(open_runs) >= rules["max_open"]:
        return "lifecycle.limit"
    return None


def orphan(thread: Thread | None, parent: str | None) -> str | None:
    """A child runs on its parent's thread. ambiguous: a parent that has ended. It has nothing to share any more: refused."""
    if parent is None or (thread is not None and parent in thread.runs and thread.ending(parent) is None):
        return None
    return "lifecycle.parent_thread"


def ended(question: Question) -> list[Finding]:
    """A run that ended takes no calls, also when the dfa stage is off."""
    ending = question.thread.ending(question.run.id)
    if ending is None:
        return []
    if ending.kind == "failed":
        reason = f"Cannot call {question.call.tool}: agent run has failed: {ending.data['summary']}"
        return [Finding("lifecycle", "deny", "lifecycle.run_failed", reason)]
    reason = f"Cannot call {question.call.tool}: agent run is already completed"
    if ending.kind == "aborted" and ending.data["reason"]:
        reason += f": {ending.data['reason']}"
    return [Finding("lifecycle", "deny", "lifecycle.run_completed", reason)]


def full(question: Question) -> list[Finding]:
    """`limits.max_in_flight` (100 a run).

    ambiguous: its place among the first checks. With the other lifecycle denials: after `ended`, before the hops.
    """
    limit = question.run.policy.doc.get("limits", {}).get("max_in_flight", 100)
    if len(question.thread.in_flight(question.run.id)) < limit:
        return []
    return [Finding("lifecycle", "deny", "lifecycle.in_flight_limit", f"{limit} calls are in flight")]


def outcome_source(run: Run, by: str) -> str | None:
    """`outcomes_from: agent | runner:<name>`.

    ambiguous: whether a runner may report where the policy says `agent`. Read strictly: each names the one source.
    """
    source = run.profile.get("outcomes_from", "agent")
    wanted = f"agent:{run.agent}" if source == "agent" else source
    return None if by == wanted else "lifecycle.not_outcome_source"
