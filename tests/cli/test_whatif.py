"""`gated what-if`: which recorded verdicts another policy would have given otherwise, and which it cannot say."""

import asyncio
import json
from pathlib import Path

import pytest

from cli.command import gated
from gated.core.decide import record
from gated.core.policy import load_text
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import CallId, IntentsReceived, RunId, Sender, ThreadId, Wanted
from gated.shell.log.sqlite import open_for_writing

POLICY = "version: 1\nagents: {a: {allowed_tools: [read, mail], data_scope: any}}\n"
STRICTER = "version: 1\nagents: {a: {allowed_tools: [read], data_scope: any}}\n"
READING = "version: 1\nagents: {a: {allowed_tools: ['*'], forbidden_tools: ['read(password = \"zzz\")'], data_scope: any}}\n"
BY = Sender("agent", "a")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    policy = load_text(POLICY, "policy.yaml")
    registry = Registry(policy, {policy.digest: policy}, Vault(b"k"))

    async def write() -> None:
        opened = await open_for_writing(tmp_path / "log.db")
        await opened.put_policy(policy.digest, policy.text)
        says = {"r1": [("read", {"q": "x"}), ("mail", {})], "r2": [("read", {"q": "x", "password": "hunter22"})]}
        for run, calls in says.items():
            state = ThreadState(ThreadId(run))
            for number, (tool, args) in enumerate(calls):
                said = IntentsReceived(BY, (Wanted(CallId(f"c{number}"), tool, dict(args)),), nesting="explicit")
                made, sealed = record(registry, state, RunId(run), said, number + 1)
                state = made.state
                assert sealed is not None
                await opened.append_many([sealed])
        await opened.close()

    asyncio.run(write())
    return tmp_path / "log.db"


def trial(folder: Path, text: str) -> Path:
    path = folder / "new.yaml"
    path.write_text(text)
    return path


def test_unchanged_flipped_and_not_replayable(log: Path, tmp_path: Path) -> None:
    same = json.loads(gated("what-if", log, "--policy", trial(tmp_path, POLICY), "--json")[1])
    assert (same["ok"], same["unchanged"], same["flipped"], same["not_replayable"]) == (True, 3, 0, 0)
    status, text, _ = gated("what-if", log, "--policy", trial(tmp_path, STRICTER), "--json")
    assert status == 0
    flipped = json.loads(text)
    assert (flipped["unchanged"], flipped["flipped"]) == (2, 1)
    assert flipped["verdicts"][0]["derived"]["code"] == "privilege.not_allowed"
    blind = json.loads(gated("what-if", log, "--policy", trial(tmp_path, READING), "--json")[1])
    assert (blind["unchanged"], blind["not_replayable"]) == (2, 1)
    assert "redacted" in blind["verdicts"][0]["why"]


def test_what_fails_a_build(log: Path, tmp_path: Path) -> None:
    stricter, reading = trial(tmp_path, STRICTER), tmp_path / "reading.yaml"
    reading.write_text(READING)
    assert gated("what-if", log, "--policy", stricter, "--fail-on", "flips")[0] == 1
    assert gated("what-if", log, "--policy", stricter, "--fail-on")[0] == 1
    assert gated("what-if", "--fail-on", log, "--policy", stricter, "--json")[0] == 1
    assert gated("what-if", log, "--policy", stricter, "--fail-on", "not-replayable")[0] == 0
    assert gated("what-if", log, "--policy", reading, "--fail-on", "flips")[0] == 0
    assert gated("what-if", log, "--policy", reading, "--fail-on", "flips", "--fail-on", "not-replayable")[0] == 1


def test_diff_says_how_many_verdicts_it_cannot_compare(log: Path, tmp_path: Path) -> None:
    """`no recorded call flips` over verdicts that neither policy could decide again would be no answer."""
    reading, too = trial(tmp_path, READING), tmp_path / "too.yaml"
    too.write_text(READING.replace("zzz", "yyy"))
    found = json.loads(gated("policy", "diff", reading, too, "--log", log, "--json")[1])
    assert (found["flips"], found["not_replayable"]) == ([], 1)
    text = gated("policy", "diff", reading, too, "--log", log)[1]
    assert "1 recorded verdict not replayable" in text
    assert "no other recorded call flips" in text
    same = json.loads(gated("policy", "diff", trial(tmp_path, POLICY), too, "--log", log, "--json")[1])
    assert (len(same["flips"]), same["not_replayable"]) == (1, 1)  # what one of them decides otherwise, or cannot


def test_one_run_for_people(log: Path, tmp_path: Path) -> None:
    text = gated("what-if", log, "--policy", trial(tmp_path, STRICTER), "--run", "r2")[1]
    assert "1 verdict unchanged, 0 flipped" in text
    text = gated("what-if", log, "--policy", trial(tmp_path, STRICTER))[1]
    assert "mail" in text
    assert "privilege.not_allowed" in text
