"""Opening whatever a person calls a log: a SQLite file or a JSONL export."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from gated.core.policy import Policy
from gated.shell.log import LogUnavailable
from gated.shell.log.jsonl import JsonlLog, open_export
from gated.shell.log.sqlite import SqliteLog, open_for_reading
from gated.shell.policies import load_stored

Readable = SqliteLog | JsonlLog


@asynccontextmanager
async def open_log(name: str) -> AsyncIterator[Readable]:
    """Open for reading, also while a daemon writes. Raises `LogUnavailable`."""
    if name.startswith("nats:"):
        raise LogUnavailable("a log on JetStream is not built yet: name a SQLite file or a `.jsonl` export")
    path = Path(name)
    log: Readable = await anyio.to_thread.run_sync(open_export, path) if path.suffix == ".jsonl" else await open_for_reading(path)
    try:
        yield log
    finally:
        await log.close()


async def policies_of(log: Readable) -> dict[str, Policy]:
    """The compiled policies of a log, by digest. Raises `DocumentError` where one needs what is not installed here."""
    return {digest: load_stored(text, digest, lenient=False) for digest, text in (await log.policies()).items()}
