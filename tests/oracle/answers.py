"""Answers to tickets. approvals.md, Answers."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any

from oracle import calls, effects, pipeline, tickets
from oracle.effects import Verdict
from oracle.findings import Question
from oracle.history import Call, Run, Thread, Ticket


@dataclass(frozen=True)
class Answer:
    by: str
    decision: str
    args_sha256: str | None = None
    """None: the approver confirms what the ticket shows."""
    args: dict[str, Any] | None = None
    tool: str | None = None
    result: Any = None
    remember: Any = "once"
    note: str | None = None
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What detectors say of the calls that are decided again, by call."""
    name: str | None = None
    """The name in the body; the identity is `by`."""


def refusal(thread: Thread, run: Run, ticket: Ticket | None, answer: Answer, at: int) -> str | None:
    """What is no answer at all; then in this order: known, pending, identity, in time, authorised, digest."""
    if answer.decision == "reject" and (answer.args is not None or answer.result is not None or answer.remember != "once"):
        return "ingress.shape"
    if ticket is None:
        return "approvals.unknown_ticket"
    if ticket.state != "pending":
        return "approvals.already_decided"
    if answer.name not in (None, answer.by):
        return "approvals.identity"
    if at > ticket.expires_at:
        return "approvals.expired"
    if not any(tickets.may(run, ticket, rule, ticket.answers, answer.by, at) for rule in ticket.requirements):
        return "approvals.not_authorised"
    first = ticket.calls[0]
    if answer.args_sha256 not in (None, *([ticket.digests[first]] if not ticket.batch else [])):
        return "approvals.digest_mismatch"
    special = answer.args is not None or answer.result is not None or answer.remember != "once"
    if ticket.batch and special:
        return "approvals.batch"
    if answer.tool not in (None, run.calls[first].tool):
        return "approvals.tool_change"
    if answer.result is not None and not all(rule.get("may_answer", False) for rule in ticket.requirements):
        return "approvals.may_not_answer"
    fits = tickets.wish_fits(answer.remember, run.calls[first]) and (answer.args is None or answer.remember == "once")
    if not fits:
        return "approvals.remember"
    return "approvals.may_not_answer" if _result_too_soon(thread, ticket, answer, at) else None


def _result_too_soon(thread: Thread, ticket: Ticket, answer: Answer, at: int) -> bool:
    """ambiguous: a result in an answer that others must follow. The last answer gives it; till then nobody may."""
    if answer.result is None or answer.decision == "reject":
        return False
    trial = copy.deepcopy(thread)
    position = next(position for position, one in enumerate(thread.tickets) if one is ticket)
    trial, _, _ = take(trial, trial.tickets[position], answer, at)
    return any(t.state == "pending" and (t.run, t.calls) == (ticket.run, ticket.calls) for t in trial.tickets)


def take(thread: Thread, ticket: Ticket, answer: Answer, at: int) -> tuple[Thread, dict[str, Any], list[Verdict]]:
    """An answer that was not refused: the thread afterwards, what is said of the ticket, and the verdicts that follow."""
    run = thread.runs[ticket.run]
    if answer.decision == "reject":  # one authorised reject ends it
        reason = f"rejected by {answer.by}" + (f": {answer.note}" if answer.note else "")
        verdicts = effects.close(thread, ticket, "rejected", at, reason)
        return thread, {"ticket": "rejected"}, verdicts
    ticket.answers.append({"by": answer.by, "at": at, "remember": answer.remember})
    if answer.args is not None:
        return thread, {"ticket": "superseded"}, _edit(thread, run, ticket, answer, at)
    if not all(tickets.satisfied(run, ticket, rule) for rule in ticket.requirements):
        return thread, {"ticket": "pending"}, []
    ticket.state = "approved"
    for call in ticket.calls:  # what rests on the arguments alone stands; what was seen meanwhile may say more
        kept = {name: score for name, score in run.calls[call].scores.items() if name != "exfiltration"}
        run.calls[call] = replace(run.calls[call], scores={**kept, **answer.scores.get(call, {})})
    if ticket.batch:
        thread, verdicts = calls.again_atomic(thread, run.id, ticket, at)
        return thread, {"ticket": "approved"}, verdicts
    tickets.remember(thread, run, ticket)
    question = Question(thread, run, run.calls[ticket.calls[0]], at)
    verdict, also = calls.settle_decision(question, calls.decide(question, again=True), answered=ticket)
    if answer.result is not None and verdict["decision"] == "allow":
        also += _answered(thread, run, question.call, answer, at)
    return thread, {"ticket": "approved"}, [verdict, *also]


def _answered(thread: Thread, run: Run, call: Call, answer: Answer, at: int) -> list[Verdict]:
    """The machines advance on a person's result as on a success. ambiguous: its cost. The tool was not run: 0."""
    admitted = thread.admission(run.id, call.id)
    assert admitted is not None
    by = f"approver:{answer.by}"
    admitted.data["trial"] = False  # nor does it say that the tool works
    said = {"content": answer.result, "facts": None, "scores": answer.scores.get(call.id, {})}
    _, also = effects.settle(thread, admitted, at, by=by, status="success", cost_usd=0, tokens=0, **said)
    return also


def _edit(thread: Thread, run: Run, ticket: Ticket, answer: Answer, at: int) -> list[Verdict]:
    """A new call with lineage: the whole pipeline, asks included, except those whose approvers the editor satisfies."""
    ticket.state = "superseded"
    edited = replace(run.calls[ticket.calls[0]], args=answer.args, scores=answer.scores.get(ticket.calls[0], {}))
    run.calls[edited.id] = edited
    question = Question(thread, run, edited, at)
    result = calls.decide(question, again=True)
    if result.decision == "suspend":
        return _confirm(question, result, answer, ticket)
    verdict, also = calls.settle_decision(question, result, answered=ticket)
    if answer.result is not None and verdict["decision"] == "allow":
        also += _answered(thread, run, edited, answer, at)
    return [verdict, *also]


def _confirm(question: Question, result: pipeline.Decision, answer: Answer, old: Ticket) -> list[Verdict]:
    """With a quorum the others must confirm the edited arguments: a ticket that holds the editor's answer already."""
    thread, run, call, at = question.thread, question.run, question.call, question.at
    rules = tickets.requirements(question)
    asks = {call.id: result.asks}
    ticket = tickets.open_ticket(thread, run, [call], asks, rules, at, batch=False)
    if any(tickets.may(run, ticket, rule, [], answer.by, at) for rule in rules):
        ticket.answers.append({"by": answer.by, "at": at, "remember": "once"})
    if all(tickets.satisfied(run, ticket, rule) for rule in rules):
        thread.tickets.remove(ticket)
        answered = pipeline.decide(question, lambda f: f.source in ticket.asks[call.id] or f in result.lifted, again=True)
        verdict, also = calls.settle_decision(question, answered, answered=old)
        if answer.result is not None and verdict["decision"] == "allow":
            also += _answered(thread, run, call, answer, at)
        return [verdict, *also]
    effects.count_decider(question, result)
    verdict = {**pipeline.verdict_of(call.id, result), "ticket": ticket.name}
    return [effects.say(thread, run.id, verdict, at)]
