"""The event log: append-only records, one hash chain per thread, and what every backend of it must do.

INVARIANT: an append returns only when every record is durable; it is all or nothing. A record goes in only where it continues its
thread's chain. A writer that has been fenced off never writes again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from gated.core.chain import CheckpointNote
from gated.errors import GatedError
from gated.events import Record, RunId, ThreadId

Due = tuple[ThreadId, RunId, int]


class LogError(GatedError):
    """The log cannot be used as it is."""


class LogConflict(LogError):
    """A record is not the next one of its thread: another writer was here, or the caller's state is stale.

    `seq` is the number that the record should have got, `found` that of the thread's last record.
    """

    def __init__(self, thread: str, seq: int, found: int) -> None:
        why = f"the log is at {found}" if found != seq - 1 else f"it does not continue the chain of record {found}"
        super().__init__(f"record {seq} of thread `{thread}` is not the next one: {why}")
        self.thread, self.seq, self.found = thread, seq, found


class LogUnavailable(LogError):
    """The log cannot be used now (disk full, read-only, closed); trying again may work."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class LogLocked(LogError):
    """Another daemon writes the log, or has taken it over: this one never writes it (again)."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"`{path}` is open in another daemon ({holder}): one log has one writer")
        self.path, self.holder = path, holder


class LogDamaged(LogError):
    """What is stored cannot be read. `position` is the last good position, or the line of an export."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"{why}, at position {position}")
        self.position, self.why = position, why


class ThreadDamaged(LogDamaged):
    """What is stored of one thread gives no state, from record `seq` on: nothing is decided on it. Others are not concerned."""

    def __init__(self, thread: str, seq: int, why: str) -> None:
        GatedError.__init__(self, f"thread `{thread}` is damaged at record {seq}: {why}")
        self.position, self.why, self.thread, self.seq = 0, why, thread, seq

    def again(self) -> ThreadDamaged:
        """The same, to be raised once more."""
        return ThreadDamaged(self.thread, self.seq, self.why)


class Positioned(NamedTuple):
    """A record and its position in the whole log."""

    position: int
    record: Record


class ReadableLog(Protocol):
    """Readers need no lock, write nothing, and see what a daemon writes. All raise `LogUnavailable` and `LogDamaged`."""

    async def get(self, thread: ThreadId, seq: int) -> Record | None: ...

    def read(self, thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
        """The records of a thread with a larger `seq`, in order."""

    def read_all(self, after: int = 0) -> AsyncIterator[Positioned]:
        """Every record behind a position, in the order of the log."""

    def tail(self, after: int) -> AsyncIterator[Positioned]:
        """Like `read_all`, and then on as records come."""

    async def head(self) -> int:
        """The position of the last record; 0 where there is none."""

    async def heads(self) -> dict[ThreadId, tuple[int, str]]:
        """The last record of every thread, sorted by thread: seq and hash."""

    def threads(self) -> AsyncIterator[ThreadId]:
        """The threads that have records, sorted."""

    async def policy(self, digest: str) -> bytes | None: ...

    async def policies(self) -> dict[str, bytes]:
        """The canonical text of every policy of the log, by digest, sorted."""

    async def load_snapshot(self, thread: ThreadId) -> tuple[int, bytes] | None: ...

    async def checkpoints(self) -> list[CheckpointNote]:
        """The sealed checkpoints, oldest first."""

    async def close(self) -> None: ...


@runtime_checkable
class Sealed(Protocol):
    """A log that can seal itself before its time."""

    async def seal(self) -> None: ...

    def seal_only_when_asked(self) -> None:
        """Not at the end, as without this: who may end without having said all that it decided must leave no seal of it."""


class EventLog(ReadableLog, Protocol):
    """Reading and appending. What writes raises `LogUnavailable` (its outcome is unknown: ask `get`) and `LogLocked`."""

    async def append(self, thread: ThreadId, expected_seq: int, records: Sequence[Record], fence: int | None = None) -> None:
        """Append records of one thread, which is at `expected_seq` now. Raises `LogConflict`.

        `fence` is the epoch that the caller believes to hold the log in; a stale one is `LogLocked`.
        """

    async def append_many(self, records: Sequence[Record], dues: Sequence[Due] = ()) -> None:
        """Append records of any threads in order. Raises `LogConflict`.

        `dues` are the runs' next deadlines (µs; 0: none): an index beside the records, so that a start need not read them all.
        """

    @property
    def epoch(self) -> int:
        """Grows with each writer that opened the log."""

    async def put_policy(self, digest: str, text: bytes) -> None: ...

    async def save_snapshot(self, thread: ThreadId, seq: int, data: bytes) -> None: ...

    async def put_checkpoint(self, note: CheckpointNote) -> None:
        """Keep a checkpoint that was made elsewhere."""

    def open_deadlines(self) -> AsyncIterator[tuple[int, ThreadId, RunId]]: ...
