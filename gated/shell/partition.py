"""One partition in one worker: wait for the pin, take over, work, hand over.

Taking over is, in this order: write the lease (nobody else's append is taken from then on), drop the old inbox, rewind the
consumer to its acknowledged floor, take inputs only from a fresh inbox and only without a gap, know nothing but the log. Each was
found to be needed. What the log decided already is answered again from it.
INVARIANT: a session that has lost its lease, its pin, or its certainty of what the log holds ends, and nothing of its memory is
used again. What it had taken is delivered again, here or elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol

import anyio
import msgspec
import structlog
from msgspec.structs import replace
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from gated import wire
from gated.core.policy import Policy
from gated.core.redaction.vault import Vault
from gated.events import DeadlineReached, RunId, ThreadId
from gated.ingress import is_id
from gated.shell.bus import Bus, Input, Source
from gated.shell.keyring import Keyring
from gated.shell.log import LogConflict, LogError, LogLocked
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.log.jetstream_api import JetStreamApi
from gated.shell.log.jetstream_names import Names
from gated.shell.log.jetstream_streams import GROUP, Shape
from gated.shell.nats_client import SturdyClient
from gated.shell.runs import Decide, Runs
from gated.shell.said import TIMER, Health, Outlet, Said
from gated.shell.scoring import Scorer
from gated.shell.telemetry import Telemetry
from gated.shell.verdict_tokens import VerdictSigner

LOOK: Final = 0.5  # seconds between looks of who waits for a partition
PULL_LOOKS: Final = 10  # looks that a waiting pull lasts
EAGER: Final = 20  # looks at first, when an owner may just have died
RELEASE_SECONDS: Final = 10.0  # for what was taken before a hand-over
PAUSE: Final = 0.2

log = structlog.get_logger("gated.partition")


class Place(NamedTuple):
    """Where a worker works: its connection, the cluster, its name."""

    client: SturdyClient
    api: JetStreamApi
    names: Names
    shape: Shape
    worker: str
    decide: Decide
    vault: Vault
    scorer: Scorer
    signer: VerdictSigner | None
    keyring: Keyring | None


class Host(Protocol):
    """What a partition asks of its worker."""

    telemetry: Telemetry

    def policy(self) -> Policy: ...

    def wants(self, partition: int) -> bool:
        """Whether the partition should be here."""

    async def changed(self) -> None:
        """Until what is wanted may have changed."""

    def left(self, partition: int) -> None:
        """A session has ended."""


class Partition:
    """`number` of the cluster's partitions. `hold` runs for as long as the worker does."""

    def __init__(self, number: int, place: Place, host: Host) -> None:
        self.number, self.place, self.host = number, place, host
        self.runs: Runs | None = None
        self.bus: Bus | None = None
        self.gone = Health()  # what sessions before this one did

    @property
    def subject(self) -> str:
        return f"{self.place.names.inputs}.{self.place.names.consumer(self.number)}"

    async def hold(self) -> None:
        """Have the partition whenever it should be here, until cancelled."""
        while True:
            while not self.host.wants(self.number):
                await self.host.changed()
            pin = await self._stand_by()
            while pin:
                pin = await self._work(pin)

    # --- waiting -----------------------------------------------------------------------------------------------------

    async def _stand_by(self) -> str:
        """Wait until the server pins this worker: it then sends a first input. Empty where the partition goes elsewhere."""
        heard: list[Msg] = []
        came = [anyio.Event()]

        async def hear(message: Msg) -> None:
            heard.append(message)
            came[0].set()

        try:
            inbox = self.place.client.new_inbox()
            subscription = await self.place.client.subscribe(inbox, cb=hear)
        except NatsError as error:
            log.warning("cannot wait for a partition", partition=self.number, error=str(error))
            await anyio.sleep(PAUSE)
            return ""
        try:
            looks, answers = 0, list[Msg]()
            while self.host.wants(self.number):
                if looks % PULL_LOOKS == 0 or answers:
                    await self._pull(inbox)
                came[0] = anyio.Event()
                if not heard:  # which a rewind, below, may have brought
                    with anyio.move_on_after(LOOK):
                        await _first_of(came[0].wait, self._unwanted)
                answers = heard.copy()
                heard.clear()
                for message in answers:
                    pin = (message.headers or {}).get("Nats-Pin-Id", "")
                    if pin and message.reply:
                        return str(pin)
                if answers and (answers[-1].headers or {}).get("Status") not in ("404", "408"):
                    await anyio.sleep(PAUSE)  # the consumer has no leader just now
                looks += 1
                if looks < EAGER or looks % PULL_LOOKS == 0:
                    await self._wake_up()
            return ""
        finally:
            with anyio.CancelScope(shield=True):
                await _quietly(subscription.unsubscribe)

    async def _wake_up(self) -> None:
        """Inputs that an owner was given and left would come again after a minute only: rewind, where nobody is pinned."""
        try:
            info = await self.place.api.ask(f"CONSUMER.INFO.{self.subject}")
            pinned = any(group.get("pinned_client_id") for group in info.get("priority_groups") or ())
            if info.get("num_ack_pending") and not pinned:
                await self.place.api.ask(f"CONSUMER.RESET.{self.subject}")
        except LogError as error:
            log.debug("cannot look after a partition just now", partition=self.number, error=str(error))

    async def _pull(self, inbox: str) -> None:
        request = {"batch": 1, "expires": int(LOOK * PULL_LOOKS * 1e9), "group": GROUP}
        await _quietly(
            lambda: self.place.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{self.subject}", json.dumps(request).encode(), inbox)
        )

    async def _unwanted(self) -> None:
        while self.host.wants(self.number):
            await self.host.changed()

    # --- working -----------------------------------------------------------------------------------------------------

    async def _work(self, pin: str) -> str:
        """One session. Returns the pin where it may still hold and the session has to begin again, else nothing."""
        try:
            if not await self._pinned(pin):
                return ""
            event_log = JetStreamLog(self.place.api, self.place.names, self.place.shape, self.place.worker)
            await event_log.take_over([self.number])
            await self._session(event_log, pin)
            return ""
        except Exception as error:
            ends = leaves(error)
            if not all(isinstance(end, (LogError, NatsError, OSError)) for end in ends):
                raise
            why = "; ".join(dict.fromkeys(str(end) or type(end).__name__ for end in ends))
            log.warning("a session of a partition ended", partition=self.number, why=why)
            if any(isinstance(end, LogLocked) for end in ends):
                return ""  # the pin went with the lease, or the server will say who has it
            await anyio.sleep(0 if all(isinstance(end, LogConflict) for end in ends) else PAUSE)
            return pin
        finally:
            self._forget()

    async def _pinned(self, pin: str) -> bool:
        """Whether the server still knows this worker by its pin: one that slept must not take the lease of who came after it."""
        info = await self.place.api.ask(f"CONSUMER.INFO.{self.subject}")
        return any(group.get("pinned_client_id") == pin for group in info.get("priority_groups") or ())

    async def _session(self, event_log: JetStreamLog, pin: str) -> None:
        source = Source(self.place.names.inputs, self.place.names.consumer(self.number), GROUP, pin)
        place = self.place
        bus = Bus(place.client, lambda item: take(runs, item), lambda: runs.room(), source)
        outlet = Outlet(bus.line, bus.send, bus.acknowledge, place.names.prefix, tells_time=True)
        more = (place.vault, place.scorer, place.decide, place.signer, place.keyring)
        runs = Runs(event_log, self.host.policy(), outlet, *more)
        runs.telemetry = self.host.telemetry
        self.runs, self.bus = runs, bus
        log.info("partition taken over", partition=self.number, lease=event_log.epoch)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bus.consume)
                tasks.start_soon(runs.run)
                await _first_of(self._unwanted, bus.unpinned.wait)
                if not bus.unpinned.is_set():
                    await self._release(runs, bus)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _quietly(bus.stop)  # a session that is over must not keep the pin by pulling
        log.info("partition left", partition=self.number, lost=bus.unpinned.is_set())

    async def _release(self, runs: Runs, bus: Bus) -> None:
        """Finish what was taken, and let the server give the partition to who waits for it."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(RELEASE_SECONDS):
            await _quietly(bus.stop)
            runs.drain()
            await runs.drained.wait()
            try:
                await self.place.api.ask(f"CONSUMER.UNPIN.{self.subject}", {"group": GROUP})
            except LogError as error:
                log.warning("cannot unpin, the pin ends by itself", partition=self.number, error=str(error))
            await self._wake_up()  # what was sent here and not taken any more is for the next one, at once

    def _forget(self) -> None:
        if self.runs is not None:
            self.gone.records += self.runs.health.records
            self.gone.verdicts += self.runs.health.verdicts
        self.runs, self.bus = None, None
        self.host.left(self.number)


async def _first_of(*waits: Callable[[], Awaitable[Any]]) -> None:
    """Until one of them is over."""
    async with anyio.create_task_group() as tasks:

        async def wait(one: Callable[[], Awaitable[Any]]) -> None:
            await one()
            tasks.cancel_scope.cancel()

        for one in waits:
            tasks.start_soon(wait, one)


def take(runs: Runs, item: Input) -> None:
    """An input as the stream stores it: with its partition before its thread. Deadlines are inputs of the daemon itself."""
    origin = wire.parse_stored_subject(item.subject, runs.outlet.prefix)
    if origin is not None:
        runs.hear(origin, item)
        return
    tokens = item.subject.split(".")
    due = _due(item.data) if len(tokens) == 7 and tokens[5] == "timer" else 0
    if due and is_id(tokens[3]) and is_id(tokens[4]):
        runs.say(Said(ThreadId(tokens[3]), RunId(tokens[4]), DeadlineReached(TIMER, due), item.at, item.position, item.ack, None))
    else:  # which says what is wrong with it, in its sender's words
        runs.take(replace(item, subject=".".join(tokens[:2] + tokens[3:])))


def _due(data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=dict[str, int]).get("due", 0)
    except msgspec.MsgspecError:
        return 0


async def _quietly(work: Callable[[], Awaitable[Any]]) -> None:
    """What is tried again anyway, or ends by itself."""
    try:
        await work()
    except (NatsError, OSError) as error:
        log.debug("the bus is away", error=str(error) or type(error).__name__)


def leaves(error: BaseException) -> list[BaseException]:
    """What is in a group of exceptions, however deep."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
