"""Every command that reads a log reads that of the gate in this folder, or in `--data`, where none is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.command import gated
from cli.test_cli import POLICY, log
from cli.test_help import EVERY

__all__ = ["log"]

# What follows `gated`, with the log where it stands; files are made in the folder of the test.
READING = [
    "runs ls LOG",
    "runs show LOG r1",
    "runs timeline LOG r1",
    "log ls LOG --decision deny",
    "log show LOG 2",
    "log export LOG out.jsonl",
    "log subjects LOG",
    "replay LOG",
    "verify LOG",
    "stats LOG",
    "what-if LOG --policy policy.yaml",
    "policy explain --log LOG --run r1 --call c2",
    "policy suggest --log LOG",
    "policy check policy.yaml --log LOG",
    "policy diff policy.yaml policy.yaml --log LOG",
    "policy barriers --log LOG",
    "policy train-barrier --log LOG",
]
OPTIONAL = ("policy check", "policy diff")  # these read no log where none is named
WRITING = ["log archive LOG out.jsonl", "log erase LOG --thread r1 --yes"]
FOLLOWING = ["log tail LOG", "notify follow LOG notify.yaml --cursor c"]


def words(command: str, log: Path | None) -> list[str]:
    found = command.replace("--log LOG", "LOG").split()
    if log is None:
        return [word for word in found if word != "LOG"]
    named = ["--log", str(log)] if "--log" in command else [str(log)]
    return [part for word in found for part in (named if word == "LOG" else [word])]


@pytest.fixture
def here(log: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a gate, in a folder in which a command is given."""
    at = log.parent / "at"
    (at / ".gated").mkdir(parents=True)
    log.rename(at / ".gated" / "log.db")
    (at / "policy.yaml").write_text(POLICY)
    monkeypatch.chdir(at)
    return at


@pytest.mark.parametrize("command", READING)
def test_the_log_of_the_gate_here_is_read_where_none_is_named(here: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = here / ".gated" / "log.db"
    named = gated(*words(command, log))
    assert named[0] in (0, 1)
    assert named[1] or named[2]
    if not command.startswith(OPTIONAL):
        assert gated(*words(command, None)) == named
    assert gated(*words(command, None), "--data", log.parent) == named
    status, _, error = gated(*words(command, Path("x.db")), "--data", log.parent)
    assert (status, error) == (2, "error: `x.db` is a log, and --data names the folder of another: say one of them\n")
    monkeypatch.chdir(here.parent)
    if not command.startswith(OPTIONAL):
        said = "error: there is no log at `.gated/log.db`: name a log, or with --data the folder of a gate\n"
        assert gated(*words(command.replace("policy.yaml", str(here / "policy.yaml")), None)) == (2, "", said)


def test_what_writes_takes_the_log_of_the_gate_here(here: Path) -> None:
    assert gated("log", "erase", "--thread", "r1", "--yes")[2].startswith("error: nothing is kept of `thread:r1`")
    assert gated("log", "archive", "out.jsonl") == gated("log", "archive", ".gated/log.db", "out.jsonl")


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("runs show", "name a run (`gated runs ls` shows them)"),
        ("runs timeline x.db", "name a run (`gated runs ls` shows them) after the log `x.db`"),
        ("log show nats:", "name a position (`gated log ls` shows them) after the log `nats:`"),
        ("log show r1", "`r1` is no position in a log: it is a number, as `gated log ls` shows them"),
        ("log export", "name the file to write"),
        ("log export .gated/log.db", "`.gated/log.db` is the log itself: write the export to another file"),
        ("notify follow --cursor c", "name the file that names the channels"),
    ],
)
def test_the_word_after_the_log_may_not_be_left_out(here: Path, command: str, missing: str) -> None:
    status, _, error = gated(*command.split())
    assert (status, error) == (2, f"error: {missing}\n")


def test_every_command_with_a_log_is_among_these() -> None:
    known = {" ".join(words(command, None)).partition(" -")[0] for command in (*READING, *WRITING, *FOLLOWING)}
    for path, command in EVERY:
        name = " ".join(path)
        if name != "serve" and any(option.name in ("log", "log_") for option in command.params):
            assert any(one.startswith(name) for one in known), name
            assert any("--data" in option.opts for option in command.params), name
