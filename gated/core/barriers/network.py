"""Learned barriers: a small network over features of the state, evaluated here and nowhere else.

A value must come out the same in every replay, on any machine and with any version of a library, since a verdict rests on it.
So the network is evaluated in double precision with operations that IEEE 754 fixes to the last bit: each output is the
correctly rounded sum (`fsum`) of products taken one by one, and tanh and sigmoid are rounded from decimals. Rejected: to run
the ONNX file in a runtime at decision time (its kernels differ between processors), and to record what it gave as an
observation (the value depends on the state that the calls before left, which nobody outside the core knows).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Final

from gated.core.barriers.barrier import BarrierState
from gated.core.barriers.entries import LayerEntry

MAX_FEATURES: Final = 64
MAX_LAYERS: Final = 8
MAX_WEIGHTS: Final = 10_000

_EXP: Final = Context(prec=25, Emin=-10_000, Emax=10_000)
_SATURATED: Final = 60.0  # beyond it tanh and sigmoid are 0 or 1 as doubles

Feature = Callable[[BarrierState, bool], float]  # of the run, or (true) of the thread


# --- features --------------------------------------------------------------------------------------------------------


def _steps(state: BarrierState, thread: bool) -> float:
    tally = state.thread if thread else state.run
    return float(tally.steps + tally.in_flight)


PLAIN: Final[dict[str, Feature]] = {
    "steps": _steps,
    "in_flight": lambda state, thread: float((state.thread if thread else state.run).in_flight),
    "calls": lambda state, thread: float((state.thread if thread else state.run).calls),
    "cost_usd": lambda state, thread: (state.thread if thread else state.run).cost_microusd / 1_000_000,
    "tokens": lambda state, thread: float((state.thread if thread else state.run).tokens),
    "tools": lambda state, thread: float(len((state.thread if thread else state.run).counts)),
    "errors": lambda state, thread: float(sum(status == "error" for _, status, _ in state.seen(thread).recent)),
    "seconds": lambda state, thread: (state.seen(thread).at - (state.thread if thread else state.run).opened_at) / 1_000_000,
}
COUNT: Final = "count."  # admitted calls of a tool
RECENT: Final = "recent."  # 1 where a tool is among the last five, else 0


def feature(name: str) -> Feature:
    """Raises `ValueError` for a name that means nothing."""
    if name in PLAIN:
        return PLAIN[name]
    if name.startswith(COUNT) and len(name) > len(COUNT):
        return _count(name.removeprefix(COUNT))
    if name.startswith(RECENT) and len(name) > len(RECENT):
        return _recent(name.removeprefix(RECENT))
    known = ", ".join((*PLAIN, f"{COUNT}TOOL", f"{RECENT}TOOL"))
    raise ValueError(f"there is no feature `{name}`: there are {known}")


def _count(tool: str) -> Feature:
    return lambda state, thread: float((state.thread if thread else state.run).counts.get(tool, 0))


def _recent(tool: str) -> Feature:
    return lambda state, thread: float(tool in (state.thread if thread else state.run).recent[-5:])


# --- the network -----------------------------------------------------------------------------------------------------


class Network:
    """Layers whose shapes fit, from `features` to one value."""

    __slots__ = ("_layers", "features")

    def __init__(self, features: Sequence[str], layers: Sequence[LayerEntry]) -> None:
        """Raises `ValueError` with what does not fit."""
        self.features = tuple(map(feature, features))
        _check(len(self.features), layers)
        self._layers = tuple(
            (
                tuple(tuple(map(float, row)) for row in layer.weights),
                tuple(map(float, layer.bias)),
                _activation(layer),
            )
            for layer in layers
        )

    def read(self, state: BarrierState, thread: bool) -> tuple[float, ...]:
        """The features of a state."""
        return tuple(made(state, thread) for made in self.features)

    def value(self, features: Sequence[float]) -> float:
        """h. Raises `ValueError` or `OverflowError` where anything on the way is not finite."""
        for weights, bias, activation in self._layers:
            sums = [math.fsum((*map(operator.mul, row, features), b)) for row, b in zip(weights, bias, strict=True)]
            if not all(map(math.isfinite, sums)):  # an activation could make a number of what is none
                raise ValueError("a value inside the network is not finite")
            features = list(map(activation, sums))
        return features[0]


def _check(inputs: int, layers: Sequence[LayerEntry]) -> None:
    if not 1 <= inputs <= MAX_FEATURES:
        raise ValueError(f"a network has 1 to {MAX_FEATURES} features, not {inputs}")
    if not 1 <= len(layers) <= MAX_LAYERS:
        raise ValueError(f"a network has 1 to {MAX_LAYERS} layers, not {len(layers)}")
    total = sum(len(row) for layer in layers for row in layer.weights)
    if total > MAX_WEIGHTS:
        raise ValueError(f"a network of {total} weights: at most {MAX_WEIGHTS} are evaluated for every call")
    for number, layer in enumerate(layers, 1):
        if any(len(row) != inputs for row in layer.weights) or len(layer.bias) != len(layer.weights):
            raise ValueError(f"layer {number} does not take the {inputs} values before it, or lacks a bias")
        if not all(math.isfinite(x) for row in (*layer.weights, layer.bias) for x in row):
            raise ValueError(f"layer {number} has a weight that is not finite")
        inputs = len(layer.weights)
    if inputs != 1:
        raise ValueError(f"a barrier is one value, and the network gives {inputs}")


def _activation(layer: LayerEntry) -> Callable[[float], float]:
    slope = float(layer.slope)
    return {
        "none": lambda x: x,
        "relu": lambda x: x if x > 0.0 else 0.0,
        "leaky_relu": lambda x: x if x > 0.0 else slope * x,
        "tanh": _tanh,
        "sigmoid": _sigmoid,
    }[layer.activation]


def _exp(x: float) -> Decimal:
    return _EXP.exp(Decimal(x))


def _tanh(x: float) -> float:
    if abs(x) > _SATURATED:
        return math.copysign(1.0, x)
    grown = _exp(2.0 * x)
    return float(_EXP.divide(_EXP.subtract(grown, Decimal(1)), _EXP.add(grown, Decimal(1))))


def _sigmoid(x: float) -> float:
    if abs(x) > _SATURATED:
        return 1.0 if x > 0 else 0.0
    return float(_EXP.divide(Decimal(1), _EXP.add(Decimal(1), _exp(-x))))
