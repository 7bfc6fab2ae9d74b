"""Exports: a log as JSON lines that verify and replay by themselves, read back as a log or into one.

A policy is a line before the records, a checkpoint a line behind the record it stands on. An export read as a log is held in
memory and only read; taken into another log it comes out of that one again byte for byte.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from pathlib import Path

import anyio
from msgspec import Struct

from gated.core.chain import CheckpointNote, checkpoint_line, export_line, parse_line, policy_line, verify_records
from gated.core.known import policy_named, without_policy
from gated.events import GENESIS, Record, ThreadId
from gated.shell.log import EventLog, LogConflict, LogDamaged, LogUnavailable, Positioned, ReadableLog
from gated.shell.log.anchors import anchors_of


class JsonlLog:
    """The reading half of an event log."""

    def __init__(self, records: list[Record], policies: dict[str, bytes], checkpoints: Iterable[CheckpointNote] = ()) -> None:
        self._records, self._policies, self._checkpoints = records, policies, list(checkpoints)
        self._threads: dict[ThreadId, list[Record]] = {}
        for record in records:
            self._threads.setdefault(record.thread, []).append(record)

    async def get(self, thread: ThreadId, seq: int) -> Record | None:
        return next((r for r in self._threads.get(thread, ()) if r.seq == seq), None)

    async def read(self, thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
        for record in self._threads.get(thread, ()):
            if record.seq > after:
                yield record

    async def read_all(self, after: int = 0) -> AsyncIterator[Positioned]:
        for position, record in enumerate(self._records[max(after, 0) :], max(after, 0) + 1):
            yield Positioned(position, record)

    async def tail(self, after: int) -> AsyncIterator[Positioned]:
        """Ends where the export ends: it does not grow."""
        async for found in self.read_all(after):
            yield found

    async def head(self) -> int:
        return len(self._records)

    async def heads(self) -> dict[ThreadId, tuple[int, str]]:
        return {thread: (r[-1].seq, r[-1].hash) for thread, r in sorted(self._threads.items())}

    async def threads(self) -> AsyncIterator[ThreadId]:
        for thread in sorted(self._threads):
            yield thread

    async def policy(self, digest: str) -> bytes | None:
        return self._policies.get(digest)

    async def policies(self) -> dict[str, bytes]:
        return dict(sorted(self._policies.items()))

    async def load_snapshot(self, thread: ThreadId) -> tuple[int, bytes] | None:
        return None  # an export has records only: a fold from the start says the same

    async def checkpoints(self) -> list[CheckpointNote]:
        return list(self._checkpoints)

    async def close(self) -> None:
        self._records, self._threads = [], {}


def open_export(path: Path) -> JsonlLog:
    """Raises `LogUnavailable` where the file cannot be read, `LogDamaged` with the line that cannot."""
    records: list[Record] = []
    policies: dict[str, bytes] = {}
    checkpoints: list[CheckpointNote] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                match _parsed(path, number, line):
                    case Record() as record:
                        records.append(record)
                    case CheckpointNote() as note:
                        checkpoints.append(note)
                    case digest, text:
                        policies[digest] = text
    except OSError as error:
        raise LogUnavailable(f"cannot read `{path}`: {error.strerror}") from error
    return JsonlLog(records, policies, checkpoints)


def _parsed(path: Path, number: int, line: bytes) -> Record | tuple[str, bytes] | CheckpointNote:
    try:
        return parse_line(line)
    except ValueError as error:
        raise LogDamaged(number, f"{path}:{number}: {error}") from error


async def export_lines(log: ReadableLog, threads: Collection[ThreadId] | None = None) -> AsyncIterator[bytes]:
    """The lines of an export, each with its end. Of some `threads` only, it has no checkpoints: those seal the whole log.

    What follows on an archived thread is left out: it verifies with its archive only.

    Raises `LogDamaged` for a record that is not JSON.
    """
    for digest, text in (await log.policies()).items():
        yield policy_line(digest, text) + b"\n"
    notes: dict[int, list[str]] = {}
    anchors = await anchors_of(log)
    elsewhere = frozenset() if anchors is None else frozenset(anchors.heads)
    for made in await log.checkpoints() if threads is None and anchors is None else ():
        notes.setdefault(made.position, []).append(made.note)
    async for position, record in log.read_all():
        if record.thread in elsewhere or (threads is not None and record.thread not in threads):
            continue
        try:
            yield export_line(record) + b"\n"
        except ValueError as error:
            raise LogDamaged(position, str(error)) from error
        for note in notes.get(position, ()):
            yield checkpoint_line(position, note) + b"\n"


class Imported(Struct, frozen=True):
    """How many records went in, and how many checkpoints did not, since behind other records they seal nothing."""

    records: int
    foreign_checkpoints: int


class Export(Struct, frozen=True):
    """A whole export that was read and whose records were verified."""

    records: list[Record]
    policies: dict[str, bytes]
    checkpoints: list[CheckpointNote]

    def must_follow(self, heads: Mapping[ThreadId, tuple[int, str]]) -> None:
        """Raises `LogConflict` where a thread does not go on from its last record in a log, or from its beginning."""
        seen: set[ThreadId] = set()
        for record in self.records:
            seq, head = heads.get(record.thread, (0, GENESIS))
            if record.thread not in seen and (record.seq, record.prev) != (seq + 1, head):
                raise LogConflict(record.thread, record.seq, seq)
            seen.add(record.thread)

    def must_know(self, policies: Collection[str]) -> None:
        """Raises `LogDamaged` where a record was decided under a policy that neither the export nor the log holds."""
        for position, record in enumerate(self.records, 1):
            digest = policy_named(record)
            if digest not in self.policies and digest not in policies:
                raise LogDamaged(position, f"record {record.seq} of thread `{record.thread}`: {without_policy(digest)}")


async def read_export(path: Path) -> Export:
    """Raises `LogDamaged` where a record is not what its hash says, or the file no export; `LogUnavailable`."""
    export = await anyio.to_thread.run_sync(open_export, path)
    records = [record async for _, record in export.read_all()]
    damage = verify_records(enumerate(records, 1)).damage
    if damage is not None:
        raise LogDamaged(damage.position, f"{path}: {damage.what}")
    return Export(records, await export.policies(), await export.checkpoints())


async def take_in(log: EventLog, export: Export) -> Imported:
    """Append a whole export or nothing of it. Raises `LogConflict` where a thread does not go on, `LogDamaged`,
    `LogUnavailable`.
    """
    export.must_follow(await log.heads())
    export.must_know(await log.policies())
    behind = await log.head()
    for digest, text in export.policies.items():
        await log.put_policy(digest, text)
    await log.append_many(export.records)
    for note in () if behind else export.checkpoints:
        await log.put_checkpoint(note)
    return Imported(len(export.records), len(export.checkpoints) if behind else 0)
