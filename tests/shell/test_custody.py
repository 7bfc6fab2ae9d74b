"""Copies of checkpoints on the bus: a bus that does not take one is trouble of the copy, and of nothing else."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from nats.errors import ConnectionClosedError

from gated.shell.custody import Copies, open_custody, publish_copies


class Closed:
    async def publish(self, subject: str, data: bytes) -> None:
        raise ConnectionClosedError


async def test_a_checkpoint_that_the_bus_does_not_take_is_an_error_of_its_copy(tmp_path: Path) -> None:
    """Found by reading: it ended the worker that sealed a cluster's log."""
    custody = open_custody(tmp_path, Copies(subject="gated.checkpoints"))
    publish_copies(custody, Closed())  # type: ignore[arg-type]
    with pytest.raises(OSError, match=r"cannot be published on .*: nats: connection closed"):
        await anyio.to_thread.run_sync(custody.sealing.publish, "note")
