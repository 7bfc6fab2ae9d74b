"""dcbf: discrete control barrier functions. The call is admitted only if no barrier is, or would be, left.

The safe set is where every barrier h_i(state) is at least 0. Admitted is a call when (1) every h_i is >= 0 now and (2)
h_i(next) >= h_i(now) - alpha(h_i(now)) for every barrier, alpha(h) = kappa * h^power.
INVARIANT: values are exact. A barrier computes in whole units of 1/scale, `scale` being a power of ten that holds every
decimal of its parameters; there is no float before the finding that people read.
A barrier reads a tally (of the run or of the thread) and nothing else, so its cost does not grow with the run.
Codes: `dcbf.barrier`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from gated.core.call import Call
from gated.core.history import Tally
from gated.events import Breach, Finding

STAGE: Final = "dcbf"

DEFAULT_PAIRS: Final = (
    ("sql_query", "http_request"),
    ("file_read", "send_email"),
    ("database_query", "webhook_post"),
)
DEFAULT_OUTBOUND: Final = ("send_email", "http_request")
PER_CALL_USD: Final = 0.01
DEFAULT_NAMES: Final = ("safety", "privacy", "resource", "scope", "stability")

Amount = float | int
Scope = Literal["run", "thread"]
Share = Annotated[float, Meta(ge=0)] | Annotated[int, Meta(ge=0)]


class SafetyEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    margin: Amount = 0.1
    window: Annotated[int, Meta(ge=2, le=1000)] = 5
    pairs: tuple[tuple[str, str], ...] = DEFAULT_PAIRS
    scope: Scope = "run"


class PrivacyEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    budget: Amount = 0.5
    per_call: Amount = 0.2
    tools: tuple[str, ...] | None = None
    scope: Scope = "run"


class ResourceEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit_usd: Amount = 10.0
    per_call_cost_usd: Share = PER_CALL_USD
    scope: Scope = "run"


class DriftEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_drift: Amount = 0.8
    scope: Scope = "run"


class StabilityEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    step_budget: Annotated[int, Meta(ge=0)] = 50
    scope: Scope = "run"


class CounterEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tools: tuple[str, ...]
    per_call: Amount
    budget: Amount


class BarrierEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An added barrier. `margin` is subtracted from its value; `weight` counts in the composite only."""

    counter: CounterEntry
    weight: Share = 1.0
    margin: Amount = 0.0
    scope: Scope = "run"


class DcbfEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`dcbf:` of an agent in the policy file."""

    verification: bool = True
    kappa: Annotated[float, Meta(gt=0, le=1)] | Annotated[int, Meta(ge=1, le=1)] = 1.0
    power: Annotated[int, Meta(ge=1, le=16)] = 1
    safety: SafetyEntry = SafetyEntry()
    privacy: PrivacyEntry = PrivacyEntry()
    resource: ResourceEntry = ResourceEntry()
    scope: DriftEntry = DriftEntry()
    stability: StabilityEntry = StabilityEntry()
    remove: tuple[str, ...] = ()
    barriers: dict[str, BarrierEntry] = {}


class Barrier(Struct, frozen=True):
    """`value(tally)` is h in units of 1/`scale`, its margin already taken off.

    `clear(tally, tool, reserved)`: whether h is certainly at least 0 now and once the call is admitted, without making the
    tally of then. It may say no where that is not certain, never yes.
    """

    name: str
    value: Callable[[Tally], int]
    clear: Callable[[Tally, str, int], bool]
    scale: int
    thread: bool = False
    weight: float = 1.0

    def number(self, units: int) -> float:
        """Units as the decimal that people read."""
        return float(Decimal(units) / Decimal(self.scale))


class DcbfRules(Struct, frozen=True):
    barriers: tuple[Barrier, ...]
    verification: bool
    kappa: tuple[int, int]  # numerator and denominator
    power: int
    window: int
    per_call_microusd: int
    plain: bool  # alpha(h) = h, so the condition is h(next) >= 0
    thread: bool  # some barrier reads the thread's tally


class Tallies(Struct, frozen=True):
    """What the stage sees: the tally of the run and that of its thread."""

    run: Tally
    thread: Tally


def exact(*amounts: Amount | str) -> tuple[int, tuple[int, ...]]:
    """A power of ten under which every amount is whole, and the amounts in it. Raises `ValueError` if not finite."""
    decimals = [Decimal(str(amount)) for amount in amounts]
    if not all(d.is_finite() for d in decimals):
        raise ValueError(f"`{amounts}` is not finite")
    places = max(0, *(-int(d.normalize().as_tuple().exponent) for d in decimals))
    return 10**places, tuple(int(d.scaleb(places)) for d in decimals)


def compile_dcbf(entry: DcbfEntry, outbound: Iterable[str], per_call_microusd: int) -> DcbfRules:
    """`outbound` are the tools that the policy marks so; they count for privacy unless it names its own."""
    barriers = {
        "safety": _safety(entry.safety),
        "privacy": _privacy(entry.privacy, outbound),
        "resource": _resource(entry.resource),
        "scope": _scope(entry.scope),
        "stability": _stability(entry.stability),
    }
    for name in entry.remove:
        barriers.pop(name, None)
    for name, added in entry.barriers.items():
        barriers[name] = _counter(name, added)
    scale, (kappa,) = exact(entry.kappa)
    return DcbfRules(
        barriers=tuple(barriers.values()),
        verification=entry.verification,
        kappa=(kappa, scale),
        power=entry.power,
        window=entry.safety.window,
        per_call_microusd=per_call_microusd,
        plain=kappa == scale and entry.power == 1,
        thread=any(barrier.thread for barrier in barriers.values()),
    )


def _safety(entry: SafetyEntry) -> Barrier:
    """1 - margin while no dangerous pair is inside the window, else -margin."""
    scale, (margin,) = exact(entry.margin)
    partners: dict[str, set[str]] = {}
    for a, b in entry.pairs:
        partners.setdefault(a, set()).add(b)
        partners.setdefault(b, set()).add(a)
    window, watched = entry.window, frozenset(partners)

    def clear(tally: Tally, tool: str, reserved: int) -> bool:
        return tool not in watched and margin <= scale and watched.isdisjoint(tally.recent)

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

    return Barrier("safety", value, clear, scale, entry.scope == "thread")


def _privacy(entry: PrivacyEntry, outbound: Iterable[str]) -> Barrier:
    tools = entry.tools if entry.tools is not None else (*DEFAULT_OUTBOUND, *outbound)
    scale, (budget, per_call) = exact(entry.budget, entry.per_call)
    return Barrier("privacy", *_count(tools, budget, per_call), scale, entry.scope == "thread")


def _counter(name: str, entry: BarrierEntry) -> Barrier:
    counter = entry.counter
    scale, (budget, per_call, margin) = exact(counter.budget, counter.per_call, entry.margin)
    value, clear = _count(counter.tools, budget - margin, per_call)
    return Barrier(name, value, clear, scale, entry.scope == "thread", float(entry.weight))


def _count(tools: Iterable[str], budget: int, per_call: int) -> tuple[Callable[[Tally], int], Callable[[Tally, str, int], bool]]:
    names = tuple(dict.fromkeys(tools))
    counted = frozenset(names)

    def clear(tally: Tally, tool: str, reserved: int) -> bool:
        h = value(tally)
        return h >= 0 and (tool not in counted or h >= per_call)

    def value(tally: Tally) -> int:
        counts = tally.counts
        total = 0
        for name in names:
            total += counts.get(name, 0)
        return budget - per_call * total

    return value, clear


def _resource(entry: ResourceEntry) -> Barrier:
    scale, (limit, micro) = exact(entry.limit_usd, "0.000001")

    def value(tally: Tally) -> int:
        return limit - micro * tally.cost_microusd

    def clear(tally: Tally, tool: str, reserved: int) -> bool:
        return limit >= micro * (tally.cost_microusd + reserved)  # costs are never negative, so it was then, too

    return Barrier("resource", value, clear, scale, entry.scope == "thread")


def _scope(entry: DriftEntry) -> Barrier:
    """Inert while no embeddings are recorded: its value is the drift that is allowed."""
    scale, (drift,) = exact(entry.max_drift)
    return Barrier("scope", lambda tally: drift, lambda tally, tool, reserved: drift >= 0, scale, entry.scope == "thread")


def _stability(entry: StabilityEntry) -> Barrier:
    budget = entry.step_budget

    def value(tally: Tally) -> int:
        return budget - tally.steps - tally.in_flight

    def clear(tally: Tally, tool: str, reserved: int) -> bool:
        return tally.steps + tally.in_flight < budget

    return Barrier("stability", value, clear, 1, entry.scope == "thread")


def check(rules: DcbfRules, view: Tallies, call: Call) -> tuple[Finding, ...]:
    """One denial that lists every breached barrier, or nothing."""
    run, thread = view.run, view.thread
    if rules.plain and rules.verification and _clear(rules, run, thread, call.tool, call.reserved_microusd):
        return ()
    run_after = run.admit(call.tool, call.reserved_microusd, rules.window)
    thread_after = thread.admit(call.tool, call.reserved_microusd, rules.window) if rules.thread else run_after
    breaches: list[Breach] = []
    for barrier in rules.barriers:
        now, after = (thread, thread_after) if barrier.thread else (run, run_after)
        h, after_h = _value(barrier, now), _value(barrier, after)
        if h < 0 or (rules.verification and not _holds(rules, barrier.scale, h, after_h)):
            bound = _bound(rules, barrier.scale, h)
            breaches.append(Breach(barrier.name, barrier.number(h), barrier.number(after_h), bound))
    if not breaches:
        return ()
    named = ", ".join(f"{b.barrier} {b.now:g} -> {b.next:g} (at least {b.bound:g})" for b in breaches)
    return (Finding(STAGE, "deny", "dcbf.barrier", f"barriers would be left: {named}", breaches=tuple(breaches)),)


def _clear(rules: DcbfRules, run: Tally, thread: Tally, tool: str, reserved: int) -> bool:
    """The usual case, at its price: alpha(h) = h, and every barrier is at least 0 now and after."""
    try:
        for barrier in rules.barriers:
            if not barrier.clear(thread if barrier.thread else run, tool, reserved):
                return False
    except Exception:
        return False
    return True


def _value(barrier: Barrier, tally: Tally) -> int:
    """h, or -1 where the barrier raises: what cannot be computed is not safe."""
    try:
        value = barrier.value(tally)
    except Exception:
        return -barrier.scale
    return value if value.__class__ is int else -barrier.scale


def _holds(rules: DcbfRules, scale: int, h: int, after: int) -> bool:
    """h(next) - h(now) >= -alpha(h(now)), multiplied out to whole numbers."""
    kappa, denominator = rules.kappa
    return bool((after - h) * denominator * scale ** (rules.power - 1) >= -kappa * h**rules.power)


def _bound(rules: DcbfRules, scale: int, h: int) -> float:
    if h < 0 or not rules.verification:
        return 0.0
    kappa, denominator = rules.kappa
    value = Decimal(h) / scale
    return float(value - Decimal(kappa) / denominator * value**rules.power)


def get_barrier_values(rules: DcbfRules, view: Tallies) -> dict[str, float]:
    """Every barrier's value in this state."""
    tallies = (view.run, view.thread)
    return {b.name: b.number(_value(b, tallies[b.thread])) for b in rules.barriers}


def evaluate_state(rules: DcbfRules, view: Tallies) -> float:
    """The weighted average of the barriers. An average can mask a breach: decisions never rest on it."""
    total = math.fsum(b.weight for b in rules.barriers)
    if total == 0:
        return 0.0
    values = get_barrier_values(rules, view)
    return math.fsum(b.weight * values[b.name] for b in rules.barriers) / total


def verify_forward_invariance(rules: DcbfRules, states: Iterable[Tallies], actions: Iterable[Call]) -> Mapping[str, Any]:
    """How often the condition fails over recorded (state, action) pairs; states already outside are skipped."""
    checks = violations = 0
    for state, action in zip(states, actions, strict=True):
        tallies = (state.run, state.thread)
        if any(_value(b, tallies[b.thread]) < 0 for b in rules.barriers):
            continue
        checks += 1
        violations += bool(check(rules, state, action))
    return {
        "total_checks": checks,
        "violations": violations,
        "violation_rate": violations / checks if checks else 0.0,
        "forward_invariant": violations == 0,
    }
