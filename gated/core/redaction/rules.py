"""One rule of a detector, and how much checking one value may cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

CHECKS: Final = 5_000  # of check digits, for all that one message says: some milliseconds
SEARCH: Final = 10  # such checks cost as much as looking for the numbers of one text does
ESCAPES: Final = 20_000  # percent-escapes of all that one message says


class Limit:
    """What is left to be looked at. Beyond it whatever looks like a number, or is escaped, is taken for one that is found: a
    message must not buy time, and nothing passes because nobody looked.
    """

    __slots__ = ("escapes", "left")

    def __init__(self, left: int = CHECKS, escapes: int = ESCAPES) -> None:
        self.left, self.escapes = left, escapes

    def may_search(self) -> bool:
        self.left -= SEARCH
        return self.left >= 0

    def may_unescape(self, text: str) -> bool:
        self.escapes -= text.count("%")
        return self.escapes >= 0


class Rule(NamedTuple):
    """`regex` in RE2 syntax; `check` says of a match whether it is one, where the expression alone is too coarse."""

    regex: str
    check: Callable[[str, Limit], bool] | None = None
