"""A learned barrier from start to end: examples, a network, and the check that decides whether it may be exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gated.core.barriers.barrier import Barrier
from gated.core.barriers.entries import BarrierEntry, LayerEntry
from gated.core.barriers.network import Network
from gated.core.barriers.own import of_network
from gated.core.stages import dcbf
from gated.events import Breach
from gated.learning.examples import Example, features_of, split
from gated.learning.fitting import Data, Fitted, fit
from gated.units import some


class Plan(Struct, frozen=True):
    features: tuple[str, ...] = ()
    hidden: tuple[int, ...] = (16, 8)
    rounds: int = 3000
    seed: int = 0
    holdout: float = 0.25


class Refused(Struct, frozen=True):
    """A held-out call that was safe, and that the barrier would refuse."""

    thread: str
    run: str
    call: str
    tool: str
    breach: Breach


class Missed(Struct, frozen=True):
    """A held-out state that was not safe, and that the barrier takes for safe."""

    thread: str
    run: str
    call: str
    tool: str
    value: float


class Trained(Struct, frozen=True):
    """`invariance` and what follows are about runs that were not learned from. It may be exported where `why` is empty."""

    features: tuple[str, ...]
    fitted: Fitted
    learned: tuple[int, int]  # safe and unsafe examples
    held: tuple[int, int]
    contradictions: int  # states that are safe in one place and unsafe in another, as far as the features show
    invariance: dict[str, Any]
    refused: tuple[Refused, ...]
    missed: tuple[Missed, ...]
    why: str


class TooLittle(ValueError):
    """The log has not what learning needs."""


def train(found: Sequence[Example], plan: Plan) -> Trained:
    """Raises `TooLittle`, and `ValueError` for a feature that means nothing."""
    features = features_of(found, plan.features)
    learning, holding = split(found, plan.holdout)
    _enough(learning, holding)
    reader = Network(features, _flat(len(features)))
    data = _data(reader, learning)
    rules = learning[0].asked.rules
    kappa = rules.kappa[0] / rules.kappa[1] if rules.power == 1 else 1.0
    fitted = fit(data, plan.hidden, kappa, plan.rounds, plan.seed)
    network = Network(features, [msgspec.convert(layer, LayerEntry) for layer in fitted.layers])
    barrier = of_network("learned", BarrierEntry(), network)
    invariance, refused = _refused(barrier, holding)
    missed = tuple(_missed(barrier, holding))
    return Trained(
        features,
        fitted,
        _counted(learning),
        _counted(holding),
        len({tuple(row) for row in data.safe} & {tuple(row) for row in data.unsafe}),
        invariance,
        refused,
        missed,
        _why(invariance, missed),
    )


def _why(invariance: dict[str, Any], missed: Sequence[Missed]) -> str:
    if not invariance["total_checks"]:
        return "it takes every held-out state for unsafe, so there was nothing to check"
    if not invariance["forward_invariant"]:
        checked = some(invariance["total_checks"], "held-out call")
        return f"it would refuse {invariance['violations']:,} of {checked} that had been safe"
    return f"it takes {some(len(missed), 'held-out unsafe state')} for safe" if missed else ""


def _enough(learning: Sequence[Example], holding: Sequence[Example]) -> None:
    for what, examples in (("to learn from", learning), ("held out", holding)):
        safe, unsafe = _counted(examples)
        if not safe or not unsafe:
            lacking = "safe" if not safe else "unsafe"
            calls = some(len(learning) + len(holding), "call")
            raise TooLittle(f"there is no {lacking} state among the runs {what}, which had {calls}")


def _counted(examples: Sequence[Example]) -> tuple[int, int]:
    safe = sum(example.safe for example in examples)
    return safe, len(examples) - safe


def _flat(width: int) -> tuple[LayerEntry, ...]:
    """Any network: only its features are read."""
    return (LayerEntry(weights=((0.0,) * width,), bias=(0.0,)),)


def _data(reader: Network, learning: Sequence[Example]) -> Data:
    def of(some: Sequence[Any]) -> list[tuple[float, ...]]:
        return [reader.read(state, False) for state in some]

    safe = [example for example in learning if example.safe]
    now, after = of([example.asked.state for example in safe]), of([example.after for example in safe])
    return Data([*now, *after], of([example.after for example in learning if not example.safe]), now, after)


def _refused(barrier: Barrier, holding: Sequence[Example]) -> tuple[dict[str, Any], tuple[Refused, ...]]:
    """`verify_forward_invariance` of the barrier alone, over the held-out calls that were safe."""
    counted, found = dcbf.Invariance(), []
    for example in holding:
        asked = example.asked
        if example.safe:
            rules = replace(asked.rules, barriers=(barrier,), seeing=(barrier,), room=None, verification=True)
            for breach in counted.feed(rules, asked.state, asked.action):
                found.append(Refused(asked.thread, asked.run, asked.call, asked.action.tool, breach))
    return counted.report(), tuple(found)


def _missed(barrier: Barrier, holding: Sequence[Example]) -> list[Missed]:
    found = []
    for example in holding:
        h = barrier.of(example.after)
        if not example.safe and h >= 0:
            asked = example.asked
            found.append(Missed(asked.thread, asked.run, asked.call, asked.action.tool, barrier.number(h)))
    return found
