from pathlib import Path
from threading import Thread
from typing import Any

import aiosqlite.core
import pytest

from shell.log.backends import BACKENDS, Backend


@pytest.fixture(autouse=True)
def no_thread_outlives_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that fails leaves its log open: its reader's thread must not keep the process."""

    def daemonic(**options: Any) -> Thread:
        return Thread(**options, daemon=True)

    monkeypatch.setattr(aiosqlite.core, "Thread", daemonic)


@pytest.fixture(params=BACKENDS, ids=lambda made: made.__name__)
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    made: Backend = request.param(tmp_path, monkeypatch)
    return made
