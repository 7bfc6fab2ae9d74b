"""One message to the gate and what comes back for it: publishing until it is answered, whatever the bus does meanwhile.

Publishing again is safe (the gate answers a known call with the recorded verdict), so it is done every few seconds while an
answer is awaited, and at once after a reconnection. INVARIANT: an answer is believed only for the call, or the message, it names.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from gated import wire
from gated.client.errors import GateUnavailable, Refused
from gated.client.line import Line
from gated.wire import Origin, Refusal

AGAIN: Final = 2.0  # seconds after which an input is published again
RECALL: Final = 15.0  # seconds after which the gate is asked again what became of a call that waits for people
SELDOM: Final = 300.0  # and the most of them, since each time it is asked after twice as long

Whole = None  # the key of an answer to the message itself
Key = str | None


class Question:
    """`heard` holds the newest answer for each call's id, or for the message as a whole."""

    def __init__(self, line: Line, prefix: str, origin: Origin, message: Struct, wanted: Sequence[Key]) -> None:
        self.id = uuid.uuid4().hex
        self.origin, self.wanted = origin, tuple(wanted)
        self.subject = wire.in_subject(origin, prefix)
        self.heard: dict[Key, Any] = {}
        self.attempts = 0
        self._line, self._data = line, wire.encode(message)
        self._denied, self._again = "", True
        self._news = asyncio.Event()

    @property
    def size(self) -> int:
        return len(self._data)

    # --- what happens to it ------------------------------------------------------------------------------------------

    def hear(self, key: Key, said: Any) -> None:
        if isinstance(said, Refusal) and said.code == "ingress.overloaded":
            return  # nothing was decided: it is asked again in its time
        self.heard[key] = said
        self._news.set()

    def deny(self, why: str) -> None:
        """The server does not let this agent say it."""
        self._denied = why
        self._news.set()

    def again(self) -> None:
        """What was said or answered may be lost: publish again."""
        self._again = True
        self._news.set()

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def answers(self, timeout: float) -> list[Any]:
        """The answers to what is wanted, in order. Raises `Refused`, and `GateUnavailable` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._until(lambda: all(key in self.heard for key in self.wanted), self._publish, AGAIN)
        except TimeoutError:
            where = "" if self._line.connected else ": the bus is out of reach"
            raise GateUnavailable(f"no verdict within {timeout:g}s{where}") from None
        return [self.heard[key] for key in self.wanted]

    async def final(self, seconds: float | None) -> list[Any]:
        """The answers once no call is suspended any more, or `seconds` have passed; with None for as long as it takes.

        Raises `GateUnavailable` where the server no longer lets this agent ask.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._until(lambda: not self._suspended(), self._recall, RECALL, slower=2)
        except TimeoutError:
            pass  # what is suspended stays so, and its answer says it
        return [self.heard[key] for key in self.wanted]

    def _suspended(self) -> list[str]:
        """The wanted calls that wait for people."""
        said = ((key, self.heard[key]) for key in self.wanted)
        return [key for key, answer in said if key is not None and getattr(answer, "decision", None) == "suspend"]

    async def _until(self, done: Callable[[], bool], ask: Callable[[], Awaitable[None]], every: float, slower: float = 1) -> None:
        """Ask, and ask again, until it is done. Raises `Refused` or `GateUnavailable` where it never will be."""
        while not done():
            if self._again:
                self._again = False
                await ask()
            if not await self._news_within(every):
                self._again, every = True, min(every * slower, max(every, SELDOM))
            self._raise()

    async def _news_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    def _raise(self) -> None:
        if self._denied:
            raise GateUnavailable(f"the bus refused to take it: {self._denied}")
        said = self.heard.get(Whole)
        if isinstance(said, Refusal):
            raise Refused(said.code, said.reason)

    # --- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """The first attempt's id is known to the stream's window of duplicates, so each later one has its own."""
        message_id = self.id if self.attempts == 0 else f"{self.id}-{self.attempts}"
        self.attempts += 1
        await self._line.publish(self.subject, self._data, {"Nats-Msg-Id": message_id, wire.RE: self.id})

    async def _recall(self) -> None:
        for call in self._suspended():
            data = wire.encode(wire.Recall(call=call))
            await self._line.publish(self.subject, data, {"Nats-Msg-Id": uuid.uuid4().hex, wire.RE: self.id})
