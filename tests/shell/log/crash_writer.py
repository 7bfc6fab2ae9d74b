"""Writes a log from many tasks until it is killed, and says what was acknowledged: `thread seq`, a line each."""

import asyncio
import os
import sys
from pathlib import Path

from gated.events import ThreadId
from gated.shell.log import EventLog
from gated.shell.log.sqlite import open_for_writing
from shell.log.backends import chained


async def write(log: EventLog, thread: str) -> None:
    for record in chained(thread, 2000):
        await log.append(ThreadId(thread), record.seq - 1, [record])
        os.write(1, f"{thread} {record.seq}\n".encode())


async def main() -> None:
    log = await open_for_writing(Path(sys.argv[1]))
    await asyncio.gather(*(write(log, f"t{n}") for n in range(16)))


asyncio.run(main())
