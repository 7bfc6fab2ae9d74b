from pathlib import Path

import pytest
from shell.log.backends import BACKENDS, Backend


@pytest.fixture(params=BACKENDS, ids=lambda made: made.__name__)
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    made: Backend = request.param(tmp_path, monkeypatch)
    return made
