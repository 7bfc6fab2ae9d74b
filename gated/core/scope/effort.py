"""How much looking one call may cost: a message within the size limits must not hold up everybody else's calls.

Beyond it the call is denied, so that nothing passes because nobody looked. Ordinary documents of the largest size, and calls
with thousands of paths, are far from it.
"""

from __future__ import annotations

from typing import Final

MOST: Final = 150_000  # roughly microseconds
TEXT: Final = 8  # a text in all its spellings: ten thousand of them, all that a message may hold, are not too many
RESOURCE: Final = 15  # one that names a resource, and more for every character of it that a path may have
PLAIN: Final = 2  # a path that every reader reads alike
LONGEST: Final = 4096  # characters of a path


class TooMuch(Exception):
    """A call names, or may name, more than is looked at."""


class Effort:
    """What is left for one call. Everything here raises `TooMuch`."""

    __slots__ = ("_left",)

    def __init__(self, left: int = MOST) -> None:
        self._left = left

    def spend(self, units: int) -> None:
        self._left -= units
        if self._left < 0:
            raise TooMuch

    def read(self, resource: str) -> None:
        self.spend(RESOURCE + min(len(resource), LONGEST) // 5)

    def read_plain(self, path: str) -> None:
        self.spend(PLAIN + len(path) // 40)
