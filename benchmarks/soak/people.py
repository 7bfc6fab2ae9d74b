"""Who speaks in a soak: the agent of all runs, the person who answers some of its tickets, the operator who erases."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.soak import runs
from benchmarks.soak.runs import Heard, Place

PATIENCE = 60.0  # seconds for what is owed


class People:
    """`heard` counts what the agent was told; an answer that does not come ends the soak."""

    def __init__(self, agent: Client, approver: Client, operator: Client) -> None:
        self._agent, self._approver, self._operator = agent, approver, operator
        self.heard: Counter[Heard] = Counter()
        self._owed, self._came = 0, asyncio.Event()

    async def listen(self) -> None:
        await self._agent.subscribe("gated.out.*.*.agent.a", cb=self._hear)
        await self._agent.flush()

    async def _hear(self, message: Msg) -> None:
        said = json.loads(message.data)
        _, _, thread, run, *_ = message.subject.split(".")
        kind = int(run.partition("r")[2]) % runs.KINDS
        self.heard[said["type"], said.get("decision")] += 1
        if said.get("decision") == "suspend" and kind in (runs.APPROVED, runs.REJECTED):
            await self._answer(Place(thread, run), said, "approve" if kind == runs.APPROVED else "reject")
        elif said.get("decision") == "allow" and kind == runs.APPROVED:
            await self._say(self._agent, Place(thread, run), "agent.a", runs.after_approval())
        self._came.set()

    async def _answer(self, place: Place, asked: dict[str, Any], decision: str) -> None:
        answer = {"type": "resolution", "ticket": asked["ticket"], "decision": decision, "decision_id": place.run}
        await self._say(self._approver, place, "approver.bob", [{**answer, "args_sha256": asked["args_sha256"]}])

    async def _say(self, client: Client, place: Place, who: str, messages: Iterable[dict[str, Any]]) -> None:
        for message in messages:
            await client.publish(f"gated.in.{place.thread}.{place.run}.{who}", json.dumps(message).encode())

    async def tell(self, day: int, numbers: Sequence[int]) -> None:
        """Let these runs happen, as far as they do before time passes."""
        for number in numbers:
            self._owed += runs.HEARD[number % runs.KINDS].total()
            await self._say(self._agent, runs.place(day, number), "agent.a", runs.told(day, number))
        await self.answered()

    async def erase(self, day: int, numbers: Sequence[int]) -> None:
        for number in numbers:
            asked = {"type": "erase", "subject": f"label:customer={runs.customer(day, number)}"}
            await self._say(self._operator, runs.place(day, number), "operator.local", [asked])
        await self._operator.flush()

    async def answered(self, more: int = 0) -> None:
        self._owed += more
        while self.heard.total() < self._owed:
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), PATIENCE)
            except TimeoutError:
                sys.exit(f"{self._owed} answers are owed, heard were {self.heard.total()}: {dict(self.heard)}")
