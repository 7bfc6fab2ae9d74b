"""The connection of an agent to the bus: one long-lived subscription, never given up.

The NATS client reconnects by itself, but a server's error (a revoked password, a full server) closes it for good, and it knows no
place but the first; then a new one is made. What the server refuses is heard only by the error callback, and told on with the
subject that it is about.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import anyio
from nats.errors import Error as NatsError

from gated.client.errors import GateUnavailable
from gated.shell.dialling import Unreachable, dial
from gated.shell.nats_client import Heard, Straight, SturdyClient, header_lines, line

REDIAL: Final = 0.5  # seconds between two looks at a connection that is down
_DENIED: Final = re.compile(r"permissions violation for (publish|subscription) to \"([^\"]*)\"", re.IGNORECASE)


class Ears(NamedTuple):
    """Who is told: of messages, of a (re)connection, and of what the server refused: `publish` or `subscription`, and where."""

    hear: Callable[[Heard], None]
    back: Callable[[], None]
    denied: Callable[[str, str, str], None]


class Place(NamedTuple):
    """Where the bus is, and what its client needs to get in."""

    url: str
    options: dict[str, Any]


class Line:
    """Opened once; afterwards it is connected or trying to be, until it is closed.

    `find` says where the bus is; it is asked again while the bus is away. Raises `GateUnavailable` where it does not know.
    """

    def __init__(self, find: Callable[[], Place], subject: str, ears: Ears) -> None:
        self._find, self._subject, self._ears = find, subject, ears
        self._place = Place("", {})
        self._client = SturdyClient()
        self._down = asyncio.Event()
        self._redialling: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    @property
    def max_payload(self) -> int:
        return int(self._client.max_payload)

    async def open(self, timeout: float) -> None:
        """Raises `GateUnavailable` where no connection can be made in `timeout` seconds."""
        try:
            await self._dial(timeout)
        except BaseException as error:
            await self.close()
            if not isinstance(error, NatsError | OSError | TimeoutError | Unreachable):
                raise
            why = str(error) or f"`{self._place.url}` is connected and does not answer"
            raise GateUnavailable(why) from (None if isinstance(error, Unreachable) else error)  # its text says all
        self._redialling = asyncio.create_task(self._redial())

    async def close(self) -> None:
        """Also where whoever closes is being cancelled: nothing of the connection stays."""
        with anyio.CancelScope(shield=True):
            if self._redialling is not None:
                self._redialling.cancel()
                await asyncio.wait([self._redialling])
            if self._client.options:  # a client that never dialled cannot be closed
                await self._client.close()

    async def publish(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        """Publish where there is a connection; without one nothing is kept for later, since callers publish again."""
        if self.connected:
            try:
                await self._client.send(line(subject, data, headers=header_lines(headers)))
            except NatsError as error:
                if self.connected:
                    raise GateUnavailable(f"the bus is out of reach: {error}") from error

    async def _dial(self, seconds: float) -> None:
        self._place = await asyncio.to_thread(self._find)
        client = self._client = SturdyClient()
        await dial(
            client,
            self._place.url,
            seconds,
            self._failed,
            name=f"gated {self._subject.rpartition('.')[2]}",
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.25,  # it is slept, so it may be a fraction
            ping_interval=5,
            max_outstanding_pings=2,
            reconnected_cb=self._reconnected,
            disconnected_cb=self._lost,
            closed_cb=self._lost,
            **self._place.options,
        )
        await client.subscribe(self._subject, cb=Straight(self._ears.hear))
        await client.flush()

    async def _redial(self) -> None:
        """Make a new connection where the client closed the old one for good, or the bus is in another place now."""
        while True:
            await self._down.wait()
            await asyncio.sleep(REDIAL)
            if self.connected:
                self._down.clear()
            elif self._client.is_closed or await self._moved():
                await self._dial_again()

    async def _dial_again(self) -> None:
        await self._client.close()
        try:
            await self._dial(10)
            self._ears.back()
        except (NatsError, OSError, TimeoutError, GateUnavailable, Unreachable):
            await self._client.close()

    async def _moved(self) -> bool:
        try:
            return await asyncio.to_thread(self._find) != self._place
        except GateUnavailable:
            return False

    async def _reconnected(self) -> None:
        self._ears.back()

    async def _lost(self) -> None:
        self._down.set()

    async def _failed(self, error: Exception) -> None:
        found = _DENIED.search(str(error))
        if found is not None:
            self._ears.denied(found[1].lower(), found[2], str(error))
