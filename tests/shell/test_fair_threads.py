"""Each agent computes in its turn, also where it stopped waiting for the last one."""

from __future__ import annotations

from threading import Event

import anyio
import pytest

from gated.shell.fair_threads import FairThreads
from patience import PATIENCE


async def test_one_agent_does_not_keep_another_waiting() -> None:
    threads, busy, go = FairThreads(2), Event(), Event()
    began: list[int] = []

    def slow(number: int) -> int:
        began.append(number)
        busy.set()
        go.wait(PATIENCE)
        return number

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(threads.run, "loud", slow, number)
        await anyio.to_thread.run_sync(busy.wait, PATIENCE)
        with anyio.fail_after(PATIENCE):
            assert await threads.run("quiet", lambda: "done") == "done"
        assert began == [0]
        go.set()
    assert sorted(began) == [0, 1, 2, 3, 4]
    await threads.close()


async def test_what_nobody_waits_for_any_more_still_has_the_turn() -> None:
    threads, busy, go = FairThreads(2), Event(), Event()

    def slow() -> None:
        busy.set()
        go.wait(PATIENCE)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.run, "a", slow)
        await anyio.to_thread.run_sync(busy.wait, PATIENCE)
        tasks.cancel_scope.cancel()
    with anyio.move_on_after(0.1) as waited:
        await threads.run("a", lambda: None)
    assert waited.cancelled_caught
    go.set()
    with anyio.fail_after(PATIENCE):
        assert await threads.run("a", lambda: 7) == 7
    await threads.close()


async def test_what_fails_gives_the_turn_back() -> None:
    threads = FairThreads(1)

    def fails() -> None:
        raise ValueError("no")

    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            await threads.run("a", fails)
    assert await threads.run("a", lambda: 1) == 1
    await threads.close()
