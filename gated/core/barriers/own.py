"""Barriers that a policy adds, or puts in the place of one of the five.

An author's function is handed the run as it is and as it would be. What raises, or gives no finite number, is -1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from gated.core.barriers.barrier import FINE, Barrier, BarrierError, BarrierState, fine, fine_margin
from gated.core.barriers.entries import BarrierEntry, NeuralEntry
from gated.core.barriers.network import Network
from gated.core.barriers.standard import counter
from gated.core.expressions import ExpressionError
from gated.core.runview import View, compile_barrier

KINDS: Final = ("counter", "expr", "python", "neural")
Functions = Mapping[str, Callable[..., Any]]


def own(name: str, entry: BarrierEntry, functions: Functions) -> Barrier:
    """Raises `BarrierError` with the path of the mistake inside the entry. `functions` are those that `python` may name."""
    given = [kind for kind in KINDS if getattr(entry, kind) is not None]
    if len(given) != 1:
        named = " and ".join(f"`{kind}`" for kind in given) or "nothing"
        raise BarrierError(f"barrier `{name}` has {named}: give exactly one of {', '.join(f'`{k}`' for k in KINDS)}")
    for key in ("params", "provided_by"):
        if getattr(entry, key) and entry.python is None:
            raise BarrierError(f"`{key}` of barrier `{name}` belongs to `python`", key)
    if entry.counter is not None:
        return counter(name, entry, entry.counter)
    if entry.python is not None:
        return _function(name, entry, entry.python, functions)
    if entry.neural is not None:
        return neural(name, entry, entry.neural)
    return _expression(name, entry, entry.expr or "")


def _expression(name: str, entry: BarrierEntry, text: str) -> Barrier:
    try:
        compiled = compile_barrier(text)
    except ExpressionError as error:
        raise BarrierError(str(error), "expr") from error
    return _of_view(name, entry, compiled.value, compiled.reads("recent"))


def _function(name: str, entry: BarrierEntry, wanted: str, functions: Functions) -> Barrier:
    function, params = functions.get(wanted), entry.params
    if function is None:
        raise BarrierError(f"the function of the barrier `{wanted}` is not at hand", "python")
    try:
        inspect.signature(function).bind(None, **params)
    except (TypeError, ValueError) as error:
        raise BarrierError(f"the barrier `{wanted}` does not take these `params`: {error}", "params") from error

    def value(view: View) -> object:
        try:
            return function(replace(view, labels=dict(view.labels)), **params)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # an exit, a cancellation: a crash like any other, which must not end the daemon
            raise BarrierError(f"the barrier `{wanted}` raised {type(error).__name__}") from error

    return _of_view(name, entry, value, recent=True)


def neural(name: str, entry: BarrierEntry, rule: NeuralEntry) -> Barrier:
    """A learned barrier. Raises `BarrierError`."""
    if not rule.layers:
        raise BarrierError(f"the model `{rule.model}` was not read", "neural", "model")
    try:
        network = Network(rule.features, rule.layers)
    except ValueError as error:
        raise BarrierError(f"the model `{rule.model}`: {error}", "neural") from error
    return of_network(name, entry, network)


def of_network(name: str, entry: BarrierEntry, network: Network) -> Barrier:
    margin, thread = fine_margin(entry.margin), entry.scope == "thread"

    def value(state: BarrierState) -> int:
        return fine(network.value(network.read(state, thread))) - margin

    return Barrier(name, value, None, FINE, thread, float(entry.weight), sees=True, recent=True)


def _of_view(name: str, entry: BarrierEntry, function: Callable[[View], object], recent: bool) -> Barrier:
    margin, thread = fine_margin(entry.margin), entry.scope == "thread"

    def value(state: BarrierState) -> int:
        return fine(function(state.seen(thread))) - margin

    return Barrier(name, value, None, FINE, thread, float(entry.weight), sees=True, recent=recent)
