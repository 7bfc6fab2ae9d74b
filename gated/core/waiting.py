"""Opening a ticket: what a suspended call, or an atomic batch with one, waits for."""

from __future__ import annotations

from msgspec.structs import replace

from gated.core import approval_rules, pipeline, tickets
from gated.core.call import Call
from gated.core.turn import Turn
from gated.core.verdicts import Judged
from gated.events import AnswerRule, Ask, CallId, Finding, TicketCall, TicketOpened


def ticket_for(turn: Turn, judged: tuple[Judged, ...], *, atomic: bool, edited: bool = False) -> TicketOpened:
    """The ticket that lists these calls, with the asks of those of them that ask."""
    run, policy, profile = turn.run, turn.policy, turn.profile
    excluded = (run.agent, *((profile.owner,) if profile.owner else ()))
    view = pipeline.contract_view(profile, run, turn.at)
    rules: list[AnswerRule] = []
    times: list[int] = []
    for item in judged:
        if item.asks:
            own, timeout = approval_rules.rules_for(policy.approvals, view, item.call.tool, item.call.args, excluded)
            rules.extend(replace(rule, call=item.call.id) if atomic else rule for rule in own)
            times.append(timeout)
    calls = tuple(_ticket_call(item.call) for item in judged)
    number = 1 + len(tickets.tickets_of(run.tickets, turn.state.thread, turn.run_id, calls[0].call))
    expires_at = turn.at + min(times)
    escalations = [turn.at + rule.escalate_after for rule in rules if rule.escalate_after]
    return TicketOpened(
        ticket=tickets.ticket_id(turn.state.thread, turn.run_id, calls[0].call, number),
        calls=calls,
        args_sha256=tickets.batch_digest(calls),
        asks=tuple(_ask(finding, item.call.id, atomic) for item in judged for finding in item.asks),
        rules=tuple(rules),
        opened_at=turn.at,
        expires_at=expires_at,
        soon_at=turn.at + int(min(times) * tickets.SOON),
        escalate_at=min(escalations, default=None),
        atomic=atomic,
        edited=edited,
    )


def _ticket_call(call: Call) -> TicketCall:
    return TicketCall(
        call=call.id,
        tool=call.tool,
        args=call.args,
        args_sha256=call.args_sha256,
        parent=call.parent,
        cost_microusd=call.estimate_microusd,
        nesting="explicit" if call.nesting == "explicit" else "inferred",
        scores=None if call.scores is None else dict(call.scores),
        embedding=call.embedding,
    )


def _ask(finding: Finding, call: CallId, atomic: bool) -> Ask:
    return Ask(
        source=pipeline.source_of(finding),
        stage=finding.stage,
        code=finding.code,
        reason=finding.reason,
        call=call if atomic else None,
        machine=finding.machine,
        key=finding.key,
    )
