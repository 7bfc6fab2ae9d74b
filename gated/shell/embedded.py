"""The embedded bus: a real nats-server as a child process, with JetStream in the data folder, on loopback only.

INVARIANT: one gate a folder (`gate.lock`), and one server a folder: the server itself holds `server.lock`, a lock that it
inherits, so that whether one still runs is never a guess about process ids. Whoever finds that lock held after taking
`gate.lock` has found the orphan of a killed gate, and ends it. On Linux the kernel ends it before: the server is started
through a shim that asks for a signal at its parent's death (the thread's that started it: the one of the event loop).
Passwords are random and outlive restarts; they stand in `bus.json` and `nats.conf`, both 0600 in a folder that is 0700.

JetStream syncs its files every two minutes here (`sync_interval`, the server's default), not before each acknowledgement.
A killed server loses nothing, since the kernel has the bytes. A power cut may lose inputs that were acknowledged, but what
was decided is in the log, which is synced, and what was not is published again by the client that still waits for a
verdict. Rejected: `sync_interval: always`. Measured on ext4 on a virtual disk, 1 kB inputs: 5,500/s one after another
(p50 0.17 ms) and 12,000/s from 32 at once; with `always` 2,700/s (0.34 ms) and 7,500/s, where a sync costs 0.2 ms only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
from msgspec import Struct

from gated import wire
from gated.errors import GatedError
from gated.shell.nats_binary import ServerMissing, server_binary
from gated.shell.nats_config import User, UserError, UserRole, login, users_block

START_SECONDS: Final = 10.0
STOP_SECONDS: Final = 5.0
LOG_BYTES: Final = 10_000_000
LOOK_SECONDS: Final = 1.0  # between two looks at what the server says
_DEAF: Final = re.compile(r"[^\]\n]*critical write error[^\n]*", re.IGNORECASE)

# PR_SET_PDEATHSIG is 1; a parent that died before the call has left us to another one
_SHIM: Final = (
    "import ctypes,os,signal,sys\n"
    "if sys.platform=='linux': ctypes.CDLL(None).prctl(1,signal.SIGTERM)\n"
    "if os.getppid()!=int(sys.argv[1]): sys.exit('the parent is gone')\n"
    "os.umask(0o077)\n"
    "os.execv(sys.argv[2],sys.argv[2:])"
)


class EmbeddedError(GatedError):
    """The embedded server cannot be started: why, and how to mend it."""


class Bus(Struct, frozen=True):
    """Where the bus is, and the passwords of its users by login."""

    url: str
    users: dict[str, str]


class Server:
    """A running embedded server."""

    def __init__(self, process: anyio.abc.Process, folder: Path, bus: Bus, configure: Callable[[list[User]], None]) -> None:
        self.process, self.folder, self.bus = process, folder, bus
        self._configure = configure
        self._admitting = anyio.Lock()

    async def admit(self, users: Iterable[tuple[UserRole, str]]) -> list[str]:
        """Let further users in while the server runs; the logins that are new. Nobody is locked out by it."""
        async with self._admitting:
            new = [(role, name) for role, name in dict.fromkeys(users) if login(role, name) not in self.bus.users]
            if not new:
                return []
            known = [_of_login(text) for text in self.bus.users]
            made = await anyio.to_thread.run_sync(_users, self.folder, [*known, *new])
            await anyio.to_thread.run_sync(self._configure, made)
            self.process.send_signal(signal.SIGHUP)  # it reads its configuration again, and keeps its connections
            self.bus = Bus(self.bus.url, {user.login: user.password for user in made})
            await anyio.to_thread.run_sync(_write_bus, self.folder, self.bus)
            return [login(role, name) for role, name in new]

    async def wait(self) -> int:
        """Until the server ends; its exit status."""
        return await self.process.wait()

    async def until_deaf(self) -> str:
        """Until the server says that it could not write; its words. A stream that met a full disk takes nothing any more, also
        once there is room, and tells nobody but its own log: the server has to be started again."""
        log, read = anyio.Path(self.folder / "server.log"), 0
        while True:
            await anyio.sleep(LOOK_SECONDS)
            with contextlib.suppress(OSError):  # it is put aside when it has grown
                read = 0 if (await log.stat()).st_size < read else read
                async with await log.open("rb") as file:
                    await file.seek(read)
                    said, end, _ = (await file.read()).rpartition(b"\n")  # whole lines
                read += len(said + end)
                if found := _DEAF.search(said.decode(errors="replace")):
                    return found[0].strip()


@asynccontextmanager
async def embedded_server(
    folder: Path,
    users: Iterable[tuple[UserRole, str]],
    port: int = -1,
    prefix: str = wire.PREFIX,
    start_seconds: float = START_SECONDS,
) -> AsyncIterator[Server]:
    """Start a server with its files in `folder`; stop it at the end. There is always a user `daemon`.

    Raises `EmbeddedError` where another gate has the folder, no server is to be had, or it does not start.
    """
    folder = Path(await anyio.Path(folder).absolute())
    with _gate_lock(folder):
        with anyio.CancelScope(shield=True):  # what was locked and started must be known, to be freed and stopped
            lock, port, passwords = await anyio.to_thread.run_sync(_prepare, folder, tuple(users), port, prefix)
            process = await _spawn(folder, lock)
        try:
            bus = Bus(await _ready(process, folder, start_seconds), passwords)
            _write_bus(folder, bus)

            def configure(made: list[User]) -> None:
                _write_secret(folder / "nats.conf", _config(folder, made, port, prefix))

            yield Server(process, folder, bus, configure)
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)


# --- one gate and one server a folder ----------------------------------------------------------------------------------


@contextmanager
def _gate_lock(folder: Path) -> Iterator[None]:
    """Hold the folder, until the block ends or the process dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        handle = os.open(folder / "gate.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EmbeddedError(f"cannot use the folder `{folder}`: {error.strerror}; it must be a folder of yours") from error
    try:
        if not _locked(handle):
            raise EmbeddedError(
                f"a gate runs with the folder `{folder}` already (process {_pid(handle) or 'unknown'}): "
                "stop it, or take another folder"
            )
        _write_pid(handle, os.getpid())
        yield
    finally:
        os.close(handle)


def _server_lock(folder: Path) -> int:
    """The lock that the server is to inherit. Ends the server that a killed gate left, if there is one."""
    handle = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if _locked(handle):
            break
        with contextlib.suppress(ProcessLookupError):  # it ends just now
            if orphan := _pid(handle):
                os.kill(orphan, number)
        _wait_locked(handle, STOP_SECONDS)
    if not _locked(handle):
        orphan = _pid(handle)
        os.close(handle)
        raise EmbeddedError(f"a nats-server (process {orphan or 'unknown'}) will not leave the folder `{folder}`: end it")
    _write_pid(handle, None)
    return handle


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise EmbeddedError(f"cannot lock the folder: {error.strerror}; it must be on a local disk") from error
    return True


def _wait_locked(handle: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not _locked(handle) and time.monotonic() < until:
        time.sleep(0.02)


def _pid(handle: int) -> int | None:
    """The process that holds a lock, written by its holder's parent after each locking: never one of before."""
    text = os.pread(handle, 20, 0)
    return int(text) if text.isdigit() else None


def _write_pid(handle: int, pid: int | None) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, b"" if pid is None else str(pid).encode(), 0)


# --- the process ---------------------------------------------------------------------------------------------------------


async def _spawn(folder: Path, lock: int) -> anyio.abc.Process:
    try:
        binary = await anyio.to_thread.run_sync(server_binary)
        output = os.open(folder / "server.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            command = [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), binary, "-c", str(folder / "nats.conf")]
            # a session of its own: Ctrl-C must not end the bus before the daemon has drained
            process = await anyio.open_process(
                command, stdin=None, stdout=output, stderr=output, start_new_session=True, pass_fds=[lock]
            )
        finally:
            os.close(output)
        _write_pid(lock, process.pid)
        return process
    except ServerMissing as error:
        raise EmbeddedError(str(error)) from error
    finally:
        os.close(lock)


async def _ready(process: anyio.abc.Process, folder: Path, seconds: float) -> str:
    """The URL, once the server takes connections: it writes its ports file then."""
    with anyio.move_on_after(seconds):
        ports = anyio.Path(folder / f"nats-server_{process.pid}.ports")
        while process.returncode is None:
            if await ports.exists():
                with contextlib.suppress(json.JSONDecodeError):  # half written
                    return str(json.loads(await ports.read_text())["nats"][0])
            await anyio.sleep(0.01)
    ended = process.returncode
    what = f"did not start within {seconds:g}s" if ended is None else f"ended with status {ended} before it was ready"
    words = await _last_words(folder)
    if taken := re.search(r"Error listening on port: \S*?(\d+), .*in use", words):
        raise EmbeddedError(f"port {taken[1]} is in use: give the bus another with --port, or none and it takes a free one")
    raise EmbeddedError(f"nats-server {what}; its last words: {words or 'none'} (folder `{folder}`)")


async def _last_words(folder: Path) -> str:
    files = [anyio.Path(folder / name) for name in ("server.log", "server.out")]
    said = "".join([await file.read_text(errors="replace") for file in files if await file.exists()])
    return " | ".join(said.strip().splitlines()[-3:])


async def _stop(process: anyio.abc.Process) -> None:
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(STOP_SECONDS):
            await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()


# --- its files -----------------------------------------------------------------------------------------------------------


def _prepare(folder: Path, users: Iterable[tuple[UserRole, str]], port: int, prefix: str) -> tuple[int, int, dict[str, str]]:
    """The server's lock, its port, its configuration on disk, and the passwords in it."""
    lock = _server_lock(folder)
    try:
        for leftover in folder.glob("nats-server_*.ports"):
            leftover.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (folder / "server.log").replace(folder / "server.log.before")
        made, port = _users(folder, users), _port_again(folder, port)
        _write_secret(folder / "nats.conf", _config(folder, made, port, prefix))
    except BaseException as error:
        os.close(lock)
        if isinstance(error, UserError | OSError):
            raise EmbeddedError(f"cannot configure the server: {error} (folder `{folder}`)") from error
        raise
    return lock, port, {user.login: user.password for user in made}


def _port_again(folder: Path, port: int) -> int:
    """Where any port would do the one of before, so that whoever was connected finds the server again; if it is free."""
    if port > 0:
        return port
    try:
        before = int(msgspec.json.decode((folder / "bus.json").read_bytes(), type=Bus).url.rpartition(":")[2])
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(("127.0.0.1", before))
    except (OSError, ValueError):
        return port
    return before


def _users(folder: Path, users: Iterable[tuple[UserRole, str]]) -> list[User]:
    """A password for every user: the one of before, so that a restart locks nobody out, or a new one."""
    wanted: list[tuple[UserRole, str]] = [("daemon", ""), *users]
    known = _known_passwords(folder / "bus.json")
    return [User(role, name, known.get(login(role, name)) or secrets.token_urlsafe(24)) for role, name in dict.fromkeys(wanted)]


def _of_login(text: str) -> tuple[UserRole, str]:
    role, _, name = text.partition(":")
    return role, name  # type: ignore[return-value]  # a login is made of a role


def _write_bus(folder: Path, bus: Bus) -> None:
    _write_secret(folder / "bus.json", json.dumps({"url": bus.url, "users": bus.users}, indent=1))


def _known_passwords(file: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Bus).users
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise EmbeddedError(f"`{file}` is damaged: {error}; remove it, and every user gets a new password") from error


def _config(folder: Path, users: Iterable[User], port: int, prefix: str) -> str:
    def path(name: str) -> str:
        return json.dumps(str(folder / name), ensure_ascii=False)

    return f"""# written by gated at every start
host: "127.0.0.1"
port: {port or -1}
server_name: "gated-embedded"
ports_file_dir: {path("")}
log_file: {path("server.log")}
logfile_size_limit: {LOG_BYTES}
logfile_max_num: 3
max_payload: {8 * wire.MAX_PAYLOAD}
write_deadline: "10s"
jetstream {{ store_dir: {path("jetstream")} }}
authorization {{
{users_block(users, prefix)}}}
"""


def _write_secret(path: Path, text: str) -> None:
    """Whole or not at all, and for the owner only, whatever was there."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
