"""Seeded dice: the pools that the strategies draw from are thrown once, so that a draw is one choice of a pool.

A strategy made of hundreds of small draws spends most of its time drawing. A pool is sorted by size, so that
Hypothesis shrinks towards its simplest member.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from oracle.values import compact

T = TypeVar("T")
Doc = dict[str, Any]


class Dice:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, values: Sequence[T]) -> T:
        return self._random.choice(values)

    def one_in(self, odds: int) -> bool:
        return self._random.randrange(odds) == 0

    def some(self, values: Sequence[T], least: int, most: int) -> list[T]:
        """Different ones, in a random order."""
        return self._random.sample(values, min(len(values), self._random.randint(least, most)))

    def maybe(self, doc: Doc, odds: int, **choices: Sequence[Any]) -> None:
        """Sets each key one time in `odds`."""
        for key, values in choices.items():
            if self.one_in(odds):
                doc[key] = self.pick(values)


def pool(make: Callable[[Dice], T], size: int, seed: int = 1) -> list[T]:
    dice = Dice(seed)
    return sorted((make(dice) for _ in range(size)), key=lambda made: len(compact(made)))
