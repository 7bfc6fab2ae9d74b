"""Keeping the file by which probes know that a gate or a worker works (`readiness` reads it).

It is written by the loop that decides, so that a loop that stands still gives no sign of life.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import structlog

from gated.errors import GatedError
from gated.shell.readiness import EVERY, OK

log = structlog.get_logger("gated.health_file")


class HealthFileError(GatedError):
    """The file cannot be written."""


async def write(file: Path, why: str) -> None:
    """Say that all is well, or why not. Raises `HealthFileError`."""
    part = anyio.Path(file.with_name(f"{file.name}.part"))
    try:
        await part.write_text(f"{' '.join(why.split()) or OK}\n")
        await part.replace(file)
    except OSError as error:
        raise HealthFileError(f"cannot write the health file `{file}`: {error.strerror}") from error


async def keep(file: Path, why_not: Callable[[], str]) -> None:
    """Write it again and again; a process that stops takes it away. What cannot be written grows stale, and is said once."""
    failed = False
    try:
        while True:
            try:
                await write(file, why_not())
                failed = False
            except HealthFileError as error:
                if not failed:
                    log.error("probes hear nothing of this process now", error=str(error))
                failed = True
            await anyio.sleep(EVERY)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.Path(file).unlink(missing_ok=True)
