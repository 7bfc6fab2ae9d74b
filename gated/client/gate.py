"""A connection of one agent to the gate: publishes inputs, hears answers on one long-lived subscription, routes them.

It fails closed: no verdict in time is `GateUnavailable`. Publishing again is safe (the gate answers a known call with the
recorded verdict), so it is done every few seconds while an answer is awaited, and after each reconnection.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from gated import wire
from gated.client.errors import GateUnavailable, Refused
from gated.client.run import Run
from gated.events import RunId, ThreadId
from gated.wire import Origin, Refusal

TIMEOUT: Final = 10.0  # seconds for a verdict
AGAIN: Final = 2.0  # seconds after which an input is published again
HEADERS: Final = 512  # bytes that the headers of an input may take of the server's `max_payload`

Key = tuple[str, ...]


class Gate:
    """What `connect` gives: `gate.run(...)` opens runs of its agent."""

    def __init__(self, client: Client, agent: str, prefix: str, timeout: float) -> None:
        self.agent, self.timeout = agent, timeout
        self._client, self._prefix = client, prefix
        self._waiting: dict[Key, asyncio.Future[Any]] = {}
        self._denials: list[str] = []

    def run(
        self,
        *,
        task: str | None = None,
        run: str | None = None,
        thread: str | None = None,
        labels: dict[str, str] | None = None,
        tools: list[str] | None = None,
        parent: str | None = None,
    ) -> Run:
        """A run to be opened by `async with`. Ids are made up where none are given; a run without a thread is its own."""
        run_id = run or uuid.uuid4().hex
        start = wire.RunStart(task=task, labels=labels or {}, tools=tools, parent_run=parent)
        return Run(self, ThreadId(thread or run_id), RunId(run_id), start)

    # --- asking ------------------------------------------------------------------------------------------------------

    async def ask(self, origin: Origin, message: Struct, keys: list[Key], timeout: float | None = None) -> tuple[list[Any], int]:
        """Publish an input and wait for the answers to `keys` (a call's id, or nothing for the message itself).

        Returns them and how often the input had to be published.
        Raises `Refused`, `GateUnavailable`.
        """
        data = wire.encode(message)
        most = min(wire.MAX_PAYLOAD, self._client.max_payload - HEADERS)
        if len(data) > most:
            raise Refused("ingress.too_large", f"the message has {len(data)} bytes, at most {most} are taken")
        message_id = uuid.uuid4().hex
        awaited = [(origin.thread, origin.run, *key) if key else (message_id,) for key in keys]
        futures = [self.expect(key) for key in awaited]
        by_id = self._waiting.get((message_id,)) or self.expect((message_id,))
        awaited.append((message_id,))
        try:
            async with asyncio.timeout(timeout or self.timeout):
                times = await self._publish_until_answered(origin, data, message_id, futures, by_id)
            return [future.result() for future in futures], times
        except TimeoutError as error:
            said = f"; the bus said: {self._denials[-1]}" if self._denials else ""
            raise GateUnavailable(f"no verdict within {timeout or self.timeout:g}s{said}") from error
        except NatsError as error:
            raise GateUnavailable(f"the bus is out of reach: {error}") from error
        finally:
            for key in awaited:
                self._waiting.pop(key, None)

    async def _publish_until_answered(
        self, origin: Origin, data: bytes, message_id: str, futures: list[asyncio.Future[Any]], by_id: asyncio.Future[Any]
    ) -> int:
        subject = wire.in_subject(origin, self._prefix)
        attempt = 0
        while True:
            headers = {"Nats-Msg-Id": message_id if attempt == 0 else f"{message_id}-{attempt}", wire.RE: message_id}
            if self._client.is_connected:
                await self._client.publish(subject, data, headers=headers)
            attempt += 1
            if await self._answered(futures, by_id):
                return attempt

    async def _answered(self, futures: list[asyncio.Future[Any]], by_id: asyncio.Future[Any]) -> bool:
        """Whether every answer came before it is time to publish again. Raises where one never will."""
        deadline = asyncio.get_running_loop().time() + AGAIN
        while pending := [future for future in futures if not future.done()]:
            left = deadline - asyncio.get_running_loop().time()
            watched = pending if by_id.done() else [*pending, by_id]
            done, _ = await asyncio.wait(watched, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED)
            if by_id.done() and isinstance(by_id.result(), Refusal):
                raise Refused(by_id.result().code, by_id.result().reason)
            if self._denials:
                raise GateUnavailable(f"the bus refused to take it: {self._denials[-1]}")
            if not done:
                return False
        return True

    def expect(self, key: Key) -> asyncio.Future[Any]:
        """A future for the next answer to `key`."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[key] = future
        return future

    # --- hearing -----------------------------------------------------------------------------------------------------

    async def _hear(self, message: Msg) -> None:
        parts = message.subject.split(".")
        try:
            said = wire.decode_out(message.data)
        except msgspec.MsgspecError:
            return  # an answer of a newer gate that this client does not know
        re = message.headers.get(wire.RE) if message.headers else None
        call = getattr(said, "call", None)
        if call is not None:
            kind = "outcome" if isinstance(said, wire.ReminderMessage) else "call"
            self._answer((parts[2], parts[3], kind, call), said)
            if isinstance(said, Refusal):
                self._answer((parts[2], parts[3], "outcome", call), said)
        if re is not None and call is None:
            self._answer((re,), said)

    def _answer(self, key: Key, said: Any) -> None:
        future = self._waiting.get(key)
        if future is not None and not future.done():
            future.set_result(said)

    async def _failed(self, error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            self._denials.append(str(error))


@asynccontextmanager
async def connect(
    url: str | None = None,
    *,
    agent: str,
    data: str | os.PathLike[str] = ".gated",
    timeout: float = TIMEOUT,
    prefix: str = wire.PREFIX,
    **options: Any,
) -> AsyncIterator[Gate]:
    """Connect `agent` to the gate. Without a URL, to the one that `gated up` runs with the folder `data`.

    `options` go to the NATS client (`user`, `password`, `user_credentials`, `tls`, `inbox_prefix`, …).
    Raises `GateUnavailable` where the bus is out of reach.
    """
    where, options = await asyncio.to_thread(_whereabouts, url, Path(data), f"agent:{agent}", options)
    options.setdefault("inbox_prefix", f"_INBOX.agent.{agent}")
    holder: list[Gate] = []
    said: list[str] = []

    async def failed(error: Exception) -> None:
        said[:] = [str(error)]
        for gate in holder:
            await gate._failed(error)

    client = Client()
    try:
        async with asyncio.timeout(timeout):  # with endless reconnection the client would try for ever to connect at first
            await client.connect(
                where,
                name=f"gated agent {agent}",
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]  # it is slept, so it may be a fraction
                ping_interval=5,
                max_outstanding_pings=2,
                error_cb=failed,
                **options,
            )
    except (NatsError, OSError, TimeoutError) as error:
        await client.close()
        why = "".join(said) or str(error) or f"no answer within {timeout:g}s"
        raise GateUnavailable(f"cannot connect to `{where}`: {why}") from error
    gate = Gate(client, agent, prefix, timeout)
    holder.append(gate)
    try:
        await client.subscribe(f"{prefix}.out.*.*.agent.{agent}", cb=gate._hear)
        await client.flush()
        yield gate
    finally:
        await client.close()


def _whereabouts(url: str | None, data: Path, login: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """URL and options as they were given, or without a URL those of the folder of `gated up`."""
    if url is not None:
        return url, options
    try:
        bus = json.loads((data / "bus" / "bus.json").read_text())
    except OSError as error:
        raise GateUnavailable(f"no gate runs with the folder `{data}`: start one with `gated up`, or give a URL") from error
    if login not in bus["users"]:
        raise GateUnavailable(f"the gate in `{data}` has no user `{login}`: the policy must name the agent")
    return str(bus["url"]), {"user": login, "password": bus["users"][login], **options}
