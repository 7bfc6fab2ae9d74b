"""The bus: inputs in the stream's order without a gap, publishing, acknowledging. The one file of the daemon that pulls.

A durable pull consumer on the stream of inputs is *rewound* to its acknowledged floor at every (re)connection: the old inbox
is dropped, `CONSUMER.RESET` is asked for, and only gap-free consumer sequences are taken from a fresh inbox. What was handled
before comes again then and is answered again; nothing is skipped and nothing overtakes.
An input is acknowledged by its caller after its record is durable and its answers are out, and only on the connection that these
went out on.

Rejected: `fetch()` of nats-py (three times slower than one's own pulls with a callback inbox, and hides status codes);
relying on redelivery after `ack_wait` (it delivers out of order).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import anyio
import structlog
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError, OutboundBufferLimitError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import APIError, NotFoundError

from gated import wire
from gated.shell.connection import BusError, check_open
from gated.shell.handover import Bell
from gated.shell.input_places import SPARE
from gated.shell.nats_client import NO_HEADERS, Heard, Straight, SturdyClient, header_lines, headers_of, line

PULL: Final = 512  # messages asked for at a time
PULL_EXPIRES: Final = 20.0  # seconds
PINNED_EXPIRES: Final = 0.8  # seconds: each pull keeps the pin
WRONG_PIN: Final = "423"
NOBODY: Final = "503"  # there is no such consumer, or it has no leader just now
SILENCE: Final = 30.0  # seconds without a word from the server after which the consumer is rewound
ACK_WAIT: Final = 60.0  # seconds
MAX_AGE: Final = 3600.0  # seconds that raw inputs stay in the stream
HEADER: Final = 64  # bytes of a message's one header without its value, at most
DUPLICATES: Final = 120.0  # seconds in which a message id is recognised

log = structlog.get_logger("gated.bus")


class Ack(Struct, frozen=True, gc=False):
    """How an input is acknowledged, and in which session of its consumer it was taken."""

    subject: bytes
    session: int


class Input(Struct, frozen=True, gc=False):
    """One message of the stream: where it came from, when it was stored (µs), its position and how to acknowledge it."""

    subject: str
    data: bytes
    at: int
    position: int
    ack: Ack
    message_id: str | None
    content_type: str | None


class Source(NamedTuple):
    """The consumer that inputs come from. A consumer that serves one client at a time knows it by `pin`, in `group`."""

    stream: str = wire.STREAM
    consumer: str = "gated"
    group: str = ""
    pin: str = ""


DAEMON: Final = Source()


class Bus:
    """A connection that receives inputs and publishes. `on_input` is called in the loop, for each input in order."""

    def __init__(
        self, client: SturdyClient, on_input: Callable[[Input], None], wanted: Callable[[], int], source: Source = DAEMON
    ) -> None:
        self.client, self.source = client, source
        self.unpinned = anyio.Event()  # another client has the consumer now
        self._on_input = on_input
        self._wanted = wanted
        self._inbox: Subscription | None = None
        self._prefix = ""
        self._expected = 1
        self._outstanding = 0
        self._position = 0
        self._heard = time.monotonic()
        self._rewind_wanted = False
        self._session, self._connection = 0, 0  # how often it was rewound, and on which connection
        self._due = Bell()  # something is to be asked of the server
        self._stopped = self._ended = False  # takes nothing more; asks for nothing more

    # --- receiving ---------------------------------------------------------------------------------------------------

    async def consume(self) -> None:
        """Receive inputs until cancelled; rewinds at every reconnection, gap and silence. Raises `BusError`."""
        await self._begin()
        while True:
            with anyio.move_on_after(1.0):
                await self._due.wait()
            if self._ended:
                return
            check_open(self.client)
            if self._rewind_wanted or time.monotonic() - self._heard > SILENCE:
                self._rewind_wanted = False
                await self._rewind()
            elif self._outstanding < PULL // 2:
                await self._pull()

    async def _begin(self) -> None:
        self.rewind()

    def rewind(self) -> None:
        """Ask for a rewind: after a reconnection, or when an input could not be handled."""
        self._rewind_wanted = True
        self._due.ring()

    async def stop(self) -> None:
        """Take no more inputs; what was taken is still to be acknowledged."""
        self._stopped = self._ended = True
        inbox, self._inbox = self._inbox, None
        if inbox is not None and not self.client.is_closed:
            await inbox.unsubscribe()

    async def _rewind(self) -> None:
        self._session, self._connection = self._session + 1, self.client.stats["reconnects"]
        self._expected = 0  # until the server has answered, it is not known
        try:
            if self._inbox is not None and not self.client.is_closed:
                await self._inbox.unsubscribe()
            await self._listen()
            await self._reset()
            self._expected, self._outstanding = 1, 0
            await self._pull()
        except (NatsError, TimeoutError, OSError, BusError) as error:
            log.warning("cannot rewind, trying again", error=str(error))
            await anyio.sleep(0.5)
            self.rewind()

    async def _listen(self) -> None:
        self._prefix = self.client.new_inbox()
        self._inbox = await self.client.subscribe(self._prefix, cb=Straight(self._take))

    async def _reset(self) -> None:
        if await _made_consumer(self.client.jetstream(timeout=5.0)):  # the server does not answer who would rewind what is gone
            log.error("the consumer was gone: made again, and what is stored comes again", consumer=self.source.consumer)
        subject = f"$JS.API.CONSUMER.RESET.{self.source.stream}.{self.source.consumer}"
        answer = await self.client.request(subject, b"", timeout=5.0)
        said = json.loads(answer.data)
        if "error" in said:
            raise BusError(f"the server refused to rewind the consumer: {said['error'].get('description')}")

    async def _pull(self) -> None:
        room = min(PULL, self._wanted())
        if room <= 0 or self._ended or self.client.is_closed or not self.client.is_connected:
            return
        self._heard = time.monotonic()
        self._outstanding += room
        pinned = {"group": self.source.group, "id": self.source.pin} if self.source.pin else {}
        request = {"batch": room, "expires": int((PINNED_EXPIRES if pinned else PULL_EXPIRES) * 1e9), **pinned}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.source.stream}.{self.source.consumer}"
        await self.client.send(line(subject, json.dumps(request).encode(), self._prefix))

    def _take(self, message: Heard) -> None:
        if self._stopped:
            return
        self._heard = time.monotonic()
        raw = message.headers
        headers = headers_of(raw) if raw and _READ(raw) else {}
        stored = _STORED(message.reply)
        if stored is None:
            self._status(headers)
            return
        self._outstanding -= 1
        position, sequence, at = map(int, stored.groups())
        if sequence != self._expected:  # a gap; or somebody else rewound the consumer, and what comes is counted anew
            self._expected = 0  # what follows may have the number that was expected, and is not what it stood for
            self.rewind()
            return
        self._expected += 1
        if position > self._position:
            self._position = position
        self._on_input(
            Input(
                message.subject.decode(errors="replace"),
                message.data,
                at // 1000,
                position,
                Ack(message.reply, self._session),
                headers.get(wire.RE) or headers.get("Nats-Msg-Id"),
                headers.get("Content-Type"),
            )
        )
        if self._outstanding < PULL // 2:
            self._due.ring()

    async def caught_up(self) -> None:
        """Wait until every input that is stored by now was taken. A deadline waits for it: it must not overtake an answer that
        was in time, and lay in the stream while the daemon or the bus was away."""
        jetstream, newest = self.client.jetstream(timeout=5.0), 0
        while True:
            try:
                newest = newest or (await jetstream.stream_info(self.source.stream)).state.last_seq
                consumer = await jetstream.consumer_info(self.source.stream, self.source.consumer)
                delivered, floor = consumer.delivered, consumer.ack_floor
                reached = max(self._position, floor.stream_seq if floor else 0)
                if reached >= newest or (not consumer.num_pending and (delivered.stream_seq if delivered else 0) <= reached):
                    return
                await anyio.sleep(0.02)
            except (NatsError, TimeoutError, OSError) as error:
                log.warning("cannot ask for what is stored, deadlines wait", error=str(error) or type(error).__name__)
                await anyio.sleep(0.5)

    def _status(self, headers: dict[str, str]) -> None:
        """A pull ended: what it did not bring is no longer outstanding. Raises `KeyError` for what the server does not say."""
        if headers["Status"] == WRONG_PIN:
            self.unpinned.set()
        left = int(headers.get("Nats-Pending-Messages", "0"))
        self._outstanding = max(0, self._outstanding - left)
        if headers["Status"] not in ("404", "408", "100", WRONG_PIN):
            log.info("the server ended a pull", status=headers["Status"], why=headers.get("Description"))
            self._outstanding = 0
        if headers["Status"] == NOBODY:
            self.rewind()
        if self.source.pin:
            self._due.ring()

    # --- publishing --------------------------------------------------------------------------------------------------

    def line(self, subject: str, data: bytes, re: str | None = None) -> bytes:
        """Something to be said. Nothing: it is larger than the server takes, and in the log only, so its reader fails closed.

        The server counts headers too, and ends the connection of who sends too much; the client counts the payload alone.
        """
        size = len(data) + (len(re.encode()) + HEADER if re else 0)
        if size > self.client.max_payload:
            log.error("too large for the bus, it is in the log only", subject=subject, bytes=size)
            return b""
        return line(subject, data, headers=header_lines({wire.RE: re}) if re else NO_HEADERS)

    async def acknowledge(self, acks: Sequence[Ack]) -> None:
        """Inputs that were answered. Only on the connection that they came on: with another, their answers may be lost.

        What is not acknowledged comes again, and is answered again with the same words.
        """
        if self.client.is_connected and self.client.stats["reconnects"] == self._connection:
            lines = b"".join([ACKNOWLEDGED % ack.subject for ack in acks if ack.session == self._session])
            if lines:
                await self.send(lines)

    async def send(self, lines: bytes) -> None:
        """Say what `line` made, joined; while the bus is away and the client's buffer full, wait."""
        while True:
            try:
                return await self.client.send(lines)
            except OutboundBufferLimitError:
                await anyio.sleep(0.05)
            except ConnectionClosedError:
                check_open(self.client)
                raise


CONSUMER: Final = DAEMON.consumer
ACKNOWLEDGED: Final = b"PUB %b  4\r\n+ACK\r\n"

# marks of headers that are read here
_READ: Final = re.compile(rb"NATS/1\.0 |%b|Nats-Msg-Id|Content-Type" % wire.RE.encode()).search

# Stream position, consumer sequence and time (ns) out of an acknowledgement subject, old form or new; what is in it is written
# into the protocol as it is.
_STORED: Final = re.compile(
    rb"\$JS\.ACK(?:(?:\.%b){2}|(?:\.%b){4})\.[0-9]+\.([0-9]+)\.([0-9]+)\.([0-9]+)\.[0-9]+(?:\.%b)?"
    % (3 * (rb"[^\x00-\x20.\x7f-\xff]+",))
).fullmatch


async def ensure_stream(client: Client, prefix: str = wire.PREFIX, replicas: int = 1, handled: int = 0) -> None:
    """The stream of inputs and its consumer, made where they are missing. Raises `BusError` where their settings differ.

    It counts on from behind `handled`, the highest place of an input that the log has.
    """
    jetstream = client.jetstream(timeout=10.0)
    wanted = StreamConfig(
        name=wire.STREAM,
        subjects=[f"{prefix}.in.>"],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        max_age=MAX_AGE,
        duplicate_window=DUPLICATES,
        max_msg_size=2 * wire.MAX_PAYLOAD,  # headers count here; what is over the payload's limit is refused with a reason
        num_replicas=replicas,
        deny_delete=True,
        first_seq=handled + SPARE if handled else None,
    )
    try:
        info = await jetstream.stream_info(wire.STREAM)
        _same_settings(info.config, wanted)
        if info.state.last_seq < handled:
            await _count_on(jetstream, info, handled)
    except NotFoundError:
        await jetstream.add_stream(wanted)
    await _made_consumer(jetstream)


async def _count_on(jetstream: JetStreamContext, info: StreamInfo, handled: int) -> None:
    """Have a stream of inputs that is not the one that the log was made of, or lost its end, count on from behind the log."""
    last, why = info.state.last_seq, "it is not the one that the log was made of, or lost its end"
    try:
        await jetstream.purge_stream(wire.STREAM, seq=handled + SPARE)
    except APIError as error:
        raise BusError(
            f"the stream {wire.STREAM} ends at {last}, and the log has inputs up to {handled}: {why}, and it cannot be emptied "
            f"({error.description}): remove the stream"
        ) from error
    log.error(
        "the stream of inputs was behind the log and counts on from there: what it held is to be said again",
        why=why,
        last=last,
        log=handled,
        dropped=info.state.messages,
    )


async def _made_consumer(jetstream: JetStreamContext) -> bool:
    """Make the consumer of inputs where it is missing; whether it was."""
    consumer = ConsumerConfig(
        durable_name=CONSUMER,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT,
        max_ack_pending=20_000,
        max_waiting=64,
    )
    try:
        await jetstream.consumer_info(wire.STREAM, CONSUMER)
    except NotFoundError:
        await jetstream.add_consumer(wire.STREAM, consumer)
        return True
    return False


def _same_settings(found: StreamConfig, wanted: StreamConfig) -> None:
    for key in ("subjects", "retention", "storage"):
        have, want = getattr(found, key), getattr(wanted, key)
        if have != want:
            raise BusError(f"the stream {wire.STREAM} has {key} `{have}`, it must be `{want}`: correct or remove the stream")
