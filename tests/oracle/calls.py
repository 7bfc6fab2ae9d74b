"""Intents, one by one and as an atomic batch. decisions.md §2, Batches; §3, ids."""

from __future__ import annotations

import copy

from oracle import effects, pipeline, tickets
from oracle.effects import Verdict
from oracle.findings import Finding, Question
from oracle.history import Call, Run, Thread, Ticket
from oracle.pipeline import Decision


def lifted(thread: Thread, run: Run, call: Call, finding: Finding) -> bool:
    """An answer given before: of this call's approved tickets, or remembered."""
    return tickets.lifted_by_tickets(thread, run, call, finding) or tickets.lifted_by_memory(thread, run, call, finding)


def decide(question: Question, *, again: bool = False) -> Decision:
    return pipeline.decide(question, lambda f: lifted(question.thread, question.run, question.call, f), again=again)


def one(thread: Thread, run: Run, call: Call, at: int) -> tuple[Verdict, list[Verdict]]:
    """A call of a message in mode `each`; and the verdicts on other calls that follow."""
    known = known_verdict(thread, run, call)
    if known is not None:
        return known, []
    run.calls[call.id] = call
    question = Question(thread, run, call, at)
    result = decide(question)
    effects.hop(question, result)
    return settle_decision(question, result)


def known_verdict(thread: Thread, run: Run, call: Call) -> Verdict | None:
    """The same id with the same tool and arguments: the recorded verdict; with others: refused."""
    before = run.calls.get(call.id)
    if before is None:
        return None
    if (before.tool, before.asked_args) != (call.tool, call.asked_args):
        return {"call": call.id, "refused": "ingress.id_conflict"}
    return {**thread.verdict(run.id, call.id), "replayed": True}


def settle_decision(question: Question, result: Decision, *, answered: Ticket | None = None) -> tuple[Verdict, list[Verdict]]:
    """What a decision on one call does: admit, deny, or open a ticket. The verdict carries the ticket it answers."""
    thread, run, call, at = question.thread, question.run, question.call, question.at
    verdict, also = pipeline.verdict_of(call.id, result), list[Verdict]()
    verdict["ticket"] = answered.name if answered is not None else None
    if result.decision == "allow":
        effects.admit(question, result)
    elif result.decision == "deny":
        effects.say(thread, run.id, verdict, at)
        return verdict, effects.deny(question, result, again=answered is not None)
    else:
        effects.count_decider(question, result)
        rules = tickets.requirements(question)
        verdict["ticket"] = tickets.open_ticket(thread, run, [call], {call.id: result.asks}, rules, at, batch=False).name
    effects.say(thread, run.id, verdict, at)
    return verdict, also


def atomic(
    thread: Thread, run_id: str, calls: list[Call], at: int, *, refused: bool
) -> tuple[Thread, list[Verdict], list[Verdict]]:
    """The thread as it is afterwards, the verdict on each well-shaped call, and those on other calls.

    ambiguous, each read so: every member is decided, and each denial stands. A suspended member holds no place on the
    copy. A known member is answered from the record; one that was not allowed keeps the rest out. The shape of the
    message comes before all else, so that with a refused member no stage decides: but an end of the run, a limit of it
    and its hops hold, as they do for whatever is asked.
    """
    run = thread.runs[run_id]
    answers = [known_verdict(thread, run, call) for call in calls]
    unknown = [call for call, known in zip(calls, answers, strict=True) if known is None]
    new = [call for position, call in enumerate(unknown) if all(call.id != before.id for before in unknown[:position])]
    repeated = [call for call in unknown if not any(call is first for first in new)]
    conflict = any(known is not None and "refused" in known for known in answers)
    conflict = conflict or any((c.tool, c.args) != (n.tool, n.args) for c in repeated for n in new if n.id == c.id)
    held = any(known is not None and known.get("decision") in ("deny", "suspend") for known in answers)
    out_of_shape = refused or conflict
    kept_out: tuple[str, str] | None = None
    trial, results = _try(thread, run_id, new, at, beside_refused=out_of_shape)
    if out_of_shape or held or any(r.decision == "deny" for r in results.values()):
        kept_out = ("batch.sibling_denied", "another call of the batch was denied")
    if kept_out is None and all(r.decision == "allow" for r in results.values()):
        thread, also = trial, list[Verdict]()
        verdicts = {call.id: thread.verdict(run_id, call.id) for call in new}
    else:
        verdicts, also = _not_admitted(thread, run, new, results, kept_out, at)
    return (
        thread,
        [_answer(thread, run_id, call, known, verdicts, repeated) for call, known in zip(calls, answers, strict=True)],
        also,
    )


def _answer(
    thread: Thread, run: str, call: Call, known: Verdict | None, verdicts: dict[str, Verdict], repeated: list[Call]
) -> Verdict:
    if known is not None or any(call is again for again in repeated):
        answer = known_verdict(thread, thread.runs[run], call)
        assert answer is not None
        return answer
    return verdicts[call.id]


def _beside_refused(result: Decision) -> Decision:
    """With a refused member no stage of the pipeline is heard."""
    if result.deciding is not None and result.deciding.stage in ("lifecycle", "ceilings"):
        return result
    finding = Finding("batch", "deny", "batch.sibling_refused", "another call of the batch was refused")
    return Decision("deny", finding, findings=[finding])


def _try(
    thread: Thread,
    run_id: str,
    calls: list[Call],
    at: int,
    *,
    answered: Ticket | None = None,
    beside_refused: bool = False,
) -> tuple[Thread, dict[str, Decision]]:
    """Decided in order on a copy, where what is allowed is admitted and a denial moves nothing but hops."""
    trial, results = copy.deepcopy(thread), {}
    run = trial.runs[run_id]
    for call in calls:
        run.calls[call.id] = call
        question = Question(trial, run, call, at)
        result = decide(question, again=answered is not None)
        result = results[call.id] = _beside_refused(result) if beside_refused else result
        if answered is None:
            effects.hop(question, result)
        if result.decision == "allow":
            effects.admit(question, result)
            ticket = answered.name if answered is not None else None
            effects.say(trial, run_id, {**pipeline.verdict_of(call.id, result), "ticket": ticket}, at)
        elif result.deciding is not None and result.deciding.code == "ceilings.hops":
            effects.fail(trial, run_id, result.deciding.reason, at)
    return trial, results


def _not_admitted(
    thread: Thread,
    run: Run,
    calls: list[Call],
    results: dict[str, Decision],
    kept_out: tuple[str, str] | None,
    at: int,
    *,
    answered: Ticket | None = None,
) -> tuple[dict[str, Verdict], list[Verdict]]:
    """Nothing but hops moves; or one ticket, listed by all its calls."""
    verdicts: dict[str, Verdict] = {}
    for call in calls:
        run.calls[call.id] = call
        result = results[call.id]
        effects.hop(Question(thread, run, call, at), result)
        if result.decision == "deny" or (result.decision == "suspend" and kept_out is None):
            verdicts[call.id] = pipeline.verdict_of(call.id, result)
        elif kept_out is not None:
            verdicts[call.id] = pipeline.refused_verdict(call.id, "batch", *kept_out)
        else:
            waits = Finding("batch", "ask", "batch.sibling_suspended", "another call of the batch waits for approval")
            verdicts[call.id] = pipeline.verdict_of(call.id, Decision("suspend", waits))
    name = answered.name if answered is not None else None
    if kept_out is None:
        name = open_batch_ticket(thread, run, calls, results, at)
    verdicts = {call: {**verdict, "ticket": name} for call, verdict in verdicts.items()}
    for verdict in verdicts.values():
        effects.say(thread, run.id, verdict, at)
    stopped = next((r.deciding for r in results.values() if r.deciding and r.deciding.code == "ceilings.hops"), None)
    return verdicts, effects.fail(thread, run.id, stopped.reason, at) if stopped else []


def open_batch_ticket(thread: Thread, run: Run, calls: list[Call], results: dict[str, Decision], at: int) -> str:
    """Approved when the rule of every asking call is satisfied."""
    rules = []
    for call in calls:
        if results[call.id].asks:
            question = Question(thread, run, call, at)
            effects.count_decider(question, results[call.id])
            rules += tickets.requirements(question)
    asks = {call.id: results[call.id].asks for call in calls}
    return tickets.open_ticket(thread, run, calls, asks, rules, at, batch=True).name


def again_atomic(thread: Thread, run_id: str, ticket: Ticket, at: int) -> tuple[Thread, list[Verdict]]:
    """An approved batch: decided again as one, on the state of now."""
    ids = ticket.calls
    calls = [thread.runs[run_id].calls[i] for i in ids]
    trial, results = _try(thread, run_id, calls, at, answered=ticket)
    if all(r.decision == "allow" for r in results.values()):
        return trial, [trial.verdict(run_id, i) for i in ids]
    denied = any(r.decision == "deny" for r in results.values())
    kept_out = ("batch.sibling_denied", "another call of the batch was denied") if denied else None
    hops_before = len(thread.log)
    verdicts, _ = _not_admitted(thread, thread.runs[run_id], calls, results, kept_out, at, answered=ticket)
    thread.log = [e for i, e in enumerate(thread.log) if i < hops_before or e.kind != "hop"]
    return thread, list(verdicts.values())
