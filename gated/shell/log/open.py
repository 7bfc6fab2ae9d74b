"""Opening whatever a person calls a log: a SQLite file, a JSONL export, or a cluster's log.

`nats:` is the cluster that `GATED_NATS_URL` names, `nats://host:port` another; `GATED_NATS_USER` and the other variables of
`login.py` say as whom. An auditor may read it. `GATED_PREFIX` is the first token of its subjects.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio

from gated.core.known import Known
from gated.shell.connection import BusError, connect
from gated.shell.log import LogUnavailable, ReadableLog, jetstream
from gated.shell.log.jetstream_reader import JetStreamReader
from gated.shell.log.jsonl import JsonlLog, open_export
from gated.shell.log.sqlite import SqliteLog, open_for_reading
from gated.shell.login import login
from gated.shell.policies import load_stored
from gated.wire import PREFIX

Readable = SqliteLog | JsonlLog | JetStreamReader

SCHEMES: Final = ("nats:", "tls:")


@asynccontextmanager
async def open_log(name: str) -> AsyncIterator[Readable]:
    """Open for reading, also while a daemon writes. Raises `LogUnavailable`."""
    log = await _opened(name)
    try:
        yield log
    finally:
        await log.close()


async def _opened(name: str) -> Readable:
    if name.startswith(SCHEMES):
        return await _of_cluster(name)
    path = Path(name)
    return await anyio.to_thread.run_sync(open_export, path) if path.suffix == ".jsonl" else await open_for_reading(path)


async def _of_cluster(name: str) -> JetStreamReader:
    asked = login("" if name in SCHEMES else name)
    try:
        client = await connect(asked.url, "gated log", lambda: None, **asked.credentials)
    except BusError as error:
        raise LogUnavailable(str(error)) from error
    try:
        return await jetstream.open_for_reading(client, os.environ.get("GATED_PREFIX", PREFIX), owns=True)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await client.close()
        raise


async def policies_of(log: ReadableLog) -> Known:
    """The compiled policies of a log, by digest. Raises `DocumentError` where one needs what is not installed here."""
    return Known((digest, load_stored(text, digest, lenient=False)) for digest, text in (await log.policies()).items())
