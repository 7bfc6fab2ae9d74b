"""A barrier: a function of the state that must stay at least 0, computed in whole units of 1/scale.

INVARIANT: values are exact. `scale` is a power of ten that holds every decimal of a barrier's parameters; what an author's
own function gives is rounded down to 10^-9, so that no float dust makes a state safe.
A standard barrier reads a tally and nothing else; one of an author's reads the whole `BarrierState`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Final

from msgspec import Struct

from gated.core.barriers.entries import Amount
from gated.core.headroom import Headroom
from gated.core.history import RECENT, Tally
from gated.core.runview import View
from gated.events import Phase

NOT_COMPARABLE: Final = -1  # a drift: the task and the call have embeddings of different models
FINE: Final = 10**9  # units of an author's own barrier
_LARGEST: Final = Decimal(sys.float_info.max)


class BarrierError(ValueError):
    """A mistake in `dcbf:` of the policy; `path` leads to it."""

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.path = path


class BarrierState(Struct, frozen=True, gc=False):
    """What barriers are computed from: the tallies of the run and of its thread, and the run itself.

    `view` is None where no barrier of the agent reads it; its numbers are those of `run`. Calls in flight count in all of it.
    `drift` is how far the call in question, or the newest one, is from the task: 1 - cosine in millionths, None where there
    are no embeddings.
    """

    run: Tally
    thread: Tally
    view: View | None = None
    drift: int | None = None

    def seen(self, of_thread: bool) -> View:
        """The run as an author's barrier sees it; `of_thread`: with the numbers of all runs of the thread."""
        if self.view is None:
            raise ValueError("this state has no view of the run")
        return numbered(self.view, self.thread) if of_thread else self.view


def numbered(view: View, tally: Tally) -> View:
    """The view with the numbers of a tally, calls in flight counted."""
    return View(
        view.agent,
        view.phase,
        tally.steps + tally.in_flight,
        tally.counts,
        tally.cost_microusd,
        view.task,
        view.labels,
        view.failed,
        view.recent,
        view.at,
    )


class BarrierCall(Struct, frozen=True, gc=False):
    """What barriers see of a call that is to be admitted."""

    tool: str
    reserved_microusd: int
    args_sha256: str = ""


def successor(state: BarrierState, call: BarrierCall, window: int) -> BarrierState:
    """The state with the call appended: in the tallies, the newest of `recent`, phase ACTING.

    Embeddings stay: the call's own is in `state` already.
    """
    tool, reserved, view = call.tool, call.reserved_microusd, state.view
    run = state.run.admit(tool, reserved, window)
    thread = run if state.run is state.thread else state.thread.admit(tool, reserved, window)
    if view is not None:
        view = View(
            view.agent,
            Phase.ACTING,
            run.steps + run.in_flight,
            run.counts,
            run.cost_microusd,
            view.task,
            view.labels,
            view.failed,
            (*view.recent[1 - RECENT :], (tool, "in_flight", call.args_sha256)),
            view.at,
        )
    return BarrierState(run, thread, view, state.drift)


class Barrier(Struct, frozen=True, gc=False):
    """`value` gives h in units of 1/`scale`, its margin already taken off: of a tally, or, where it `sees`, of the state.

    `room` is how far h is certainly at least 0, now and once a call is admitted; None where nothing is certain before the
    barrier is asked, as of one that reads more than a tally.
    """

    name: str
    value: Callable[[Any], int]
    room: Headroom | None
    scale: int
    thread: bool = False
    weight: float = 1.0
    sees: bool = False
    recent: bool = False  # it reads the newest calls

    def number(self, units: int) -> float:
        """Units as the decimal that people read."""
        return as_number(Decimal(units) / Decimal(self.scale))

    def of(self, state: BarrierState) -> int:
        """h, or -1 where the barrier raises: what cannot be computed is not safe."""
        try:
            value = self.value(state if self.sees else state.thread if self.thread else state.run)
        except Exception:
            return -self.scale
        return value if value.__class__ is int else -self.scale


def as_number(value: Decimal) -> float:
    """The nearest finite double."""
    return float(max(-_LARGEST, min(value, _LARGEST)))


def exact(*amounts: Amount | str) -> tuple[int, tuple[int, ...]]:
    """A power of ten under which every amount is whole, and the amounts in it. Raises `ValueError` if not finite."""
    decimals = [Decimal(str(amount)) for amount in amounts]
    if not all(d.is_finite() for d in decimals):
        raise ValueError(f"`{amounts}` is not finite")
    places = max(0, *(-int(d.normalize().as_tuple().exponent) for d in decimals))
    return 10**places, tuple(int(d.scaleb(places)) for d in decimals)


def fine(value: object) -> int:
    """A number in units of 10^-9, rounded down. Raises `ValueError` for what is no finite number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) * FINE
    if not isinstance(value, float) or not math.isfinite(value):
        raise ValueError("the value of a barrier is not a finite number")
    return int(Decimal(float.__repr__(value)).scaleb(9).to_integral_value(ROUND_FLOOR))


def fine_margin(margin: Amount) -> int:
    """A margin in units of 10^-9, rounded up."""
    value = Decimal(str(margin))
    if not value.is_finite():
        raise ValueError(f"`{margin}` is not finite")
    return int(value.scaleb(9).to_integral_value(ROUND_CEILING))
