"""The inputs of a partition, whose consumer is passed on from worker to worker without a rewind.

Who hands a consumer over says at which number it goes on. INVARIANT: what is taken has no gap, whoever took what was before. What
the server had for the last one and that never took comes again after a rewind, which a gap asks for, and a look behind the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
import structlog
from nats.errors import Error as NatsError

from gated.shell.bus import Bus, Input, Source
from gated.shell.connection import BusError
from gated.shell.handover import Bell
from gated.shell.log import LogError
from gated.shell.log.jetstream_api import JetStreamApi
from gated.shell.nats_client import Straight, SturdyClient, line

GRACE: Final = 0.2  # seconds in which comes what the server says it has sent
ENDING: Final = 1.0  # seconds in which the server says that nothing more comes

log = structlog.get_logger("gated.bus")


class PassedBus(Bus):
    """`upcoming` is the number that the consumer gives its next input; 0: it is not known, and the consumer is rewound."""

    def __init__(
        self,
        client: SturdyClient,
        api: JetStreamApi,
        on_input: Callable[[Input], None],
        wanted: Callable[[], int],
        source: Source,
        upcoming: int = 0,
    ) -> None:
        super().__init__(client, on_input, wanted, source)
        self._api, self._upcoming = api, upcoming
        self._finished = (0, 0)  # the number of the next input, and on which connection this was so

    async def _begin(self) -> None:
        if not self._upcoming:
            self.rewind()
            return
        self._session, self._connection = 1, self.client.stats["reconnects"]
        try:
            await self._listen()
            self._expected = self._upcoming
            await self._pull()
        except (NatsError, OSError) as error:
            log.warning("cannot go on, rewinding", error=str(error) or type(error).__name__)
            self.rewind()

    async def _reset(self) -> None:
        try:
            await self._api.ask(f"CONSUMER.RESET.{self.source.stream}.{self.source.consumer}")
        except LogError as error:
            raise BusError(f"the consumer is not rewound: {error}") from error

    async def check_whole(self) -> None:
        """Rewind where the consumer gave an input to nobody: the next one will show it, but may be long in coming."""
        if not self._upcoming:
            return
        try:
            info = await self._api.ask(f"CONSUMER.INFO.{self.source.stream}.{self.source.consumer}")
            sent = int(info["delivered"]["consumer_seq"])
        except LogError as error:
            log.warning("cannot ask what was delivered, rewinding", error=str(error))
            self.rewind()
            return
        if self._expected <= sent:
            await anyio.sleep(GRACE)
        if self._expected <= sent and self._session == 1:
            self.rewind()

    async def finish(self) -> None:
        """Take what the server has sent already, and no more."""
        self._ended, inbox, reconnects = True, self._inbox, self.client.stats["reconnects"]
        self._due.ring()
        if inbox is None:
            return
        passed, behind = Bell(), self.client.new_inbox()
        last = await self.client.subscribe(behind, cb=Straight(lambda _: passed.ring()))
        with anyio.move_on_after(ENDING) as waited:
            # what the server sends after it has heard this does not come there any more, and what it sent before is heard first
            await self.client.send(b"UNSUB %d\r\n%b" % (inbox._id, line(behind, b"")))
            await passed.wait()
        await last.unsubscribe()
        await self.stop()
        if not (waited.cancelled_caught or self._rewind_wanted):
            self._finished = self._expected, reconnects

    @property
    def next(self) -> int:
        """The number of the next input, once all that were taken are acknowledged; 0: not known, or not all could be."""
        upcoming, reconnects = self._finished
        return upcoming if self.client.is_connected and self.client.stats["reconnects"] == reconnects else 0
