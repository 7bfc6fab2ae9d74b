"""The serialiser's tasks beside each other: what is durable and what is said, in which order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import anyio
import anyio.lowlevel

from gated.core.policy import load_text
from gated.core.redaction.vault import Vault
from gated.events import Record, RunId, ThreadId
from gated.shell.bus import Ack, Input
from gated.shell.log import Due
from gated.shell.nats_client import line
from gated.shell.runs import BATCH, Runs
from gated.shell.said import Outlet
from patience import until

POLICY = "version: 1\nagents: {a: {allowed_tools: [read]}}\n"


class Log:
    """What was made durable, thread after thread."""

    def __init__(self) -> None:
        self.durable: list[ThreadId] = []
        self.appends: list[int] = []

    async def append_many(self, records: Sequence[Record], dues: Sequence[Due] = ()) -> None:
        await anyio.lowlevel.checkpoint()
        self.appends.append(len(records))
        self.durable += [record.thread for record in records]

    async def load_snapshot(self, thread: ThreadId) -> None:
        return None

    async def read(self, thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
        for record in list[Record]():
            yield record


class Bus:
    """What went out on it, where it may: the threads of verdicts, and acknowledged positions."""

    def __init__(self, log: Log) -> None:
        self.log, self.open = log, anyio.Event()
        self.said: list[ThreadId] = []
        self.acknowledged: list[bytes] = []

    async def send(self, lines: bytes) -> None:
        told = [ThreadId(part.split(b".", 1)[0].decode()) for part in lines.split(b"PUB gated.out.")[1:]]
        assert set(told) <= set(self.log.durable)
        await self.open.wait()
        self.said += told

    async def acknowledge(self, acks: Sequence[Ack]) -> None:
        self.acknowledged += [ack.subject for ack in acks]
        assert len(self.acknowledged) == len(self.said)


def asked(number: int) -> Input:
    subject = f"gated.in.t{number}.r.agent.a"
    data = b'{"type":"intents","calls":[{"id":"c","tool":"read","args":{}}]}'
    return Input(subject, data, number, number, Ack(b"$JS.ACK.%d" % number, 1), None, None)


def serving(log: Log, bus: Bus) -> Runs:
    outlet = Outlet(lambda subject, data, re: line(subject, data), bus.send, bus.acknowledge, tells_time=True)
    return Runs(log, load_text(POLICY, "policy.yaml"), outlet, Vault(b"test"))  # type: ignore[arg-type]


async def test_what_is_decided_next_is_made_durable_while_what_was_is_said_and_all_is_said_in_order() -> None:
    log = Log()
    bus, count = Bus(log), BATCH + 8
    runs = serving(log, bus)
    for number in range(1, count + 1):
        runs.take(asked(number))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runs.run)
        await until(lambda: len(log.durable) == count)
        assert (bus.said, bus.acknowledged) == ([], [])
        bus.open.set()
        await until(lambda: len(bus.acknowledged) == count)
        assert bus.said == log.durable == [f"t{number}" for number in range(1, count + 1)]
        runs.drain()
    assert (await runs.look(ThreadId("t1"))).runs.get(RunId("r")) is not None
