"""Barriers that a policy adds, or puts in the place of one of the five.

An author's function is handed the run as it is and as it would be. What raises, or gives no finite number, is -1.
"""

from __future__ import annotations

from gated.core.barriers.barrier import FINE, Barrier, BarrierError, BarrierState, fine, fine_margin
from gated.core.barriers.entries import BarrierEntry
from gated.core.barriers.standard import counter
from gated.core.expressions import ExpressionError
from gated.core.history import Tally
from gated.core.runview import compile_barrier

KINDS = ("counter", "expr")


def own(name: str, entry: BarrierEntry) -> Barrier:
    """Raises `BarrierError` with the path of the mistake inside the entry."""
    given = [kind for kind in KINDS if getattr(entry, kind) is not None]
    if len(given) != 1:
        named = " and ".join(f"`{kind}`" for kind in given) or "nothing"
        raise BarrierError(f"barrier `{name}` has {named}: give exactly one of {', '.join(f'`{k}`' for k in KINDS)}")
    if entry.counter is not None:
        return counter(name, entry, entry.counter)
    return _expression(name, entry, entry.expr or "")


def _expression(name: str, entry: BarrierEntry, text: str) -> Barrier:
    try:
        compiled = compile_barrier(text)
    except ExpressionError as error:
        raise BarrierError(str(error), "expr") from error
    margin, thread, function = fine_margin(entry.margin), entry.scope == "thread", compiled.value

    def value(state: BarrierState) -> int:
        return fine(function(state.seen(thread))) - margin

    recent = compiled.reads("recent")
    return Barrier(name, value, never_clear, FINE, thread, float(entry.weight), sees=True, recent=recent)


def never_clear(tally: Tally, tool: str, reserved: int) -> bool:
    """Nothing is certain of an author's function before it is asked."""
    return False
