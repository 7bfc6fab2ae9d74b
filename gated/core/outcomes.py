"""Outcomes: the end of an admitted call, and what it settles: money, steps, machines, postconditions, retries."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gated.core import pipeline
from gated.core.order import engine, fields
from gated.core.order.templates import escape_text
from gated.core.redaction.vault import Unreadable
from gated.core.stages import breaker, ceilings, contracts, semantic
from gated.core.state import InFlight
from gated.core.turn import Turn, Unscored, may_speak
from gated.events import (
    AgentId,
    CallId,
    CallSettled,
    Finding,
    Move,
    OutcomeReported,
    Phase,
    Reading,
    Reminder,
    RunEnded,
    Status,
    UngatedExecution,
    Value,
)

TERMINAL = frozenset({Phase.ANSWERING, Phase.REJECTED, Phase.EXHAUSTED})


def report(turn: Turn, outcome: OutcomeReported) -> None:
    barred = _barred(turn, outcome)
    if barred is not None:
        turn.refuse(*barred, call=outcome.call)
        return
    run = turn.run
    entry = run.in_flight.get(outcome.call)
    if entry is None:
        _not_in_flight(turn, outcome)
    elif turn.at > entry.due:
        turn.refuse("lifecycle.already_settled", f"call `{outcome.call}` lapsed before its outcome came", outcome.call)
    else:
        cost = cost_of(turn, outcome, entry.tool, entry.reserved_microusd)
        said = (outcome.status, outcome.content, outcome.facts)
        settle(turn, outcome.call, *said, cost, outcome.tokens, reading=outcome.reading)


def _barred(turn: Turn, outcome: OutcomeReported) -> tuple[str, str] | None:
    by = outcome.by
    if by.role == "agent":
        barred = may_speak(turn, AgentId(by.name))
        if barred is not None:
            return barred
    if turn.opened is None:
        return "lifecycle.run_not_open", "there is no such run to report an outcome to"
    source = turn.profile.outcomes_from
    if source != (by.role if by.role == "agent" else str(by)):
        return "lifecycle.not_outcome_source", f"outcomes of this run come from `{source}`, not from `{by}`"
    return None


def _not_in_flight(turn: Turn, outcome: OutcomeReported) -> None:
    known = turn.run.known(outcome.call)
    if known is not None and known.state == "settled":
        turn.refuse("lifecycle.already_settled", f"call `{outcome.call}` has its outcome already", outcome.call)
        return
    if turn.run.ungated >= turn.policy.limits.max_refusals:
        turn.replies.append(UngatedExecution(call=outcome.call, status=outcome.status))
        return
    turn.do(UngatedExecution(call=outcome.call, status=outcome.status))
    if turn.profile.fail_ungated and not turn.profile.observed and not turn.run.end:
        reason = f"call `{outcome.call}` was executed without an allow verdict"
        turn.end(RunEnded(status="failed", phase=Phase.EXHAUSTED, reason=reason))


def cost_of(turn: Turn, outcome: OutcomeReported, tool: str, reserved: int) -> int:
    """At what a call is settled (µ$): real cost, at least the tool's floor; that nothing was spent the agent cannot say."""
    if outcome.status == "not_run":
        return reserved if outcome.by.role == "agent" else 0
    if outcome.cost_microusd is None:
        return reserved
    floor = 0 if turn.profile.privilege.budget.trust_costs else turn.policy.costs.get(tool, 0)
    return max(outcome.cost_microusd, floor)


def settle(
    turn: Turn,
    call: CallId,
    status: Status,
    content: Value,
    facts: dict[str, Value],
    cost_microusd: int,
    tokens: int,
    *,
    lapsed: bool = False,
    reading: Reading | None = None,
) -> None:
    """End an admitted call: apply its settlement, and end the run where that fails it."""
    run, state, profile = turn.run, turn.state, turn.profile
    entry = run.in_flight[call]
    moves: tuple[Move, ...] = ()
    reminders: tuple[Reminder, ...] = ()
    if entry.touches:
        admitting = turn.registry.known[entry.policy].profile(run.agent)
        moved = engine.settle(admitting.machines, state.order, turn.run_id, call, entry.touches, status, content, facts)
        moves = moved.moves
        reminders = () if ("order", True) in admitting.stages else moved.reminders  # what is observed never speaks
    stays = run.end or len(run.in_flight) > 1 or run.dfa.phase in TERMINAL
    breached = _breached(turn, entry, status, content, facts) if profile.contracts.any else ()
    summary = _text(content) if status == "error" and content is not None else ""
    rule, circuit = profile.breaker.rule(entry.tool), state.circuits.get(entry.tool)
    rules = turn.policy.semantic
    read = None if rules is None else _reading(turn, rules, call, entry.tool, status, content, facts, reading, lapsed)
    turn.do(
        CallSettled(
            call,
            status,
            cost_microusd,
            tokens,
            None if stays else Phase.OBSERVING,
            moves,
            reminders,
            lapsed,
            breached,
            summary,
            breaker.settle(rule, circuit, (turn.run_id, call), status, entry.due if lapsed else turn.at),
            read,
        )
    )
    if status == "error" or breached:
        _end_if_failed(turn, entry.tool, status, summary, breached)


def _reading(
    turn: Turn,
    rules: semantic.SemanticRules,
    call: CallId,
    tool: str,
    status: Status,
    content: Value,
    facts: dict[str, Value],
    reading: Reading | None,
    lapsed: bool,
) -> Reading | None:
    """What detectors made of the result; what they must still look at is noted for whoever can ask them."""
    if lapsed:
        return semantic.lost(rules, tool)
    result = [content, facts] if facts else content
    detectors = semantic.unread(rules, tool, result, reading)
    if detectors:
        turn.unscored += (Unscored(call, tool, result, detectors, result=True),)
    return semantic.read(rules, tool, status, result, reading)


def _breached(turn: Turn, entry: InFlight, status: Status, content: Value, facts: dict[str, Value]) -> tuple[Finding, ...]:
    """The postconditions that do not hold, of a stage that is enabled."""
    profile = turn.profile
    watched = dict(profile.stages).get("contracts")
    if watched is None or not profile.contracts.ensures(entry.tool):
        return ()
    view = pipeline.contract_view(profile, turn.run, turn.at)
    found = contracts.ensure(profile.contracts, view, entry.tool, _args(turn, entry), status, content, facts)
    return tuple(replace(finding, authoritative=False) for finding in found) if watched else found


def _args(turn: Turn, entry: InFlight) -> dict[str, Value]:
    """The arguments that a postcondition reads; sealed under a key of before, it reads their redaction, and does not hold."""
    try:
        return turn.reveal(entry.args or {}, entry.sealed, entry.tool)
    except Unreadable:
        if turn.must_open:
            raise
        return entry.args or {}


def _end_if_failed(turn: Turn, tool: str, status: Status, summary: str, breached: tuple[Finding, ...]) -> None:
    run, profile = turn.run, turn.profile
    if run.end or profile.observed:
        return
    limit = None if profile.ceilings_watched else profile.ceilings.max_retries
    if status == "error" and limit is not None and run.retry_count >= limit:
        turn.end(RunEnded(status="failed", phase=Phase.EXHAUSTED, reason=ceilings.retries_summary(summary)))
    elif breached and contracts.fails_run(profile.contracts, breached, tool):
        names = ", ".join(sorted({finding.contract or "" for finding in breached}))
        turn.end(RunEnded(status="failed", phase=Phase.EXHAUSTED, reason=f"postcondition broken: {names}"))


def _text(content: Any) -> str:
    """As patterns see it: a record has its keys sorted, and a replay must say the same."""
    return escape_text(fields.render(content), ceilings.MAX_SUMMARY)
