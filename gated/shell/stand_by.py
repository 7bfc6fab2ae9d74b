"""Waiting for a partition: until its owner hands it over, or, where nobody has it, the server pins this worker.

INVARIANT: who has said that it is ready listens for as long as an owner may take it at its word.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import msgspec
import structlog
from nats.errors import Error as NatsError

from gated.shell.handover import Bell
from gated.shell.log import LogError
from gated.shell.log.jetstream_streams import GROUP
from gated.shell.nats_client import Heard, Straight, headers_of
from gated.shell.place import Host, Place
from gated.shell.succession import LOOK, Legacy, Wish

PULL_LOOKS: Final = 10  # looks that a waiting pull lasts
EAGER: Final = 20  # looks at first, when an owner may just have died
PAUSE: Final = 0.2

T = TypeVar("T")

log = structlog.get_logger("gated.partition")


class Claim(NamedTuple):
    """What a partition is had by: a pin, and where its owner handed it over, what that left."""

    pin: str
    left: Legacy | None = None


class StandBy:
    """One wait for one partition."""

    def __init__(self, number: int, place: Place, host: Host) -> None:
        self.number, self.place, self.host = number, place, host
        self._inbox = ""
        self._heard: list[Heard] = []
        self._came, self._given = Bell(), Bell()
        self._left: Legacy | None = None
        self._over = False  # the server has pinned this worker: there is no owner to be heard

    async def wait(self) -> Claim | None:
        """None where the partition goes elsewhere."""
        try:
            self._inbox = self.place.client.new_inbox()
            subscription = await self.place.client.subscribe(self._inbox, cb=Straight(self._hear))
        except NatsError as error:
            log.warning("cannot wait for a partition", partition=self.number, error=str(error))
            await anyio.sleep(PAUSE)
            return None
        try:
            claim: Claim | None = await first_of(self._pinned, self._handed_over)
            return claim
        finally:
            with anyio.CancelScope(shield=True):
                await quietly(subscription.unsubscribe)

    def _hear(self, message: Heard) -> None:
        """Of what comes here only an owner's word has no headers."""
        if message.headers:
            self._heard.append(message)
            self._came.ring()
            return
        try:
            self._left = msgspec.msgpack.decode(message.data, type=Legacy)
        except msgspec.MsgspecError as error:
            log.warning("what an owner says cannot be read", partition=self.number, error=str(error))
            return
        self._given.ring()

    # --- nobody has it -----------------------------------------------------------------------------------------------

    async def _pinned(self) -> Claim | None:
        """Until the server pins this worker: it then sends a first input."""
        looks, answers = 0, list[Heard]()
        while self.host.wants(self.number):
            if looks % PULL_LOOKS == 0 or answers:
                await self._pull()
            if not self._heard:  # which a rewind, below, may have brought
                with anyio.move_on_after(LOOK):
                    await first_of(self._came.wait, lambda: unwanted(self.host, self.number))
            answers, self._heard = self._heard, []
            for message in answers:
                pin = headers_of(message.headers).get("Nats-Pin-Id", "")
                if pin and message.reply:
                    self._over = True
                    self._given.ring()
                    return Claim(pin)
            if answers and headers_of(answers[-1].headers).get("Status") not in ("404", "408"):
                await anyio.sleep(PAUSE)  # the consumer has no leader just now
            looks += 1
            if (looks < EAGER or looks % PULL_LOOKS == 0) and not self.host.has_owner(self.number):
                await wake_up(self.place, self.number)
        return None

    async def _pull(self) -> None:
        request = {"batch": 1, "expires": int(LOOK * PULL_LOOKS * 1e9), "group": GROUP}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.place.consumer(self.number)}"
        await quietly(lambda: self.place.client.publish(subject, json.dumps(request).encode(), self._inbox))

    # --- it has an owner ---------------------------------------------------------------------------------------------

    async def _handed_over(self) -> Claim:
        """Until the owner hands it over: asked for when it is this partition's turn, which then lasts until it goes on."""
        turns = self.host.turns
        while True:
            if self.host.has_owner(self.number):
                await turns.acquire_on_behalf_of(self.number)
                try:
                    await self._ask()
                finally:
                    if self._left is None:
                        turns.release_on_behalf_of(self.number)
            if self._left is None:
                with anyio.move_on_after(LOOK):
                    await self._given.wait()
            if self._left is not None:
                return Claim(self._left.pin, self._left)

    async def _ask(self) -> None:
        """Ask for the partition, and listen for as long as the owner may believe it."""
        wish = msgspec.json.encode(Wish(self.place.worker, self.number))
        with anyio.CancelScope(shield=True), anyio.move_on_after(2 * LOOK):
            await quietly(lambda: self.place.client.publish(self.place.wishes, wish, self._inbox))
            while self._left is None and not self._over:
                await self._given.wait()


async def wake_up(place: Place, number: int) -> None:
    """Inputs that an owner was given and left would come again after a minute only: rewind, where nobody is pinned."""
    consumer = place.consumer(number)
    try:
        info = await place.api.ask(f"CONSUMER.INFO.{consumer}")
        pinned = any(group.get("pinned_client_id") for group in info.get("priority_groups") or ())
        if info.get("num_ack_pending") and not pinned:
            await place.api.ask(f"CONSUMER.RESET.{consumer}")
    except LogError as error:
        log.debug("cannot look after a partition just now", partition=number, error=str(error))


async def unwanted(host: Host, number: int) -> None:
    """Until the partition should be elsewhere."""
    while host.wants(number):
        await host.changed()


async def first_of(*waits: Callable[[], Awaitable[Any]]) -> Any:
    """Until one of them is over; what it gave."""
    gave: list[Any] = []
    async with anyio.create_task_group() as tasks:

        async def wait(one: Callable[[], Awaitable[Any]]) -> None:
            gave.append(await one())
            tasks.cancel_scope.cancel()

        for one in waits:
            tasks.start_soon(wait, one)
    return next((found for found in gave if found is not None), None)


async def quietly(work: Callable[[], Awaitable[T]]) -> T | None:
    """What is tried again anyway, or ends by itself."""
    try:
        return await work()
    except (NatsError, OSError) as error:
        log.debug("the bus is away", error=str(error) or type(error).__name__)
        return None
