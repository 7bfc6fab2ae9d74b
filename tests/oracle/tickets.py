"""Tickets: their rules, who may answer, when an approval is whole, what is remembered. approvals.md."""

from __future__ import annotations

from typing import Any

from oracle import patterns
from oracle.expressions import evaluate, names_of
from oracle.findings import Finding, Question
from oracle.history import Call, Run, Thread, Ticket
from oracle.values import micros

LASTING = {"once": 0, "call": 1, "run": 2, "thread": 3}


def requirements(question: Question) -> list[dict[str, Any]]:
    """The first rule that matches exactly, else the default; and every rule that matches only widely.

    What a rule leaves out comes from `default`.
    """
    approvals = question.run.policy.doc.get("approvals", {})
    default = {"quorum": 1, "timeout": "15m", **approvals.get("default", {})}
    call, exact, wide = question.call, [], []
    for rule in approvals.get("rules", []):
        if not _when(rule, question):
            continue
        if patterns.matches(rule["on"], call.tool, call.args):
            exact.append(rule)
        elif patterns.matches_wide(rule["on"], call.tool, call.args):
            wide.append(rule)
    return [_completed(default, rule) for rule in [*(exact[:1] or [{}]), *wide]]


def _completed(default: dict[str, Any], rule: dict[str, Any]) -> dict[str, Any]:
    """`stages` stand instead of approvers and quorum, and the other way round."""
    unfit = ("approvers", "quorum") if "stages" in rule else ("stages",) if "approvers" in rule else ()
    return {**{key: value for key, value in default.items() if key not in unfit}, **rule}


def _when(rule: dict[str, Any], question: Question) -> bool:
    """What cannot be evaluated counts as true."""
    if "when" not in rule:
        return True
    try:
        return evaluate(rule["when"], names_of(question)) is not False
    except Exception:
        return True


def open_ticket(
    thread: Thread,
    run: Run,
    calls: list[Call],
    asks: dict[str, list[Finding]],
    rules: list[dict[str, Any]],
    at: int,
    *,
    batch: bool,
) -> Ticket:
    """A second ticket of a call is `<id>.2`. ambiguous: the deadline under several rules. The earliest."""
    before = len([t for t in thread.tickets if t.run == run.id and calls[0].id in t.calls])
    ticket = Ticket(
        run=run.id,
        name=calls[0].id + (f".{before + 1}" if before else ""),
        calls=[call.id for call in calls],
        batch=batch,
        asks={call: [f.source for f in findings] for call, findings in asks.items()},
        digests={call.id: call.digest for call in calls},
        requirements=rules,
        opened_at=at,
        expires_at=at + min(micros(rule["timeout"]) for rule in rules),
    )
    thread.tickets.append(ticket)
    return ticket


def find(thread: Thread, run: str, name: str) -> Ticket | None:
    """A ticket is named by its call (its newest); `c1.2` is a certain one. scenarios.md."""
    call, _, number = name.partition(".")
    of_call = [t for t in thread.tickets if t.run == run and call in t.calls]
    if number:
        return of_call[int(number) - 1] if number.isdigit() and 0 < int(number) <= len(of_call) else None
    return of_call[-1] if of_call else None


def people(policy_doc: dict[str, Any], approvers: list[str]) -> list[str]:
    found: list[str] = []
    for approver in approvers:
        kind, _, name = approver.partition(":")
        found += policy_doc.get("groups", {}).get(name, []) if kind == "group" else [name]
    return found


def may(run: Run, ticket: Ticket, rule: dict[str, Any], answers: list[dict[str, Any]], person: str, at: int) -> bool:
    """Whether a rule lets this person answer now, after the answers before. The asker and its owner only by `self_approval`."""
    if person in (run.agent, run.profile.get("owner")) and not rule.get("self_approval", False):
        return False
    if "stages" in rule:
        stage = _stages_answered(run, ticket, rule, answers)
        if stage >= len(rule["stages"]):
            return False
        named = rule["stages"][stage]
    else:
        named = rule.get("approvers")
    if named is None:  # every approver that the bus lets in
        return True
    escalate = rule.get("escalate")
    if escalate and at >= ticket.opened_at + micros(escalate["after"]):  # adds its people to the present stage
        named = [*named, *escalate["to"]]
    return person in people(run.policy.doc, named)


def _stages_answered(run: Run, ticket: Ticket, rule: dict[str, Any], answers: list[dict[str, Any]]) -> int:
    """Each stage in turn, one answer each."""
    stage = 0
    for answer in answers:
        left = {**rule, "stages": rule["stages"][stage : stage + 1]}
        if left["stages"] and may(run, ticket, left, [], answer["by"], answer["at"]):
            stage += 1
    return stage


def satisfied(run: Run, ticket: Ticket, rule: dict[str, Any]) -> bool:
    if "stages" in rule:
        return _stages_answered(run, ticket, rule, ticket.answers) >= len(rule["stages"])
    distinct = {a["by"] for a in ticket.answers if may(run, ticket, rule, [], a["by"], a["at"])}
    return len(distinct) >= int(rule.get("quorum", 1))


def lifted_by_tickets(thread: Thread, run: Run, call: Call, finding: Finding) -> bool:
    """The asks of this ticket and of the call's earlier approved tickets with the same digest."""
    return any(
        t.state == "approved" and t.digests.get(call.id) == call.digest and finding.source in t.asks.get(call.id, [])
        for t in thread.tickets
        if t.run == run.id
    )


def remember(thread: Thread, run: Run, ticket: Ticket) -> None:
    """Of several answers the narrowest counts; an answer that says nothing says `once`."""
    wishes = [answer["remember"] for answer in ticket.answers]
    narrowest = min(wishes, key=lambda wish: LASTING[wish["for"] if isinstance(wish, dict) else wish])
    if narrowest == "once":
        return
    call = run.calls[ticket.calls[0]]
    of_thread = isinstance(narrowest, dict) and narrowest["for"] == "thread"
    thread.memories.append(
        {
            "policy": run.policy,
            "run": None if of_thread else run.id,
            "agent": run.agent,
            "tool": call.tool,
            "digest": call.digest,
            "pattern": narrowest["pattern"] if isinstance(narrowest, dict) else None,
            "asks": ticket.asks[call.id],
        }
    )


def lifted_by_memory(thread: Thread, run: Run, call: Call, finding: Finding) -> bool:
    """Only asks of the same source and tool, under the same policy.

    ambiguous, each read strictly: `call` holds within its run; what is remembered for a thread holds for the agent that asked,
    whose approvers may not be those of another agent on the thread.
    """
    for memory in thread.memories:
        if memory["agent"] != run.agent:
            continue
        if memory["policy"].doc != run.policy.doc or memory["run"] not in (None, run.id) or memory["tool"] != call.tool:
            continue
        pattern = memory["pattern"]
        fits = memory["digest"] == call.digest if pattern is None else patterns.matches(pattern, call.tool, call.args)
        if fits and finding.source in memory["asks"]:
            return True
    return False


def wish_fits(wish: Any, call: Call) -> bool:
    """`once`, `call`, or a pattern that must match this call."""
    if wish in ("once", "call"):
        return True
    try:
        return wish["for"] in ("run", "thread") and patterns.matches(wish["pattern"], call.tool, call.args)
    except (ValueError, KeyError, TypeError):
        return False
