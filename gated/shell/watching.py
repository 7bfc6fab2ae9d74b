"""What changes in folders. A system that cannot watch them (it has a limit of watches) is no reason to end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import structlog
from watchfiles import awatch

log = structlog.get_logger("gated.watching")


async def changes_in(*folders: Path, until: anyio.Event) -> AsyncIterator[set[Path]]:
    """The files that changed, each time that some did.

    The watching thread cannot be cancelled: who stops listening for it sets `until` first, or waits for seconds.
    """
    try:
        async for changes in awatch(*folders, recursive=False, stop_event=until):
            yield {Path(name) for _, name in changes}
    except (OSError, RuntimeError) as error:  # watchfiles' own errors are of either kind
        names = ", ".join(map(str, folders))
        log.error("changes are not noticed from now on", folders=names, error=str(error) or type(error).__name__)
