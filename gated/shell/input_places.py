"""The places of inputs in their stream, as a log knows them.

A record names the place of its input, and what comes on its thread at a place at or below it passes for handled. So the stream
under a log must count on from behind what the log has. In one that counts anew (it was removed, the server is another, it lost
its end in a power cut) new inputs would be acknowledged and never decided.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from gated.shell.log import ReadableLog

SPARE: Final = 100_000  # places beyond the last known: more than inputs are ever decided out of their order
NEWEST: Final = 5_000  # records of a log that are looked at; what timers said is of no input


class _Of(Struct):
    input: int = 0


def place_in(body: bytes) -> int:
    """The place of the input that a record is of; 0 where it is of none, or cannot be read."""
    try:
        return msgspec.json.decode(body, type=_Of).input
    except msgspec.MsgspecError:
        return 0


async def newest_place(event_log: ReadableLog) -> int:
    """The highest place of an input among the newest records of a log; 0 where there is none. Raises `LogUnavailable`."""
    places = [place_in(record.body) async for _, record in event_log.read_all(max(0, await event_log.head() - NEWEST))]
    return max(places, default=0)
