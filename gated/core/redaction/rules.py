"""One rule of a detector, and how much checking one value may cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

CHECKS: Final = 20_000  # of check digits, for all that one message says: some milliseconds


class Limit:
    """What is left to be checked. Beyond it whatever looks like a number is taken for one: a message must not buy time."""

    __slots__ = ("left",)

    def __init__(self, left: int = CHECKS) -> None:
        self.left = left


class Rule(NamedTuple):
    """`regex` in RE2 syntax; `check` says of a match whether it is one, where the expression alone is too coarse."""

    regex: str
    check: Callable[[str, Limit], bool] | None = None
