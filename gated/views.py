"""Runs, tickets and verdicts as plain mappings for people's tools: what commands print and the API answers."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins

from gated import canonical
from gated.core.barriers.barrier import successor
from gated.core.calls import call_of
from gated.core.order.templates import escape_text
from gated.core.pipeline import barrier_state
from gated.core.policy import Policy
from gated.core.stages import dcbf
from gated.core.state import RunState, ThreadState
from gated.core.tickets import Ticket
from gated.core.verdicts import Plea
from gated.events import Answer, AnswerRule, Ask, RunId, ThreadId, TicketCall
from gated.units import rfc3339

PREVIEW = 240  # characters


class OpenTicket(Struct, frozen=True):
    """An open ticket in a list: who asks for what and why, who may answer, until when (µs); the arguments only in part."""

    ticket: str
    thread: str
    run: str
    agent: str
    policy: str
    tool: str
    calls: int
    preview: str
    args_bytes: int
    args_sha256: str
    asks: tuple[Ask, ...]
    rules: tuple[AnswerRule, ...]
    answers: tuple[Answer, ...]
    escalated: bool
    soon: bool
    undelivered: tuple[str, ...]
    opened_at: int
    expires_at: int


def open_ticket(thread: ThreadId, run_id: RunId, run: RunState, ticket: Ticket) -> OpenTicket:
    """The line of a list that a ticket is."""
    text = canonical.encode(ticket.calls[0].args)
    size = len(text) + sum(len(canonical.encode(call.args)) for call in ticket.calls[1:])
    return OpenTicket(
        ticket=ticket.id,
        thread=thread,
        run=run_id,
        agent=run.agent,
        policy=run.policy,
        tool=ticket.calls[0].tool,
        calls=len(ticket.calls),
        preview=escape_text(text[: 4 * PREVIEW].decode(errors="ignore"), PREVIEW),
        args_bytes=size,
        args_sha256=ticket.args_sha256,
        asks=ticket.asks,
        rules=ticket.rules,
        answers=ticket.answers,
        escalated=ticket.escalated,
        soon=ticket.soon,
        undelivered=ticket.undelivered,
        opened_at=ticket.opened_at,
        expires_at=ticket.expires_at,
    )


def barriers_after(state: ThreadState, run_id: RunId, policy: Policy, call: TicketCall) -> dict[str, tuple[float, float]]:
    """Each barrier's value now, and if the call were admitted now."""
    run = state.runs[run_id]
    profile = policy.profile(run.agent)
    now = barrier_state(profile, run, state.tally, state.at, run.drift)
    plea = Plea(call.call, call.tool, call.args, call.args_sha256, call.parent, call.cost_microusd, call.nesting, 0)
    after = successor(now, call_of(policy, profile, plea), profile.dcbf.window)
    values = dcbf.get_barrier_values(profile.dcbf, after)
    return {name: (value, values[name]) for name, value in dcbf.get_barrier_values(profile.dcbf, now).items()}


def run_view(state: ThreadState, run_id: RunId, policy: Policy) -> dict[str, Any]:
    """One run as it stands."""
    run = state.runs[run_id]
    profile = policy.profile(run.agent)
    order, own = state.order, run.own
    return {
        "thread": state.thread,
        "run": run_id,
        "agent": run.agent,
        "task": run.task,
        "labels": run.labels,
        "policy": run.policy,
        "opened_at": rfc3339(run.tally.opened_at),
        "phase": str(run.phase),
        "status": run.end or "open",
        "reason": run.reason,
        "failed": run.failed,
        "step_count": run.step_count,
        "hop_count": run.hop_count,
        "retry_count": run.retry_count,
        "call_count": own.calls,
        "in_flight": sorted(run.in_flight),
        "loop_count": {"ACTING": run.dfa.loops},
        "cost_usd": own.cost_microusd / 1e6,
        "tokens": own.tokens,
        "counts": {tool: own.counts[tool] for tool in sorted(own.counts)},
        "barriers": dcbf.get_barrier_values(profile.dcbf, barrier_state(profile, run, state.tally, state.at, run.drift)),
        "machines": order.view(run_id),
        "metrics": order.totals(),
        "violations": to_builtins(order.violations),
        "waiting": [view for view in ticket_views(state) if view["run"] == run_id],
        "remembered": to_builtins((*state.remembered, *run.remembered)),
    }


def ticket_views(state: ThreadState) -> list[dict[str, Any]]:
    """The tickets of a thread that wait for people, oldest first."""
    found = [
        {
            "ticket": ticket.id,
            "thread": state.thread,
            "run": run_id,
            "agent": run.agent,
            "tool": ticket.calls[0].tool,
            "calls": [{"call": c.call, "tool": c.tool, "args": c.args, "args_sha256": c.args_sha256} for c in ticket.calls],
            "args_sha256": ticket.args_sha256,
            "asks": to_builtins(ticket.asks),
            "rules": to_builtins(ticket.rules),
            "answers": to_builtins(ticket.answers),
            "undelivered": list(ticket.undelivered),
            "opened_at": rfc3339(ticket.opened_at),
            "expires_at": rfc3339(ticket.expires_at),
        }
        for run_id, run in state.runs.items()
        for ticket in run.tickets.values()
        if ticket.state == "pending"
    ]
    return sorted(found, key=lambda view: (view["opened_at"], view["ticket"]))
