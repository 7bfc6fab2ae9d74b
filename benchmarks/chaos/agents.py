"""Agents that ask while everything around them breaks, never give up, and write down every answer they get."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from gated import wire
from gated.shell.nats_config import inbox_prefix

PATIENCE = 3.0  # seconds without a verdict after which an intent is published again
CALLS = 10  # of a thread


@dataclass
class Asked:
    """One call: what was asked, when first, and every verdict that came."""

    thread: str
    tool: str
    at: float
    verdicts: list[wire.Verdict] = field(default_factory=list)
    answered: float = 0.0
    came: asyncio.Event = field(default_factory=asyncio.Event)


class Agents:
    """All the agents of one name on one connection; `asked` is by call."""

    def __init__(self, name: str, tools: list[str], seed: int) -> None:
        self.name, self._tools = name, tools
        self._draw = random.Random(seed)
        self.asked: dict[str, Asked] = {}
        self.client: Client
        self._threads = 0
        self.publications = 0

    async def connect(self, url: str, password: str) -> None:
        async def quiet(_: Exception) -> None:
            """A server is away; that is what this is about."""

        self.client = await nats.connect(
            url.split(","),
            user=f"agent:{self.name}",
            password=password,
            inbox_prefix=inbox_prefix("agent", self.name),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # it is slept
            ping_interval=1,
            max_outstanding_pings=2,
            error_cb=quiet,
        )
        await self.client.subscribe(f"gated.out.*.*.agent.{self.name}", cb=self._hear)

    async def _hear(self, message: Msg) -> None:
        said = wire.decode_out(message.data)
        if isinstance(said, wire.Verdict):
            asked = self.asked[said.call]
            asked.verdicts.append(said)
            if not asked.came.is_set():
                asked.answered = time.monotonic()
                asked.came.set()

    async def work(self, until: float) -> None:
        """Open threads one after another until the time has come; then finish the one that is open."""
        while time.monotonic() < until:
            self._threads += 1
            await self._thread(f"{self.name}-{self._threads}", until)

    async def _thread(self, thread: str, until: float) -> None:
        left = [f"{thread}-c{n}" for n in range(CALLS)]
        while left and time.monotonic() < until + 60:
            group, left = left[: (size := self._draw.randint(1, 4))], left[size:]
            for call in group:  # each stored before the next, and none waited for: the order is the stream's
                tool = self._draw.choice(self._tools)
                self.asked[call] = Asked(thread, tool, time.monotonic())
                await self._say(thread, self._intent(call), f"{call}-0")
            for call in group:
                await self._answer_to(thread, call)
            for call in group:
                if self.asked[call].verdicts[-1].decision == "allow" and self._draw.random() < 0.7:
                    await self._say(thread, wire.Outcome(call=call, status="success"), f"{call}-out")

    def _intent(self, call: str) -> wire.Intents:
        asked = self.asked[call]
        return wire.Intents(calls=[wire.WantedCall(id=call, tool=asked.tool, args={"q": call})], nesting="explicit")

    async def _say(self, thread: str, message: msgspec.Struct, message_id: str) -> None:
        """Publish until the stream says that it has it; the same id is the same message."""
        subject, data = f"gated.in.{thread}.{thread}.agent.{self.name}", wire.encode(message)
        while True:
            try:
                self.publications += 1
                answer = await self.client.request(subject, data, timeout=2.0, headers={"Nats-Msg-Id": message_id})
                said: dict[str, Any] = msgspec.json.decode(answer.data) if answer.data else {}
                if "seq" in said:
                    return
            except (NatsError, TimeoutError, OSError):
                pass
            await asyncio.sleep(0.1)

    async def _answer_to(self, thread: str, call: str) -> None:
        for attempt in range(1, 1000):
            try:
                await asyncio.wait_for(self.asked[call].came.wait(), PATIENCE)
                return
            except TimeoutError:
                await self._say(thread, self._intent(call), f"{call}-{attempt}")


class Openers(Agents):
    """Agents of a name that may have only so many runs open: each opens one as soon as it may, and ends it."""

    async def _thread(self, thread: str, until: float) -> None:
        if await self._open(thread, until + 60):
            await asyncio.sleep(self._draw.uniform(0.0, 0.3))
            await self._finish(thread)

    async def _open(self, thread: str, until: float) -> bool:
        number = 0
        while time.monotonic() < until:
            number += 1
            call = f"{thread}-c{number}"
            self.asked[call] = Asked(thread, self._tools[0], time.monotonic())
            await self._say(thread, self._intent(call), f"{call}-0")
            await self._answer_to(thread, call)
            if self.asked[call].verdicts[-1].decision == "allow":
                return True
            await asyncio.sleep(self._draw.uniform(0.05, 0.2))
        return False

    async def _finish(self, thread: str) -> None:
        await self._say(thread, wire.RunFinish(), f"{thread}-end")

    async def fill(self, count: int, seconds: float) -> int:
        """Open so many runs at once, as nobody else does: how many of them could not be."""
        until = time.monotonic() + seconds
        return [await self._open(f"{self.name}-last-{n}", until) for n in range(count)].count(False)
