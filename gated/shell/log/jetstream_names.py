"""The names of a cluster's streams, consumers and subjects, and the partition that a thread is in."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from gated import wire


class Names(NamedTuple):
    """The names that follow from the prefix of subjects."""

    prefix: str = wire.PREFIX

    @property
    def inputs(self) -> str:
        return f"{self.prefix.upper()}_IN"

    @property
    def log(self) -> str:
        return f"{self.prefix.upper()}_LOG"

    @property
    def timers(self) -> str:
        return f"{self.prefix.upper()}_TIMERS"

    @property
    def snapshots(self) -> str:
        return f"{self.prefix.upper()}_SNAPSHOTS"

    def record(self, partition: int | str, thread: str) -> str:
        return f"{self.prefix}.log.{partition}.{thread}"

    def lease(self, partition: int | str) -> str:
        return f"{self.prefix}.lease.{partition}"

    def part(self, partition: int) -> str:
        return f"{self.prefix}.part.{partition}"

    def policy(self, digest: str) -> str:
        return f"{self.prefix}.policy.{digest}"

    @property
    def checkpoint(self) -> str:
        return f"{self.prefix}.checkpoint.log"

    @property
    def key(self) -> str:
        """Where the fingerprint of the cluster's redaction key stands."""
        return f"{self.prefix}.checkpoint.key"

    @property
    def subjects(self) -> str:
        """Where the name of the folder stands that the cluster has its keys of subjects in."""
        return f"{self.prefix}.checkpoint.subjects"

    @property
    def others(self) -> str:
        """What stands in the log's stream beside records."""
        return f"{self.prefix}.*.*"

    def written(self, subject: str, secret: str) -> str:
        """Where the daemon publishes what is to be stored as `subject`."""
        return f"{self.prefix}.write.{secret}{subject[len(self.prefix) :]}"

    def snapshot(self, partition: int | str, thread: str, number: int | str) -> str:
        return f"{self.prefix}.snapshot.{partition}.{thread}.{number}"

    def open_runs(self, agent: str) -> str:
        """Where the open runs of an agent stand, by partition: among the snapshots, which the log can be without too."""
        return self.snapshot("open", agent, 0)

    def timer(self, partition: int | str, thread: str, run: str) -> str:
        return f"{self.prefix}.timer.{partition}.{thread}.{run}"

    def due(self, thread: str, run: str) -> str:
        """What a deadline becomes when it has come, and then an input."""
        return f"{self.prefix}.due.{thread}.{run}"

    def consumer(self, partition: int) -> str:
        return f"gated-{partition}"


@lru_cache(maxsize=16_384)
def partition_of(thread: str, partitions: int) -> int:
    """As the server's `{{partition(P,1)}}` does it: FNV-1a of 32 bits, modulo P."""
    value = 2166136261
    for byte in thread.encode():
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value % partitions
