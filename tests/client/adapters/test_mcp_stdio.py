"""`gated mcp`: the real client of MCP before it, a real server behind it, a real gate between."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from client.adapters.policy import POLICY, Asked, asked
from gated.client.adapters.mcp_stdio import Proxy
from gated.events import ThreadId
from gated.shell.log.open import open_log
from patience import until
from shell.live import gate

BOX = Path(__file__).with_name("box_server.py")


def behind(folder: Path, *options: str) -> StdioServerParameters:
    arguments = ["-m", "gated", "mcp", "--agent", "worker", "--data", str(folder), *options, "--"]
    return StdioServerParameters(command=sys.executable, args=[*arguments, sys.executable, str(BOX), str(folder / "ran")])


def text(result: CallToolResult) -> str:
    return "".join(item.text for item in result.content if item.type == "text")


async def test_a_host_calls_a_server_through_the_gate(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live:
        async with Client(behind(tmp_path, "--prefix", "mcp__box__")) as host:
            assert sorted(tool.name for tool in (await host.list_tools()).tools) == ["fail", "read", "refund", "shell"]
            assert text(await host.call_tool("read", {"path": "a"})) == "the text of a"
            denied = await host.call_tool("shell", {"command": "rm"})
            failed = await host.call_tool("fail")
        (thread,) = await threads_of(live.log)
        (run,) = (await live.daemon.runs.look(thread)).runs.values()
    assert denied.is_error
    assert text(denied).startswith("The call was denied and did not run: ")
    assert failed.is_error
    assert (run.end, run.step_count, [r.status for r in run.recent]) == ("complete", 1, ["success", "error"])
    assert (tmp_path / "ran").read_text() == "read a\n"


async def test_a_session_that_is_stopped_is_a_run_that_ends(tmp_path: Path) -> None:
    gated = [sys.executable, "-m", "gated", "mcp", "--agent", "worker", "--data", str(tmp_path), "--"]
    command = [*gated, sys.executable, "-c", "import time; time.sleep(600)"]
    async with gate(tmp_path, POLICY) as live:
        session = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        (thread,) = await until(lambda: threads_of(live.log))
        session.terminate()
        await session.wait()
        (run,) = (await live.daemon.runs.look(thread)).runs.values()
    assert run.end


async def threads_of(path: Path) -> set[ThreadId]:
    async with open_log(str(path)) as log:
        return {record.thread async for _, record in log.read_all()}


# --- the proxy alone -----------------------------------------------------------------------------------------------------


class Between:
    """A proxy with what it said to either side."""

    def __init__(self, opened: Asked, **how: Any) -> None:
        self.host: list[dict[str, Any]] = []
        self.server: list[dict[str, Any]] = []
        self.proxy = Proxy(opened.run, self._host, self._server, **how)

    async def _host(self, message: dict[str, Any]) -> None:
        self.host.append(message)

    async def _server(self, message: dict[str, Any]) -> None:
        self.server.append(message)

    async def call(self, number: Any, name: str, args: Any) -> None:
        await self.say({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": args}})

    async def say(self, message: Any) -> None:
        await self.proxy.from_host(json.dumps(message).encode())

    async def until(self, host: int, server: int) -> None:
        await until(lambda: len(self.host) >= host and len(self.server) >= server)


@asynccontextmanager
async def between(folder: Path, **how: Any) -> AsyncIterator[tuple[Asked, Between]]:
    async with asked(folder) as opened:
        yield opened, Between(opened, **how)


async def test_people_are_waited_for_and_their_edit_is_what_the_server_gets(tmp_path: Path) -> None:
    async with between(tmp_path, wait=True) as (opened, made):
        await made.call(1, "refund", {"amount": 200})
        await opened.answer(args={"amount": 2})
        await made.until(0, 1)
        assert made.server[0]["params"] == {"name": "refund", "arguments": {"amount": 2}}
        await made.call("two", "refund", {"amount": 300})
        await opened.answer(result="by hand")
        await made.until(1, 1)
        assert made.host[0] == {
            "jsonrpc": "2.0",
            "id": "two",
            "result": {"content": [{"type": "text", "text": "by hand"}], "isError": False, "resultType": "complete"},
        }


async def test_a_call_that_is_cancelled_at_the_gate_never_reaches_the_server(tmp_path: Path) -> None:
    async with between(tmp_path, wait=True) as (opened, made):
        await made.call(1, "refund", {"amount": 1})
        await until(opened.waiting)
        await made.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await opened.answer()
        await made.call(2, "read", {})
        await made.until(0, 1)
        await made.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
        assert [message.get("id") for message in made.server] == [2, None]
        assert await opened.outcomes() == [("read", "error")]


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"shell","arguments":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","name":"shell","arguments":{}}}',
        b"no json",
        b'"text"',
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"shell","arguments":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shell","arguments":[1]}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}',
        b'[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shell","arguments":{}}}]',
    ],
)
async def test_nothing_gets_past_the_gate_in_another_form(tmp_path: Path, line: bytes) -> None:
    async with between(tmp_path) as (_, made):
        await made.proxy.from_host(line)
        await made.until(1, 0)
        assert made.server == []
        assert "error" in made.host[0] or made.host[0]["result"]["isError"] is True


async def test_all_else_passes_in_both_directions(tmp_path: Path) -> None:
    async with between(tmp_path) as (_, made):
        await made.say({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        await made.proxy.from_server(b'{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}')
        await made.proxy.from_server(b'{"jsonrpc":"2.0","id":5,"method":"sampling/createMessage","params":{}}')
        await made.proxy.from_server(b"a line of a log")
        await made.say({"jsonrpc": "2.0", "id": 5, "result": {}})
        assert [message.get("id") for message in made.server] == [1, 5]
        assert [message.get("id") for message in made.host] == [1, 5]


async def test_what_runs_when_a_side_goes_away_ended_as_an_error(tmp_path: Path) -> None:
    async with between(tmp_path) as (opened, made):
        await made.call(1, "read", {})
        await made.until(0, 1)
        await made.call(1, "read", {})  # an id that is in use
        assert made.host[0]["error"]["code"] == -32600
        await made.proxy.ended("gone")
        assert await opened.outcomes() == [("read", "error")]
