"""dcbf: discrete control barrier functions. The call is admitted only if no barrier is, or would be, left.

The safe set is where every barrier h_i(state) is at least 0. Admitted is a call when (1) every h_i is >= 0 now and (2)
h_i(next) >= h_i(now) - alpha(h_i(now)) for every barrier, alpha(h) = kappa * h^power.
INVARIANT: values are exact (`core.barriers`); there is no float before the finding that people read.
Codes: `dcbf.barrier`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from gated.core.barriers.barrier import (
    Barrier,
    BarrierCall,
    BarrierError,
    BarrierState,
    as_number,
    exact,
    successor,
)
from gated.core.barriers.entries import DEFAULT_NAMES, BarrierEntry, DcbfEntry
from gated.core.barriers.own import Functions, neural, own
from gated.core.barriers.standard import standard
from gated.core.headroom import Rooms, all_of, room_of
from gated.core.history import WINDOW, Tally
from gated.core.runview import View
from gated.events import Breach, Finding, Phase

STAGE: Final = "dcbf"


class DcbfRules(Struct, frozen=True):
    """`seeing` are the barriers that read the whole state; `barriers` are all, in order.

    `room` is where all the others are certainly kept, if that is known; `roomy`: it is, and there are no others.
    """

    barriers: tuple[Barrier, ...]
    seeing: tuple[Barrier, ...]
    room: Rooms | None
    roomy: bool
    verification: bool
    kappa: tuple[int, int]  # numerator and denominator
    power: int
    window: int
    per_call_microusd: int
    recent: bool  # some barrier reads the newest calls
    drift: bool  # the scope barrier reads embeddings


def compile_dcbf(
    entry: DcbfEntry, outbound: Iterable[str], per_call_microusd: int, functions: Functions = MappingProxyType({})
) -> DcbfRules:
    """Raises `BarrierError` with the path of the mistake inside `dcbf`.

    `outbound` are the tools that the policy marks so, `functions` those that its barriers in Python name.
    """
    barriers = standard(entry, outbound)
    original = barriers["scope"]
    for name in entry.remove:
        if name not in DEFAULT_NAMES:
            known = ", ".join(DEFAULT_NAMES)
            raise BarrierError(f"there is no barrier `{name}` to remove: it is one of {known}", "remove")
        barriers.pop(name, None)
    if entry.neural is not None:
        barriers["neural"] = neural("neural", BarrierEntry(), entry.neural)
    for name, added in entry.barriers.items():
        try:
            barriers[name] = own(name, added, functions)
        except ValueError as error:
            raise BarrierError(str(error), "barriers", name, *getattr(error, "path", ())) from error
    scale, (kappa,) = exact(entry.kappa)
    chosen = tuple(barriers.values())
    seeing = tuple(barrier for barrier in chosen if barrier.sees)
    plain = kappa == scale and entry.power == 1  # alpha(h) = h, so the condition is h(next) >= 0
    room = _room(chosen) if plain and entry.verification else None
    return DcbfRules(
        barriers=chosen,
        seeing=seeing,
        room=room,
        roomy=room is not None and not seeing,
        verification=entry.verification,
        kappa=(kappa, scale),
        power=entry.power,
        window=max(entry.safety.window, WINDOW),
        per_call_microusd=per_call_microusd,
        recent=any(barrier.recent for barrier in chosen),
        drift=entry.scope.embeddings is not None and barriers.get("scope") is original,
    )


def _room(barriers: Iterable[Barrier]) -> Rooms | None:
    """Where the barriers that read a tally are at least 0, now and once the call is admitted."""
    found = [(barrier.thread, barrier.room) for barrier in barriers if not barrier.sees]
    if any(room is None for _, room in found):
        return None
    return all_of(room_of(thread, room) for thread, room in found if room is not None)


def check(rules: DcbfRules, state: BarrierState, call: BarrierCall) -> tuple[Finding, ...]:
    """One denial that lists every breached barrier, or nothing."""
    room = rules.room
    clear = room is not None and room.hold(state.run, state.thread, call.tool, call.reserved_microusd)
    looked = rules.seeing if clear else rules.barriers
    if not looked:
        return ()
    after = successor(state, call, rules.window)
    breaches = tuple(b for b in (_breach(rules, barrier, state, after) for barrier in looked) if b is not None)
    if not breaches:
        return ()
    named = ", ".join(f"{b.barrier} {b.now:g} -> {b.next:g} (at least {b.bound:g})" for b in breaches)
    return (Finding(STAGE, "deny", "dcbf.barrier", f"barriers would be left: {named}", breaches=breaches),)


def _breach(rules: DcbfRules, barrier: Barrier, now: BarrierState, after: BarrierState) -> Breach | None:
    h, after_h = barrier.of(now), barrier.of(after)
    if h >= 0 and (not rules.verification or _holds(rules, barrier.scale, h, after_h)):
        return None
    return Breach(barrier.name, barrier.number(h), barrier.number(after_h), _bound(rules, barrier.scale, h))


def _holds(rules: DcbfRules, scale: int, h: int, after: int) -> bool:
    """h(next) - h(now) >= -alpha(h(now)), multiplied out to whole numbers."""
    kappa, denominator = rules.kappa
    return bool((after - h) * denominator * scale ** (rules.power - 1) >= -kappa * h**rules.power)


def _bound(rules: DcbfRules, scale: int, h: int) -> float:
    if h < 0 or not rules.verification:
        return 0.0
    kappa, denominator = rules.kappa
    value = Decimal(h) / scale
    return as_number(value - Decimal(kappa) / denominator * value**rules.power)


def get_barrier_values(rules: DcbfRules, state: BarrierState) -> dict[str, float]:
    """Every barrier's value in this state."""
    return {barrier.name: barrier.number(barrier.of(state)) for barrier in rules.barriers}


def evaluate_state(rules: DcbfRules, state: BarrierState) -> float:
    """The weighted average of the barriers. An average can mask a breach: decisions never rest on it."""
    total = math.fsum(b.weight for b in rules.barriers)
    if total == 0:
        return 0.0
    values = get_barrier_values(rules, state)
    return math.fsum(b.weight * values[b.name] for b in rules.barriers) / total


class Invariance:
    """How often the condition fails, counted as states and actions come. States already outside are skipped."""

    __slots__ = ("checks", "violations")

    def __init__(self) -> None:
        self.checks = self.violations = 0

    def feed(self, rules: DcbfRules, state: BarrierState, action: BarrierCall) -> tuple[Breach, ...]:
        """The barriers for which the condition fails here."""
        if any(barrier.of(state) < 0 for barrier in rules.barriers):
            return ()
        self.checks += 1
        breaches = tuple(breach for finding in check(rules, state, action) for breach in finding.breaches)
        self.violations += bool(breaches)
        return breaches

    def report(self) -> dict[str, Any]:
        return {
            "total_checks": self.checks,
            "violations": self.violations,
            "violation_rate": self.violations / self.checks if self.checks else 0.0,
            "forward_invariant": self.violations == 0,
        }


def verify_forward_invariance(rules: DcbfRules, states: Iterable[BarrierState], actions: Iterable[BarrierCall]) -> dict[str, Any]:
    """How often the condition fails over (state, action) pairs; states already outside are skipped."""
    counted = Invariance()
    for state, action in zip(states, actions, strict=True):
        counted.feed(rules, state, action)
    return counted.report()


def unsafe_at_start(rules: DcbfRules, agent: str) -> tuple[str, ...]:
    """The barriers that a run without calls, task and labels is already outside of."""
    state = _start(agent)
    return tuple(barrier.name for barrier in rules.barriers if barrier.of(state) < 0)


def left_at_once(rules: DcbfRules, agent: str) -> tuple[str, ...]:
    """The barriers that the first call of such a run leaves, whatever its tool."""
    outside = unsafe_at_start(rules, agent)
    found = check(rules, _start(agent), BarrierCall("", rules.per_call_microusd))
    return tuple(breach.barrier for finding in found for breach in finding.breaches if breach.barrier not in outside)


def _start(agent: str) -> BarrierState:
    nothing = Tally(0)
    return BarrierState(nothing, nothing, View(agent, Phase.IDLE, 0, nothing.counts, 0, None, {}, False, (), 0))
