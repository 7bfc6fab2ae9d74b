"""How a test waits for what must come: for the thing itself, and long, since a machine may be busy. Only a failure takes long."""

import inspect
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import anyio

PATIENCE = 60.0  # seconds
OFTEN = 0.01  # seconds between two looks


async def until(holds: Callable[[], Any], why: Callable[[], str] = str, seconds: float = PATIENCE) -> Any:
    """Wait until something holds (an awaitable is awaited); what it is. `why` has words for where it does not."""
    end = monotonic() + seconds
    while True:
        found = holds()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert monotonic() < end, f"it did not come to pass within {seconds:g}s. {why()}"
        await anyio.sleep(OFTEN)


def blocking_until(holds: Callable[[], Any], why: Callable[[], str] = str, seconds: float = PATIENCE) -> Any:
    """The same in a thread."""
    end = monotonic() + seconds
    while not (found := holds()):
        assert monotonic() < end, f"it did not come to pass within {seconds:g}s. {why()}"
        sleep(OFTEN)
    return found
