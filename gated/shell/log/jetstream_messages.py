"""What is stored of a log, as messages of JetStream: records under their lease, deadlines as schedules, snapshots in pieces.

INVARIANT: every message of a record says which lease it is written under; the server refuses it where another stands there.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from gated.events import Record, ThreadId
from gated.shell.log import Due
from gated.shell.log.jetstream_api import SPARE, JetStreamApi, Outgoing
from gated.shell.log.jetstream_leases import EXPECTED, EXPECTED_ON
from gated.shell.log.jetstream_names import Names, partition_of
from gated.shell.log.jetstream_reader import HASH, PARTS, PLACE, SEQ, SHA256
from gated.shell.nats_client import header_lines
from gated.units import rfc3339

SUBJECTS: Final = 4096  # of threads that are remembered
DUE_STAYS: Final = "1h"  # that long a deadline that came may be taken over by the stream of inputs


class Messages:
    """Makes the messages of one log, none larger than the server that `api` talks to takes."""

    def __init__(self, api: JetStreamApi, names: Names, partitions: int, secret: str) -> None:
        self._api, self._names, self._partitions, self._secret = api, names, partitions, secret
        self._fences: dict[int, tuple[int, bytes]] = {}  # by partition: the place of its lease, and the headers that say it
        self._subjects: dict[ThreadId, str] = {}

    def of(self, subject: str, data: bytes, headers: dict[str, str]) -> Outgoing:
        """What is to be stored under a subject."""
        return Outgoing(self._names.written(subject, self._secret), data, header_lines(headers))

    def of_record(self, record: Record, lease: int) -> list[Outgoing]:
        """A record is one message; what is over the server's limit has parts in front of it. `lease` is its place."""
        partition = partition_of(record.thread, self._partitions)
        fence = self._fence(partition, lease)
        subject, headers = self._subject_of(partition, record.thread), fence + f"{HASH}: {record.hash}\r\n".encode()
        *before, last = self._pieces(record.body)
        if not before:
            return [Outgoing(subject, last, headers)]
        part = self._names.written(self._names.part(partition), self._secret)
        parts = [Outgoing(part, piece, fence) for piece in before]
        return [*parts, Outgoing(subject, last, headers + header_lines({PARTS: str(len(parts))}))]

    def _fence(self, partition: int, lease: int) -> bytes:
        known = self._fences.get(partition)
        if known is None or known[0] != lease:
            known = lease, header_lines({EXPECTED: str(lease), EXPECTED_ON: self._names.lease(partition)})
            self._fences[partition] = known
        return known[1]

    def _subject_of(self, partition: int, thread: ThreadId) -> str:
        subject = self._subjects.get(thread)
        if subject is None:
            if len(self._subjects) >= SUBJECTS:
                self._subjects.clear()
            subject = self._subjects[thread] = self._names.written(self._names.record(partition, thread), self._secret)
        return subject

    def of_snapshot(self, thread: ThreadId, seq: int, place: int, data: bytes) -> list[Outgoing]:
        """A snapshot after a record at a place of the stream; its first piece comes last, since it names the others."""
        partition, pieces = partition_of(thread, self._partitions), self._pieces(data)
        digest = hashlib.sha256(data).hexdigest()
        headers = {SEQ: str(seq), PLACE: str(place), SHA256: digest, PARTS: str(len(pieces) - 1)}
        made = [self.of(self._names.snapshot(partition, thread, n), piece, headers) for n, piece in enumerate(pieces)]
        return made[::-1]

    def of_deadline(self, due: Due) -> Outgoing:
        """The schedule that becomes an input when a run's deadline has come. The next of a run replaces the last."""
        thread, run, at = due
        headers = {
            "Nats-Schedule": f"@at {rfc3339(at)}",
            "Nats-Schedule-Target": self._names.due(thread, run),
            "Nats-Schedule-TTL": DUE_STAYS,
            "Nats-Rollup": "sub",
        }
        return self.of(self.timer(due), msgspec.json.encode({"due": at}), headers)

    def timer(self, due: Due) -> str:
        """The subject that a run's schedule stands under."""
        thread, run, _ = due
        return self._names.timer(partition_of(thread, self._partitions), thread, run)

    def _pieces(self, data: bytes) -> list[bytes]:
        size = self._api.client.max_payload - SPARE
        return [data] if len(data) <= size else [data[n : n + size] for n in range(0, len(data), size)]
