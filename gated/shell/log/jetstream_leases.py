"""The leases of a log on JetStream: who writes which partition.

A lease is a message on `gated.lease.<p>` in the log's own stream; the newest counts. Who takes a partition over writes one over
whatever stands there; who only renews his own finds another's instead, and has lost the partition for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from uuid import uuid4

import anyio
import msgspec

from gated.shell.log import LogLocked, LogUnavailable
from gated.shell.log.jetstream_api import WRONG_SEQUENCE, JetStreamApi, Outgoing, Refused, Stored
from gated.shell.log.jetstream_names import Names
from gated.shell.log.jetstream_reader import BEHIND, PATIENCE

EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_ON: Final = "Nats-Expected-Last-Subject-Sequence-Subject"


class Lease(msgspec.Struct, frozen=True):
    """Who has a partition. `token` is different for every log that was opened."""

    worker: str
    token: str


def lease_of(found: Stored) -> Lease:
    """What cannot be read is nobody's that is known: who finds it has lost the partition."""
    try:
        return msgspec.json.decode(found.data, type=Lease)
    except msgspec.MsgspecError:
        return Lease("unknown", "")


class Leases:
    """The leases of one writer. `held` are their places in the stream, by partition; `out` makes a message to be stored."""

    def __init__(
        self, api: JetStreamApi, names: Names, worker: str, out: Callable[[str, bytes, dict[str, str]], Outgoing]
    ) -> None:
        self._api, self._names, self._out = api, names, out
        self._mine = Lease(worker, uuid4().hex)
        self.held: dict[int, int] = {}
        self.lost: LogLocked | None = None

    async def take_over(self, partitions: Iterable[int]) -> None:
        """Become the one writer of partitions, whoever had them. Raises `LogUnavailable`."""
        async with anyio.create_task_group() as tasks:
            for partition in partitions:
                tasks.start_soon(self._take, partition)

    async def succeed(self, partition: int, place: int) -> None:
        """Become the one writer after the owner whose lease is at a place. Raises `LogLocked` where another did meanwhile."""
        if not await self._write(partition, place):
            raise LogLocked(f"partition {partition} of {self._names.log}", f"another than lease {place}")

    async def _take(self, partition: int) -> None:
        for _ in range(PATIENCE):
            found = await self._found(partition)
            if await self._write(partition, 0 if found is None else found.place):
                return
            await anyio.sleep(BEHIND)
        raise LogUnavailable(f"cannot write the lease of partition {partition}: others do, again and again")

    async def _found(self, partition: int) -> Stored | None:
        subject = self._names.lease(partition)
        return (await self._api.last_of(self._names.log, [subject])).get(subject)

    async def _write(self, partition: int, expected: int) -> bool:
        """Write a lease over the one at a place; False where another stands there."""
        message = self._out(self._names.lease(partition), msgspec.json.encode(self._mine), {EXPECTED: str(expected)})
        try:
            self.held[partition] = await self._api.store(message)
        except Refused as error:
            if error.code in WRONG_SEQUENCE:
                return False
            raise LogUnavailable(f"cannot write the lease of partition {partition}: {error.why}") from error
        return True

    async def renew(self) -> None:
        """Write every lease anew, so that nothing lands any more that was sent before. Raises `LogLocked`, `LogUnavailable`."""
        for partition in self.held:
            await self._renew(partition)

    async def _renew(self, partition: int) -> None:
        for _ in range(PATIENCE):
            found = await self._found(partition)
            if found is not None and found.place >= self.held[partition]:
                self.check(partition, found)
                if await self._write(partition, found.place):
                    return
            await anyio.sleep(BEHIND)
        raise LogUnavailable(f"cannot renew the lease of partition {partition}")

    def check(self, partition: int, found: Stored) -> None:
        """Raises `LogLocked` where the lease that was found is another's; from then on always."""
        lease = lease_of(found)
        if lease.token != self._mine.token:
            self.lost = LogLocked(f"partition {partition} of {self._names.log}", f"worker {lease.worker}, lease {found.place}")
            raise self.lost

    async def check_still(self, partition: int) -> None:
        """Raises `LogLocked` where a newer lease than this writer's stands in the log, and is another's."""
        found = await self._found(partition)
        if found is not None and found.place > self.place_of(partition):
            self.check(partition, found)

    def place_of(self, partition: int) -> int:
        """Raises `LogLocked` for a partition that was never taken over."""
        if partition not in self.held:
            raise LogLocked(f"partition {partition} of {self._names.log}", "not taken over by this worker")
        return self.held[partition]
