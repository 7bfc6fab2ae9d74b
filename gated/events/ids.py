"""Ids, phases, and who speaks."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal, NewType

from msgspec import Struct

ThreadId = NewType("ThreadId", str)
RunId = NewType("RunId", str)
CallId = NewType("CallId", str)
AgentId = NewType("AgentId", str)
TicketId = NewType("TicketId", str)

MILLION: Final = 1_000_000  # scores are whole millionths

Value = Any  # decoded JSON


class Phase(StrEnum):
    """Where a run is (the seed on DFA supervision). The last three are terminal."""

    IDLE = "IDLE"
    PLANNING = "PLANNING"
    ACTING = "ACTING"
    OBSERVING = "OBSERVING"
    ANSWERING = "ANSWERING"
    REJECTED = "REJECTED"
    EXHAUSTED = "EXHAUSTED"

    __hash__ = str.__hash__  # an enumeration's own is a function in Python, and phases are looked up for every call


Decided = Literal["allow", "deny", "suspend"]
Status = Literal["success", "error", "not_run"]
Role = Literal["agent", "approver", "operator", "runner", "timer", "notifier"]


class Sender(Struct, frozen=True, gc=False):
    """Who said it: the role and name are tokens of the subject, which the bus credentials fix."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role}:{self.name}"
