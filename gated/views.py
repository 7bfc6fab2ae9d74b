"""Runs as plain mappings for people's tools: what commands print and the API answers."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from gated.core.barriers.barrier import BarrierCall, successor
from gated.core.calls import reservation
from gated.core.pipeline import barrier_state
from gated.core.policy import Policy
from gated.core.stages import dcbf
from gated.core.state import ThreadState
from gated.events import RunId, TicketCall
from gated.ticket_views import ticket_views
from gated.units import rfc3339


def barriers_after(state: ThreadState, run_id: RunId, policy: Policy, call: TicketCall) -> dict[str, tuple[float, float]]:
    """Each barrier's value now, and if the call were admitted now."""
    run = state.runs[run_id]
    profile = policy.profile(run.agent)
    now = barrier_state(profile, run, state.tally, state.at, run.drift)
    reserved = reservation(policy, profile, call.tool, call.cost_microusd)
    after = successor(now, BarrierCall(call.tool, reserved, call.args_sha256), profile.dcbf.window)
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
        "metrics_by_machine": order.totals_of(),
        "reminders": {"tick": order.tick, "last": order.reminded_of()},
        "violations": to_builtins(order.violations),
        "waiting": [view for view in ticket_views(state) if view["run"] == run_id],
        "remembered": to_builtins((*state.remembered, *run.remembered)),
    }
