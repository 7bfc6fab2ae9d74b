"""The five barriers that every agent has unless its policy says otherwise, and the counter that policies add.

Each reads a tally and nothing else, so its cost does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gated.core.barriers.barrier import NOT_COMPARABLE, Barrier, BarrierState, exact
from gated.core.barriers.entries import (
    BarrierEntry,
    CounterEntry,
    DcbfEntry,
    DriftEntry,
    PrivacyEntry,
    ResourceEntry,
    SafetyEntry,
    StabilityEntry,
)
from gated.core.headroom import Headroom
from gated.core.history import Tally

DEFAULT_OUTBOUND: Final = ("send_email", "http_request")


def standard(entry: DcbfEntry, outbound: Iterable[str]) -> dict[str, Barrier]:
    """`outbound` are the tools that the policy marks so; they count for privacy unless it names its own."""
    return {
        "safety": _safety(entry.safety),
        "privacy": _privacy(entry.privacy, outbound),
        "resource": _resource(entry.resource),
        "scope": _scope(entry.scope),
        "stability": _stability(entry.stability),
    }


def _safety(entry: SafetyEntry) -> Barrier:
    """1 - margin while no dangerous pair is inside the window, else -margin."""
    scale, (margin,) = exact(entry.margin)
    partners: dict[str, set[str]] = {}
    for a, b in entry.pairs:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    window, watched = entry.window, frozenset(partners)

    def value(tally: Tally) -> int:
        recent = tally.recent
        if watched.isdisjoint(recent):
            return scale - margin
        recent = recent[-window:]
        for position, tool in enumerate(recent):
            others = partners.get(tool)
            if others and any(other in others for other in recent[position + 1 :]):
                return -margin
        return scale - margin

    return Barrier("safety", value, Headroom(apart=watched) if margin <= scale else None, scale, entry.scope == "thread")


def _privacy(entry: PrivacyEntry, outbound: Iterable[str]) -> Barrier:
    tools = entry.tools if entry.tools is not None else (*DEFAULT_OUTBOUND, *outbound)
    scale, (budget, per_call) = exact(entry.budget, entry.per_call)
    return Barrier("privacy", *_count(tools, budget, per_call), scale, entry.scope == "thread")


def counter(name: str, entry: BarrierEntry, rule: CounterEntry) -> Barrier:
    """budget - margin - per_call for each admitted call of the tools."""
    scale, (budget, per_call, margin) = exact(rule.budget, rule.per_call, entry.margin)
    return Barrier(name, *_count(rule.tools, budget - margin, per_call), scale, entry.scope == "thread", float(entry.weight))


def _count(tools: Iterable[str], budget: int, per_call: int) -> tuple[Callable[[Tally], int], Headroom | None]:
    names = tuple(dict.fromkeys(tools))

    def value(tally: Tally) -> int:
        counts = tally.counts
        total = 0
        for name in names:
            total += counts.get(name, 0)
        return budget - per_call * total

    if per_call <= 0:
        return value, Headroom() if per_call == 0 <= budget else None
    return value, Headroom(counted=((names, budget // per_call),))


def _resource(entry: ResourceEntry) -> Barrier:
    scale, (limit, micro) = exact(entry.limit_usd, "0.000001")

    def value(tally: Tally) -> int:
        return limit - micro * tally.cost_microusd

    return Barrier("resource", value, Headroom(cost=limit // micro), scale, entry.scope == "thread")


def _scope(entry: DriftEntry) -> Barrier:
    """max_drift - (1 - cosine(task, call)); max_drift while one of them has no embedding."""
    scale, (most, unit) = exact(entry.max_drift, "0.000001")
    if entry.embeddings is None:
        return Barrier("scope", lambda tally: most, Headroom() if most >= 0 else None, scale, entry.scope == "thread")

    def value(state: BarrierState) -> int:
        if state.drift == NOT_COMPARABLE:
            raise ValueError("the embeddings of the task and of the call cannot be compared")
        return most - unit * (state.drift or 0)

    return Barrier("scope", value, None, scale, entry.scope == "thread", sees=True)


def _stability(entry: StabilityEntry) -> Barrier:
    budget = entry.step_budget

    def value(tally: Tally) -> int:
        return budget - tally.steps - tally.in_flight

    return Barrier("stability", value, Headroom(load=budget), 1, entry.scope == "thread")
