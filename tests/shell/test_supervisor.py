"""Workers of one machine: one that cannot be started, and one that is being started while all are to stop."""

from __future__ import annotations

import signal
import sys
from typing import Any

import anyio
import pytest

from gated.shell import supervisor
from gated.shell.supervisor import Supervisor

SLEEPS = (sys.executable, "-c", "import time; time.sleep(60)")


async def test_a_worker_that_is_started_while_all_stop_is_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: nobody told it, and the supervisor waited for it for ever."""
    workers, start = Supervisor(SLEEPS, "w", 1), anyio.open_process

    async def slowly(*command: Any, **how: Any) -> anyio.abc.Process:
        workers._stopped.set()
        workers._signal(signal.SIGTERM)
        return await start(*command, **how)

    monkeypatch.setattr(anyio, "open_process", slowly)
    with anyio.fail_after(20):
        await workers._keep("w-1")
    assert workers._running == {}


async def test_a_worker_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: the supervisor ended, and left the others to themselves."""
    workers, start, tries = Supervisor(SLEEPS, "w", 1), anyio.open_process, 0

    async def sometimes(*command: Any, **how: Any) -> anyio.abc.Process:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError("Resource temporarily unavailable")
        workers._stopped.set()
        return await start(*command, **how)

    monkeypatch.setattr(supervisor, "PAUSE", 0.01)
    monkeypatch.setattr(anyio, "open_process", sometimes)
    with anyio.fail_after(20):
        await workers._keep("w-1")
    assert tries == 3
