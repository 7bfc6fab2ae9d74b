"""Erasures in a cluster that were begun and not told everywhere: a worker died, or the command that asked for them did.

The key is gone then, and runs that held data of the subject do not say so yet. Whoever has their partitions records it: looked
for at the start, when partitions came or went, and now and then, since another worker may have died.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio
import structlog
from msgspec.structs import replace

from gated.shell.erasing import Subjects
from gated.shell.log import LogError
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.log.jetstream_names import partition_of
from gated.shell.log.jetstream_time import time_of
from gated.shell.partition import Partition
from gated.shell.runs import Runs
from gated.shell.said import Said

TICK: Final = 2.0  # seconds between looks whether partitions came or went, or what was found is told by now
LOOK: Final = 30  # ticks after which it is looked for anyway

log = structlog.get_logger("gated.erasing")


async def finish_erasures(view: Runs, subjects: Subjects, partitions: Sequence[Partition], writer: JetStreamLog) -> None:
    """Work until cancelled. `view` reads the whole log, all partitions of it."""
    looked: frozenset[int] | None = None
    ticks = 0
    while True:
        here = frozenset(partition.number for partition in partitions if partition.runs is not None)
        if here != looked or ticks >= LOOK:
            looked, ticks = here, 0
            try:
                left = await subjects.untold(view.log, view.look)
                now = await time_of(writer.api, writer.names.inputs) if left else 0
                for said in left:
                    await _tell(replace(said, at=now), partitions[partition_of(said.thread, len(partitions))], writer)
                    looked = None
            except (LogError, OSError) as error:
                log.warning("cannot finish erasures now", error=str(error))
        ticks += 1
        await anyio.sleep(TICK)


async def _tell(said: Said, partition: Partition, writer: JetStreamLog) -> None:
    """Have it recorded where its partition is here; where it should be and is not yet, no input came so far."""
    if partition.runs is not None:
        log.info("an erasure is finished", thread=said.thread, run=said.run)
        partition.runs.say(said)
    elif partition.host.wants(partition.number):
        await writer.wake(said.thread, said.run, said.at)
