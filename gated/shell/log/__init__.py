"""The event log: append-only records, one hash chain per thread, and what every backend of it must do.

INVARIANT: `append_many` returns only when every record is durable; it is all or nothing. A writer that has been fenced off
never writes again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from gated.events import Record, RunId, ThreadId


class LogError(Exception):
    """The log cannot be used as it is."""


class LogConflict(LogError):
    """A record is not the next one of its thread: another writer was here, or the caller's state is stale."""

    def __init__(self, thread: str, seq: int, found: int) -> None:
        super().__init__(f"record {seq} of thread `{thread}` is not the next one: the log is at {found}")
        self.thread, self.seq, self.found = thread, seq, found


class LogUnavailable(LogError):
    """The log cannot be written now (disk full, read-only, closed); trying again may work."""


class LogLocked(LogError):
    """Another daemon has the log open for writing."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"`{path}` is open in another daemon ({holder}): one log has one writer")
        self.path, self.holder = path, holder


class Positioned(NamedTuple):
    """A record and its position in the whole log."""

    position: int
    record: Record


class EventLog(Protocol):
    """Reading and appending. Readers need no lock and see what a daemon writes."""

    async def append_many(self, records: Sequence[Record], dues: Sequence[tuple[ThreadId, RunId, int]] = ()) -> None:
        """Append records of any threads in order. Raises `LogConflict`, `LogUnavailable`.

        `dues` are the runs' next deadlines (µs; 0: none): an index beside the records, so that a start need not read them all.
        """

    async def get(self, thread: ThreadId, seq: int) -> Record | None: ...

    def read(self, thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
        """The records of a thread with a larger `seq`, in order."""

    def read_all(self, after: int = 0) -> AsyncIterator[Positioned]:
        """Every record behind a position, in the order of the log."""

    def tail(self, after: int) -> AsyncIterator[Positioned]:
        """Like `read_all`, and then on as records come."""

    async def head(self) -> int:
        """The position of the last record; 0 where there is none."""

    async def put_policy(self, digest: str, text: bytes) -> None: ...

    async def policy(self, digest: str) -> bytes | None: ...

    async def policies(self) -> dict[str, bytes]: ...

    async def save_snapshot(self, thread: ThreadId, seq: int, data: bytes) -> None: ...

    async def load_snapshot(self, thread: ThreadId) -> tuple[int, bytes] | None: ...

    def open_deadlines(self) -> AsyncIterator[tuple[int, ThreadId, RunId]]: ...

    async def close(self) -> None: ...
