"""Who may call what, on what, and how much of it. decisions.md §5."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oracle import patterns, scope, tally
from oracle.findings import Finding, Question
from oracle.history import Family, Run
from oracle.values import exact, microusd

STAGE = "privilege"


def check(question: Question) -> list[Finding]:
    """In the order of the code table; the first denial is the stage's."""
    findings = [*_tools(question), *_approval(question), *_data_scope(question), *_budgets(question)]
    if question.run.policy.observed(question.run.agent, STAGE):
        return [replace(f, authoritative=False) for f in findings]
    return findings


def _deny(code: str, reason: str) -> Finding:
    return Finding(STAGE, "deny", f"privilege.{code}", reason)


def _tools(question: Question) -> list[Finding]:
    profile, call = question.run.profile, question.call
    if any(patterns.matches_wide(p, call.tool, call.args) for p in profile.get("forbidden_tools", [])):
        return [_deny("forbidden", f"`{call.tool}` is forbidden")]
    if not any(patterns.matches_one_key(p, call.tool, call.args) for p in profile.get("allowed_tools", [])):
        return [_deny("not_allowed", f"`{call.tool}` is not allowed")]
    return []


def _approval(question: Question) -> list[Finding]:
    call = question.call
    asking = [p for p in question.run.profile.get("approval_required", []) if patterns.matches_wide(p, call.tool, call.args)]
    return [
        Finding(STAGE, "ask", "privilege.approval_required", f"`{p}` needs approval", source=(STAGE, "pattern", p))
        for p in asking
    ]


def _data_scope(question: Question) -> list[Finding]:
    rules = question.run.profile.get("data_scope") or {}
    if rules == "any":  # policy.md: switches the scope check off for the agent
        return []
    selectors = (question.run.policy.tool(question.call.tool).get("resources") or {}).get("args") or {}
    outside = scope.outside(rules, selectors, question.call.args)
    return [] if outside is None else [_deny("data_scope", f"`{outside}` is outside the data scope")]


def _budgets(question: Question) -> list[Finding]:
    """The run's own limits, then those of every run that its calls count in."""
    run, thread = question.run, question.thread
    findings = [*_call_cost(question), *_totals(question, run)]
    for ancestor in thread.ancestors(run):
        if ancestor.policy.enabled(ancestor.agent, STAGE):
            observed = ancestor.policy.observed(ancestor.agent, STAGE)
            findings += [replace(f, authoritative=not observed) for f in _totals(question, ancestor)]
    return findings


def _over(question: Question, budget: dict[str, Any], code: str, holder: Run, reason: str) -> Finding:
    """`over: ask` asks instead. What is remembered for a thread is so for every run's own budget."""
    outcome = "ask" if budget.get("over", "deny") == "ask" else "deny"
    above = None if holder.id == question.run.id else holder.id
    return Finding(STAGE, outcome, f"privilege.{code}", reason, source=(STAGE, code, above))


def _call_cost(question: Question) -> list[Finding]:
    """On the larger of the call's estimate and the tool's cost; silent on both, it is not compared."""
    run, call = question.run, question.call
    budget = run.policy.budget(run.agent)
    said = [] if call.cost_usd is None else [microusd(call.cost_usd)]
    floor = tally.tool_cost(run, call.tool)
    said += [] if floor is None else [floor]
    if "max_cost_usd" not in budget or not said or max(said) <= microusd(budget["max_cost_usd"]):
        return []
    return [_over(question, budget, "call_cost", run, f"{max(said)} microusd is over the limit of one call")]


def _totals(question: Question, holder: Run) -> list[Finding]:
    thread, run, call = question.thread, question.run, question.call
    budget = holder.policy.budget(holder.agent)
    runs = thread.all_runs() if budget.get("scope", "run") == "thread" else Family(holder.id)
    findings = []
    total = tally.cost(thread, runs) + tally.reservation(run, call.tool, call.cost_usd)
    if "max_total_cost_usd" in budget and total > microusd(budget["max_total_cost_usd"]):
        findings.append(_over(question, budget, "total_cost", holder, f"{total} microusd is over the budget"))
    if "max_calls" in budget and tally.calls(thread, runs) + 1 > budget["max_calls"]:
        findings.append(_over(question, budget, "calls", holder, f"{budget['max_calls']} calls were admitted"))
    if "max_tokens" in budget and tally.tokens(thread, runs) > budget["max_tokens"]:
        findings.append(_over(question, budget, "tokens", holder, f"over {budget['max_tokens']} tokens"))
    return [*findings, *_time(question, holder)]


def _time(question: Question, holder: Run) -> list[Finding]:
    """From event times; of a thread, since its first run was opened."""
    budget = holder.policy.budget(holder.agent)
    of_thread = budget.get("scope", "run") == "thread"
    since = min(r.opened_at for r in question.thread.runs.values()) if of_thread else holder.opened_at
    limit = budget.get("max_execution_time_seconds")
    if limit is None or question.at - since <= exact(limit) * 1_000_000:
        return []
    return [_over(question, budget, "time", holder, f"over {limit} seconds")]
