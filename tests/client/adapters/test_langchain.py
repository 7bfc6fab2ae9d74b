"""LangChain: real tools through a real gate, called as models call them and as code does."""

from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolArg, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import ParentCommand
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from client.adapters.policy import POLICY, Asked, asked
from gated.client import sync
from gated.client.adapters.langchain import gated_tools
from gated.events import IntentsReceived, unseal
from gated.shell.log.open import open_log
from shell.live import gate

RAN: list[str] = []


class Where(BaseModel):
    path: str


@tool
async def read(where: Where, state: Annotated[dict[str, Any], InjectedToolArg]) -> str:
    """Read a file."""
    RAN.append(f"read {where.path} of {state['user']}")
    return f"the text of {where.path}"


@tool
async def shell(command: str) -> str:
    """Run a command."""
    RAN.append(command)
    return "done"


@tool
async def refund(amount: int) -> str:
    """Refund."""
    RAN.append(f"refund {amount}")
    return f"paid {amount}"


@tool
async def fail() -> str:
    """Fail."""
    raise ToolException("no such thing")


fail.handle_tool_error = True


def call(name: str, args: dict[str, Any], call_id: str = "call_1") -> dict[str, Any]:
    return {"type": "tool_call", "id": call_id, "name": name, "args": args}


async def test_tools_are_asked_for_and_reported_as_they_ended(tmp_path: Path) -> None:
    RAN.clear()
    async with asked(tmp_path) as opened:
        tools = {made.name: made for made in gated_tools(opened.run, [read, shell, fail])}
        assert tools["read"].tool_call_schema.model_json_schema() == read.tool_call_schema.model_json_schema()  # type: ignore[union-attr]
        said = await tools["read"].ainvoke(call("read", {"where": {"path": "a"}, "state": {"user": "kim"}}))
        assert (said.content, said.status, said.tool_call_id) == ("the text of a", "success", "call_1")
        assert await tools["read"].ainvoke({"where": {"path": "b"}, "state": {"user": "kim"}}) == "the text of b"
        denied = await tools["shell"].ainvoke(call("shell", {"command": "rm"}, "call_2"))
        failed = await tools["fail"].ainvoke(call("fail", {}, "call_3"))
        assert await opened.outcomes() == [("read", "success"), ("read", "success"), ("fail", "error")]
        assert await asks(opened) == {"call_1": {"where": {"path": "a"}}}
    assert isinstance(denied, ToolMessage)
    assert (denied.status, failed.status) == ("error", "error")
    assert "The call was denied and did not run" in str(denied.content)
    assert RAN == ["read a of kim", "read b of kim"]


async def test_what_a_model_adds_to_the_schema_is_asked_about_too(tmp_path: Path) -> None:
    """Found by reading: where the schema is JSON, as of MCP servers, the tool ran with arguments that the gate never saw."""
    ran: list[dict[str, Any]] = []

    async def anything(**given: Any) -> str:
        ran.append(given)
        return "done"

    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    loose = StructuredTool(name="read", description="Read.", args_schema=schema, coroutine=anything)
    async with asked(tmp_path) as opened:
        (made,) = gated_tools(opened.run, [loose])
        await made.ainvoke(call("read", {"path": "a", "force": True}))
        assert await asks(opened) == {"call_1": {"path": "a", "force": True}}
    assert ran == [{"path": "a", "force": True}]


async def asks(opened: Asked) -> dict[str, Any]:
    async with open_log(str(opened.live.log)) as log:
        said = [unseal(record).observation async for _, record in log.read_all()]
    return {str(w.id): w.args for o in said if isinstance(o, IntentsReceived) for w in o.calls if w.id == "call_1"}


async def test_people_are_waited_for_and_their_edit_is_what_runs(tmp_path: Path) -> None:
    RAN.clear()
    async with asked(tmp_path) as opened, anyio.create_task_group() as tasks:
        (made,) = gated_tools(opened.run, [refund], wait=True)
        tasks.start_soon(lambda: opened.answer(args={"amount": 2}))
        assert (await made.ainvoke(call("refund", {"amount": 200}))).content == "paid 2"
        tasks.start_soon(lambda: opened.answer(result="by hand"))
        assert (await made.ainvoke(call("refund", {"amount": 300}, "call_2"))).content == "by hand"
        again = await made.ainvoke(call("refund", {"amount": 200}))
    assert again.content == "The call was made before and does not run again."
    assert RAN == ["refund 2"]


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


def graph(*tools: Any) -> Any:
    """A graph of nothing but the tools, which remembers where it stopped."""
    made = StateGraph(State)
    made.add_node("tools", ToolNode(tools))
    made.add_edge(START, "tools")
    return made.compile(checkpointer=InMemorySaver())


def wish(name: str, args: dict[str, Any], call_id: str = "call_1") -> dict[str, Any]:
    return {"messages": [AIMessage("", tool_calls=[call(name, args, call_id)])]}


KEPT: Any = {"configurable": {"thread_id": "t"}}


async def test_a_tool_that_a_graph_interrupts_goes_on_with_what_a_person_said(tmp_path: Path) -> None:
    """Found by trying: it had been reported as an error, and was told that it had been made before."""

    @tool
    async def ask(question: str) -> str:
        """Ask a person."""
        return f"they said {interrupt(question)}"

    async with asked(tmp_path) as opened:
        agent = graph(*gated_tools(opened.run, [ask]))
        stopped = await agent.ainvoke(wish("ask", {"question": "?"}), KEPT)
        assert [waits.value for waits in stopped["__interrupt__"]] == ["?"]
        assert (await opened.outcomes(), len((await opened.state()).in_flight)) == ([], 1)
        ended = await agent.ainvoke(Command(resume="yes"), KEPT)
        assert ended["messages"][-1].content == "they said yes"
        assert await opened.outcomes() == [("ask", "success")]


async def test_a_tool_that_hands_over_to_another_graph_is_done(tmp_path: Path) -> None:
    @tool
    async def ask() -> str:
        """Hand over."""
        raise ParentCommand(Command(goto="other"))

    async with asked(tmp_path) as opened:
        (made,) = gated_tools(opened.run, [ask])
        with pytest.raises(ParentCommand):
            await made.ainvoke(call("ask", {}))
        assert await opened.outcomes() == [("ask", "success")]


async def test_what_a_graph_injects_reaches_the_tool_and_not_the_gate(tmp_path: Path) -> None:
    """Found by trying: with a schema of its own, a tool was called without its runtime."""

    @tool(args_schema=Where)
    async def read(path: str, runtime: ToolRuntime) -> str:
        """Read a file."""
        return f"the text of {path}, call {runtime.tool_call_id}"

    read.extras = {"cache_control": "ephemeral"}
    async with asked(tmp_path) as opened:
        (made,) = gated_tools(opened.run, [read])
        assert made.extras == read.extras
        ended = await graph(made).ainvoke(wish("read", {"path": "a"}), KEPT)
        assert ended["messages"][-1].content == "the text of a, call call_1"
        assert await asks(opened) == {"call_1": {"path": "a"}}


def test_code_without_an_event_loop(tmp_path: Path) -> None:
    @tool
    def read(path: str) -> str:
        """Read a file."""
        return f"the text of {path}"

    @tool
    def ask(question: str) -> str:
        """Ask a person."""
        return f"they said {interrupt(question)}"

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(gate(tmp_path, POLICY)) as live:
        with sync.connect(live.bus.url, agent="worker", **live.bus.credentials("agent", "worker")) as worker:
            run = worker.run(run="r")
            (made,) = gated_tools(run, [read])
            assert made.invoke("a") == "the text of a"
            assert made.invoke(call("read", {"path": "b"})).content == "the text of b"
            agent = graph(*gated_tools(run, [ask]))
            agent.invoke(wish("ask", {"question": "?"}, "call_2"), KEPT)
            assert agent.invoke(Command(resume="yes"), KEPT)["messages"][-1].content == "they said yes"
            (wrong,) = gated_tools(run, [refund])
            with pytest.raises(TypeError, match="use `invoke`"):
                portal.call(wrong.ainvoke, {"amount": 1})
