"""A connection to the bus: made for good, looked at, and closed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Final

import anyio
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from gated import wire
from gated.errors import GatedError
from gated.shell.dialling import Unreachable, dial
from gated.shell.log.jetstream_time import microseconds
from gated.shell.nats_client import SturdyClient

MIN_SERVER: Final = (2, 14, 0)  # the first with CONSUMER.RESET
CONNECT_SECONDS: Final = 5.0  # for the first connection

log = structlog.get_logger("gated.bus")


class BusError(GatedError):
    """The bus cannot be used as it is: what is wrong and how to mend it."""


async def connect(
    url: str, name: str, on_reconnect: Callable[[], None], seconds: float = CONNECT_SECONDS, **credentials: Any
) -> SturdyClient:
    """A connection that reconnects for ever and says so; `url` may be several, with commas between them.

    Raises `BusError` where the server is too old or out of reach.
    """

    async def disconnected() -> None:
        if not client.is_closed:
            log.warning("disconnected from the bus")

    async def reconnected() -> None:
        log.info("reconnected to the bus")
        on_reconnect()

    async def failed(error: Exception) -> None:
        if client.is_connected:
            log.warning("the bus reports an error", error=str(error))

    client = SturdyClient()
    try:
        await dial(
            client,
            url,
            seconds,
            failed,
            name=name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.25,  # it is slept, so it may be a fraction
            connect_timeout=5,
            ping_interval=2,
            max_outstanding_pings=2,
            disconnected_cb=disconnected,
            reconnected_cb=reconnected,
            **credentials,
        )
    except Unreachable as error:
        raise BusError(str(error)) from error
    version = client.connected_server_version
    if (version.major, version.minor, version.patch) < MIN_SERVER:
        await client.close()
        wanted = ".".join(map(str, MIN_SERVER))
        raise BusError(f"the server at `{url}` has version {version.major}.{version.minor}.{version.patch}, at least {wanted}")
    return client


def why_away(client: Client) -> str:
    """Why nothing goes over a connection just now; empty where it does."""
    return "" if client.is_connected else "the bus is away"


def check_open(client: Client) -> None:
    """Raises `BusError` where the client has given its connection up: on some of the server's errors it does, for good."""
    if client.is_closed:
        why = str(client.last_error or "") or "no reason was given"
        raise BusError(f"the server ended the connection for good: {why}; start again once that is mended")


async def disconnect(client: Client) -> None:
    """Close a connection; one that breaks at the same time is closed too."""
    with anyio.CancelScope(shield=True):
        try:
            await client.close()
        except (NatsError, OSError, asyncio.CancelledError) as error:  # the client's own tasks end under its hands
            log.debug("the connection broke while it was closed", error=str(error) or type(error).__name__)


async def seconds_ahead(client: Client) -> float:
    """How far this machine's clock is ahead of the bus's; 0 where the bus does not say."""
    try:
        said = json.loads((await client.request(f"$JS.API.STREAM.INFO.{wire.STREAM}", b"", timeout=5.0)).data)
        return time.time() - microseconds(said["ts"]) / 1e6
    except (NatsError, TimeoutError, KeyError, ValueError) as error:
        log.info("the bus does not tell its time", why=str(error) or type(error).__name__)
        return 0.0
