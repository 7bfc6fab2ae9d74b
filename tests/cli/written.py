"""A log on the disk, of records that the core made."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from gated.core.policy import Policy
from gated.events import Record
from gated.shell.log.sqlite import open_for_writing


def written(folder: Path, known: Mapping[str, Policy], records: Iterable[Record]) -> Path:
    """The SQLite file of the records, and of the policies that they were decided under."""

    async def write() -> None:
        opened = await open_for_writing(folder / "log.db")
        for digest, policy in known.items():
            await opened.put_policy(digest, policy.text)
        await opened.append_many(list(records))
        await opened.close()

    asyncio.run(write())
    return folder / "log.db"
