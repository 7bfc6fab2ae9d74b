"""An export goes where it is sent, also into a pipe; what commands that write logs say can be read by a machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command import gated

LOG = Path(__file__).parents[1] / "histories" / "v1-story.jsonl"


def test_an_export_to_standard_output_is_the_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert gated("log", "import", LOG, "log.db")[0] == 0
    assert gated("log", "export", "log.db", "file.jsonl")[1] == "20 lines written to file.jsonl\n"
    sent = subprocess.run([sys.executable, "-m", "gated", "log", "export", "log.db", "-"], check=True, capture_output=True)
    assert sent.stdout == Path("file.jsonl").read_bytes()
    assert sent.stderr == b""
    assert not Path("-").exists()


def test_an_archive_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert gated("log", "import", LOG, "log.db")[0] == 0
    status, _, error = gated("log", "archive", "log.db", "-")
    assert status == 2
    assert "an archive is a file" in error
    assert gated("log", "archive", "log.db", "old.jsonl", "--before", "2001-01-01T00:00:00+02:00")[0] == 0
    assert gated("log", "archive", "log.db", "old.jsonl", "--before", "yesterday")[0] == 2


def test_json_of_what_writes(tmp_path: Path) -> None:
    log, copy = tmp_path / "log.db", tmp_path / "copy.jsonl"
    said = json.loads(gated("log", "import", LOG, log, "--json")[1])
    assert said["records"] > 0
    assert json.loads(gated("log", "export", log, copy, "--json")[1]) == {"file": str(copy), "lines": said["records"] + 1}
    one, pretty = gated("log", "show", log, "1", "--json")[1], gated("log", "show", log, "1")[1]
    assert one.count("\n") == 1
    assert json.loads(one) == json.loads(pretty)
