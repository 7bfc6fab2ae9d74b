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
from typing import Any, Final, NamedTuple
from uuid import uuid4

import anyio
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from gated.shell.log import LogError, LogUnavailable

ACK_SECONDS: Final = 4.0  # how long a question waits for its answer
WRONG_SEQUENCE: Final = (10071, 10164)  # the fence does not hold: the second form where nothing is known of the number found
NOT_NOW: Final = (10008, 10009, 10114)  # no leader of all, no leader of this, not yet synchronised
NOT_FOUND: Final = (10014, 10037, 10059)  # consumer, message, stream
BATCH_BYTES: Final = 8_000_000  # of one answer to a batched direct get
SPARE: Final = 4096  # bytes of a message's headers, at most

Headers = Mapping[str, str]


class Refused(LogError):
    """The server said no, and nothing was stored."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"the server refused: {why} ({code})")
        self.code, self.why = code, why


class Truncated(LogError):
    """The last messages of so many subjects are too many bytes for one answer: ask for fewer."""


class Outgoing(NamedTuple):
    """A message to be stored."""

    subject: str
    data: bytes
    headers: dict[str, str]


class Stored(NamedTuple):
    """A message of a stream: its place in the stream (from 1), its headers and its bytes."""

    place: int
    subject: str
    headers: Headers
    data: bytes


class JetStreamApi:
    """Questions of one connection. Made by `open_api`; `close` ends its inbox."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._inbox = client.new_inbox()
        self._heard: dict[str, Callable[[Msg], None]] = {}
        self._asked = 0
        self._waiting: set[asyncio.Future[Any]] = set()
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        self._subscription = await self.client.subscribe(f"{self._inbox}.*", cb=self._hear, pending_bytes_limit=-1)

    async def close(self) -> None:
        if self._subscription is not None and not self.client.is_closed:
            await self._subscription.unsubscribe()

    async def _hear(self, message: Msg) -> None:
        hear = self._heard.get(message.subject.rpartition(".")[2])
        if hear is not None:
            hear(message)

    @asynccontextmanager
    async def _listening(self, hear: Callable[[Msg], None]) -> AsyncIterator[str]:
        """A subject whose messages are heard while the block runs."""
        self._asked += 1
        token = str(self._asked)
        self._heard[token] = hear
        try:
            yield f"{self._inbox}.{token}"
        finally:
            del self._heard[token]

    # --- the API -----------------------------------------------------------------------------------------------------

    async def ask(self, verb: str, question: Any = None, seconds: float | None = None) -> dict[str, Any]:
        """Ask `$JS.API.<verb>`. Raises `Refused`, `LogUnavailable`."""
        body = b"" if question is None else json.dumps(question).encode()
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        async with self._listening(lambda message: None if answer.done() else answer.set_result(message)) as inbox:
            await self._send(f"$JS.API.{verb}", body, inbox, None)
            heard = await self._in_time(answer, f"`{verb}`", seconds)
        _check_status(heard, f"`{verb}`")
        said: dict[str, Any] = json.loads(heard.data)
        _check_error(said)
        return said

    async def _send(self, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> None:
        try:
            await self.client.publish(subject, data, reply=reply, headers=headers)
        except NatsError as error:
            raise LogUnavailable(f"cannot reach the log: {str(error) or type(error).__name__}") from error

    async def _in_time(self, answer: asyncio.Future[Any], what: str, seconds: float | None = None) -> Any:
        """What a question is answered. Raises `LogUnavailable` where that takes too long, or the connection is lost."""
        self._waiting.add(answer)
        patience = seconds or ACK_SECONDS
        timer = answer.get_loop().call_later(patience, _too_late, answer, f"no answer to {what} within {patience:g}s")
        try:
            return await answer
        finally:
            timer.cancel()
            self._waiting.discard(answer)

    def interrupt(self) -> None:
        """The connection was lost: what was asked over it may have been heard, and its answer will not come."""
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(LogUnavailable("the connection was lost"))

    # --- reading -----------------------------------------------------------------------------------------------------

    async def get_batch(self, stream: str, question: dict[str, Any]) -> list[Stored]:
        """The answer to a direct get of many messages. Any replica answers; one may be behind. Raises `LogUnavailable`."""
        return (await self._get(stream, question))[0]

    async def _get(self, stream: str, question: dict[str, Any]) -> tuple[list[Stored], int]:
        """Messages, and how many more there would have been."""
        found: list[Stored] = []
        done: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        def hear(message: Msg) -> None:
            headers = message.headers or {}
            if "Nats-Sequence" in headers:
                found.append(Stored(int(headers["Nats-Sequence"]), headers["Nats-Subject"], headers, message.data))
            elif not done.done():
                done.set_result(message)

        async with self._listening(hear) as inbox:
            body = json.dumps({"max_bytes": BATCH_BYTES, **question}).encode()
            await self._send(f"$JS.API.DIRECT.GET.{stream}", body, inbox, None)
            ended = await self._in_time(done, f"a read of {stream}")
        headers = ended.headers or {}
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
        answers: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        places = [0] * len(messages)
        left = set(range(len(messages)))

        def hearing(index: int) -> Callable[[Msg], None]:
            def hear(message: Msg) -> None:
                if answers.done():
                    return
                try:
                    places[index] = _stored_at(message)
                except LogError as error:
                    answers.set_exception(error)
                    return
                left.discard(index)
                if not left:
                    answers.set_result(None)

            return hear

        first = self._asked + 1
        self._asked += len(messages)
        tokens = [str(first + index) for index in range(len(messages))]
        try:
            for index, (token, message) in enumerate(zip(tokens, messages, strict=True)):
                self._heard[token] = hearing(index)
                await self._send(message.subject, message.data, f"{self._inbox}.{token}", message.headers)
            await self._in_time(answers, "an append")
        finally:
            for token in tokens:
                self._heard.pop(token, None)
            _spent(answers)
        return places

    async def store_together(self, messages: Sequence[Outgoing]) -> list[int]:
        """Store messages of one stream all or none, with nothing between them; their places."""
        if len(messages) == 1:
            return await self.store_each(messages)
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        batch = uuid4().hex
        async with self._listening(lambda message: None if answer.done() else answer.set_result(message)) as inbox:
            for number, message in enumerate(messages, 1):
                headers = {**message.headers, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
                last = number == len(messages)
                if last:
                    headers["Nats-Batch-Commit"] = "1"
                await self._send(message.subject, message.data, inbox if last else "", headers)
            heard = await self._in_time(answer, "an append")
        end = _stored_at(heard)
        return list(range(end - len(messages) + 1, end + 1))


def _too_late(answer: asyncio.Future[Any], why: str) -> None:
    if not answer.done():
        answer.set_exception(LogUnavailable(why))


def _spent(answers: asyncio.Future[None]) -> None:
    """Nobody waits any longer: an error that came meanwhile is no longer news."""
    if answers.done() and not answers.cancelled():
        answers.exception()


def _stored_at(message: Msg) -> int:
    _check_status(message, "an append")
    said = json.loads(message.data)
    _check_error(said)
    return int(said["seq"])


def _check_error(said: dict[str, Any]) -> None:
    """Raises `Refused`; or `LogUnavailable` where the servers are electing, or just starting."""
    error = said.get("error")
    if error is None:
        return
    if error.get("err_code") in NOT_NOW:
        raise LogUnavailable(f"the servers cannot answer now: {error.get('description')}")
    raise Refused(error.get("err_code", 0), error.get("description", "no reason"))


def _check_status(message: Msg, what: str) -> None:
    headers = message.headers or {}
    status = headers.get("Status")
    if status == "503":
        raise LogUnavailable(f"nobody answers {what}: the stream is missing, or has no leader just now")
    if status is not None:
        raise LogUnavailable(f"{what} failed: {status} {headers.get('Description', '')}")


async def open_api(client: Client) -> JetStreamApi:
    """Raises `LogUnavailable`."""
    api = JetStreamApi(client)
    try:
        with anyio.fail_after(ACK_SECONDS):
            await api.start()
    except (NatsError, TimeoutError) as error:
        raise LogUnavailable(f"cannot reach the log: {str(error) or type(error).__name__}") from error
    return api
