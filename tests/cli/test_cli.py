"""The commands say what they do, and their exit statuses mean something: 0 done, 1 no, 2 cannot be done."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli.command import gated
from gated.cli import logs
from gated.core.decide import record
from gated.core.policy import load_text
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    AgentId,
    CallId,
    IntentsReceived,
    Observation,
    OutcomeReported,
    RunId,
    RunStarted,
    Sender,
    ThreadId,
    Wanted,
)
from gated.shell.custody import Copies, CopiesError, open_custody
from gated.shell.log import Positioned
from gated.shell.log.open import open_log
from gated.shell.log.sqlite import open_for_writing

POLICY = "version: 1\nagents:\n  a: {allowed_tools: [Read, send_email], resource_budget: {max_calls: 9}}\n"
BY = Sender("agent", "a")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of one run: three mails, of which two are allowed, and an outcome."""
    policy = load_text(POLICY, "policy.yaml")
    registry = Registry(policy, {policy.digest: policy})
    says: list[Observation] = [RunStarted(BY, AgentId("a"), task="mail")]
    says += [IntentsReceived(BY, (Wanted(CallId(f"c{n}"), "send_email", {"to": f"p{n}"}),), nesting="explicit") for n in range(3)]
    says += [OutcomeReported(BY, CallId("c0"), "success", content="sent")]

    async def write() -> None:
        state, opened = ThreadState(ThreadId("r1")), await open_for_writing(tmp_path / "log.db")
        await opened.put_policy(policy.digest, policy.text)
        for at, said in enumerate(says):
            made, sealed = record(registry, state, RunId("r1"), said, at * 1_000_000)
            state = made.state
            assert sealed is not None
            await opened.append_many([sealed])
        await opened.close()

    asyncio.run(write())
    return tmp_path / "log.db"


def test_replay_and_verify_of_a_good_log(log: Path) -> None:
    assert gated("replay", log)[:2] == (0, "the same: 5 records decided again, byte for byte\n")
    status, text, _ = gated("verify", log, "--json")
    assert status == 0
    assert json.loads(text)["records"] == 5


def test_a_changed_byte_and_a_cut_tail_are_found(log: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "head.json"
    checkpoint.write_text(gated("verify", log, "--json")[1])
    with sqlite3.connect(log) as connection:
        connection.execute("drop trigger records_no_delete")
        connection.execute("delete from records where seq = 5")
    connection.close()
    assert gated("verify", log)[0] == 0
    status, text, _ = gated("verify", log, "--checkpoint", checkpoint)
    assert status == 1
    assert "cut off" in text
    with sqlite3.connect(log) as connection:
        connection.execute("drop trigger records_no_update")
        connection.execute("update records set body = cast(replace(cast(body as text), 'p1', 'p9') as blob) where seq = 3")
    connection.close()
    status, text, _ = gated("verify", log)
    assert status == 1
    assert "record 3" in text


def change(log: Path, old: str, new: str) -> None:
    """Write other bytes into a log's records, and leave the hashes as they are."""
    with sqlite3.connect(log) as connection:
        connection.execute("drop trigger records_no_update")
        connection.execute("update records set body = cast(replace(cast(body as text), ?, ?) as blob)", (old, new))
    connection.close()


def test_a_decision_changed_behind_its_hash_does_not_replay(log: Path) -> None:
    change(log, '"decision":"deny"', '"decision":"allow"')
    status, text, _ = gated("replay", log, "--json")
    assert status == 1
    difference = json.loads(text)["difference"]
    assert (difference["seq"], difference["what"]) == (4, "call_decided")
    assert (difference["recorded"]["decision"], difference["derived"]["decision"]) == ("allow", "deny")


def test_a_hash_that_is_not_the_records_does_not_replay(log: Path) -> None:
    with sqlite3.connect(log) as connection:
        connection.execute("drop trigger records_no_update")
        connection.execute("update records set hash = 'f' || substr(hash, 1, 63) where seq = 5")
    connection.close()
    status, text, _ = gated("replay", log, "--json")
    assert status == 1
    assert (json.loads(text)["difference"]["seq"], json.loads(text)["difference"]["what"]) == (5, "hash")


@pytest.mark.parametrize("command", ["replay", "stats", "log ls", "runs ls"])
def test_a_record_that_cannot_be_read_is_named(log: Path, command: str) -> None:
    change(log, '"outcome":"deny"', '"outcome":"maybe"')
    status, _, error = gated(*command.split(), log)
    assert status == 2
    assert error.startswith("error: record 4 of thread `r1` cannot be read: Invalid enum value 'maybe'")


def test_a_run_that_the_log_does_not_have_is_no_success(log: Path, tmp_path: Path) -> None:
    policy, out = tmp_path / "policy.yaml", tmp_path / "out.jsonl"
    policy.write_text(POLICY)
    for command in (("replay", log), ("what-if", log, "--policy", policy), ("log", "export", log, out)):
        assert gated(*command, "--run", "nobody") == (1, "", "error: the log has no run `nobody`\n")
    assert not out.exists()


def test_an_export_never_writes_over_its_log(log: Path) -> None:
    before = log.read_bytes()
    status, _, error = gated("log", "export", log, log)
    assert (status, log.read_bytes()) == (2, before)
    assert "is the log itself" in error


def test_what_cannot_be_written_is_named(log: Path, tmp_path: Path) -> None:
    policy, target = tmp_path / "policy.yaml", tmp_path / "policy.yaml" / "out"
    policy.write_text(POLICY)
    for command in (
        ("log", "export", log, target),
        ("policy", "suggest", "--log", log, "--out", target),
        ("policy", "barriers", "--log", log, "--svg", target),
        ("policy", "init", "--template", "payments", target),
    ):
        status, _, error = gated(*command)
        assert (status, error.startswith("error: cannot use `"), "Traceback" in error) == (2, True, False)


@pytest.mark.parametrize(("text", "records"), [("1970-01-01T00:00:03Z", 2), ("1970-01-01T02:00:03+02:00", 2), ("1970-01-02", 0)])
def test_since_is_a_time_and_not_a_text(log: Path, text: str, records: int) -> None:
    assert len(json.loads(gated("log", "ls", log, "--since", text, "--json")[1])) == records
    for command in (("log", "ls"), ("stats",)):
        status, _, error = gated(*command, log, "--since", "yesterday")
        assert status == 2
        assert "`yesterday` is no time" in error
    assert gated("log", "ls", log, "--decision", "denied")[0] == 2


def test_an_export_replays_verifies_and_comes_back_byte_for_byte(log: Path, tmp_path: Path) -> None:
    out, back, again = tmp_path / "out.jsonl", tmp_path / "back.db", tmp_path / "again.jsonl"
    assert gated("log", "export", log, out)[0] == 0
    assert gated("replay", out)[0] == 0
    assert gated("verify", out)[0] == 0
    assert gated("log", "import", out, back)[0] == 0
    assert gated("log", "export", back, again)[0] == 0
    assert again.read_bytes() == out.read_bytes()
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b"sent", b"lost")]))
    torn = tmp_path / "torn.db"
    assert gated("log", "import", out, torn)[0] == 2
    assert not list(tmp_path.glob("torn.db*"))  # whole or not at all
    out.write_text("not a record\n")
    status, text, _ = gated("verify", out)
    assert status == 1
    assert f"{out.name}:1: " in text.replace("\n", "")


def test_an_export_that_fails_leaves_what_was_there(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine\n")
    with sqlite3.connect(log) as connection:
        connection.execute("drop trigger records_no_update")
        connection.execute("update records set body = x'7b' where position = (select max(position) from records)")
    status, _, error = gated("log", "export", log, out)
    assert (status, "cannot be exported" in error) == (2, True)
    assert (out.read_text(), list(tmp_path.glob("*.part"))) == ("mine\n", [])


def test_runs_and_records_as_people_read_them(log: Path) -> None:
    _, text, _ = gated("runs", "show", log, "r1")
    assert "run r1 of a on thread r1: open" in text
    assert "2 calls admitted, 1 step, 3 hops, " in text
    assert "dcbf.barrier" in text
    assert json.loads(gated("runs", "ls", log, "--json")[1])[0]["call_count"] == 2
    assert "deny" in gated("log", "ls", log, "--decision", "deny")[1]
    assert [record["seq"] for record in json.loads(gated("log", "ls", log, "--limit", 1, "--json")[1])] == [5]
    assert json.loads(gated("log", "show", log, 2)[1])["seq"] == 2
    assert gated("log", "show", log, 99)[0] == 1
    assert gated("runs", "show", log, "nobody")[0] == 1
    assert gated("replay", log.with_name("missing.db"))[0] == 2


def test_a_file_of_the_other_kind_is_told_from_a_mistake(tmp_path: Path) -> None:
    policy, scenarios = tmp_path / "policy.yaml", tmp_path / "scenarios.yaml"
    policy.write_text(POLICY)
    scenarios.write_text("policy: policy.yaml\nscenarios: []\n")
    for command, file, instead in (("check", scenarios, "test"), ("test", policy, "check")):
        status, _, error = gated("policy", command, file)
        assert status == 2
        assert f"gated policy {instead} {file}" in error
    missing = tmp_path / "no.yaml"
    assert gated("policy", "check", missing)[2].endswith(
        "there is no such file: `gated policy init` writes a policy to begin with\n"
    )


def test_checkpoints_that_could_not_be_copied_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "checkpoints"
    with pytest.raises(CopiesError, match=f"checkpoints cannot be appended to `{target}`: Not a directory"):
        open_custody(tmp_path / "keys", Copies(file=target))


def test_policy_check_names_file_and_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\nagents:\n  a:\n    alowed_tools: [x]\n")
    status, _, error = gated("policy", "check", bad)
    assert status == 2
    assert f"{bad}:4" in error.replace("\n", "")
    assert "allowed_tools" in error
    good = tmp_path / "good.yaml"
    good.write_text(POLICY)
    assert gated("policy", "check", good)[0] == 0
    good.write_text("version: 1\n")
    assert gated("policy", "check", good, "--strict")[0] == 1


def test_policy_test_prints_one_object_a_scenario(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "policy: {version: 1, agents: {a: {allowed_tools: [T]}}}\nscenarios:\n"
        "  - {name: good, steps: [{intent: {tool: T, args: {}}, expect: {decision: allow}}]}\n"
        "  - {name: bad, steps: [{intent: {tool: T, args: {}}, expect: {decision: deny}}]}\n"
    )
    status, text, _ = gated("policy", "test", file, "--json")
    results = [json.loads(line) for line in text.splitlines()]
    assert status == 1
    assert [(r["scenario"], r["ok"]) for r in results] == [("good", True), ("bad", False)]
    assert set(results[1]) == {"file", "scenario", "ok", "seed", "failures"}
    assert set(results[1]["failures"][0]) == {"step", "key", "expected", "got", "findings"}
    assert results[1]["failures"][0]["step"] == 1
    file.write_text("policy: {version: 1}\nscenarios: [{name: x, steps: [{intent: {tool: T}, expekt: {}}]}]\n")
    assert gated("policy", "test", file)[0] == 2


def test_match_explains(tmp_path: Path) -> None:
    arguments = ("policy", "match", "Bash(npm *)", "--tool", "Bash", "--args")
    assert gated(*arguments, '{"command": "npm ci"}')[0] == 0
    status, text, _ = gated(*arguments, '{"command": "git"}')
    assert status == 1
    assert "does not match" in text
    assert gated("policy", "match", "Bash(", "--tool", "Bash")[0] == 2


def test_diagrams_are_drawn_from_the_tables(tmp_path: Path) -> None:
    policy = Path(__file__).parents[2] / "examples" / "policies" / "confirm-before-delete" / "policy.yaml"
    _, text, _ = gated("policy", "diagram", policy)
    assert "stateDiagram-v2" in text
    assert gated("policy", "diagram", policy, "--svg", tmp_path)[0] == 0
    assert "<svg" in (tmp_path / "confirm-before-delete.svg").read_text()


def test_every_machine_is_drawn_and_no_file_is_written_over(tmp_path: Path) -> None:
    one = "{{name: {}, initial: s, transitions: [{{on: {}, from: s, to: t}}]}}"
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        f"version: 1\nagents:\n  a: {{machines: [a/b, {one.format('own', 'A')}, {one.format('same', 'C')}]}}\n"
        f"  b: {{machines: [{one.format('own', 'B')}, {one.format('same', 'C')}]}}\n"
        f"machines:\n  - {one.format('a/b', 'T')}\n  - {one.format('A_B', 'U')}\n"
    )
    _, text, _ = gated("policy", "diagram", policy)
    assert [line[3:] for line in text.splitlines() if line.startswith("%%")] == ["a/b", "A_B", "own (a)", "same", "own (b)"]
    gated("policy", "diagram", policy, "--svg", tmp_path / "drawn")
    drawn = {file.name: tool for file in (tmp_path / "drawn").iterdir() for tool in "TUABC" if f">{tool}<" in file.read_text()}
    assert drawn == {"a_b.svg": "T", "A_B-2.svg": "U", "own__a_.svg": "A", "own__b_.svg": "B", "same.svg": "C"}
    policy.write_text("version: 1\nagents: {a: {}}\n")
    assert gated("policy", "diagram", policy)[0] == 1


def test_the_schema_is_one_that_editors_read() -> None:
    schema = json.loads(gated("policy", "schema")[1])
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert "agents" in json.dumps(schema)


def test_no_gate_is_said_so(tmp_path: Path) -> None:
    status, _, error = gated("doctor", "--data", tmp_path)
    assert status == 2
    assert "gated up" in error


def test_the_log_of_a_cluster_is_followed_as_a_file_is(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: it was said of it that an export does not grow."""

    class Cluster:
        async def head(self) -> int:
            return 3

        async def tail(self, after: int) -> AsyncIterator[Positioned]:
            async with open_log(str(log)) as opened:
                async for found in opened.read_all(after):
                    yield found

    @asynccontextmanager
    async def opened(name: str) -> AsyncIterator[Cluster]:
        yield Cluster()

    monkeypatch.setattr(logs, "open_log", opened)
    status, text, error = gated("log", "tail", "nats:")
    assert (status, error) == (0, "")
    assert text


def test_an_authority_that_is_none_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for ca in (tmp_path / "ca.pem", tmp_path / "absent.pem"):
        status, _, error = gated("console", "--data", tmp_path, "--tls-ca", ca)
        assert (status, f"the certificate authority `{ca}` cannot be used" in error) == (2, True)


@pytest.mark.parametrize(
    ("command", "instead"),
    [(("policy", "init"), "--template"), (("users", "add", "ana"), "--password-stdin")],
    ids=["init", "add"],
)
def test_a_question_that_nobody_answers_says_what_to_say_instead(
    command: tuple[str, ...], instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, error = gated(*command, said="")
    assert status == 2
    assert "nobody answers here: " in error
    assert instead in error
    assert list(tmp_path.rglob("policy.yaml")) == []
