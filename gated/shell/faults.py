"""Fault points for the crash tests: the process kills itself where `GATED_FAULT` says so, and only there.

`GATED_FAULT=appended:3` kills with SIGKILL the third time the point `appended` is passed. Unset, a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
from typing import Final, Literal

Point = Literal["received", "decided", "appended", "published", "acknowledged"]  # of an input's way through a daemon
OfArchiving = Literal["archived", "copied", "cut", "replaced"]
OfErasing = Literal["condemned", "destroyed"]
OfPlaces = Literal["placed", "given_back"]

_WANTED, _, _TIMES = os.environ.get("GATED_FAULT", "").partition(":")
_passed: Final[list[str]] = []


def point(name: Point | OfArchiving | OfErasing | OfPlaces) -> None:
    """Pass a fault point."""
    if name == _WANTED:
        _passed.append(name)
        if len(_passed) >= int(_TIMES or "1"):
            os.kill(os.getpid(), signal.SIGKILL)
