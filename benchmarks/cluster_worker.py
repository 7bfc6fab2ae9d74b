"""A worker for the benchmarks: `cluster_worker URL FOLDER gate|null|pass|plain NUMBER COUNT`. It ends when its input closes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import nats

from benchmarks import null_gate
from benchmarks.cluster import PASSWORD
from benchmarks.plain_loop import pass_on
from gated import wire
from gated.core import decide
from gated.core.policy import Policy
from gated.events import (
    GENESIS,
    VERSION,
    Body,
    CallDecided,
    CallId,
    DeadlineReached,
    Finding,
    Record,
    RunId,
    Sender,
    ThreadId,
    kind_of,
    seal,
)
from gated.shell.bus import Input
from gated.shell.connection import connect
from gated.shell.custody import Copies, open_custody
from gated.shell.daemon import Settings, rarely_collect
from gated.shell.log import EventLog
from gated.shell.log.jetstream_api import open_api
from gated.shell.log.jetstream_names import Names
from gated.shell.log.jetstream_streams import ensure_streams
from gated.shell.nats_config import inbox_prefix
from gated.shell.policies import read_policy
from gated.shell.runs import Runs
from gated.shell.said import Outlet
from gated.shell.worker import worker

DIGEST = "0" * 64
WARNS = Finding("privilege", "warn", "privilege.data_scope", "the path was compared lexically")
ALLOWED = CallDecided(CallId("c100"), "Read", DIGEST, "allow", findings=(WARNS,))
VERDICT = wire.encode(wire.verdict(ALLOWED, DIGEST, 100, 1_700_000_000_000_000))
SAID = 442  # characters that make a record as large as the gate's of the same call


def passed_on(thread: str, data: bytes, at: int, seq: int, prev: str) -> Record:
    """A record of an input that nobody looked at, as large as the gate's."""
    said = DeadlineReached(Sender("timer", data.decode().ljust(SAID)), 0)
    return seal(Body(VERSION, ThreadId(thread), RunId(thread), seq, at, kind_of(said), said, (), DIGEST, prev))


class Passing(Runs):
    """Takes, appends, publishes, acknowledges: a record a call, and nothing is read or decided.

    It is to be what any gate must do at least: so its record is hashed and chained, as large as a gate's and as durable, and its
    verdict is as large. Smaller messages would not be a faster gate but a log and an answer that say less.
    """

    def __init__(self, event_log: EventLog, policy: Policy, outlet: Outlet, *_: object) -> None:
        super().__init__(event_log, policy, outlet, *_)  # type: ignore[arg-type]
        self._items: list[tuple[ThreadId, Input]] = []
        self._more = anyio.Event()
        self._heads: dict[str, tuple[int, str]] = {}

    def room(self) -> int:
        return 4096 - len(self._items)

    def hear(self, origin: wire.Origin, item: Input) -> None:
        self._items.append((origin.thread, item))
        self._more.set()

    async def run(self) -> None:
        while not self._draining:
            self._more = anyio.Event()
            if not self._items:
                await self._more.wait()
            items, self._items = self._items[:256], self._items[256:]
            records = []
            for thread, item in items:
                seq, prev = self._heads.get(thread, (0, GENESIS))
                records.append(passed_on(thread, item.data, item.at, seq + 1, prev))
                self._heads[thread] = seq + 1, records[-1].hash
            await self.log.append_many(records)
            line, said = self.outlet.line, list[bytes]()
            for record in records:
                said.append(line(wire.out_subject(record.thread, record.run, "a", self.outlet.prefix), VERDICT, None))
                said.append(line(wire.events_subject(record.thread, record.run), record.body, None))
            await self.outlet.send(b"".join(said))
            await self.outlet.acknowledge([item.ack for _, item in items])
        self.drained.set()

    def drain(self) -> None:
        super().drain()
        self._more.set()


@asynccontextmanager
async def plain(settings: Settings, number: int, count: int) -> AsyncIterator[None]:
    """A loop on the public interface of nats-py: its share of the partitions, of streams that are made as the gate makes them."""
    setting_up = await connect(settings.url, "setup", lambda: None, **settings.credentials)
    names, api = Names(), await open_api(setting_up)
    shape = await ensure_streams(api, names, settings.partitions, settings.replicas)
    client = await nats.connect(settings.url, **settings.credentials)
    async with anyio.create_task_group() as tasks:
        mine = list(range(number, shape.partitions, count))
        tasks.start_soon(pass_on, client, names, shape.secret, mine, passed_on, VERDICT)
        yield
        tasks.cancel_scope.cancel()
    await client.close()
    await setting_up.close()


async def main(url: str, folder: Path, kind: str, number: int, count: int) -> None:
    path = folder / "policy.yaml"
    if kind == "pass":
        import gated.shell.partition as partition

        partition.Runs = Passing  # type: ignore[attr-defined, assignment]
    rarely_collect()
    credentials = {"user": "daemon", "password": PASSWORD, "inbox_prefix": inbox_prefix("daemon", "")}
    decides = null_gate.record if kind == "null" else decide.record
    settings = Settings(url, path, credentials, decide=decides, custody=open_custody(folder / "keys", Copies()))
    working = plain(settings, number, count) if kind == "plain" else worker(settings, read_policy(path), f"w{number}")
    async with working:
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
