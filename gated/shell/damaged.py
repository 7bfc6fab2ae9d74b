"""What is said for a thread whose part of the log is damaged: refused, to whoever spoke, and nothing is recorded.

Other threads go on. What a run is told may be said again once the log is mended; `gated verify` says where it is damaged.
"""

from __future__ import annotations

import hashlib
from typing import Final

from gated.events import Body, CallId, CallRefused, Observation, Record, UnsealError, unseal
from gated.shell.log import ThreadDamaged
from gated.shell.said import Said, Settled

DAMAGED: Final = "ingress.thread_damaged"
WHY: Final = "the log of this thread is damaged: nothing is decided on it until that is mended, and the call may not run"
NOT_ITS_HASH: Final = "the body does not have the recorded hash"


def settled(said: Said) -> Settled:
    """Nothing is decided or recorded."""
    by = said.observation.by
    replies = tuple(CallRefused(code=DAMAGED, reason=WHY, call=call) for call in _calls(said.observation))
    return Settled(said, None, (), replies, by.name if by.role == "agent" else "", "")


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
