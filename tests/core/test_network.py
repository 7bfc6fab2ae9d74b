"""Learned barriers in the core: features of a state, and a network whose value is the same to the last bit everywhere."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from gated.core.barriers.barrier import FINE, BarrierState
from gated.core.barriers.entries import BarrierEntry, LayerEntry
from gated.core.barriers.network import Network, feature
from gated.core.barriers.own import of_network
from gated.core.history import Tally
from gated.core.runview import View
from gated.events import Phase

RUN = Tally(1_000_000, 5, 3, 1, 250_000, 77, Map({"pay": 2, "note": 3}), ("note", "pay", "note", "note", "pay"))
THREAD = Tally(0, 9, 8, 1, 900_000, 99, Map({"pay": 6, "note": 3}), ("note",) * 5)
VIEW = View("a", Phase.PLANNING, 0, RUN.counts, 0, None, {}, False, (("pay", "error", ""), ("note", "success", "")), 4_500_000)
STATE = BarrierState(RUN, THREAD, VIEW)


@pytest.mark.parametrize(
    ("name", "of_run", "of_thread"),
    [
        ("steps", 4, 9),
        ("in_flight", 1, 1),
        ("calls", 5, 9),
        ("cost_usd", 0.25, 0.9),
        ("tokens", 77, 99),
        ("tools", 2, 2),
        ("errors", 1, 1),
        ("seconds", 3.5, 4.5),
        ("count.pay", 2, 6),
        ("count.never", 0, 0),
        ("recent.pay", 1, 0),
        ("recent.mcp__x.y", 0, 0),
    ],
)
def test_features(name: str, of_run: float, of_thread: float) -> None:
    assert (feature(name)(STATE, False), feature(name)(STATE, True)) == (of_run, of_thread)


@pytest.mark.parametrize("name", ["", "step", "count.", "recent.", "counts.pay"])
def test_a_feature_that_means_nothing(name: str) -> None:
    with pytest.raises(ValueError, match="there is no feature"):
        feature(name)


def layer(weights: list[list[float]], bias: list[float], activation: Any = "none", slope: float = 0.01) -> LayerEntry:
    return LayerEntry(weights=tuple(map(tuple, weights)), bias=tuple(bias), activation=activation, slope=slope)


def test_a_network_by_hand() -> None:
    network = Network(["steps", "count.pay"], [layer([[1, -2], [-1, 1]], [0.5, 1], "relu"), layer([[2, -0.5]], [-1])])
    assert network.read(STATE, False) == (4.0, 2.0)
    assert network.value([4.0, 2.0]) == 2 * 0.5 - 0.5 * 0 - 1
    assert network.value([0.0, 2.0]) == 2 * 0 - 0.5 * 3 - 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))
def test_a_sum_is_rounded_once(weights: list[float], values: list[float]) -> None:
    """Against exact arithmetic: products are doubles, their sum is rounded at the end."""
    found = Network(["steps", "calls", "tokens"], [layer([weights], [0.25])]).value(values)
    exact = sum((Fraction(w * v) for w, v in zip(weights, values, strict=True)), Fraction(0.25))
    assert found == float(exact)


@pytest.mark.parametrize(("activation", "reference"), [("tanh", math.tanh), ("sigmoid", lambda x: 1 / (1 + math.exp(-x)))])
@pytest.mark.parametrize("x", [-1000.0, -59.0, -3.25, -1e-9, 0.0, 1e-9, 0.5, 3.25, 59.0, 1000.0])
def test_what_no_library_is_asked_for(activation: str, reference: Any, x: float) -> None:
    wanted = reference(x) if abs(x) < 700 else (math.copysign(1, x) if activation == "tanh" else float(x > 0))
    found = Network(["steps"], [layer([[1]], [0], activation)]).value([x])
    assert found == pytest.approx(wanted, rel=1e-15, abs=1e-25)


def test_leaky() -> None:
    network = Network(["steps"], [layer([[1]], [0], "leaky_relu", 0.25)])
    assert (network.value([-4.0]), network.value([4.0])) == (-1.0, 4.0)


@pytest.mark.parametrize(
    ("features", "layers", "message"),
    [
        ([], [layer([[1]], [0])], "1 to 64 features, not 0"),
        (["steps"], [], "1 to 8 layers, not 0"),
        (["steps"], [layer([[1, 2]], [0])], "layer 1 does not take the 1 values"),
        (["steps"], [layer([[1]], [0, 1])], "layer 1 .* lacks a bias"),
        (["steps"], [layer([[1], [1]], [0, 0])], "a barrier is one value, and the network gives 2"),
        (["steps"], [layer([[math.inf]], [0])], "not finite"),
        (["steps"], [layer([[1]] * 10_001, [0] * 10_001)], "at most 10000"),
    ],
)
def test_what_does_not_fit(features: list[str], layers: list[LayerEntry], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Network(features, layers)


@pytest.mark.parametrize("activation", ["none", "relu", "sigmoid"])
def test_what_overflows_is_below_the_edge(activation: str) -> None:
    """`relu` and `sigmoid` would make a number of it."""
    network = Network(["steps"], [layer([[1e308], [-1e308]], [0, 0]), layer([[1e308, 1e308]], [0], activation)])
    assert of_network("h", BarrierEntry(), network).of(STATE) == -FINE


def test_a_margin_is_taken_off() -> None:
    network = Network(["steps"], [layer([[0.25]], [0])])
    assert of_network("h", BarrierEntry(margin=0.3), network).of(STATE) == 700_000_000
    assert of_network("h", BarrierEntry(scope="thread"), network).of(STATE) == 2_250_000_000
