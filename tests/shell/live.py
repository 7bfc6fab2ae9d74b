"""A real gate for the tests: nats-server, daemon in this process or in one of its own, agents and people on the bus."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from gated import client, wire
from gated.core.chain import ChainChecker
from gated.core.replay import Replayer
from gated.events import AgentId, CallDecided, RunId, Sender, ThreadId, unseal
from gated.shell import timers
from gated.shell.custody import Copies, open_custody
from gated.shell.daemon import Daemon, Settings, daemon
from gated.shell.embedded import Server, embedded_server
from gated.shell.log.open import open_log, policies_of
from gated.shell.log.sqlite import open_for_writing
from gated.shell.nats_client import SturdyClient
from gated.shell.nats_config import UserRole, inbox_prefix, login
from gated.shell.notify.settings import NotifySettings
from gated.shell.policies import read_policy
from patience import OFTEN, PATIENCE, blocking_until

USERS: list[tuple[UserRole, str]] = [
    ("judge", "calls"),
    *[("agent", name) for name in ("mailer", "worker", "payer")],
    *[("approver", name) for name in ("bob", "ana")],
    ("operator", "local"),
    ("auditor", "local"),
]

POLICY = """
version: 1
agents:
  mailer:
    checks: [dcbf]
    allowed_tools: [send_email, search]
    data_scope: any
  worker:
    checks: [privilege]
    allowed_tools: ["*"]
    forbidden_tools: [shell]
    resource_budget: {max_calls: 100000}
  payer:
    checks: [privilege]
    allowed_tools: [refund]
    approval_required: [refund]
approvals:
  default: {approvers: [group:leads], timeout: 15m}
groups: {leads: [ana, bob]}
"""


class Bus(NamedTuple):
    """How the users of a test reach its server."""

    url: str
    passwords: Mapping[str, str]

    def credentials(self, role: UserRole, name: str = "") -> dict[str, Any]:
        own = login(role, name)
        return {"user": own, "password": self.passwords[own], "inbox_prefix": inbox_prefix(role, name)}

    @asynccontextmanager
    async def user(self, role: UserRole, name: str = "") -> AsyncIterator[SturdyClient]:
        connected = SturdyClient()
        await connected.connect(self.url, **self.credentials(role, name))
        try:
            yield connected
        finally:
            await connected.close()

    @asynccontextmanager
    async def agent(self, name: str, seconds: float = PATIENCE) -> AsyncIterator[client.Gate]:
        async with client.connect(self.url, agent=name, timeout=seconds, **self.credentials("agent", name)) as gate:
            yield gate


class Live(NamedTuple):
    """A running gate: its bus, its daemon and its files."""

    bus: Bus
    daemon: Daemon
    log: Path


class Clock:
    """The clock that the daemons of this process tell deadlines by, `ahead` of the true one by so many seconds.

    What must be done before a deadline is done in time on the slowest machine, and no test waits for one.
    """

    def __init__(self, patch: pytest.MonkeyPatch, ahead: float = 0.0) -> None:
        self.ahead = ahead
        patch.setattr(timers, "time", self)

    def time_ns(self) -> int:
        return time.time_ns() + int(self.ahead * 1e9)

    def forward(self, live: Live, seconds: float) -> None:
        self.ahead += seconds
        live.daemon.runs.timers._sooner.set()  # as if the timer woke just now


@asynccontextmanager
async def server(
    folder: Path, port: int = -1, users: Sequence[tuple[UserRole, str]] = USERS
) -> AsyncIterator[tuple[Server, Bus]]:
    async with embedded_server(folder / "bus", users, port, start_seconds=PATIENCE) as running:
        yield running, Bus(running.bus.url, running.bus.users)


def write_policy(folder: Path, text: str = POLICY) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


@asynccontextmanager
async def daemon_on(
    bus: Bus, folder: Path, notify: NotifySettings | None = None, *, sign_verdicts: bool = False, **more: Any
) -> AsyncIterator[Live]:
    """A daemon in this process on a server, with the policy and the log of a folder."""
    path = folder / "policy.yaml"
    copies = Copies(every=100, file=folder / "checkpoints", subject="gated.checkpoints")
    custody = open_custody(folder / "keys", copies, sign_verdicts=sign_verdicts)
    event_log = await open_for_writing(folder / "log.db", custody.sealing)
    try:
        cursor = folder / "notify.json"
        settings = Settings(
            bus.url, path, bus.credentials("daemon"), custody=custody, notify=notify, notify_cursor=cursor, **more
        )
        async with daemon(settings, event_log, read_policy(path)) as made:
            yield Live(bus, made, folder / "log.db")
    finally:
        await event_log.close()


@asynccontextmanager
async def gate(folder: Path, policy: str = POLICY) -> AsyncIterator[Live]:
    """Server and daemon in this process."""
    write_policy(folder, policy)
    async with server(folder) as (_, bus), daemon_on(bus, folder) as live:
        yield live


# --- the daemon as a process --------------------------------------------------------------------------------------------


@contextmanager
def process(bus: Bus, folder: Path, fault: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """`gated serve` on a server, killed at the end where it still runs; `fault` kills it there (`GATED_FAULT`)."""
    command = [sys.executable, "-m", "gated", "serve", "--nats", bus.url, "--policy", str(folder / "policy.yaml")]
    environment = {
        **os.environ,
        "GATED_FAULT": fault,
        "GATED_NATS_USER": "daemon",
        "GATED_NATS_PASSWORD": bus.passwords["daemon"],
    }
    with (folder / "serve.out").open("ab") as out:
        running = subprocess.Popen([*command, "--log", str(folder / "log.db")], env=environment, stdout=out, stderr=out)
    try:
        yield running
    finally:
        running.kill()
        running.wait(PATIENCE)


def stop(running: subprocess.Popen[bytes]) -> int:
    """Ask a daemon to stop as a service manager does; its exit status."""
    running.send_signal(signal.SIGTERM)
    return running.wait(PATIENCE)


def said(folder: Path, text: str, times: int = 1) -> None:
    """Wait until the daemon's process has said something so many times."""
    output = folder / "serve.out"
    blocking_until(lambda: output.read_text().count(text) >= times, lambda: f"`{text}` in {output.read_text()}")


# --- the bus, raw -------------------------------------------------------------------------------------------------------


class Ears:
    """Everything that the daemon says to one agent, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, wire.Outbound]] = []
        self._more = anyio.Event()

    async def _hear(self, message: Msg) -> None:
        self.heard.append((message.subject, wire.decode_out(message.data)))
        self._more.set()
        self._more = anyio.Event()

    async def count(self, wanted: int, seconds: float = PATIENCE) -> list[wire.Outbound]:
        """What was heard, once it is so much."""
        await self.until(lambda: len(self.heard) >= wanted, seconds)
        return [message for _, message in self.heard]

    async def until(self, holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until what was heard is enough."""
        with anyio.move_on_after(seconds):
            while not holds():
                with anyio.move_on_after(OFTEN):  # what is waited for may be said to others
                    await self._more.wait()
        assert holds(), f"not enough was heard in {seconds:g}s: {self.heard[-30:]}"


async def ears(connected: Client, agent: str) -> Ears:
    made = Ears()
    await connected.subscribe(f"gated.out.*.*.agent.{agent}", cb=made._hear)
    await connected.flush()
    return made


async def overhear(connected: Client, subject: str) -> list[dict[str, Any]]:
    """What is said on a subject from now on, as it comes."""
    heard: list[dict[str, Any]] = []

    async def hear(message: Msg) -> None:
        heard.append(json.loads(message.data))

    await connected.subscribe(subject, cb=hear)
    await connected.flush()
    return heard


async def tell(
    connected: Client, sender: Sender, run: str, message: msgspec.Struct | bytes, message_id: str | None = None, thread: str = ""
) -> None:
    """Publish one input."""
    subject = wire.in_subject(wire.Origin(ThreadId(thread or run), RunId(run), sender))
    data = message if isinstance(message, bytes) else wire.encode(message)
    await connected.publish(subject, data, headers={"Nats-Msg-Id": message_id} if message_id else None)


def agent(name: str) -> Sender:
    return Sender("agent", AgentId(name))


def intents(*calls: tuple[str, str, dict[str, Any]]) -> wire.Intents:
    return wire.Intents(calls=[wire.WantedCall(id=id_, tool=tool, args=args) for id_, tool, args in calls], nesting="explicit")


# --- what must hold of a log afterwards ---------------------------------------------------------------------------------


async def decided(path: Path) -> dict[str, list[CallDecided]]:
    """The decisions of a log by call, after its chain was verified and every record of it decided again."""
    made: dict[str, list[CallDecided]] = defaultdict(list)
    async with open_log(str(path)) as log:
        checker, replayer = ChainChecker(), Replayer((await policies_of(log)).get)
        async for position, record in log.read_all():
            assert checker.feed(position, record) is None
            assert replayer.feed(record) is None
            for decision in unseal(record).decisions:
                if isinstance(decision, CallDecided):
                    made[decision.call].append(decision)
    return made
