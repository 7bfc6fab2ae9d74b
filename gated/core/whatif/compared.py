"""What a comparison says: a recorded verdict, what it would be under another policy, and how many of each kind."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gated.events import RunId, ThreadId

Outcome = Literal["unchanged", "flipped", "not_replayable", "void"]


class Verdict(Struct, frozen=True, omit_defaults=True):
    """`decision` of a call, or the answer to a run's end (`steer`, `complete`)."""

    decision: str
    stage: str | None = None
    code: str | None = None
    reason: str | None = None


class Compared(Struct, frozen=True):
    """One recorded verdict, and what it would be. `what` says which kind; `void`: an approval that would not hold."""

    what: Literal["call", "approval", "finish"]
    outcome: Outcome
    thread: ThreadId
    run: RunId
    seq: int
    at: int
    agent: str
    call: str
    tool: str
    recorded: Verdict
    derived: Verdict | None
    why: str = ""


class Tally(Struct):
    """How many recorded verdicts of each outcome."""

    unchanged: int = 0
    flipped: int = 0
    not_replayable: int = 0
    void: int = 0

    def add(self, found: Compared) -> None:
        setattr(self, found.outcome, getattr(self, found.outcome) + 1)
