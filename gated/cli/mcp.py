"""`gated mcp`: the gate before an MCP server on standard input and output."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import anyio
import typer
from anyio.abc import TaskStatus

from gated.cli.help import single
from gated.cli.output import CANNOT, fail, run_async
from gated.cli.shared import of_environment
from gated.client import Run, connect
from gated.client.adapters.mcp_stdio import LINE, Message, Proxy

app = single()

STOP_SECONDS = 5.0  # for a server whose input has ended


@app.command(
    "mcp",
    epilog="Example: gated mcp --agent coder --prefix mcp__files__ -- npx -y @modelcontextprotocol/server-filesystem /workspace",
)
def mcp(
    command: Annotated[list[str], typer.Argument(help="The server's command, after `--`.", metavar="COMMAND…")],
    agent: Annotated[str, typer.Option(help="The agent of the policy that the host is.")],
    prefix: Annotated[str, typer.Option(help="Stands before each tool's name in the policy.")] = "",
    task: Annotated[str | None, typer.Option(help="What the run is for.")] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for people; 0: the model is told that the call waits.")] = 0,
    data: Annotated[Path, typer.Option(help="Folder of the running gate.")] = Path(".gated"),
    nats: Annotated[str | None, typer.Option("--nats", envvar="GATED_NATS_URL", help="A NATS server of yours instead.")] = None,
) -> None:
    """Start an MCP server behind the gate: hosts use this command in the place of the server's own. A session is a run."""

    async def work() -> int:
        server = await _start(command)
        try:
            async with anyio.create_task_group() as tasks:
                stoppable = [tasks.cancel_scope]
                await tasks.start(_until_stopped, server, stoppable)
                async with connect(nats, agent=agent, data=data, **of_environment(nats)) as gate, gate.run(task=task) as run:
                    await _between(run, server, stoppable, prefix, wait)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(server)
        return server.returncode or 0

    raise typer.Exit(run_async(work))


async def _start(command: list[str]) -> Process:
    try:
        return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LINE)
    except OSError as error:
        fail(f"cannot start `{command[0]}`: {error.strerror}", CANNOT)


async def _between(run: Run, server: Process, stoppable: list[anyio.CancelScope], prefix: str, wait: float) -> None:
    """Until the server's output ends, or a host that does not wait for a slow server says SIGTERM: the run is over either way."""
    assert server.stdin is not None
    assert server.stdout is not None
    host = await _standard_input()
    lock = asyncio.Lock()
    to_server = server.stdin

    async def tell_host(message: Message) -> None:
        async with lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    async def tell_server(message: Message) -> None:
        to_server.write(json.dumps(message).encode() + b"\n")
        await to_server.drain()

    proxy = Proxy(run, tell_host, tell_server, prefix=prefix, wait=wait or False)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_pump_host, host, proxy, to_server)
            stoppable.append(tasks.cancel_scope)
            while line := await server.stdout.readline():
                await proxy.from_server(line)
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await proxy.ended("the session ended before the tool did")


async def _until_stopped(server: Process, stoppable: list[anyio.CancelScope], *, task_status: TaskStatus[None]) -> None:
    """SIGTERM ends the innermost of what can be stopped: once the run is open, it finishes."""
    with anyio.open_signal_receiver(signal.SIGTERM) as heard:
        task_status.started()
        async for _ in heard:
            with suppress(ProcessLookupError):
                server.terminate()
            stoppable[-1].cancel()


async def _pump_host(host: asyncio.StreamReader, proxy: Proxy, to_server: asyncio.StreamWriter) -> None:
    while line := await host.readline():
        await proxy.from_host(line)
    to_server.close()


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _stop(server: Process) -> None:
    with anyio.move_on_after(STOP_SECONDS):
        await server.wait()
        return
    server.kill()
    await server.wait()
