"""What is said for a thread whose part of the log is damaged: refused, to whoever spoke, and nothing is recorded.

Other threads go on. Nothing is kept of what is refused: once the log is mended (`gated verify` says where) it is to be said
again, and an outcome that is not reported in time lapses. The daemon's own timers come back by themselves (`Timers.postpone`).
"""

from __future__ import annotations

import hashlib
from typing import Final

from gated.events import (
    Body,
    CallId,
    CallRefused,
    CanIAsked,
    IntentsReceived,
    Observation,
    OutcomeReported,
    RecallRequested,
    Record,
    UnsealError,
    unseal,
)
from gated.shell.log import ThreadDamaged
from gated.shell.said import Said, Settled

DAMAGED: Final = "ingress.thread_damaged"
_UNTIL: Final = "the log of this thread is damaged: nothing is decided on it until that is mended"
WHY: Final = f"{_UNTIL}, and the call may not run"
OUTCOME_LOST: Final = f"{_UNTIL}, and the outcome was not taken: report it again then, or the call lapses"
NOT_TAKEN: Final = f"{_UNTIL}, and this was not taken: say it again then"
NOT_ITS_HASH: Final = "the body does not have the recorded hash"


def settled(said: Said) -> Settled:
    """Nothing is decided or recorded."""
    by = said.observation.by
    replies = tuple(CallRefused(code=DAMAGED, reason=_why(said.observation), call=call) for call in _calls(said.observation))
    return Settled(said, None, (), replies, by.name if by.role == "agent" else "", "")


def _why(observation: Observation) -> str:
    if isinstance(observation, OutcomeReported):
        return OUTCOME_LOST
    return WHY if isinstance(observation, IntentsReceived | RecallRequested | CanIAsked) else NOT_TAKEN


def _calls(observation: Observation) -> tuple[CallId | None, ...]:
    """The calls that an answer is owed for; of a message that is about none, the message itself."""
    wanted = getattr(observation, "calls", ())
    return tuple(call.id for call in wanted) or (getattr(observation, "call", None),)


def is_whole(record: Record) -> bool:
    """Whether a record's body is what its hash says."""
    return hashlib.sha256(record.body).hexdigest() == record.hash


def opened(record: Record) -> Body:
    """The body of a record that is what its hash says. Raises `ThreadDamaged`."""
    if not is_whole(record):
        raise ThreadDamaged(record.thread, record.seq, NOT_ITS_HASH)
    try:
        return unseal(record)
    except UnsealError as error:
        raise ThreadDamaged(record.thread, record.seq, str(error)) from error
