"""LangChain and LangGraph: tools that ask the gate before they run (extra `gated[langchain]`).

tools = gated_tools(run, [search, refund])     # for `bind_tools`, `ToolNode(tools)` or `create_agent(model, tools)`

With a run of `gated.client` the tools are for `ainvoke`, with one of `gated.client.sync` for `invoke`.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.pydantic import get_fields
from pydantic import BaseModel

from gated.client import sync
from gated.client.adapters import NOT_RUN, call_id, for_model, text_of
from gated.client.calls import Admitted
from gated.client.errors import GateError
from gated.client.run import Run, Wait


def gated_tools(run: Run | sync.Run, tools: Iterable[BaseTool], *, wait: Wait = False) -> list[BaseTool]:
    """The tools behind the gate; where one does not run, the model is told why in a message of status `error`."""
    return [
        GatedTool(
            name=tool.name,
            description=tool.description,
            args_schema=tool.args_schema,
            return_direct=tool.return_direct,
            tags=tool.tags,
            metadata=tool.metadata,
            extras=tool.extras,
            inner=tool,
            gate_run=run,
            wait=wait,
        )
        for tool in tools
    ]


class GatedTool(BaseTool):
    """A tool around a tool: same name, description and schema. What the framework injects (state, stores, a runtime) is not for
    the gate. A tool that a graph interrupts stays in flight: the graph runs it again, under the same id, once it goes on."""

    inner: BaseTool
    gate_run: Any
    wait: Wait = False

    @property
    def func(self) -> Callable[..., Any] | None:
        """The tool's own function, where LangGraph looks for what it must inject."""
        return getattr(self.inner, "func", None) or getattr(self.inner, "coroutine", None)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a gated tool does not run past its gate: use `invoke`, `run` or their async forms")

    async def arun(self, tool_input: Any, *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        run: Run = self.gate_run
        if not isinstance(run, Run):
            raise TypeError("this tool is gated by a run of `gated.client.sync`: use `invoke`")
        asked = self._asked(tool_input)
        try:
            admitted = await run.admit(self.name, asked, call=call_id(tool_call_id), wait=self.wait)
        except NOT_RUN as error:
            return self._refused(error, tool_call_id)
        if not admitted.execute:
            return self._answered(admitted, tool_call_id)
        own = tool_call_id or uuid.uuid4().hex
        try:
            result = await self.inner.arun(self._given(tool_input, asked, admitted), *args, tool_call_id=own, **kwargs)
        except BaseException as error:
            match _left(error):
                case "paused":
                    run.paused(admitted.call)
                case "done":
                    await run.succeeded(admitted.call)
                case _:
                    await run.failed(admitted.call, error)
            raise
        if _is_error(result):
            await run.failed(admitted.call, str(result.content))
        else:
            await run.succeeded(admitted.call, _content(result))
        return result if tool_call_id else _content(result)

    def run(self, tool_input: Any, *args: Any, tool_call_id: str | None = None, **kwargs: Any) -> Any:
        run: sync.Run = self.gate_run
        if not isinstance(run, sync.Run):
            raise TypeError("this tool is gated by a run of `gated.client`: use `ainvoke`")
        asked = self._asked(tool_input)
        try:
            admitted = run.admit(self.name, asked, call=call_id(tool_call_id), wait=self.wait)
        except NOT_RUN as error:
            return self._refused(error, tool_call_id)
        if not admitted.execute:
            return self._answered(admitted, tool_call_id)
        own = tool_call_id or uuid.uuid4().hex
        try:
            result = self.inner.run(self._given(tool_input, asked, admitted), *args, tool_call_id=own, **kwargs)
        except BaseException as error:
            match _left(error):
                case "paused":
                    run.paused(admitted.call)
                case "done":
                    run.succeeded(admitted.call)
                case _:
                    run.failed(admitted.call, error)
            raise
        if _is_error(result):
            run.failed(admitted.call, str(result.content))
        else:
            run.succeeded(admitted.call, _content(result))
        return result if tool_call_id else _content(result)

    # --- arguments and answers ---------------------------------------------------------------------------------------

    def _asked(self, tool_input: Any) -> dict[str, Any]:
        """What the model gave, also what the tool's schema does not know, without what the framework put beside it."""
        schema: Any = self.inner.tool_call_schema
        if isinstance(tool_input, dict):
            beside = set(self.inner._injected_args_keys)
            if not isinstance(schema, dict):
                beside |= get_fields(self.inner.get_input_schema()).keys() - get_fields(schema)
            return {name: _plain(value) for name, value in tool_input.items() if name not in beside}
        properties = schema if isinstance(schema, dict) else schema.model_json_schema()
        return {next(iter(properties.get("properties", {})), "input"): tool_input}

    def _given(self, tool_input: Any, asked: dict[str, Any], admitted: Admitted) -> Any:
        """The tool's input with the arguments that may run."""
        if admitted.args is asked:
            return tool_input
        beside = {k: v for k, v in tool_input.items() if k not in asked} if isinstance(tool_input, dict) else {}
        return {**beside, **admitted.args}

    def _refused(self, error: GateError, tool_call_id: str | None) -> Any:
        text = for_model(error)
        return ToolMessage(text, tool_call_id=tool_call_id, name=self.name, status="error") if tool_call_id else text

    def _answered(self, admitted: Admitted, tool_call_id: str | None) -> Any:
        text = text_of(admitted.result)
        return ToolMessage(text, tool_call_id=tool_call_id, name=self.name) if tool_call_id else text


def _left(error: BaseException) -> Literal["paused", "done", "failed"]:
    """How a tool was left: LangGraph says by an exception, too, that it waits for a person, or that another graph goes on."""
    graph = sys.modules.get("langgraph.errors")
    if graph is None or not isinstance(error, graph.GraphBubbleUp):
        return "failed"
    return "done" if isinstance(error, graph.ParentCommand) else "paused"


def _is_error(result: Any) -> bool:
    return isinstance(result, ToolMessage) and result.status == "error"


def _content(result: Any) -> Any:
    return result.content if isinstance(result, ToolMessage) else result


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
