"""How a partition goes from a worker that lives to the next one: it is asked for, and handed over with what is in memory.

The owner finishes what it took, and tells its pin, its lease, and the threads that were spoken of last. So a partition stands
still for as long as an append and a lease take, and nothing has to be read and folded. The next owner asks for a few partitions
at a time, so that the others are decided on meanwhile.
INVARIANT: this is a hint, like all that workers tell one another. The partition is had only where the owner's lease is still the
newest when the next one writes its own over it, and a thread is as it was told only where the log, read after that, ends there.
"""

from __future__ import annotations

from typing import Annotated, Final

import anyio
import msgspec
import structlog
from msgspec import Meta, Struct

LOOK: Final = 0.5  # seconds between looks of who waits for a partition
HEED: Final = 8.0  # seconds in which an owner that is to let a partition go is asked for it, or lets the server give it away
CARRIED: Final = 400_000  # bytes of threads that are handed over with a partition

log = structlog.get_logger("gated.partition")


class Wish(Struct, frozen=True):
    """A worker would have a partition, now."""

    worker: str
    partition: Annotated[int, Meta(ge=0)]


def wish_of(data: bytes) -> Wish | None:
    """None where it is something else."""
    try:
        return msgspec.json.decode(data, type=Wish)
    except msgspec.MsgspecError as error:
        log.warning("a wish that cannot be read", error=str(error))
        return None


class Told(Struct, frozen=True):
    """A thread as its owner had it in memory, and the number of the record that its last snapshot is of (0: there is none)."""

    saved: int
    state: bytes


class Legacy(Struct, frozen=True):
    """What an owner that has stopped leaves to the next one: its pin, its lease, and the number of the consumer's next input."""

    pin: str
    lease: int
    upcoming: int
    threads: tuple[Told, ...] = ()


class Heir:
    """Who would have the partition of one session."""

    def __init__(self) -> None:
        self._reply, self._at = "", 0.0
        self.heard = anyio.Event()

    def note(self, reply: str) -> None:
        """Whoever listens there asks for it."""
        self._reply, self._at = reply, anyio.current_time()
        self.heard.set()
        self.heard = anyio.Event()

    @property
    def reply(self) -> str:
        """Where who asked listens; empty where nobody does any more."""
        return self._reply if anyio.current_time() - self._at < LOOK else ""
