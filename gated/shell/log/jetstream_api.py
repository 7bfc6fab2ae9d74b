"""Raw requests to JetStream: the API, direct gets in batches, publishing with the server's word that it is stored.

nats-py knows neither batched direct gets nor atomic batches, and its asynchronous publishing never times out; one inbox with a
token a question does all of it here. INVARIANT: what a publish raises says what became of it. `Refused` is certain: nothing was
stored. Everything else (`LogUnavailable`, a cancelled wait) is unknown: it may have been stored, or may still be.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple
from uuid import uuid4

import anyio
import msgspec
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from gated.shell.log import LogError, LogUnavailable
from gated.shell.nats_client import Heard, Straight, SturdyClient, header_lines, headers_of, line

ACK_SECONDS: Final = 4.0  # how long a question waits for its answer
WRONG_SEQUENCE: Final = (10071, 10164)  # the fence does not hold: the second form where nothing is known of the number found
NOT_NOW: Final = (10008, 10009, 10114)  # no leader of all, no leader of this, not yet synchronised
NOT_FOUND: Final = (10014, 10037, 10059)  # consumer, message, stream
BATCH_BYTES: Final = 8_000_000  # of one answer to a batched direct get
TOO_LARGE: Final = 10054  # the server's code for a message over a stream's limit
SPARE: Final = 4096  # bytes of a message's headers, at most
OWN_HEADERS: Final = 256  # of them those that are put around the others, or say what place a message has in its batch

Headers = Mapping[str, str]


class Refused(LogError):
    """The server said no, and nothing was stored."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"the server refused: {why} ({code})")
        self.code, self.why = code, why


class Truncated(LogError):
    """The last messages of so many subjects are too many bytes for one answer: ask for fewer."""


class Outgoing(NamedTuple):
    """A message to be stored; `headers` as `header_lines` makes them."""

    subject: str
    data: bytes
    headers: bytes


class Stored(NamedTuple):
    """A message of a stream: its place in the stream (from 1), its headers and its bytes."""

    place: int
    subject: str
    headers: Headers
    data: bytes


Outcome = list[int] | LogError  # of a group of messages: their places, or why not all of them have one


class JetStreamApi:
    """Questions of one connection. Made by `open_api`; `close` ends its inbox."""

    def __init__(self, client: SturdyClient) -> None:
        self.client = client
        self._inbox = client.new_inbox()
        self._heard: dict[bytes, Callable[[Heard], None]] = {}
        self._asked = 0
        self._waiting: dict[asyncio.Future[Any] | _Stored, tuple[float, float, str]] = {}  # until when, how long, for what
        self._timer: asyncio.TimerHandle | None = None  # for the first of them: one for each would cost more than its question
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        self._subscription = await self.client.subscribe(f"{self._inbox}.*", cb=Straight(self._hear))

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._subscription is not None and not self.client.is_closed:
            await self._subscription.unsubscribe()

    def _hear(self, message: Heard) -> None:
        hear = self._heard.get(message.subject.rpartition(b".")[2])
        if hear is not None:
            hear(message)

    @asynccontextmanager
    async def _listening(self, hear: Callable[[Heard], None]) -> AsyncIterator[str]:
        """A subject whose messages are heard while the block runs."""
        self._asked += 1
        token = b"%d" % self._asked
        self._heard[token] = hear
        try:
            yield f"{self._inbox}.{self._asked}"
        finally:
            del self._heard[token]

    # --- the API -----------------------------------------------------------------------------------------------------

    async def ask(self, verb: str, question: Any = None, seconds: float | None = None) -> dict[str, Any]:
        """Ask `$JS.API.<verb>`. Raises `Refused`, `LogUnavailable`."""
        body = b"" if question is None else json.dumps(question).encode()
        answer: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        async with self._listening(lambda message: None if answer.done() else answer.set_result(message)) as inbox:
            await self._send(line(f"$JS.API.{verb}", body, inbox))
            heard = await self._in_time(answer, f"`{verb}`", seconds)
        _check_status(heard, f"`{verb}`")
        said: dict[str, Any] = json.loads(heard.data)
        _check_error(said.get("error"))
        return said

    async def _send(self, lines: bytes) -> None:
        try:
            await self.client.send(lines)
        except (NatsError, OSError) as error:
            raise LogUnavailable(f"cannot reach the log: {str(error) or type(error).__name__}") from error

    async def _in_time(self, answer: asyncio.Future[Any], what: str, seconds: float | None = None) -> Any:
        """What a question is answered. Raises `LogUnavailable` where that takes too long, or the connection is lost."""
        self._wait(answer, what, seconds)
        try:
            return await answer
        finally:
            del self._waiting[answer]

    def _wait(self, answer: asyncio.Future[Any] | _Stored, what: str, seconds: float | None = None) -> None:
        loop, patience = asyncio.get_running_loop(), seconds or ACK_SECONDS
        until = loop.time() + patience
        self._waiting[answer] = until, patience, what
        if self._timer is None or until < self._timer.when():
            self._look_at(loop, until)

    def _look_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(when, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the waits that took too long."""
        self._timer, now = None, loop.time()
        for answer, (until, patience, what) in list(self._waiting.items()):
            if until <= now and not answer.done():
                answer.set_exception(LogUnavailable(f"no answer to {what} within {patience:g}s"))
        left = [until for answer, (until, _, _) in self._waiting.items() if not answer.done()]
        if left:
            self._look_at(loop, min(left))

    def interrupt(self) -> None:
        """The connection was lost: what was asked over it may have been heard, and its answer will not come."""
        for answer in list(self._waiting):
            if not answer.done():
                answer.set_exception(LogUnavailable("the connection was lost"))

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get_batch(self, stream: str, question: dict[str, Any]) -> list[Stored]:
        """The answer to a direct get of many messages. Any replica answers; one may be behind. Raises `LogUnavailable`."""
        return (await self._get(stream, question))[0]

    async def _get(self, stream: str, question: dict[str, Any]) -> tuple[list[Stored], int]:
        """Messages, and how many more there would have been."""
        found: list[Stored] = []
        done: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()

        def hear(message: Heard) -> None:
            headers = headers_of(message.headers)
            if "Nats-Sequence" in headers:
                found.append(Stored(int(headers["Nats-Sequence"]), headers["Nats-Subject"], headers, message.data))
            elif not done.done():
                done.set_result(message)

        async with self._listening(hear) as inbox:
            body = json.dumps({"max_bytes": BATCH_BYTES, **question}).encode()
            await self._send(line(f"$JS.API.DIRECT.GET.{stream}", body, inbox))
            ended = await self._in_time(done, f"a read of {stream}")
        headers = headers_of(ended.headers)
        if headers.get("Status") not in ("204", "404"):
            _check_status(ended, f"a read of {stream}")
        return found, int(headers.get("Nats-Num-Pending", "0"))

    async def last_of(self, stream: str, subjects: Sequence[str], up_to: int = 0) -> dict[str, Stored]:
        """The last message of each subject (at most 1,000), as one replica has them at one time. Raises `Truncated`."""
        bound = {"up_to_seq": up_to} if up_to else {}
        found, left = await self._get(stream, {"multi_last": list(subjects), "batch": 1024, **bound})
        if left:
            raise Truncated(f"the last messages of {len(subjects)} subjects of {stream} are too many for one answer")
        return {one.subject: one for one in found}

    async def next_from_leader(self, stream: str, place: int, subject: str) -> int | None:
        """The place of the first message of a subject at or behind a place, by the stream's leader."""
        try:
            said = await self.ask(f"STREAM.MSG.GET.{stream}", {"seq": place, "next_by_subj": subject})
        except Refused as error:
            if error.code in NOT_FOUND:
                return None
            raise
        return int(said["message"]["seq"])

    # --- writing -----------------------------------------------------------------------------------------------------

    async def store(self, message: Outgoing) -> int:
        """Store one message; its place. Raises `Refused`, `LogUnavailable`."""
        return (await self.store_each([message]))[0]

    async def store_each(self, messages: Sequence[Outgoing]) -> list[int]:
        """Store messages one by one, all under way at once; some may be stored and others not when this raises."""
        if not messages:
            return []
        self._check_sizes(messages)
        ended: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        await self.post([messages], lambda found: None if ended.done() else ended.set_result(found))
        (found,) = await ended
        if isinstance(found, LogError):
            raise found
        return found

    async def post(self, groups: Sequence[Sequence[Outgoing]], on_end: Callable[[list[Outcome]], None]) -> None:
        """Send groups of messages to be stored one by one; `on_end` is told of each what became of it, in their order.

        There is at least one message, and none that is larger than the server takes.
        """
        messages = [message for group in groups for message in group]
        first = self._asked + 1
        self._asked += len(messages)
        stored = _Stored(groups, first, on_end, self._posted)
        hear = stored.hear
        for index in range(len(messages)):
            self._heard[b"%d" % (first + index)] = partial(hear, index)
        lines = [
            line(message.subject, message.data, f"{self._inbox}.{number}", message.headers)
            for number, message in enumerate(messages, first)
        ]
        self._wait(stored, "an append")
        try:
            await self._send(b"".join(lines))
        except LogUnavailable as error:
            if not stored.done():
                stored.set_exception(error)

    def _posted(self, stored: _Stored) -> None:
        """Nothing is heard any more of messages that were posted."""
        del self._waiting[stored]
        for number in range(stored.first, stored.first + stored.count):
            del self._heard[b"%d" % number]

    def _check_sizes(self, messages: Sequence[Outgoing]) -> None:
        """The server ends the connection of who sends more than it takes. Raises `Refused` before anything is sent."""
        most = self.client.max_payload - OWN_HEADERS
        for message in messages:
            if len(message.data) + len(message.headers) > most:
                size = len(message.data) + len(message.headers)
                raise Refused(TOO_LARGE, f"a message of {size:,} bytes, more than its `max_payload` takes")

    async def store_together(self, messages: Sequence[Outgoing]) -> list[int]:
        """Store messages of one stream all or none, with nothing between them; their places."""
        if len(messages) == 1:
            return await self.store_each(messages)
        self._check_sizes(messages)
        answer: asyncio.Future[Heard] = asyncio.get_running_loop().create_future()
        batch, lines = uuid4().hex, []
        async with self._listening(lambda message: None if answer.done() else answer.set_result(message)) as inbox:
            for number, message in enumerate(messages, 1):
                of_batch = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
                last = number == len(messages)
                if last:
                    of_batch["Nats-Batch-Commit"] = "1"
                lines.append(line(message.subject, message.data, inbox if last else "", message.headers + header_lines(of_batch)))
            await self._send(b"".join(lines))
            heard = await self._in_time(answer, "an append")
        end = _stored_at(heard)
        return list(range(end - len(messages) + 1, end + 1))


class _Acknowledged(msgspec.Struct):
    """What the server says of a message that was to be stored."""

    seq: int = 0
    error: dict[str, Any] | None = None


_ACKNOWLEDGED: Final = msgspec.json.Decoder(_Acknowledged)


class _Stored:
    """The places of messages that are stored one by one, from number `first` on. `forget` is called, and `on_end` told of their
    groups, when all have their answers, or when none will come any more."""

    def __init__(
        self,
        groups: Sequence[Sequence[Outgoing]],
        first: int,
        on_end: Callable[[list[Outcome]], None],
        forget: Callable[[_Stored], None],
    ) -> None:
        self.first, self._on_end, self._forget = first, on_end, forget
        self._ends = list(accumulate(map(len, groups)))
        self._left = self.count = self._ends[-1]
        self._places = [0] * self.count
        self._failed: dict[int, LogError] = {}
        self._over = False

    def hear(self, index: int, message: Heard) -> None:
        if self._places[index] or index in self._failed:
            return
        try:
            self._places[index] = _stored_at(message)
        except LogError as error:
            self._failed[index] = error
        self._left -= 1
        if not self._left:
            self._end(None)

    def done(self) -> bool:
        return self._over

    def set_exception(self, error: LogError) -> None:
        """Nothing more is answered."""
        self._end(error)

    def _end(self, error: LogError | None) -> None:
        self._over = True
        self._forget(self)
        self._on_end([self._outcome(start, end, error) for start, end in pairwise([0, *self._ends])])

    def _outcome(self, start: int, end: int, error: LogError | None) -> Outcome:
        for index in range(start, end) if self._failed else ():
            if index in self._failed:
                return self._failed[index]
        places = self._places[start:end]
        return error if error is not None and 0 in places else places


def _stored_at(message: Heard) -> int:
    if message.headers:
        _check_status(message, "an append")
    said = _ACKNOWLEDGED.decode(message.data)
    if said.error is not None:
        _check_error(said.error)
    return said.seq


def _check_error(error: dict[str, Any] | None) -> None:
    """Raises `Refused`; or `LogUnavailable` where the servers are electing, or just starting."""
    if error is None:
        return
    if error.get("err_code") in NOT_NOW:
        raise LogUnavailable(f"the servers cannot answer now: {error.get('description')}")
    raise Refused(error.get("err_code", 0), error.get("description", "no reason"))


def _check_status(message: Heard, what: str) -> None:
    headers = headers_of(message.headers)
    status = headers.get("Status")
    if status == "503":
        raise LogUnavailable(f"nobody answers {what}: the stream is missing, or has no leader just now")
    if status is not None:
        raise LogUnavailable(f"{what} failed: {status} {headers.get('Description', '')}")


async def open_api(client: SturdyClient) -> JetStreamApi:
    """Raises `LogUnavailable`."""
    api = JetStreamApi(client)
    try:
        with anyio.fail_after(ACK_SECONDS):
            await api.start()
    except (NatsError, TimeoutError) as error:
        raise LogUnavailable(f"cannot reach the log: {str(error) or type(error).__name__}") from error
    return api
