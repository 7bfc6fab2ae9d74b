"""The OpenAI Agents SDK: its real runner with a model that says what the test wants, its tools through a real gate."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    Usage,
    WebSearchTool,
    function_tool,
    tool_namespace,
)
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from client.adapters.policy import Asked, asked
from gated.client.adapters.openai_agents import gated_tools

RAN: list[str] = []


@function_tool
async def read(path: str) -> str:
    """Read a file."""
    RAN.append(f"read {path}")
    return f"the text of {path}"


@function_tool
async def shell(command: str) -> str:
    """Run a command."""
    RAN.append(command)
    return "done"


@function_tool
async def refund(amount: int) -> str:
    """Refund."""
    RAN.append(f"refund {amount}")
    return f"paid {amount}"


@function_tool(failure_error_function=None)
async def fail() -> str:
    """Fail."""
    raise ValueError("no such thing")


class Said(Model):
    """Asks for each tool in turn, then ends; `heard` is what it was told."""

    def __init__(self, *calls: tuple[str, dict[str, Any]], ids: str = "call") -> None:
        self.calls, self.ids = list(calls), ids
        self.heard: list[str] = []

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **more: Any) -> ModelResponse:
        told = [item["output"] for item in input if isinstance(item, dict) and item.get("type") == "function_call_output"]
        self.heard = [str(text) for text in told]
        output: Any
        if len(told) < len(self.calls):
            name, args = self.calls[len(told)]
            output = ResponseFunctionToolCall(
                type="function_call", call_id=f"{self.ids}_{len(told)}", name=name, arguments=json.dumps(args)
            )
        else:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            output = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *rest: Any, **more: Any) -> AsyncIterator[Any]:
        raise AssertionError("the runner was asked for no stream")


async def work(opened: Asked, model: Said, *tools: FunctionTool, wait: bool = False) -> list[str]:
    agent = Agent(name="worker", model=model, tools=[*gated_tools(opened.run, tools, wait=wait)])
    await Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True))
    return model.heard


async def test_tools_are_asked_for_and_reported_and_the_model_hears_why_not(tmp_path: Path) -> None:
    RAN.clear()
    async with asked(tmp_path) as opened:
        model = Said(("read", {"path": "a"}), ("shell", {"command": "rm"}), ("refund", {"amount": 1}))
        text, denied, waits = await work(opened, model, read, shell, refund)
        assert await opened.outcomes() == [("read", "success")]
    assert text == "the text of a"
    assert denied.startswith("The call was denied and did not run: ")
    assert "it waits for an approval (ticket t" in waits
    assert RAN == ["read a"]


async def test_people_are_waited_for_and_their_edit_is_what_runs(tmp_path: Path) -> None:
    RAN.clear()
    async with asked(tmp_path) as opened, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: opened.answer("call_0", args={"amount": 2}))
        tasks.start_soon(lambda: opened.answer("call_1", result={"by": "hand"}))
        model = Said(("refund", {"amount": 200}), ("refund", {"amount": 300}))
        assert await work(opened, model, refund, wait=True) == ["paid 2", '{"by": "hand"}']
    assert RAN == ["refund 2"]


async def test_an_agent_that_is_a_tool_goes_on_once_a_person_said_yes_to_the_tools_inside(tmp_path: Path) -> None:
    """Found by trying: it had been reported as done when it only waited, did not run again, and the runner asked for ever."""

    @function_tool(needs_approval=True)
    async def ask(question: str) -> str:
        """Ask."""
        return f"asked {question}"

    async with asked(tmp_path) as opened:
        inner = Agent(name="inner", model=Said(("ask", {"question": "?"}), ids="inner"), tools=[*gated_tools(opened.run, [ask])])
        helper: Any = inner.as_tool("helper", "Help.")
        outer = Agent(name="outer", model=Said(("helper", {"input": "x"})), tools=[*gated_tools(opened.run, [helper])])
        config = RunConfig(tracing_disabled=True)
        waiting = await Runner.run(outer, "go", run_config=config)
        assert await opened.outcomes() == []
        state = waiting.to_state()
        (interruption,) = waiting.interruptions
        state.approve(interruption)
        ended = await Runner.run(outer, state, run_config=config)
        assert (ended.final_output, ended.interruptions) == ("done", [])
        assert sorted(await opened.outcomes()) == [("ask", "success"), ("helper", "success")]


async def test_a_tool_of_a_namespace_is_asked_for_under_its_whole_name(tmp_path: Path) -> None:
    @function_tool
    async def find(text: str) -> str:
        """Find."""
        return f"found {text}"

    async with asked(tmp_path) as opened:
        (made,) = gated_tools(opened.run, tool_namespace(name="crm", description="Customers.", tools=[find]))
        (denied,) = gated_tools(opened.run, tool_namespace(name="erp", description="Goods.", tools=[find]))
        assert await invoke(made, {"text": "x"}) == "found x"
        assert (
            await invoke(denied, {"text": "x"})
            == "The call was denied and did not run: `erp.find` is not among the allowed tools"
        )


async def invoke(tool: FunctionTool, args: dict[str, Any]) -> Any:
    text = json.dumps(args)
    context = ToolContext(context=None, tool_name=tool.name, tool_call_id=f"{tool.qualified_name}-1", tool_arguments=text)
    return await tool.on_invoke_tool(context, text)


async def test_a_tools_own_error_is_reported(tmp_path: Path) -> None:
    async with asked(tmp_path) as opened:
        with pytest.raises(Exception, match="no such thing"):
            await work(opened, Said(("fail", {})), fail)
        assert await opened.outcomes() == [("fail", "error")]


def test_a_hosted_tool_cannot_be_gated() -> None:
    run: Any = None
    hosted: Any = WebSearchTool()
    with pytest.raises(TypeError, match="`web_search` is no function tool"):
        gated_tools(run, [hosted])
