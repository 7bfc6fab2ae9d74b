"""Commands for authors over a log that keeps what was taken out of it encrypted: with `--keys` they read what was said."""

import json
from pathlib import Path

import pytest

from cli.command import gated
from cli.written import written
from core.redaction.recorded import AGENT
from core.redaction.test_subjects import Kept
from gated.events import CallId, OutcomeReported

POLICY = """version: 1
redact: {detectors: [email], store: encrypted}
agents: {a: {allowed_tools: [send, search], data_scope: any, dcbf: {privacy: {budget: 0.5, per_call: 0.2, tools: [send]}}}}
contracts: [{name: ours, on: send, require: 'args.to.endsWith("@ours.example")', reason: "ours only"}]
"""
OTHERS = ("ana@ours.example", "eve@evil.test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log of two mails, one of them denied, and its keys where no command looks for them."""
    gate = Kept(POLICY)
    for number, to in enumerate(OTHERS):
        gate.ask(f"c{number}", "send", to=to)
    gate.say(OutcomeReported(AGENT, CallId("c0"), "success", "sent"))
    (tmp_path / "away" / "subjects").mkdir(parents=True)
    files = {tmp_path / "away" / "redaction.key": b"k" * 32}
    for holder in gate.keys.held:
        files[tmp_path / "away" / "subjects" / f"{holder}.key"] = bytes([1]) * 32
    for file, key in files.items():
        file.write_text(f"{key.hex()}\n")
        file.chmod(0o600)
    written(tmp_path, gate.known, gate.log)
    return tmp_path


@pytest.mark.parametrize(("call", "decision"), [("c0", "allow"), ("c1", "deny")])
def test_explain_reads_what_was_said(folder: Path, call: str, decision: str) -> None:
    asked = ("policy", "explain", "--log", folder / "log.db", "--run", "r", "--call", call)
    blind = json.loads(gated(*asked, "--json")[1])
    assert blind["unread"] == "contract `ours` reads the arguments, which were redacted"
    assert "not certain" in gated(*asked)[1]
    found = json.loads(gated(*asked, "--keys", folder / "away", "--json")[1])
    assert (found["verdict"]["decision"], found["unread"]) == (decision, None)
    shown = gated(*asked, "--keys", folder / "away")[1]
    assert "not certain" not in shown
    assert OTHERS[call == "c1"] in shown
    status, _, error = gated(*asked, "--keys", folder / "nowhere")
    assert (status, "there is no folder of keys" in error) == (2, True)


def test_suggest_holds_its_policy_against_what_was_said_and_writes_none_of_it(folder: Path) -> None:
    asked = ("policy", "suggest", "--log", folder / "log.db")
    blind = json.loads(gated(*asked, "--json")[1])
    assert (blind["allowed"], blind["still_allowed"], blind["not_replayable"]) == (1, 0, 1)
    assert "not replayable: 1 call, for it would have to read what was redacted" in gated(*asked)[2]
    found = json.loads(gated(*asked, "--keys", folder / "away", "--json")[1])
    assert (found["policy"], found["not_replayable"]) == (blind["policy"], 0)
    assert "@" not in gated(*asked, "--keys", folder / "away")[1]


def test_barriers_need_no_keys(folder: Path) -> None:
    asked = ("policy", "barriers", "--log", folder / "log.db", "--json")
    found = gated(*asked)[1]
    assert json.loads(found)["curves"][0]["samples"][-1]["values"]["privacy"] == 0.3
    (folder / "away").rename(folder / "keys")
    assert gated(*asked)[1] == found
    assert gated(*asked, "--keys", folder / "keys")[0] == 2
