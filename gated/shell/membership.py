"""Which workers a cluster has, and which partitions each should have: a hint, since the lease in the log decides who writes.

Every worker says twice a second that it is there. All share the partitions out by the same rule from the same list, so that they
agree without asking; while their lists differ a partition may have two workers that wait for it, or none for a moment.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import Struct

BEAT: Final = 0.5  # seconds between two signs of life
SILENT: Final = 2.5  # seconds without one after which a worker is taken for dead

WorkerState = Literal["working", "draining", "leaving"]


class Beat(Struct, frozen=True):
    """A worker's sign of life. `owns` are the partitions that it writes; `reload_failed`: why its policy file was not taken."""

    worker: str
    state: WorkerState
    host: str
    pid: int
    owns: tuple[int, ...] = ()
    records: int = 0
    why: str = ""
    reload_failed: str = ""


def new_name() -> str:
    """A name for this process that no other has, and that may stand in a subject."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:40] or "worker"
    return f"{host}-{os.getpid()}-{secrets.token_hex(2)}"


class Members:
    """The workers that were heard of lately."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[float, Beat]] = {}

    def hear(self, data: bytes) -> None:
        """Raises `msgspec.MsgspecError`."""
        beat = msgspec.json.decode(data, type=Beat)
        self._beats[beat.worker] = (time.monotonic(), beat)

    def living(self) -> list[Beat]:
        """The beats of all that live, sorted by name."""
        return [beat for beat in self._heard() if beat.state != "leaving"]

    def _heard(self) -> list[Beat]:
        now = time.monotonic()
        self._beats = {name: (at, beat) for name, (at, beat) in self._beats.items() if now - at < SILENT}
        return [beat for _, (_, beat) in sorted(self._beats.items())]

    def owner(self, partition: int, but: str) -> str:
        """A worker that says it has a partition, also where it is leaving; empty where none but one says so."""
        return next((beat.worker for beat in self._heard() if partition in beat.owns and beat.worker != but), "")

    def working(self) -> list[str]:
        return [beat.worker for beat in self.living() if beat.state == "working"]


def share(partitions: int, workers: Iterable[str]) -> dict[int, str]:
    """Who should have which partition: each its highest hash among those that are not full. One worker more or less moves few."""
    names = sorted(workers)
    if not names:
        return {}
    room = dict.fromkeys(names, -(-partitions // len(names)))
    made: dict[int, str] = {}
    for partition in range(partitions):
        chosen = max((name for name in names if room[name]), key=lambda name: _weight(name, partition))
        room[chosen] -= 1
        made[partition] = chosen
    return made


def _weight(worker: str, partition: int) -> bytes:
    return hashlib.sha256(f"{partition}/{worker}".encode()).digest()
