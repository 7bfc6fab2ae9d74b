"""What machines say to the model reaches it however a call is made, and each reminder has its place in a chat."""

from pathlib import Path
from typing import Any

import anyio

from client.adapters.policy import Asked
from gated import wire
from gated.client import Reminder, Run, remind
from gated.client.adapters import claude_code
from gated.client.adapters.mcp_stdio import Proxy
from gated.client.reminders import Inbox
from gated.events import Sender
from gated.wire import ReminderMessage
from patience import until
from shell.live import USERS, daemon_on, gate, server, tell, write_policy

POLICY = """
version: 1
agents:
  worker: {checks: [order], allowed_tools: ["*"]}
machines:
  - name: whole
    key: "{path}"
    initial: unread
    terminal: [written]
    transitions:
      - {on: read, from: "*", to: read, when: {facts: 'complete = "true"'}, emit: {target: system, content: "Read {path}."}}
      - {on: read, from: "*", to: unread, when: any, emit: {target: conversation, role: assistant, content: "Not all of {path}."}}
      - {on: write, from: read, to: written, on_violation: {action: warn, reason: "{path} is not read."}}
"""


def reminder(target: Any, content: str, role: Any = "user") -> Reminder:
    return Reminder(target, role, content, "m", "", "transition")


def test_each_target_has_its_place_in_a_chat() -> None:
    chat = [{"role": "system", "content": "base"}, {"role": "user", "content": "go"}]
    given = [
        reminder("suffix_system", "last"),
        reminder("system", "first"),
        reminder("conversation", "mine", "assistant"),
        reminder("session", "yours"),
    ]
    assert remind(chat, given) == [
        {"role": "system", "content": "base"},
        {"role": "system", "content": "first"},
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "mine"},
        {"role": "user", "content": "yours"},
        {"role": "system", "content": "last"},
    ]
    assert chat[1:] == [{"role": "user", "content": "go"}]
    assert remind([], given[:1]) == [{"role": "system", "content": "last"}]
    assert remind([{"role": "system", "content": "base"}], given[1:2])[1]["content"] == "first"


async def test_guarded_tools_report_facts_and_keep_reminders_for_the_run(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.agent("worker") as worker, worker.run(run="r") as run:
        read = run.guard(lambda path: "text", "read", facts=lambda text: {"complete": text == "text"})
        write = run.guard(lambda path: None, "write")
        await write(path="a")
        await read(path="a")
        await run.call("read", {"path": "a"}, lambda path: "te", facts=lambda text: {"complete": text == "text"})
        taken = run.take_reminders()
        assert run.take_reminders() == ()
        await read(path="b")
        steered = await run.finish()
        assert run.status == steered
        await write(path="a")
    assert [r.content for r in taken] == ["a is not read.", "Read a.", "Not all of a."]
    assert [r.target for r in taken] == ["suffix_system", "system", "conversation"]
    assert (steered.status, steered.message) == ("steer", "Finish the protocol work: whole[a]=unread, whole[b]=read")
    assert run.status is not None
    assert run.status.status == "steer"  # the block left the run open, and says so


async def test_only_the_newest_reminders_are_kept(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.agent("worker") as worker, worker.run(run="r") as run:
        for number in range(70):
            await run.call("read", {"path": f"{number}"}, lambda path: None)
        taken = run.take_reminders()
    assert [r.content for r in taken] == [f"Not all of {number}." for number in range(6, 70)]


async def test_reminders_of_an_end_that_another_reports_reach_the_run(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY.replace('["*"]}', '["*"], outcomes_from: "runner:box"}'))
    async with server(tmp_path, users=(*USERS, ("runner", "box"))) as (_, bus), daemon_on(bus, tmp_path):
        async with bus.agent("worker") as worker, worker.run(run="r") as run, bus.user("runner", "box") as box:
            verdict = await run.check("read", {"path": "a"})
            for _ in range(2):  # the second is refused
                await tell(box, Sender("runner", "box"), run.id, wire.Outcome(call=verdict.call, status="error"))
            await box.flush()
            taken = await until_some(run)
            assert worker.reminders_of(run.thread, run.id) is worker.run(run="r", resume=True)._reminders
            run.detach()
    assert [r.content for r in taken] == ["Not all of a."]


async def until_some(run: Run) -> tuple[Reminder, ...]:
    async def taken() -> tuple[Reminder, ...]:
        return run.take_reminders()

    found: tuple[Reminder, ...] = await until(taken)
    return found


def test_what_is_said_twice_is_kept_once() -> None:
    inbox = Inbox()
    for call, seq in (("c1", 4), ("c2", 4), ("c1", 4), ("c1", 9)):
        inbox.hear(ReminderMessage(call=call, status="success", reminders=(reminder("system", f"{call} {seq}"),), seq=seq))
    inbox.hear(ReminderMessage(call="c3", status="success", seq=10))
    assert [r.content for r in inbox.take()] == ["c1 4", "c2 4", "c1 9"]
    assert inbox.take() == ()


async def test_claude_code_adds_reminders_to_the_models_context(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.agent("worker") as worker, worker.run(run="r") as run:
        asked: dict[str, Any] = {"session_id": "r", "tool_name": "write", "tool_input": {"path": "a"}, "tool_use_id": "c1"}
        await claude_code.answer(worker, {**asked, "hook_event_name": "PreToolUse"})
        said = await claude_code.answer(worker, {**asked, "hook_event_name": "PostToolUse", "tool_response": "ok"})
        await claude_code.answer(worker, {**asked, "hook_event_name": "PreToolUse", "tool_use_id": "c2"})
        failed = await claude_code.answer(
            worker, {**asked, "hook_event_name": "PostToolUseFailure", "tool_use_id": "c2", "error": "disk"}
        )
        run.detach()
    for event, answer in (("PostToolUse", said), ("PostToolUseFailure", failed)):
        assert answer == {"hookSpecificOutput": {"hookEventName": event, "additionalContext": "a is not read."}}


async def test_the_mcp_proxy_says_them_behind_what_the_tool_said(tmp_path: Path) -> None:
    told: list[Any] = []
    passed = anyio.Event()

    async def to_host(message: Any) -> None:
        told.append(message)

    async def to_server(message: Any) -> None:
        passed.set()

    async with gate(tmp_path, POLICY) as live, live.bus.agent("worker") as worker, worker.run(run="r") as run:
        proxy = Proxy(run, to_host, to_server)
        await proxy.from_host(b'{"id": 1, "method": "tools/call", "params": {"name": "write", "arguments": {"path": "a"}}}')
        await passed.wait()
        await proxy.from_server(b'{"id": 1, "result": {"content": [{"type": "text", "text": "done"}], "isError": false}}')
        assert len(await Asked(live, run).outcomes()) == 1
    assert [item["text"] for item in told[0]["result"]["content"]] == ["done", "a is not read."]
