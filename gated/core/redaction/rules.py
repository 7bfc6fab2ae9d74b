"""One rule of a detector."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Rule(NamedTuple):
    """`regex` in RE2 syntax; `check` says of a match whether it is one, where the expression alone is too coarse."""

    regex: str
    check: Callable[[str], bool] | None = None
