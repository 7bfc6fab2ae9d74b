"""A log that was damaged, wherever: every command says so in a sentence and an exit status, and `verify` says where."""

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cli.command import gated
from gated.events import GENESIS, encode

STORY = Path(__file__).parents[1] / "histories" / "v1-story.jsonl"
READING = [
    "verify LOG",
    "replay LOG",
    "stats LOG",
    "runs ls LOG",
    "runs show LOG r",
    "runs timeline LOG r",
    "log ls LOG",
    "log export LOG BESIDE/out.jsonl",
    "log subjects LOG",
    "what-if LOG --policy BESIDE/policy.json",
    "policy barriers --log LOG",
    "policy suggest --log LOG",
    "policy explain --log LOG --run r --call c1",
]


def told(command: str, log: Path) -> tuple[int, str, str]:
    return gated(*(word.replace("LOG", str(log)).replace("BESIDE", str(log.parent)) for word in command.split()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damaged") / "log.db"
    assert gated("log", "import", STORY, path)[0] == 0
    with sqlite3.connect(path) as connection:
        (text,) = connection.execute("select text from policies").fetchone()
    path.with_name("policy.json").write_bytes(text)
    return path


@pytest.fixture
def log(whole: Path, tmp_path: Path) -> Path:
    shutil.copy(whole.with_name("policy.json"), tmp_path)
    return Path(shutil.copy(whole, tmp_path / "log.db"))


def spoilt(log: Path, *statements: str) -> None:
    connection = sqlite3.connect(log, isolation_level=None)
    for (trigger,) in connection.execute("select name from sqlite_schema where type = 'trigger'").fetchall():
        connection.execute(f"drop trigger {trigger}")
    for statement in statements:
        connection.execute(statement)
    connection.close()


DAMAGES = {
    "no policy": ["delete from policies"],
    "a hash that is no text": ["update records set hash = cast(x'ff' || hash as text) where position = 7"],
    "a link that is no text": ["update records set prev = cast(x'ff' || prev as text) where position = 7"],
    "a thread that is no text": ["update records set thread = cast(x'ff' as text) where position = 7"],
    "a column with another name": ["alter table policies rename column digest to bigest"],
    "a table that is gone": ["drop table checkpoints"],
    "a body that is no JSON": ["update records set body = x'7bff' where position = 7"],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_command_says_so(log: Path, damage: str) -> None:
    spoilt(log, *DAMAGES[damage])
    for command in READING:
        status, _, error = told(command, log)  # raises what the command made no message of
        assert status in (0, 1, 2), command
        assert (status == 2) == error.startswith("error: "), command


@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_calls_it_damage(log: Path, damage: str) -> None:
    spoilt(log, *DAMAGES[damage])
    status, said, _ = gated("verify", log, "--json")
    assert status == 1
    assert json.loads(said)["ok"] is False


@pytest.mark.parametrize("column", ["hash", "prev"])
def test_verify_names_the_record_that_cannot_be_read(log: Path, column: str) -> None:
    spoilt(log, f"update records set {column} = cast(x'ff' || {column} as text) where position = 7")
    assert json.loads(gated("verify", log, "--json")[1])["damage"]["position"] == 6  # the last that can


def test_a_policy_that_is_not_there_is_named(log: Path) -> None:
    spoilt(log, "delete from policies")
    assert "does not hold the policy" in gated("runs", "ls", log)[2]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewritten(path: Path, lines: list[dict[str, Any]]) -> Path:
    """The export again, every record hashed onto the one before it: what a forger, or another program, would write."""
    heads: dict[str, str] = {}
    with path.open("wb") as out:
        for line in lines:
            if "hash" in line:
                body = {**line, "prev": heads.get(line["thread"], GENESIS)}
                del body["hash"]
                heads[line["thread"]] = hashlib.sha256(encode(body)).hexdigest()
                line = {**body, "hash": heads[line["thread"]]}
            out.write(encode(line) + b"\n")
    return path


STATES = [command for command in READING if command.split()[0] in ("runs", "what-if", "policy")]


@pytest.mark.parametrize("gone", [1, 5])
def test_a_record_that_is_missing_is_told_by_all_that_make_states_of_a_log(log: Path, gone: int) -> None:
    """A comparison over what is left of a log would be an answer about another log."""
    spoilt(log, f"delete from records where position = {gone}")
    for command in STATES:
        status, said, error = told(command, log)
        assert (status, said) == (2, ""), command
        assert "does not follow record" in error or "follows position" in error, command
    assert told("verify LOG", log)[0] == 1


def test_records_that_no_gate_wrote(whole: Path, tmp_path: Path) -> None:
    """Every hash is right, and what they say cannot have been: a call that nobody made has an outcome."""
    shutil.copy(whole.with_name("policy.json"), tmp_path)
    lines = lines_of(STORY)
    settled = next(line for line in lines if line.get("kind") == "outcome_reported")
    settled["decisions"][0]["call"] = "nobody"
    forged = rewritten(tmp_path / "forged.jsonl", lines)
    assert told("verify LOG", forged)[0] == 0
    assert told("replay LOG", forged)[0] == 1
    for command in ("runs ls LOG", "runs show LOG r", "policy barriers --log LOG", "policy explain --log LOG --run r --call c1"):
        status, said, error = told(command, forged)
        assert (status, said, "cannot be followed" in error) == (2, "", True), command


def test_a_record_of_a_later_version_is_not_read_as_one_of_this(whole: Path, tmp_path: Path) -> None:
    shutil.copy(whole.with_name("policy.json"), tmp_path)
    lines = lines_of(STORY)
    next(line for line in lines if line.get("seq") == 4)["v"] = 2
    later = rewritten(tmp_path / "later.jsonl", lines)
    assert told("verify LOG", later)[0] == 0
    for command in READING:
        if command.split()[0] != "verify" and "export" not in command and "subjects" not in command:
            status, _, error = told(command, later)
            assert (status, "it has version 2, and this gated reads up to 1" in error) == (2, True), command


def test_a_field_that_this_version_does_not_know_is_named_by_a_replay(whole: Path, tmp_path: Path) -> None:
    lines = lines_of(STORY)
    next(line for line in lines if line.get("decisions"))["decisions"][0]["mood"] = "calm"
    found = json.loads(told("replay LOG --json", rewritten(tmp_path / "later.jsonl", lines))[1])["difference"]
    assert (found["what"], found["recorded"]) == ("bytes", {"decisions[0].mood": "calm"})


def test_an_export_without_its_policies_is_not_taken_in(tmp_path: Path) -> None:
    bare = tmp_path / "bare.jsonl"
    bare.write_bytes(b"\n".join(encode(line) for line in lines_of(STORY) if "policy_sha256" not in line))
    status, _, error = gated("log", "import", bare, tmp_path / "into.db")
    assert (status, "which the log does not hold" in error) == (2, True)
    assert not (tmp_path / "into.db").exists()
    assert json.loads(gated("log", "import", STORY, tmp_path / "into.db", "--json")[1])["records"] > 0


def test_a_schema_that_is_no_text(log: Path) -> None:
    raw = log.read_bytes()
    assert raw.count(b"CREATE TABLE heads") + raw.count(b"create table heads") + raw.count(b"TABLE heads") >= 1
    log.write_bytes(raw.replace(b"TABLE heads", b"TABLE\xffheads"))
    for command in READING:
        status, said, error = told(command, log)
        assert (status, "damaged" in said + error) == (1 if command == "verify LOG" else 2, True), command
