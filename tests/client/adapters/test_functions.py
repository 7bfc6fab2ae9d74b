"""Tools that are plain functions: what a framework reads of them is theirs, and what does not run says why."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ApprovalRequired, DeferredToolRequests, DeferredToolResults, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from client.adapters.policy import POLICY, asked
from gated.client import sync
from gated.client.adapters.functions import gated_functions
from shell.live import gate

RAN: list[str] = []
KEPT = ("__name__", "__doc__", "__annotations__")
DENIED = "The call was denied and did not run: `shell` is forbidden with these arguments"


async def read(path: str, lines: int = 10) -> str:
    """Read a file."""
    RAN.append(f"read {path} {lines}")
    return f"the text of {path}"


def shell(command: str) -> str:
    """Run a command."""
    RAN.append(command)
    return "done"


def refund(amount: int) -> int:
    """Pay back."""
    RAN.append(f"refund {amount}")
    return amount


def fail() -> None:
    """Fail."""
    raise ValueError("no such thing")


async def test_what_a_framework_reads_of_them_is_as_it_was(tmp_path: Path) -> None:
    functions: list[Callable[..., Any]] = [read, shell, refund]
    async with asked(tmp_path) as made:
        for given, gated in zip(functions, gated_functions(made.run, functions), strict=True):
            assert inspect.iscoroutinefunction(gated)
            assert inspect.signature(gated) == inspect.signature(given)
            assert [getattr(gated, name) for name in KEPT] == [getattr(given, name) for name in KEPT]


async def test_they_run_or_say_why_not(tmp_path: Path) -> None:
    RAN.clear()
    async with asked(tmp_path) as made:
        ask, run_shell, pay, break_ = gated_functions(made.run, [read, shell, refund, fail])
        assert await ask("a.py") == "the text of a.py"
        assert await run_shell(command="ls") == DENIED
        with pytest.raises(ValueError, match="no such thing"):
            await break_()
        (paying,) = gated_functions(made.run, [refund], wait=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.answer)
            assert await paying(8) == 8
        assert (await pay(7)).startswith("The call did not run: it waits for an approval (ticket t")
        assert await made.outcomes() == [("read", "success"), ("fail", "error"), ("refund", "success")]
    assert RAN == ["read a.py 10", "refund 8"]


async def test_what_pydantic_ai_gives_a_tool_is_not_for_the_gate(tmp_path: Path) -> None:
    """Found by trying: a tool with `RunContext`, the usual kind, was refused, since a context is not JSON."""

    def read(context: RunContext[str], path: str) -> str:
        return f"the text of {path} for {context.deps}"

    async def ask(context: RunContext[str], question: str) -> str:
        if not context.tool_call_approved:
            raise ApprovalRequired
        return f"a person was asked: {question}"

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) > 1:
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart("read", {"path": "a"}), ToolCallPart("ask", {"question": "?"})])

    async with asked(tmp_path) as made:
        tools = gated_functions(made.run, [read, ask])
        agent = Agent(FunctionModel(model), tools=tools, deps_type=str, output_type=[str, DeferredToolRequests])
        first = await agent.run("go", deps="kim")
        assert isinstance(first.output, DeferredToolRequests)
        yes = DeferredToolResults(approvals={call.tool_call_id: True for call in first.output.approvals})
        second = await agent.run(message_history=first.all_messages(), deferred_tool_results=yes, deps="kim")
        assert await made.outcomes() == [("read", "success"), ("ask", "error"), ("ask", "success")]
    heard = [part.content for said in second.all_messages() for part in said.parts if isinstance(part, ToolReturnPart)]
    assert heard == ["the text of a for kim", "a person was asked: ?"]


class Place(BaseModel):
    city: str
    force: bool = Field(default=False, exclude=True)


class Kind(Enum):
    SOON = "soon"


async def test_typed_arguments_are_asked_for_as_json_and_made_anew_from_what_was_decided(tmp_path: Path) -> None:
    """Found by trying: Pydantic AI and CrewAI give models, dates and enums to functions, and such calls were refused."""
    got: list[Any] = []

    async def read(place: Place, day: date, kinds: list[Kind], note: str = "") -> str:
        got.append((place, day, kinds, note))
        return "done"

    async def refund(place: Place) -> str:
        got.append(place)
        return "done"

    async def ask(anything) -> str:  # type: ignore[no-untyped-def]
        return "done"

    async with asked(tmp_path) as made:
        looking, paying, asking = gated_functions(made.run, [read, refund, ask], wait=True)
        assert await looking(Place(city="Rome", force=True), day=date(2026, 11, 30), kinds=[Kind.SOON]) == "done"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: made.answer(args={"place": {"city": "Oslo"}}))
            assert await paying(Place(city="Rome")) == "done"
        assert "not JSON" in await asking(Place(city="Rome"))
        first, second = (call.args for call in await made.asked_for())
    assert first == {"place": {"city": "Rome"}, "day": "2026-11-30", "kinds": ["soon"], "note": ""}
    assert second == {"place": {"city": "Rome"}}
    assert got == [(Place(city="Rome"), date(2026, 11, 30), [Kind.SOON], ""), Place(city="Oslo")]


async def test_what_is_no_function_is_said_at_once(tmp_path: Path) -> None:
    async with asked(tmp_path) as made:
        with pytest.raises(TypeError, match="a `Tool` is no function: give the function that the tool was made of"):
            gated_functions(made.run, [Tool(read)])  # type: ignore[list-item]


async def test_a_loop_without_events_has_the_same(tmp_path: Path) -> None:
    RAN.clear()
    async with gate(tmp_path, POLICY) as live:

        def work() -> list[object]:
            with sync.connect(live.bus.url, agent="worker", **live.bus.credentials("agent", "worker")) as worker:
                with worker.run(run="r") as run:
                    run_shell, pay = gated_functions(run, [shell, refund])
                    return [inspect.iscoroutinefunction(pay), run_shell("ls"), str(pay(7))[:20]]

        said = await anyio.to_thread.run_sync(work)
    assert said == [False, DENIED, "The call did not run"]
    assert RAN == []
