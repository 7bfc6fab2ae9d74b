"""What a stage says of a call, and the question it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oracle.history import Call, Run, Thread


@dataclass(frozen=True)
class Question:
    """May this call of this run happen, at this time?"""

    thread: Thread
    run: Run
    call: Call
    at: int


@dataclass(frozen=True)
class Finding:
    stage: str
    outcome: str
    """`deny`, `ask` or `warn`."""
    code: str
    reason: str
    source: tuple[Any, ...] = ()
    """What an approval of this ask lifts: the stage and the machine, contract, pattern or limit. approvals.md."""
    authoritative: bool = True
    """False: observed, recorded and not acted on."""
    machine: str | None = None
    barriers: tuple[str, ...] = ()
    detector: str | None = None
    overrides: int | None = None
    """The transition that an approved ask fires as if the state had been listed. order.md."""
