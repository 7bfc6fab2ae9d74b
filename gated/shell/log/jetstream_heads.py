"""The ends of threads, as the one writer of their partitions knows them.

INVARIANT: what is known was read from a replica that has this writer's lease, and so all that was written before it; or this
writer wrote it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import anyio

from gated.events import GENESIS, Record, ThreadId
from gated.shell.log import LogConflict, LogUnavailable
from gated.shell.log.jetstream_api import Truncated
from gated.shell.log.jetstream_leases import Leases
from gated.shell.log.jetstream_names import partition_of
from gated.shell.log.jetstream_reader import BEHIND, PATIENCE, Head, JetStreamReader

TOGETHER: Final = 900  # threads of one question
REMEMBERED: Final = 20_000  # threads whose last record is known without asking


class Heads:
    """The last record of each thread, read through `reader` under `leases`."""

    def __init__(self, reader: JetStreamReader, leases: Leases) -> None:
        self._reader, self._leases = reader, leases
        self._known: OrderedDict[ThreadId, Head | None] = OrderedDict()

    def forget(self) -> None:
        """What is in the log is uncertain."""
        self._known.clear()

    def grew(self, record: Record, place: int) -> None:
        """A record was stored."""
        self._known[record.thread] = Head(record.seq, record.hash, place)
        self._known.move_to_end(record.thread)

    def known(self, threads: Iterable[ThreadId]) -> dict[ThreadId, Head | None] | None:
        """The last record of each thread, where nothing must be asked for that."""
        try:
            return {thread: self._known[thread] for thread in threads}
        except KeyError:
            return None

    async def of(self, threads: Sequence[ThreadId]) -> dict[ThreadId, Head | None]:
        """The last record of each thread. Raises `LogUnavailable`, `LogLocked`."""
        unknown = [thread for thread in threads if thread not in self._known]
        for start in range(0, len(unknown), TOGETHER):
            await self._ask(unknown[start : start + TOGETHER])
        found = {thread: self._known[thread] for thread in threads}
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return found

    async def _ask(self, threads: Sequence[ThreadId]) -> None:
        reader, held = self._reader, self._leases.held
        leases = {reader.names.lease(p): p for p in {partition_of(thread, reader.partitions) for thread in threads}}
        for partition in leases.values():
            self._leases.place_of(partition)
        for _ in range(PATIENCE):
            try:
                found = await reader.api.last_of(reader.names.log, [*leases, *map(reader.subject, threads)])
            except Truncated:
                for half in (threads[: len(threads) // 2], threads[len(threads) // 2 :]):
                    await self._ask(half)
                return
            if all(subject in found and found[subject].place >= held[p] for subject, p in leases.items()):
                for subject, partition in leases.items():
                    self._leases.check(partition, found[subject])
                for thread in threads:
                    last = found.get(reader.subject(thread))
                    self._known[thread] = None if last is None else await reader.head_in(last)
                return
            await anyio.sleep(BEHIND)
        raise LogUnavailable("cannot read the log: a replica stays behind")


def seq_of(head: Head | None) -> int:
    return 0 if head is None else head.seq


def is_next(records: Iterable[Record], heads: Mapping[ThreadId, Head | None]) -> bool:
    """Whether records of different threads are the next of each."""
    for record in records:
        head = heads[record.thread]
        if (record.seq, record.prev) != ((1, GENESIS) if head is None else (head.seq + 1, head.hash)):
            return False
    return True


def check_chain(records: Sequence[Record], heads: dict[ThreadId, Head | None]) -> None:
    """Raises `LogConflict` where a record is not the next of its thread."""
    ends = {thread: (0, GENESIS) if head is None else (head.seq, head.hash) for thread, head in heads.items()}
    for record in records:
        seq, last = ends[record.thread]
        if record.seq != seq + 1 or record.prev != last:
            raise LogConflict(record.thread, record.seq, seq)
        ends[record.thread] = (record.seq, record.hash)
