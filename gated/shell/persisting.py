"""What is done to the log however long it cannot be used: until then no verdict leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, ParamSpec, TypeVar

import anyio
import structlog

from gated.events import Record
from gated.shell.log import Due, EventLog, LogConflict, LogUnavailable
from gated.shell.said import Health

RETRY: Final = 0.25  # seconds between two attempts

P = ParamSpec("P")
Made = TypeVar("Made")

log = structlog.get_logger("gated.runs")


class Persisting:
    """`health` says why it waits."""

    def __init__(self, event_log: EventLog, health: Health) -> None:
        self._log, self._health = event_log, health

    async def append(self, records: Sequence[Record], dues: Sequence[Due], doubtful: bool = False) -> None:
        """Make the records durable; `doubtful`: some may be already. Raises `LogConflict` where another writer was here."""
        if doubtful:
            records = await self._missing(records)
        while records or dues:
            try:
                await self._log.append_many(records, dues)
                self._health.why = ""
                return
            except LogUnavailable as error:
                await self._wait(error)
                records = await self._missing(records)

    async def do(self, work: Callable[P, Awaitable[Made]], *given: P.args, **named: P.kwargs) -> Made:
        """Do what reads the log."""
        while True:
            try:
                return await work(*given, **named)
            except LogUnavailable as error:
                await self._wait(error)

    async def _wait(self, error: LogUnavailable) -> None:
        if self._health.why != str(error):
            log.error("the log is not there: no verdict leaves until it is", error=str(error))
        self._health.why = str(error)
        await anyio.sleep(RETRY)

    async def _missing(self, records: Sequence[Record]) -> Sequence[Record]:
        """Those of the records that an append of unknown outcome did not make durable."""
        missing: list[Record] = []
        for record in records:
            try:
                stored = await self._log.get(record.thread, record.seq)
            except LogUnavailable:
                return records
            if stored is None:
                missing.append(record)
            elif stored.hash != record.hash:
                raise LogConflict(record.thread, record.seq, stored.seq)
        return missing
