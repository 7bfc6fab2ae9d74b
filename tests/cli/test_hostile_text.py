"""What an agent wrote reaches a terminal as text that can be seen: no command obeys it, hides it, or breaks its line at it."""

import asyncio
import json
from pathlib import Path

import pytest

from cli.command import gated
from gated.cli.output import shown_json
from gated.core.decide import record
from gated.core.order.templates import UNSAFE
from gated.core.policy import load_text
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    AbortRequested,
    AgentId,
    CallId,
    IntentsReceived,
    MessageRefused,
    Observation,
    OutcomeReported,
    RunId,
    RunStarted,
    Sender,
    ThreadId,
    Wanted,
)
from gated.shell.log.sqlite import open_for_writing

POLICY = """
version: 1
agents:
  a: {allowed_tools: [Read, Write, pay], data_scope: any, approval_required: [pay]}
machines:
  - {name: file, key: "{path}", initial: unread, transitions: [
      {on: Read, from: "*", to: read}, {on: Write, from: read, to: written}]}
"""
HOSTILE = "x\x1b[2J\x9b1m\u202egnp\u200b\x07\r\n:bomb: [red]y"
SEEN = "x\\x1b[2J\\x9b1m\\u202egnp\\u200b\\x07\\x0d\\x0a:bomb: [red]y"
BY = Sender("agent", "a")


def asks(call: str, tool: str, args: dict[str, str]) -> IntentsReceived:
    return IntentsReceived(BY, (Wanted(CallId(call), tool, dict(args)),), nesting="explicit")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log in which an agent wrote wherever an agent may write."""
    made = tmp_path_factory.mktemp("hostile")
    policy = load_text(POLICY, "policy.yaml")
    (made / "policy.yaml").write_text(POLICY)
    registry = Registry(policy, {policy.digest: policy}, Vault(b"k"))
    said: list[Observation] = [
        RunStarted(BY, AgentId("a"), task=HOSTILE, labels={HOSTILE: HOSTILE}),
        asks("c1", "Write", {"path": HOSTILE}),
        asks("c2", "Read", {"path": HOSTILE, HOSTILE: HOSTILE}),
        OutcomeReported(BY, CallId("c2"), "success", HOSTILE),
        asks("c3", "Read", {"path": HOSTILE}),
        OutcomeReported(BY, CallId("c3"), "error", HOSTILE, facts={HOSTILE: HOSTILE}),
        asks("c4", "pay", {"to": HOSTILE}),
        MessageRefused(BY, "ingress.shape", f"unknown field `{HOSTILE}`", "0" * 64, 1),
        AbortRequested(BY, HOSTILE),
    ]

    async def write() -> None:
        state, opened = ThreadState(ThreadId("t")), await open_for_writing(made / "log.db")
        await opened.put_policy(policy.digest, policy.text)
        for number, observation in enumerate(said):
            turn, sealed = record(registry, state, RunId("r"), observation, 1_700_000_000_000_000 + number)
            assert sealed is not None
            await opened.append_many([sealed])
            state = turn.state
        await opened.close()

    asyncio.run(write())
    return made


COMMANDS = [
    ("runs", "ls"),
    ("runs", "show", "r"),
    ("runs", "timeline", "r"),
    ("log", "ls"),
    ("log", "show", "2"),
    ("log", "show", "8"),
    ("log", "show", "9"),
    ("policy", "explain", "--run", "r", "--call", "c1"),
    ("policy", "explain", "--run", "r", "--call", "c2"),
    ("policy", "barriers"),
    ("policy", "suggest"),
    ("stats",),
    ("replay",),
    ("verify",),
]
WITH_JSON = [command for command in COMMANDS if command[:2] != ("log", "show")]


def lines(folder: Path, *command: str) -> list[str]:
    log = [folder / "log.db"] if command[0] != "policy" else ["--log", folder / "log.db"]
    words = [*command[:2], *log, *command[2:]] if command[0] in ("runs", "log", "policy") else [*command[:1], *log, *command[1:]]
    status, out, err = gated(*words)
    assert status in (0, 1), err
    return (out + err).split("\n")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_nothing_that_a_terminal_obeys_is_printed(folder: Path, command: tuple[str, ...]) -> None:
    said = lines(folder, *command)
    assert [line for line in said if UNSAFE.search(line)] == []
    assert not [line for line in said if line.startswith(":bomb:")]  # no line is the agent's


@pytest.mark.parametrize("command", WITH_JSON, ids=" ".join)
def test_nor_as_json(folder: Path, command: tuple[str, ...]) -> None:
    assert [line for line in lines(folder, *command, "--json") if UNSAFE.search(line)] == []


def test_what_the_agent_wrote_is_all_there(folder: Path) -> None:
    (task,) = (line for line in lines(folder, "runs", "show", "r") if line.startswith("task "))
    assert task == f"task {SEEN}"
    (run,) = json.loads("".join(lines(folder, "runs", "ls", "--json")))
    assert run["task"] == HOSTILE


@pytest.mark.parametrize("value", [HOSTILE, {"\U000e0041": ["\x7f\u2028\ufeff", "\\", "é"]}])
def test_json_that_is_shown_is_the_same_json(value: object) -> None:
    shown = shown_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(shown) == value
    assert not UNSAFE.search(shown.replace("\n", ""))
