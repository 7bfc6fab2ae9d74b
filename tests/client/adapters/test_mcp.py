"""MCP: a real server's tools through a real gate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, InputRequiredResult, TextContent

from client.adapters.policy import Asked, asked
from gated.client.adapters.mcp import GatedSession

RAN: list[str] = []


def server() -> MCPServer:
    made = MCPServer("box")

    @made.tool()
    def read(path: str) -> str:
        RAN.append(f"read {path}")
        return f"the text of {path}"

    @made.tool()
    def shell(command: str) -> str:
        RAN.append(f"shell {command}")
        return "done"

    @made.tool()
    def fail() -> str:
        raise ValueError("no such thing")

    @made.tool()
    def refund(amount: int) -> str:
        RAN.append(f"refund {amount}")
        return f"paid {amount}"

    return made


@asynccontextmanager
async def session(folder: Path, *, prefix: str = "", wait: bool = False) -> AsyncIterator[tuple[Asked, GatedSession]]:
    RAN.clear()
    async with asked(folder) as gate, Client(server()) as client:
        yield gate, GatedSession(client, gate.run, prefix=prefix, wait=wait)


def text(result: CallToolResult) -> str:
    return "".join(item.text for item in result.content if item.type == "text")


async def test_tools_are_asked_for_under_the_names_of_their_server_and_reported(tmp_path: Path) -> None:
    async with session(tmp_path, prefix="mcp__box__") as (gate, tools):
        assert text(await tools.call_tool("read", {"path": "a"})) == "the text of a"
        denied = await tools.call_tool("shell", {"command": "rm"})
        failed = await tools.call_tool("fail")
        assert (await tools.list_tools()).tools[0].name == "read"  # all else is the session's own
        assert await gate.outcomes() == [("mcp__box__read", "success"), ("mcp__box__fail", "error")]
    assert denied.is_error
    assert text(denied).startswith("The call was denied and did not run: ")
    assert failed.is_error
    assert RAN == ["read a"]


async def test_a_call_in_every_form_that_a_session_takes_is_asked_for_as_it_runs(tmp_path: Path) -> None:
    """Found by trying: arguments given by name were asked for as none, and a client's inner session went past the gate."""
    async with session(tmp_path) as (gate, tools):
        assert text(await tools.call_tool("read", arguments={"path": "a"})) == "the text of a"
        assert text(await tools.call_tool(name="read", arguments={"path": "b"}, read_timeout_seconds=10.0)) == "the text of b"
        assert text(await tools.call_tool("read", {"path": "c"}, 10.0)) == "the text of c"
        assert text(await tools.session.call_tool("read", {"path": "d"}, allow_input_required=True)) == "the text of d"
        denied = await tools.session.call_tool("shell", arguments={"command": "rm"})
        asks = [call.args for call in await gate.asked_for() if call.tool == "read"]
    assert text(denied).startswith("The call was denied and did not run: ")
    assert asks == [{"path": "a"}, {"path": "b"}, {"path": "c"}, {"path": "d"}]
    assert RAN == ["read a", "read b", "read c", "read d"]


async def test_what_a_server_wants_first_is_an_outcome(tmp_path: Path) -> None:
    class Asking:
        async def call_tool(self, name: str, arguments: dict[str, Any] | None = None, /, **how: Any) -> InputRequiredResult:
            return InputRequiredResult(request_state="half-way")

    async with asked(tmp_path) as gate:
        said = await GatedSession(Asking(), gate.run).call_tool("read", {}, allow_input_required=True)
        assert await gate.outcomes() == [("read", "success")]
    assert isinstance(said, InputRequiredResult)


async def test_people_are_waited_for_and_their_edit_is_what_runs(tmp_path: Path) -> None:
    async with session(tmp_path, wait=True) as (gate, tools), anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: gate.answer(args={"amount": 2}))
        assert text(await tools.call_tool("refund", {"amount": 200})) == "paid 2"
        tasks.start_soon(lambda: gate.answer(result={"by": "hand"}))
        assert text(await tools.call_tool("refund", {"amount": 300})) == '{"by": "hand"}'
    assert RAN == ["refund 2"]


async def test_a_result_that_is_an_error_is_returned_although_the_gate_is_away(tmp_path: Path) -> None:
    """Found by reading: it was raised as if the tool had not run."""

    class Away:
        async def call_tool(self, name: str, arguments: dict[str, Any] | None = None, /) -> CallToolResult:
            gate.run._gate.end()
            return CallToolResult(content=[TextContent(type="text", text="no such thing")], is_error=True)

    async with asked(tmp_path) as gate:
        failed = await GatedSession(Away(), gate.run).call_tool("read", {"path": "a"})
        gate.run.detach()
    assert (failed.is_error, text(failed)) == (True, "no such thing")


async def test_a_model_is_told_that_a_call_waits_or_that_no_gate_answers(tmp_path: Path) -> None:
    async with session(tmp_path) as (gate, tools):
        waiting = await tools.call_tool("refund", {"amount": 1})
        gate.run._gate.end()
        away = await tools.call_tool("read", {"path": "a"})
        gate.run.detach()
    assert "it waits for an approval (ticket t" in text(waiting)
    assert text(away) == "The call did not run: the connection was closed"
    assert RAN == []
