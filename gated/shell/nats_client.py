"""A NATS client that no message can stop.

Whoever may publish chooses the bytes of a subject's tokens and of the headers, and the server passes them on as they are.
The client of nats-py stops reading at headers that are none and at subjects that are no UTF-8, and takes vertical tabs and
form feeds for the spaces of the protocol. A stored message of that kind would stop a daemon again after every restart.
INVARIANT: what cannot be read arrives all the same: without headers, or with U+FFFD in its subject, which makes it no id.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any

import nats.protocol.parser as protocol
from nats.aio.client import Client
from nats.aio.msg import Msg

# the protocol's spaces are these two; the module's own patterns take `\s`
protocol.MSG_RE = re.compile(rb"\AMSG[ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)\r\n")
protocol.HMSG_RE = re.compile(rb"\AHMSG[ \t]+([^ \t\r\n]+)[ \t]+([^ \t\r\n]+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)[ \t]+(\d+)\r\n")


class SturdyClient(Client):
    """See above; otherwise the client it is made from."""

    _ended = False

    async def close(self) -> None:
        """A connection that is broken already cannot be flushed, and is as closed as any."""
        self._ended = True
        with suppress(OSError):
            await super().close()

    async def _connect_to_server(self, server: Any) -> None:
        """A task that reconnects can lose its cancellation (to a timeout of the same moment), and would try for ever."""
        if self._ended:
            raise asyncio.CancelledError
        await super()._connect_to_server(server)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            found: dict[str, str] | None = await super()._process_headers(headers)
        except (IndexError, UnicodeDecodeError):
            return None
        return found

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Msg:
        readable = subject.decode(errors="replace").encode()
        built: Msg = super()._build_message(sid, readable, reply, data, headers)
        return built
