"""TLS on a connection to a NATS server.

nats-py puts TLS on a connection that is there already, and asyncio leaves it to whoever does so to tell the protocol of its new
transport; nats-py does not. So the protocol did not know that it is over TLS (at each end of a connection asyncio warned that
`eof_received() has no effect`), and its reader could not hold up a server that sends faster than its messages are read.
"""

from __future__ import annotations

import ssl
from typing import Any

from nats.aio.transport import TcpTransport


class Upgradable(TcpTransport):
    """Tells the protocol. It counts as a transport before it is connected, or the client would make one of its own."""

    def __bool__(self) -> bool:
        return True

    async def connect_tls(self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int) -> None:
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        assert self._io_writer is not None
        upgraded: Any = self._io_writer.transport
        protocol = upgraded.get_protocol()
        if protocol is not None:  # the server may have ended the connection already, over a certificate that it does not want
            protocol.connection_made(upgraded)
