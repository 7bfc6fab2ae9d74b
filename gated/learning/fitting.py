"""Fitting a small network to states: at least `GAP` where they are safe, at most -`GAP` where they are not, and along every
safe step no steeper down than the condition allows.

Plain gradient descent (Adam) over all of it; the data is small. The seed fixes the start, so the same log gives the same
network on the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct

GAP: Final = 0.5
DIGITS: Final = 7  # of a weight; it is the rounded network that is checked
_RATE, _BETA, _BETA2, _TINY = 0.01, 0.9, 0.999, 1e-8


class Data(Struct, frozen=True):
    """Rows of features: safe and unsafe states, and safe steps from `now` to `after`."""

    safe: Sequence[Sequence[float]]
    unsafe: Sequence[Sequence[float]]
    now: Sequence[Sequence[float]]
    after: Sequence[Sequence[float]]


class Fitted(Struct, frozen=True):
    """`layers` in the form of the policy; `loss` is 0 where everything is as it should be."""

    layers: list[dict[str, Any]]
    loss: float
    rounds: int


def fit(data: Data, hidden: Sequence[int], kappa: float, rounds: int, seed: int) -> Fitted:
    """Raises `ImportError` without numpy."""
    import numpy as np

    safe, unsafe = _unique(np, data.safe), _unique(np, data.unsafe)
    steps = _unique(np, [[*a, *b] for a, b in zip(data.now, data.after, strict=True)])
    width = safe.shape[1]
    every = np.concatenate([safe, unsafe])
    mean, std = every.mean(axis=0), every.std(axis=0)
    std[std == 0] = 1.0
    blocks = [(block - mean) / std for block in (safe, unsafe, steps[:, :width], steps[:, width:])]
    rows, sizes = np.concatenate(blocks), np.cumsum([len(block) for block in blocks])[:-1]
    net = _Net(np, [width, *hidden, 1], seed)
    loss, slope = _loss(np, np.split(net.forward(rows), sizes), kappa)
    taken = 0
    while loss > 0 and taken < rounds:
        net.step(slope)
        taken += 1
        loss, slope = _loss(np, np.split(net.forward(rows), sizes), kappa)
    return Fitted(net.layers(mean, std), loss, taken)


def _unique(np: Any, rows: Sequence[Sequence[float]]) -> Any:
    return np.unique(np.asarray(rows, dtype=np.float64), axis=0)


def _loss(np: Any, parts: Sequence[Any], kappa: float) -> tuple[float, Any]:
    """The mean of each kind's shortfall, and its slope by every value."""
    safe, unsafe, now, after = parts
    short = [GAP - safe, GAP + unsafe, (1.0 - kappa) * now - after + GAP / 10]
    lacking = [np.maximum(0.0, s) for s in short]
    loss = float(sum(part.mean() for part in lacking))
    on = [(s > 0) / len(s) for s in short]
    return loss, np.concatenate([-on[0], on[1], (1.0 - kappa) * on[2], -on[2]])


class _Net:
    """Affine layers with max(0, x) between them, and Adam's memory."""

    def __init__(self, np: Any, widths: Sequence[int], seed: int) -> None:
        draw = np.random.default_rng(seed)
        self._np, self._time = np, 0
        self._params: list[Any] = []
        for a, b in pairwise(widths):
            self._params += [draw.normal(size=(b, a)) * np.sqrt(2.0 / a), np.zeros(b)]
        self._first = [np.zeros_like(p) for p in self._params]
        self._second = [np.zeros_like(p) for p in self._params]
        self._seen: list[Any] = []

    def forward(self, rows: Any) -> Any:
        self._seen = [rows]
        for number in range(0, len(self._params), 2):
            rows = rows @ self._params[number].T + self._params[number + 1]
            if number + 2 < len(self._params):
                rows = self._np.maximum(0.0, rows)
            self._seen.append(rows)
        return rows[:, 0]

    def step(self, slope: Any) -> None:
        """One step down from where `forward` was."""
        self._time += 1
        back = slope[:, None]
        for number in range(len(self._params) - 2, -1, -2):
            layer = number // 2
            weights = self._params[number]
            self._move(number, back.T @ self._seen[layer])
            self._move(number + 1, back.sum(axis=0))
            back = (back @ weights) * (self._seen[layer] > 0)

    def _move(self, number: int, gradient: Any) -> None:
        self._first[number] = _BETA * self._first[number] + (1 - _BETA) * gradient
        self._second[number] = _BETA2 * self._second[number] + (1 - _BETA2) * gradient**2
        first = self._first[number] / (1 - _BETA**self._time)
        second = self._second[number] / (1 - _BETA2**self._time)
        self._params[number] = self._params[number] - _RATE * first / (self._np.sqrt(second) + _TINY)

    def layers(self, mean: Any, std: Any) -> list[dict[str, Any]]:
        """With the features' own scale worked into the first layer."""
        made = []
        for number in range(0, len(self._params), 2):
            weights, bias = self._params[number], self._params[number + 1]
            if number == 0:
                weights = weights / std
                bias = bias - weights @ mean
            last = number + 2 == len(self._params)
            rows = [[_rounded(x) for x in row] for row in weights.tolist()]
            activation = "none" if last else "relu"
            made.append({"weights": rows, "bias": [_rounded(x) for x in bias.tolist()], "activation": activation})
        return made


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
