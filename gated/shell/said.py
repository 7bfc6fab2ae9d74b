"""What passes through the serialiser: what was said, what became of it, and the way out to the bus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from gated import wire
from gated.core.turn import Reply
from gated.events import Decision, Observation, Record, RunId, Sender, ThreadId
from gated.shell.bus import Ack

TIMER: Final = Sender("timer", "daemon")

Line = Callable[[str, bytes, str | None], bytes]  # what is said on a subject, as `send` takes it; nothing: it is too large


class Said(Struct, frozen=True, gc=False):
    """One thing that was said for a run, and where it came from."""

    thread: ThreadId
    run: RunId
    observation: Observation
    at: int
    position: int
    ack: Ack | None
    message_id: str | None
    asked: int = 0  # how often detectors were asked about it
    looked: bool = False  # on the disk, for where its paths lead
    place: bool | None = None  # for the run that it opens, where these are counted in a cluster; none was asked for yet


class Settled(Struct, frozen=True, gc=False):
    """What became of an input: a record to append, replies that need none, or (`again`) a look-up in the log."""

    said: Said
    record: Record | None
    decisions: tuple[Decision, ...]
    replies: tuple[Reply, ...]
    agent: str  # whom it concerns; nobody where people spoke of a run that is not there
    policy: str
    again: bool = False


Due = tuple[ThreadId, RunId, int]


class Batch(NamedTuple):
    """What was decided in one go: settled inputs, and the runs' next deadlines (0: none)."""

    settled: list[Settled]
    dues: list[Due]

    @property
    def records(self) -> list[Record]:
        """What is to be made durable of it."""
        return [item.record for item in self.settled if item.record is not None]


def joined(batches: Sequence[Batch]) -> Batch:
    """Batches that are committed together: of a run's deadlines the newest holds."""
    if len(batches) == 1:
        return batches[0]
    dues = {(thread, run): due for batch in batches for thread, run, due in batch.dues}
    return Batch([item for batch in batches for item in batch.settled], [(*key, due) for key, due in dues.items()])


class Health(Struct):
    """What the daemon knows of itself; `why` is empty while all is well."""

    records: int = 0
    verdicts: int = 0
    waiting: int = 0
    threads: int = 0
    overloaded: int = 0
    damaged: dict[str, str] = {}  # threads that nothing is decided on, and why
    why: str = ""
    reload_failed: str = ""


class Outlet(NamedTuple):
    """The way out to the bus. `send` takes lines joined."""

    line: Line
    send: Callable[[bytes], Awaitable[object]]
    acknowledge: Callable[[Sequence[Ack]], Awaitable[object]]
    prefix: str = wire.PREFIX
    caught_up: Callable[[], Awaitable[None]] | None = None  # waits until all that is stored was taken
    tells_time: bool = False  # deadlines come as inputs: no timers here
