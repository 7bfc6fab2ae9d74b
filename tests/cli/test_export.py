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
    exported = json.loads(gated("log", "export", log, copy, "--json")[1])
    assert exported == {"file": str(copy), "lines": said["records"] + 1, "left_out": 0}
    one, pretty = gated("log", "show", log, "1", "--json")[1], gated("log", "show", log, "1")[1]
    assert one.count("\n") == 1
    assert json.loads(one) == json.loads(pretty)


def commands(log: str) -> list[tuple[str, ...]]:
    return [
        *[(name, log) for name in ("replay", "verify", "stats")],
        *[("runs", "ls", log), ("runs", "show", log, "r"), ("log", "ls", log), ("log", "show", log, "1")],
        *[
            ("log", "export", log, "out.jsonl"),
            ("log", "archive", log, "old.jsonl"),
            ("log", "erase", log, "--thread", "t", "--yes"),
        ],
        *[("what-if", log, "--policy", "p.yaml"), ("policy", "suggest", "--log", log)],
    ]


@pytest.mark.parametrize("log", ["nope.db", "nope.jsonl", "", "a\0b", "é" * 300], ids=ascii)
def test_a_log_that_is_not_there_is_not_made(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text("version: 1\nagents: {a: {allowed_tools: [T]}}\n")
    for command in commands(log):
        status, said, error = gated(*command)
        assert (status, said) == (2, ""), command
        assert error.startswith("error: there is no log at") or (not log and "it is empty: name one" in error), command
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.yaml"]


@pytest.mark.parametrize("position", ["0", "21", "9" * 40])
def test_a_position_that_no_record_has(position: str, tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    assert gated("log", "import", LOG, log)[0] == 0
    for one in (LOG, log):
        status, said, error = gated("log", "show", one, position)
        assert (status, said, error) == (1, "", f"error: the log has no record at position {position}\n")


@pytest.mark.parametrize(
    "command",
    [("log", "ls", LOG, "--limit", "9" * 30), ("log", "tail", LOG, "-n", "-1"), ("verify", LOG, "--key", "empty")],
    ids=["limit", "lines", "key"],
)
def test_what_cannot_be_asked_for(command: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text("\n")
    assert gated(*command)[0] == 2


def test_arguments_of_a_match_are_what_the_bus_would_take() -> None:
    for text in ('{"a": NaN}', '{"a": 1, "a": 2}', "[1]", "{"):
        assert gated("policy", "match", "T", "--tool", "T", "--args", text)[0] == 2
