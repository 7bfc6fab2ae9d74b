"""What was archived out of a log, as those who read it must know: hashes to follow, and states to begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from gated.core import state as states
from gated.core.chain import Anchors
from gated.core.state import ThreadState
from gated.events import ThreadId
from gated.shell.log import ReadableLog


@runtime_checkable
class Archivable(Protocol):
    """A log that threads may have been taken out of."""

    async def anchors(self) -> Anchors | None: ...

    def anchored_states(self) -> AsyncIterator[bytes]: ...


async def anchors_of(log: ReadableLog) -> Anchors | None:
    return await log.anchors() if isinstance(log, Archivable) else None


async def archived_states(log: ReadableLog) -> dict[ThreadId, ThreadState]:
    """The states that threads had when their records went: what comes later in the log follows them."""
    if not isinstance(log, Archivable):
        return {}
    found = [states.load(raw) async for raw in log.anchored_states()]
    return {state.thread: state for state in found}
