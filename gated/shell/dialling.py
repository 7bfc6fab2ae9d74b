"""The first connection to the bus: within its time, or an error that says why not.

With endless reconnection the NATS client would try for ever to connect at first, also with a wrong password. Once it is
connected it reconnects by itself, and errors go to whoever listens for them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import UnexpectedEOF

from gated.errors import GatedError

SCHEMES: Final = ("nats", "tls", "ws", "wss")

Listener = Callable[[Exception], Awaitable[None]]


class Unreachable(GatedError):
    """No connection was made; the text says to where, why, and for whom where that is the reason."""


async def dial(client: Client, url: str, seconds: float, listener: Listener | None = None, **options: Any) -> None:
    """Connect `client` within `seconds`; `url` may be several, with commas between. `listener` hears errors from then on.

    Raises `Unreachable`: at once where the server does not let this user in, or is not the one that it should be.
    """
    heard: list[Exception] = []

    async def failed(error: Exception) -> None:
        if not connecting:
            if listener is not None:
                await listener(error)
            return
        if not any(map(_final, heard)):  # after these words the server closes, and that is an error too
            heard[:] = [error]
        if _final(error):
            raise error  # the client would try again

    _check(url)
    connecting = True
    try:
        with anyio.fail_after(seconds):
            await client.connect(url.split(","), error_cb=failed, **options)
    except BaseException as error:
        with anyio.CancelScope(shield=True):  # also whoever is cancelled here leaves no connection behind
            await client.close()
        if not isinstance(error, NatsError | OSError | TimeoutError):
            raise
        why = _why((heard or [error])[0], options, seconds)
        raise Unreachable(f"cannot connect to `{url}`: {why}") from error
    connecting = False


def _check(url: str) -> None:
    for one in url.split(","):
        scheme, there, _ = one.strip().partition("://")
        if there and scheme not in SCHEMES:
            raise Unreachable(f"`{one}` is no address of a NATS server: write one like `nats://127.0.0.1:4222`")


def _final(error: Exception) -> bool:
    """Whether trying again would not help."""
    return is_shut_out(error) or isinstance(error, ssl.SSLCertVerificationError)


def is_shut_out(error: Exception) -> bool:
    """Whether the server does not let this user in."""
    return "authorization violation" in str(error).lower()


def _why(error: Exception, options: dict[str, Any], seconds: float) -> str:
    if is_shut_out(error):
        if user := options.get("user"):
            return f"the server does not let in `{user}`: wrong user or password"
        if options.get("user_credentials"):
            return "the server does not let in these credentials"
        return "the server lets nobody in without a user and a password"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted here, {error.verify_message}: name its authority with --tls-ca or GATED_NATS_CA"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: is the server running?"
    if isinstance(error, ConnectionResetError | UnexpectedEOF):  # it closes at once, and its own words may be lost
        return "the server closed the connection: wrong user or password?"
    if isinstance(error, socket.gaierror):
        return "the name of its host is not known"
    return str(error) or f"no answer within {seconds:g}s"
