"""How a cluster is: its workers, and of every partition who has it, how far it is behind, how old its lease is."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gated.shell.log.jetstream_leases import lease_of
from gated.shell.log.jetstream_streams import consumers
from gated.shell.log.jetstream_time import microseconds, time_of
from gated.shell.membership import Beat
from gated.shell.place import Place


class PartitionStatus(Struct, frozen=True):
    """`owner` is nobody where no worker has it (nothing came to it lately); `lag` are inputs that are not acknowledged yet.

    `lease_age_s` is the time since somebody last took it over.
    """

    partition: int
    owner: str | None
    lag: int
    waiting_workers: int
    leased_to: str | None
    lease_age_s: float | None


class ClusterStatus(Struct, frozen=True):
    workers: Sequence[Beat]
    partitions: list[PartitionStatus]
    replicas: int
    lag: int


async def status_of(place: Place, living: Sequence[Beat]) -> ClusterStatus:
    """Raises `LogUnavailable`, `Refused`."""
    count = place.shape.partitions
    owners = {partition: beat.worker for beat in living for partition in beat.owns}
    said = await consumers(place.api, place.names, range(count))
    leases = await place.api.last_of(place.names.log, [place.names.lease(p) for p in range(count)])
    now, found = await time_of(place.api, place.names.log), []
    for partition in range(count):
        info = said.get(partition, {})
        lease = leases.get(place.names.lease(partition))
        found.append(
            PartitionStatus(
                partition=partition,
                owner=owners.get(partition),
                lag=info.get("num_pending", 0) + info.get("num_ack_pending", 0),
                waiting_workers=info.get("num_waiting", 0),
                leased_to=None if lease is None else lease_of(lease).worker,
                lease_age_s=None if lease is None else _seconds(now - microseconds(lease.headers["Nats-Time-Stamp"])),
            )
        )
    return ClusterStatus(living, found, place.shape.replicas, sum(one.lag for one in found))


def _seconds(age: int) -> float:
    return round(max(0, age) / 1e6, 3)
