"""A log that was damaged, wherever: every command says so in a sentence and an exit status, and `verify` says where."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from cli.command import gated

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


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "no policy"])
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


def test_a_schema_that_is_no_text(log: Path) -> None:
    raw = log.read_bytes()
    assert raw.count(b"CREATE TABLE heads") + raw.count(b"create table heads") + raw.count(b"TABLE heads") >= 1
    log.write_bytes(raw.replace(b"TABLE heads", b"TABLE\xffheads"))
    for command in READING:
        status, said, error = told(command, log)
        assert (status, "damaged" in said + error) == (1 if command == "verify LOG" else 2, True), command
