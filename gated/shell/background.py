"""Tasks that run beside a block: they end with it, and what the block raised comes out as it is.

A task group says of everything that it is a group: a `sys.exit(3)` in the block would be a traceback and exit status 1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc


@asynccontextmanager
async def background_tasks() -> AsyncIterator[anyio.abc.TaskGroup]:
    """A task group that is cancelled when the block ends. Where a task fails too, all that was raised comes out as a group."""
    raised: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except BaseException as error:
                raised = error
                raise
            finally:
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if raised is None or group.exceptions != (raised,):
            raise
    if raised is not None:
        raise raised
