"""What is raised while a gate runs ends it, and comes out as it is."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from gated.shell.background import background_tasks
from gated.shell.daemon import Settings
from gated.shell.policies import read_policy
from gated.shell.worker import worker
from patience import PATIENCE
from shell.live import Bus, gate, server, write_policy

# Its log is closed by nobody: neither is it always, by who leaves in a hurry.
PROGRAM = """
import signal, sys
from pathlib import Path
import anyio
from gated.shell.daemon import Settings, daemon
from gated.shell.embedded import embedded_server
from gated.shell.log.sqlite import open_for_writing
from gated.shell.nats_config import inbox_prefix
from gated.shell.policies import read_policy

folder, way = Path(sys.argv[1]), sys.argv[2]

async def leave():
    await anyio.sleep(0.05)
    sys.exit(3)

async def main():
    policy = folder / "policy.yaml"
    async with embedded_server(folder / "bus", [], start_seconds=60) as server:
        log = await open_for_writing(folder / "log.db")
        login = {"user": "daemon", "password": server.bus.users["daemon"], "inbox_prefix": inbox_prefix("daemon", "")}
        async with daemon(Settings(server.bus.url, policy, login), log, read_policy(policy)):
            print("leaving", flush=True)
            if way == "interrupted":
                signal.raise_signal(signal.SIGINT)
                await anyio.sleep_forever()
            if way == "exit in a task":
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(leave)
                    await anyio.sleep_forever()
            sys.exit(3)

try:
    anyio.run(main)
except KeyboardInterrupt:
    sys.exit(4)
"""


@pytest.mark.parametrize(("way", "status"), [("exit", 3), ("exit in a task", 3), ("interrupted", 4)])
def test_a_program_that_leaves_while_its_daemon_runs_ends(tmp_path: Path, way: str, status: int) -> None:
    """Found by hand: it waited for ever for a thread that read the log."""
    write_policy(tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            assert running.stdout is not None
            before = [*itertools.takewhile(lambda line: line != "leaving\n", running.stdout)]  # a start takes its time
            said, _ = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
    assert running.returncode == status, "".join(before) + said


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError])
async def test_what_the_block_of_a_daemon_raises_comes_out_as_it_is(tmp_path: Path, kind: type[BaseException]) -> None:
    with pytest.raises(kind, match="mine"):
        async with gate(tmp_path):
            raise kind("mine")


async def work_and_leave(bus: Bus, policy: Path) -> None:
    settings = Settings(bus.url, policy, bus.credentials("daemon"), partitions=2)
    async with worker(settings, read_policy(policy), "w"):
        raise SystemExit("mine")


async def test_what_the_block_of_a_worker_raises_comes_out_as_it_is(tmp_path: Path) -> None:
    async with server(tmp_path) as (_, bus):
        with pytest.raises(SystemExit, match="mine"):
            await work_and_leave(bus, write_policy(tmp_path))


async def fail() -> None:
    raise ValueError("the task's")


async def fail_beside(error: Exception | None) -> None:
    """A task fails; the block that it ends raises `error` then."""
    async with background_tasks() as tasks:
        tasks.start_soon(fail)
        try:
            await anyio.sleep_forever()
        finally:
            if error is not None:
                raise error


@pytest.mark.parametrize("error", [None, KeyError("the block's")])
async def test_a_task_that_fails_ends_its_block_and_is_not_hidden_by_what_that_raises(error: Exception | None) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await fail_beside(error)
    assert {type(error) for error in raised.value.exceptions} == {ValueError, *([KeyError] if error else [])}


async def test_tasks_end_with_their_block() -> None:
    ended = []

    async def go_on() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(True)

    async with background_tasks() as tasks:
        tasks.start_soon(go_on)
        await anyio.lowlevel.checkpoint()
    assert ended == [True]
