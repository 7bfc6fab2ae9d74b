"""A worker for the benchmarks: `cluster_worker URL FOLDER NAME gate|null|pass`. It ends when its input closes."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from benchmarks import null_gate
from benchmarks.cluster import PASSWORD
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
    RunId,
    Sender,
    ThreadId,
    kind_of,
    seal,
)
from gated.shell.bus import Input
from gated.shell.custody import Copies, open_custody
from gated.shell.daemon import Settings, rarely_collect
from gated.shell.log import EventLog
from gated.shell.nats_config import inbox_prefix
from gated.shell.policies import read_policy
from gated.shell.runs import Outlet, Runs
from gated.shell.worker import worker

DIGEST = "0" * 64
WARNS = Finding("privilege", "warn", "privilege.data_scope", "the path was compared lexically")
ALLOWED = CallDecided(CallId("c100"), "Read", DIGEST, "allow", findings=(WARNS,))
VERDICT = wire.encode(wire.verdict(ALLOWED, DIGEST, 100, 1_700_000_000_000_000))
SAID = 442  # characters that make a record as large as the gate's of the same call


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
                said = DeadlineReached(Sender("timer", item.data.decode().ljust(SAID)), 0)
                body = Body(VERSION, thread, RunId(thread), seq + 1, item.at, kind_of(said), said, (), DIGEST, prev)
                records.append(seal(body))
                self._heads[thread] = seq + 1, records[-1].hash
            await self.log.append_many(records)
            for (_, item), record in zip(items, records, strict=True):
                subject = wire.out_subject(record.thread, record.run, "a", self.outlet.prefix)
                await self.outlet.publish(subject, VERDICT, None)
                await self.outlet.publish(wire.events_subject(record.thread, record.run), record.body, None)
                await self.outlet.acknowledge(item.ack)
        self.drained.set()

    def drain(self) -> None:
        super().drain()
        self._more.set()


async def main(url: str, folder: Path, name: str, kind: str) -> None:
    path = folder / "policy.yaml"
    if kind == "pass":
        import gated.shell.partition as partition

        partition.Runs = Passing  # type: ignore[misc]
    rarely_collect()
    credentials = {"user": "daemon", "password": PASSWORD, "inbox_prefix": inbox_prefix("daemon", "")}
    decides = null_gate.record if kind == "null" else decide.record
    settings = Settings(url, path, credentials, decide=decides, custody=open_custody(folder / "keys", Copies()))
    async with worker(settings, read_policy(path), name):
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
