"""A loop that only consumes, appends and publishes, written with nothing but what nats-py offers everybody.

It has the gate's consumers and its log: one pinned pull consumer for each partition, pulled ahead by a callback inbox (`fetch()`
is slower), appends that each carry the partition's fence, all of a batch under way at once, acknowledged by the server before any
verdict is published or input acknowledged. Record and verdict are as large as the gate's, hashed and chained.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import anyio
from nats.aio.client import Client
from nats.aio.msg import Msg

from gated import wire
from gated.events import GENESIS, Record
from gated.shell.log.jetstream_leases import EXPECTED, EXPECTED_ON
from gated.shell.log.jetstream_names import Names
from gated.shell.log.jetstream_reader import HASH
from gated.shell.log.jetstream_streams import GROUP

PULL = 512
EXPIRES = 800_000_000  # ns; each pull keeps the pin

Made = Callable[[str, bytes, int, int, str], Record]  # thread, input, time, seq and the hash before it


class Partition:
    """One partition in one worker, which is the only one that ever asks for it."""

    def __init__(self, client: Client, names: Names, secret: str, number: int, made: Made, verdict: bytes) -> None:
        self.client, self.names, self.secret, self.number = client, names, secret, number
        self._made, self._verdict = made, verdict
        self._inbox, self._answers = client.new_inbox(), client.new_inbox()
        self._pin, self._asked = "", 0
        self._items: list[Msg] = []
        self._came = asyncio.Event()
        self._heads: dict[str, tuple[int, str]] = {}
        self._left = 0
        self._stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work(self) -> None:
        """Until cancelled."""
        lease = self.names.lease(self.number)
        said = await self.client.request(self.names.written(lease, self.secret), b"{}", timeout=10)
        fence = {EXPECTED: str(json.loads(said.data)["seq"]), EXPECTED_ON: lease}
        await self.client.subscribe(f"{self._answers}.*", cb=self._acknowledged)
        await self.client.subscribe(self._inbox, cb=self._hear)
        await self._pull()
        while True:
            await self._came.wait()
            self._came.clear()
            items, self._items = self._items[:PULL], self._items[PULL:]
            await self._pass_on(items, fence)

    async def _pull(self) -> None:
        self._asked = PULL
        pinned = {"id": self._pin} if self._pin else {}
        question = json.dumps({"batch": PULL, "expires": EXPIRES, "group": GROUP, **pinned}).encode()
        consumer = f"{self.names.inputs}.{self.names.consumer(self.number)}"
        await self.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", question, self._inbox)

    async def _hear(self, message: Msg) -> None:
        headers = message.headers or {}
        if "Status" in headers and not message.reply:
            await self._pull()
            return
        self._pin = headers.get("Nats-Pin-Id", self._pin)
        self._items.append(message)
        self._came.set()
        self._asked -= 1
        if self._asked < PULL // 2:
            await self._pull()

    async def _acknowledged(self, message: Msg) -> None:
        said = json.loads(message.data)
        if "error" in said:
            raise RuntimeError(said["error"])
        self._left -= 1
        if not self._left:
            self._stored.set_result(None)

    async def _pass_on(self, items: list[Msg], fence: dict[str, str]) -> None:
        self._left, self._stored = len(items), asyncio.get_running_loop().create_future()
        records = [self._record(message) for message in items]
        for number, record in enumerate(records):
            subject = self.names.written(self.names.record(self.number, record.thread), self.secret)
            headers = {**fence, HASH: record.hash}
            await self.client.publish(subject, record.body, f"{self._answers}.{number}", headers)
        await self._stored
        for message, record in zip(items, records, strict=True):
            await self.client.publish(wire.out_subject(record.thread, record.run, "a"), self._verdict)
            await self.client.publish(wire.events_subject(record.thread, record.run), record.body)
            await self.client.publish(message.reply, b"+ACK")

    def _record(self, message: Msg) -> Record:
        thread, stored = message.subject.split(".")[3], message.reply.split(".")[-2]
        seq, prev = self._heads.get(thread, (0, GENESIS))
        record = self._made(thread, message.data, int(stored) // 1000, seq + 1, prev)
        self._heads[thread] = record.seq, record.hash
        return record


async def pass_on(client: Client, names: Names, secret: str, numbers: list[int], made: Made, verdict: bytes) -> None:
    """Pass on what comes in these partitions, until cancelled."""
    async with anyio.create_task_group() as tasks:
        for number in numbers:
            tasks.start_soon(Partition(client, names, secret, number, made, verdict).work)
