"""The backends of the log, each with the ways to hurt it that the common suite needs, and records for it."""

from __future__ import annotations

import asyncio
import atexit
import functools
import itertools
import json
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from gated.core.chain import verify_records
from gated.events import GENESIS, Body, CallId, IntentsReceived, Record, RunId, Sender, ThreadId, Wanted, kind_of, seal
from gated.shell.log import EventLog, LogUnavailable, ReadableLog, jetstream, jetstream_api, sqlite_file
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.log.jetstream_reader import JetStreamReader
from gated.shell.log.sealing import Sealing
from gated.shell.log.sqlite import SqliteLog, open_for_reading, open_for_writing
from gated.shell.nats_binary import server_binary
from gated.shell.nats_client import SturdyClient
from patience import PATIENCE, blocking_until

BY = Sender("agent", "a")


def chained(
    thread: str = "t",
    count: int = 3,
    after: Record | None = None,
    text: str = "wörter \u2028 \U0001f512",
    policy: str = "p" * 64,
) -> list[Record]:
    """The next `count` records of a thread."""
    made: list[Record] = []
    for _ in range(count):
        seq, prev = (1, GENESIS) if after is None else (after.seq + 1, after.hash)
        said = IntentsReceived(BY, (Wanted(CallId(f"c{seq}"), "search", {"q": text, "n": [seq, 1.5, None]}),))
        after = seal(Body(1, ThreadId(thread), RunId(f"{thread}-r"), seq, 10**15 + seq, kind_of(said), said, (), policy, prev))
        made.append(after)
    return made


async def all_of(log: ReadableLog, after: int = 0) -> list[Record]:
    return [record async for _, record in log.read_all(after)]


async def intact(log: ReadableLog) -> int:
    """How many records a log has, all of them verified, and its table of heads with them."""
    found = verify_records([item async for item in log.read_all()])
    assert found.damage is None
    assert dict(found.heads) == await log.heads()
    return found.records


class Backend(Protocol):
    """A place for one log."""

    unstorable: tuple[Record, type[Exception]]  # a record that this backend cannot hold, and what it says

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None: ...

    def hurry(self) -> None:
        """From the next opening on a stall is borne for a moment only."""

    async def open(self, sealing: Sealing | None = None) -> EventLog:
        """Open for writing."""

    async def reader(self) -> ReadableLog: ...

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Nothing can be written for a while."""

    @contextmanager
    def outcome_lost(self, log: Any) -> Iterator[None]:
        """What is committed is reported as failed."""

    async def take_over(self) -> None:
        """Another daemon begins to write, though this one never let go."""


def odd(thread: str, at: int) -> Record:
    """A record that is its thread's first, and odd in some way."""
    one = chained("x", 1)[0]
    return Record(ThreadId(thread), one.run, 1, at, one.kind, one.prev, one.hash, one.body)


class SqliteBackend:
    unstorable: tuple[Record, type[Exception]] = (odd("x", 2**64), OverflowError)

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = folder / "log.db"
        self._patch = patch
        patch.setattr(sqlite_file, "BUSY_SECONDS", PATIENCE)

    def hurry(self) -> None:
        self._patch.setattr(sqlite_file, "BUSY_SECONDS", 0.3)

    async def open(self, sealing: Sealing | None = None) -> SqliteLog:
        return await open_for_writing(self.path, sealing)

    async def reader(self) -> SqliteLog:
        return await open_for_reading(self.path)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("begin immediate")
            yield

    @contextmanager
    def outcome_lost(self, log: Any) -> Iterator[None]:
        writer = log._writer
        real = writer._connection
        writer._connection = _Forgetful(real)
        yield
        writer._connection = real

    async def take_over(self) -> None:
        with closing(sqlite3.connect(self.path)) as other, other:
            other.execute("update meta set value = value + 1 where key = 'epoch'")


class _Forgetful:
    """A connection whose commits are done and then fail."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        done = self._real.execute(sql, values)
        if sql == "commit":
            raise sqlite3.OperationalError("disk I/O error")
        return done


class JetStreamBackend:
    """A log of its own on a server that all tests share; four partitions are as good as sixty-four."""

    unstorable: tuple[Record, type[Exception]] = (odd("no token", 1), ValueError)

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.prefix = f"g{next(_PREFIXES)}"
        self._clients: list[Stallable] = []
        self._patch = patch
        patch.setattr(jetstream_api, "ACK_SECONDS", PATIENCE)

    def hurry(self) -> None:
        self._patch.setattr(jetstream_api, "ACK_SECONDS", 1.0)

    async def disconnect(self) -> None:
        for client in self._clients:
            await client.close()

    async def client(self) -> Stallable:
        made = Stallable(self.prefix)
        await made.connect(shared_server())
        self._clients.append(made)
        return made

    async def open(self, sealing: Sealing | None = None) -> JetStreamLog:
        return await jetstream.open_for_writing(
            await self.client(), "tester", prefix=self.prefix, partitions=4, owns=True, sealing=sealing
        )

    async def reader(self) -> JetStreamReader:
        return await jetstream.open_for_reading(await self.client(), self.prefix, owns=True)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        for client in self._clients:
            client.stalled = True
        yield
        for client in self._clients:
            client.release()

    @contextmanager
    def outcome_lost(self, log: Any) -> Iterator[None]:
        real = log.api.store_together, log.api.store_each

        def forgetful(store: Any) -> Any:
            async def stored(messages: Any) -> None:
                await store(messages)
                raise LogUnavailable("no answer")

            return stored

        log.api.store_together, log.api.store_each = map(forgetful, real)
        yield
        log.api.store_together, log.api.store_each = real

    async def take_over(self) -> None:
        await (await self.open()).close()


class Stallable(SturdyClient):
    """A connection whose messages to the log can be held up, and then come late, in their order."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.stalled = False
        self._prefix = f"PUB {prefix}.".encode()
        self._held: list[bytes] = []
        self._releasing: asyncio.Task[None] | None = None

    async def send(self, lines: bytes) -> None:
        if self.stalled and self._prefix in lines:
            self._held.append(lines)
            return
        await self._send_held()
        await super().send(lines)

    def release(self) -> None:
        self.stalled = False
        self._releasing = asyncio.get_running_loop().create_task(self._send_held())

    async def _send_held(self) -> None:
        while self._held and not self.is_closed:
            await super().send(self._held.pop(0))


_PREFIXES = itertools.count(1)


@functools.cache
def shared_server() -> str:
    """The URL of a server that runs until the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="gated-tests-"))
    settings = ['host: "127.0.0.1"', "port: -1", "max_payload: 2097152", f'ports_file_dir: "{folder}"']
    (folder / "nats.conf").write_text("\n".join([*settings, f'jetstream {{ store_dir: "{folder}/js" }}', ""]))
    command = [server_binary(), "-c", str(folder / "nats.conf")]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop() -> None:
        running.kill()
        running.wait(PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    ports = folder / f"nats-server_{running.pid}.ports"

    def told() -> str | None:
        with suppress(FileNotFoundError, json.JSONDecodeError):
            return str(json.loads(ports.read_text())["nats"][0])
        return None

    return str(blocking_until(told, lambda: "there is no nats-server"))


BACKENDS: Final[list[type[Backend]]] = [SqliteBackend, JetStreamBackend]
