"""Claude Code: every verdict in the host's exact words and exit status; what cannot be decided blocks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from client.adapters.policy import asked
from gated.client.adapters import claude_code


def event(tool: str, args: Any, call: str = "toolu_1", name: str = "PreToolUse", **more: Any) -> dict[str, Any]:
    return {"session_id": "r", "hook_event_name": name, "tool_name": tool, "tool_input": args, "tool_use_id": call, **more}


def word(said: dict[str, Any]) -> tuple[str, str]:
    inner = said["hookSpecificOutput"]
    assert inner["hookEventName"] == "PreToolUse"
    return inner["permissionDecision"], inner["permissionDecisionReason"]


# What a verdict is to the host. The host has no other words: anything else it takes for no objection.
CONFORMANCE: list[tuple[str, dict[str, Any], str, str]] = [
    ("read", {"path": "a"}, "allow", "The gate allows it."),
    ("shell", {"command": "rm"}, "deny", "The call was denied and did not run: "),
    ("refund", {"amount": 1}, "deny", "The call did not run: it waits for an approval (ticket t"),
    ("no name!", {}, "deny", "The call did not run: ingress.tool_name"),
    ("read", {"x": float("nan")}, "deny", "The call did not run: ingress.args"),
]


@pytest.mark.parametrize(("tool", "args", "decision", "reason"), CONFORMANCE)
async def test_every_verdict_is_one_of_the_hosts_words(
    tmp_path: Path, tool: str, args: dict[str, Any], decision: str, reason: str
) -> None:
    async with asked(tmp_path) as opened:
        said = await claude_code.answer(opened.run._gate, event(tool, args), on_allow="allow")
        quiet = await claude_code.answer(opened.run._gate, event(tool, args, "toolu_2"))
    assert word(said)[0] == decision
    assert word(said)[0] in claude_code.DECISIONS
    assert word(said)[1].startswith(reason)
    assert (quiet == {}) == (decision == "allow")  # the host's own permissions still hold


def test_a_word_that_the_host_does_not_know_is_never_said() -> None:
    with pytest.raises(ValueError, match="the host does not know `block`"):
        claude_code.decision("block", "why")


@pytest.mark.parametrize("broken", [{"session_id": "a b"}, {"tool_use_id": None}, {"tool_input": [1]}, {"tool_name": None}])
async def test_what_is_no_question_is_denied(tmp_path: Path, broken: dict[str, Any]) -> None:
    async with asked(tmp_path) as opened:
        assert word(await claude_code.answer(opened.run._gate, event("read", {}) | broken))[0] == "deny"


async def test_a_call_is_reported_and_does_not_run_twice(tmp_path: Path) -> None:
    async with asked(tmp_path) as opened:
        gate = opened.run._gate
        before = claude_code.callback(gate)
        assert await before(event("read", {"path": "a"}), "toolu_1", None) == {}
        assert len((await opened.state()).in_flight) == 1
        assert await before(event("read", {}, name="PostToolUse", tool_response={"text": "x"}), "toolu_1", None) == {}
        assert word(await before(event("read", {"path": "a"}), "toolu_1", None)) == (
            "deny",
            "The call was made before and does not run again.",
        )
        assert await before(event("read", {"path": "b"}, "toolu_2"), "toolu_2", None) == {}
        await before(event("read", {}, "toolu_2", "PostToolUseFailure", error="no such thing"), "toolu_2", None)
        assert await before(event("read", {"path": "c"}, "toolu_3"), "toolu_3", None) == {}
        await before(event("read", {}, "toolu_3", "PermissionDenied"), "toolu_3", None)
        assert await opened.outcomes() == [("read", "success"), ("read", "error"), ("read", "not_run")]
        await before(event("", {}, name="SessionEnd"), None, None)
        assert (await opened.state()).end == "complete"
        opened.run.detach()


async def test_an_edit_and_an_answer_for_the_tool_in_the_hosts_form(tmp_path: Path) -> None:
    async with asked(tmp_path) as opened, anyio.create_task_group() as tasks:
        gate = opened.run._gate
        tasks.start_soon(lambda: opened.answer("toolu_1", args={"amount": 2}))
        edited = await claude_code.answer(gate, event("refund", {"amount": 200}), wait=True)
        assert word(edited)[0] == "allow"
        assert edited["hookSpecificOutput"]["updatedInput"] == {"amount": 2}
        tasks.start_soon(lambda: opened.answer("toolu_2", result="by hand"))
        answered = await claude_code.answer(gate, event("refund", {"amount": 300}, "toolu_2"), wait=True)
        assert word(answered) == ("deny", "A person answered in the tool's place, so it did not run. The result: by hand")


# --- the command -------------------------------------------------------------------------------------------------------


def hook(folder: Path, said: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "gated", "hook", "claude-code", "--agent", "worker", "--data", str(folder)]
    done = subprocess.run(command, input=said, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout


async def test_the_command_answers_with_status_0_and_blocks_where_it_cannot(tmp_path: Path) -> None:
    async with asked(tmp_path) as opened:
        assert await from_thread(tmp_path, json.dumps(event("read", {"path": "a"}))) == (0, "")
        status, text = await from_thread(tmp_path, json.dumps(event("shell", {}, "toolu_2")))
        assert (status, word(json.loads(text))[0]) == (0, "deny")
        assert await opened.outcomes() == []
        assert await from_thread(tmp_path, "no event") == (2, "")  # any other failure is no objection to the host
        assert (await from_thread(tmp_path / "nowhere", json.dumps(event("read", {}))))[0] == 2


async def from_thread(folder: Path, said: str) -> tuple[int, str]:
    return await anyio.to_thread.run_sync(hook, folder, said)
