"""Tools that are plain functions: what a framework reads of them is theirs, and what does not run says why."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

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
