"""What a decision, an outcome or an ending changes: entries in the log. decisions.md §3, §4, §6."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oracle import breaker, ceilings, contracts, dfa, order, order_after, semantic, tally
from oracle.findings import Finding, Question
from oracle.history import Entry, Thread, Ticket
from oracle.order import Watch
from oracle.pipeline import Decision, refused_verdict
from oracle.values import micros, text_of

Verdict = dict[str, Any]


def say(thread: Thread, run: str, verdict: Verdict, at: int) -> Verdict:
    thread.note("verdict", run, verdict["call"], at, verdict=verdict)
    return verdict


def hop(question: Question, result: Decision) -> None:
    """Every call that got a verdict of its own, except what lifecycle denied."""
    if result.deciding is None or result.deciding.stage != "lifecycle":
        question.thread.note("hop", question.run.id, question.call.id, question.at)


def admit(question: Question, result: Decision) -> None:
    thread, run, call, at = question.thread, question.run, question.call, question.at
    said = run.policy.call_timeout(run.agent, call.tool)
    data = {
        "tool": call.tool,
        "digest": call.digest,
        "message": call.message,
        "reserved": tally.reservation(run, call.tool, call.cost_usd),
        "nested": dfa.is_nested(question),
        "path": dfa.path_to_acting(question) or [],
        "watches": _watches(question, result),
        "timeout": said,
        "due": at + micros(said),
        "trial": breaker.tries(question),
        "above": [above.id for above in thread.ancestors(run)],
    }
    for finding in result.findings:
        if finding.stage == order.STAGE and finding.outcome == "warn" and finding.authoritative:
            _count(question, "warned", finding)
    thread.note("admitted", run.id, call.id, at, **data)


def _watches(question: Question, result: Decision) -> list[Watch]:
    """Where the stage is off its machines see nothing. A lifted ask is an override of its transition."""
    if not question.run.policy.enabled(question.run.agent, order.STAGE):
        return []
    overrides = {f.machine: f.overrides for f in result.lifted if f.stage == order.STAGE}
    found = [watch for _, watch, _ in order.watches(question.run, question.call) if watch is not None]
    return [replace(watch, override=overrides.get(watch.name)) for watch in found]


def _count(question: Question, metric: str, finding: Finding) -> None:
    thread, run, machine = question.thread, question.run.id, str(finding.machine)
    order_after.count(thread, run, metric, machine, question.at)
    if finding.code != "order.missing_key":
        thread.note("violation", run, question.call.id, question.at, machine=machine, action=metric, reason=finding.reason)


def count_decider(question: Question, result: Decision) -> None:
    """order.md, What is kept: asks and denials are counted once, when they decide the call."""
    if result.deciding is not None and result.deciding.stage == order.STAGE:
        _count(question, "denied" if result.decision == "deny" else "asked", result.deciding)


def deny(question: Question, result: Decision, *, again: bool = False) -> list[Verdict]:
    """What a denial does to its run; the verdicts on other calls that follow from it."""
    thread, run, deciding = question.thread, question.run, result.deciding
    assert deciding is not None
    count_decider(question, result)
    if deciding.code == "ceilings.hops":
        return fail(thread, run.id, deciding.reason, question.at)
    if deciding.code == "dfa.step_budget" and deciding.source == (dfa.STAGE, run.id):
        spent = (run.profile.get("dfa") or {}).get("on_budget", "deny") == "exhaust"
        if spent and dfa.phases(thread, run.id).phase != "EXHAUSTED":
            thread.note("exhausted", run.id, None, question.at)
    if deciding.code == "ingress.schema" and not again:  # a tool error; the third keeps its own code
        thread.note("misfit", run.id, question.call.id, question.at)
        summary = ceilings.gave_up(thread, run, deciding.reason)
        return fail(thread, run.id, summary, question.at) if summary else []
    return []


def fail(thread: Thread, run: str, summary: str, at: int) -> list[Verdict]:
    """A failed run is EXHAUSTED; an ended run does not fail. Its open tickets are cancelled."""
    if thread.ending(run) is not None:
        return []
    thread.note("failed", run, None, at, summary=summary)
    return cancel(thread, run, at)


def cancel(thread: Thread, run: str, at: int) -> list[Verdict]:
    """approvals.md: `cancelled`: the run ended."""
    return [
        verdict for t in thread.tickets if t.run == run and t.state == "pending" for verdict in close(thread, t, "cancelled", at)
    ]


def close(thread: Thread, ticket: Ticket, state: str, at: int, reason: str = "") -> list[Verdict]:
    """One final denial for every call of the ticket."""
    ticket.state = state
    found = []
    for call in ticket.calls:
        verdict = refused_verdict(call, "approvals", f"approvals.{state}", reason or f"the approval was {state}")
        found.append(say(thread, ticket.run, {**verdict, "ticket": ticket.name}, at))
    return found


def settle(
    thread: Thread,
    admitted: Entry,
    at: int,
    *,
    by: str,
    status: str,
    content: Any,
    facts: Any,
    cost_usd: Any,
    tokens: Any,
    scores: dict[str, Any] | None = None,
) -> tuple[list[dict[str, Any]], list[Verdict]]:
    """An outcome of an admitted call: the reminders, and the verdicts on other calls that follow from it.

    After the run's end it is folded too, but moves neither phase nor `failed`.
    """
    run = thread.runs[admitted.run]
    call = run.calls[str(admitted.call)]
    cost = tally.settled_cost(run, call.tool, admitted.data["reserved"], status, cost_usd, by)
    result = {"content": [content, facts] if facts else content, "scores": scores or {}, "by": by}
    result["read"] = semantic.reads(run, call.tool)
    result["breaker"] = breaker.rule(run, call.tool)
    result["grounds"] = call.tool in run.profile.get("grounding", [])
    ended_at = admitted.data["due"] if by == "timer" else at  # a lapse is as of its deadline, whenever the timer ran
    thread.note("settled", run.id, call.id, ended_at, status=status, cost=cost, tokens=int(tokens or 0), **result)
    reminders = order_after.advance(thread, admitted, status, content, facts, at)
    also: list[Verdict] = []
    if run.policy.enabled(run.agent, contracts.STAGE):
        for name in contracts.breached(run, call, status, content, facts):
            also += fail(thread, run.id, f"contract `{name}` was breached", at)
    if status == "error":
        summary = ceilings.gave_up(thread, run, text_of(content))
        also += fail(thread, run.id, summary, at) if summary else []
    return reminders, also
