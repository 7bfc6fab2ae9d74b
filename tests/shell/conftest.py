from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shell.log.backends import JetStreamBackend


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JetStreamBackend]:
    made = JetStreamBackend(tmp_path, monkeypatch)
    yield made
    await made.disconnect()
