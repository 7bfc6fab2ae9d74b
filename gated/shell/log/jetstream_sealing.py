"""Sealing a log on JetStream, all partitions of it: by its one writer after appends, or by whoever has the first partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import structlog

from gated.core.chain import CheckpointNote
from gated.shell.log import LogError
from gated.shell.log.jetstream_reader import JetStreamReader
from gated.shell.log.sealing import Sealing

log = structlog.get_logger("gated.log")


class Seals:
    """`put` writes a checkpoint. One object for one log, so that what could not be sealed is not tried at every append."""

    def __init__(self, reader: JetStreamReader, put: Callable[[CheckpointNote], Awaitable[None]]) -> None:
        self._reader, self._put = reader, put
        self._tried = 0

    async def seal_when_due(self, sealing: Sealing, *, ending: bool = False) -> None:
        """Seal if enough came since the last seal, or anything, where it is `ending`. A log that cannot be sealed decides on."""
        try:
            notes = await self._reader.checkpoints()
            sealed = max((note.position for note in notes), default=0)
            position = await self._reader.head()
            if not (position > sealed if ending else sealing.due(position, max(sealed, self._tried))):
                return
            self._tried = position
            record, heads = await self._reader.heads_at(position)
            note = CheckpointNote(position, sealing.seal(position, record.hash, heads))
            await self._put(note)
            await anyio.to_thread.run_sync(sealing.publish, note.note)  # which may wait for files and the bus
        except (LogError, OSError) as error:
            log.error("cannot seal the log", log=self._reader.names.log, error=str(error))
