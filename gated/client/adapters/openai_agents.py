"""The OpenAI Agents SDK: function tools that ask the gate before they run (extra `gated[openai-agents]`).

agent = Agent(name="coder", tools=gated_tools(run, [read_file, write_file]))
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from agents import FunctionTool
from agents.agent_tool_state import get_agent_tool_state_scope, peek_agent_tool_run_result
from agents.tool_context import ToolContext

from gated.client.adapters import NOT_RUN, call_id, for_model, text_of
from gated.client.errors import Refused
from gated.client.run import Run, Wait

Invoke = Callable[[ToolContext[Any], str], Awaitable[Any]]


def gated_tools(run: Run, tools: Iterable[FunctionTool], *, wait: Wait = False) -> list[FunctionTool]:
    """The tools behind the gate; where one does not run, the model is told why. One of a namespace is asked for as
    `namespace.name`.

    A tool that turns its own errors into text for the model, as those of `function_tool` do by default, is reported as a
    success; with `failure_error_function=None` its errors are reported as such.
    Raises `TypeError` for a hosted tool: it runs where no gate can stand before it.
    """
    return [_gated(run, tool, wait) for tool in tools]


def _gated(run: Run, tool: FunctionTool, wait: Wait) -> FunctionTool:
    if not isinstance(tool, FunctionTool):
        raise TypeError(f"`{getattr(tool, 'name', tool)}` is no function tool: the gate cannot stand before it")
    invoke: Invoke = tool.on_invoke_tool

    async def through_the_gate(context: ToolContext[Any], arguments: str) -> Any:
        try:
            asked = _arguments(arguments)
            admitted = await run.admit(tool.qualified_name, asked, call=call_id(context.tool_call_id), wait=wait)
        except NOT_RUN as error:
            return for_model(error)
        if not admitted.execute:
            return text_of(admitted.result)
        try:
            result = await invoke(context, json.dumps(dict(admitted.args)))  # as it was read here: no text means two things
        except BaseException as error:
            await run.failed(admitted.call, error)
            raise
        if _waits(context):
            run.paused(admitted.call)
        else:
            await run.succeeded(admitted.call, result)
        return result

    return dataclasses.replace(tool, on_invoke_tool=through_the_gate)


def _waits(context: ToolContext[Any]) -> bool:
    """Whether the tool is an agent whose own tools wait for a person: the runner runs it again, under the same id."""
    if context.tool_call is None:
        return False
    nested = peek_agent_tool_run_result(context.tool_call, scope_id=get_agent_tool_state_scope(context))
    return bool(getattr(nested, "interruptions", None))


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise Refused("ingress.args", f"the arguments are not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused("ingress.args", "the arguments are no JSON object")
    return found
