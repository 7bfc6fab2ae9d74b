"""Progress: what reads a whole log shows how far it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

from rich.progress import Progress

from gated.cli.output import errors
from gated.shell.log import Positioned
from gated.shell.log.open import Readable


async def progressed(log: Readable, what: str) -> AsyncIterator[Positioned]:
    """All records, with a bar on standard error where a person looks."""
    total = await log.head()
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        async for found in log.read_all():
            progress.advance(task)
            yield found
