"""The console's server: a socket, the lines to the bus, and the application between them."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog
import uvicorn
from msgspec import Struct

from gated.console.app import console
from gated.console.desk import Desk, Settings
from gated.console.line import Lines, NoAnswer, Passwords
from gated.console.people import People
from gated.errors import GatedError

if TYPE_CHECKING:
    from gated.console.oidc import Oidc  # an extra

HOST: Final = "127.0.0.1"
PORT: Final = 8420
STOP_SECONDS: Final = 1.0
IDLE_LOOK: Final = 60.0  # seconds between looks at whose line is needed
WAIT_SECONDS: Final = 20.0  # for the bus at the start

log = structlog.get_logger("gated.console")


class ConsoleError(GatedError):
    """The console cannot be started: why, and how to mend it."""


class Serving(Struct, frozen=True):
    """Where the console listens and by what it is reached. `origin` is empty where that is the address it listens on."""

    people: People
    passwords: Passwords
    host: str = HOST
    port: int | None = None  # none: the usual one, or a free one where that is taken
    origin: str = ""
    hosts: tuple[str, ...] = ()
    setup: str = ""
    prefix: str = "gated"
    tls: Any = None
    oidc: Callable[[str], Oidc] | None = None  # makes the log-in of a provider, given the address to come back to


def is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _listening(serving: Serving) -> socket.socket:
    """Raises `ConsoleError`."""
    family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
    ports = [serving.port] if serving.port is not None else [PORT, 0]
    for port in ports:
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or answers wait for acknowledgements
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((serving.host, port))
            made.listen(2048)
            return made
        except OSError as error:
            made.close()
            if port == ports[-1]:
                raise ConsoleError(f"the console cannot listen on {serving.host} port {port}: {error.strerror}") from error
    raise AssertionError("there is always a last port")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the command's: it ends the block that the server runs in."""
        yield


@asynccontextmanager
async def running(serving: Serving) -> AsyncIterator[Desk]:
    """A console while the block runs. Raises `ConsoleError` where it cannot listen or reach the bus."""
    bound = _listening(serving)
    with bound:
        port = bound.getsockname()[1]
        name = f"[{serving.host}]" if ":" in serving.host else serving.host
        origin = serving.origin or f"http://{name}:{port}"
        own = {f"{name}:{port}", *([f"localhost:{port}"] if is_loopback(serving.host) else []), *serving.hosts}
        lines = Lines(serving.passwords, serving.prefix, serving.tls)
        desk = Desk(Settings(origin, serving.setup), serving.people, lines)
        desk.oidc = serving.oidc(f"{origin}/oidc/back") if serving.oidc is not None else None
        try:
            await _open(lines, desk)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(desk.board.run)
                tasks.start_soon(desk.past.run)
                tasks.start_soon(desk.gate.run)
                tasks.start_soon(_close_idle_lines, desk)
                server = _server(desk, own)
                ended = anyio.Event()

                async def serve() -> None:
                    await server.serve(sockets=[bound])
                    ended.set()

                tasks.start_soon(serve)
                try:
                    yield desk
                finally:
                    server.should_exit = True
                    with anyio.CancelScope(shield=True), anyio.move_on_after(STOP_SECONDS + 2):
                        await ended.wait()
                    tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await lines.close()
                await desk.past.close()
                if desk.oidc is not None:
                    await desk.oidc.close()


def _server(desk: Desk, hosts: Collection[str]) -> _Server:
    config = uvicorn.Config(
        console(desk, hosts),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=1000,
    )
    return _Server(config)


async def _close_idle_lines(desk: Desk) -> None:
    """Nobody's line stays open longer than their last session, however that ended."""
    while True:
        await anyio.sleep(IDLE_LOOK)
        for person in desk.lines.speakers:
            if not desk.sessions.of(person):
                await desk.lines.leave(person)


async def _open(lines: Lines, desk: Desk) -> None:
    until, told = time.monotonic() + WAIT_SECONDS, ""
    while True:
        try:
            await lines.open(desk.board.stale)
            await lines.follow("tickets", desk.board.hear)
            return
        except NoAnswer as error:
            if time.monotonic() > until:
                raise ConsoleError(str(error)) from error
            if told != str(error):  # twice a second would bury what matters
                log.info("waiting for the bus", why=str(error))
            told = str(error)
            await lines.close()
            await anyio.sleep(0.5)
