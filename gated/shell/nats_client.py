"""A NATS client that no message can stop, and that has a short way for those who speak and hear much.

Whoever may publish chooses the bytes of a subject's tokens and of the headers, and the server passes them on as they are.
The client of nats-py stops reading at headers that are none and at subjects that are no UTF-8 or hold what it takes for an end.
A stored message of that kind would stop a daemon again after every restart.
INVARIANT: what cannot be read arrives all the same: without headers, or with U+FFFD in its subject, which makes it no id.

The short way: `send` takes lines of the protocol, as many as there are, and `Straight` hears messages as they are read. Else the
client builds an object for each message, parses its headers, queues it and wakes a task, which is most of what a message costs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import anyio
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import BadSubjectError, ConnectionClosedError, OutboundBufferLimitError

from gated.shell.nats_reader import Hear, Reader
from gated.shell.nats_reader import Heard as Heard
from gated.shell.nats_tls import Upgradable

CLOSE_SECONDS: Final = 2.0
FLUSH_SECONDS: Final = 10  # as long as the client that it is made from waits

NO_HEADERS: Final = b""
ACKNOWLEDGES: Final = b"PUB $JS.ACK."
_PLAIN: Final = re.compile(r"[!-~]+").fullmatch  # what no subject may have is what ends it in the protocol


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Headers as `line` takes them. Line breaks in a value are made spaces: it may be somebody else's word."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        return header_lines({name: value.replace("\r", " ").replace("\n", " ") for name, value in headers.items()})
    return lines.encode()


def headers_of(raw: bytes) -> dict[str, str]:
    """The headers of a message that was heard; what the server says of itself is `Status` and `Description`."""
    first, *lines = raw.split(b"\r\n")
    found: dict[str, str] = {}
    if first[8:9] == b" ":
        found |= {"Status": first[9:12].decode(errors="replace"), "Description": first[13:].decode(errors="replace")}
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon:
            found[name.strip().decode(errors="replace")] = value.strip().decode(errors="replace")
    return found


def line(subject: str, data: bytes, reply: str = "", headers: bytes = NO_HEADERS) -> bytes:
    """A message as `send` takes it; `headers` are made by `header_lines`. Raises `BadSubjectError`."""
    to, back = _known(subject), _token(reply) if reply else b""
    if headers:
        size = len(headers) + 12  # with the line before them and the empty one behind
        return b"HPUB %b %b %d %d\r\nNATS/1.0\r\n%b\r\n%b\r\n" % (to, back, size, size + len(data), headers, data)
    return b"PUB %b %b %d\r\n%b\r\n" % (to, back, len(data), data)


def _token(subject: str) -> bytes:
    """A subject in the protocol. Raises `BadSubjectError`."""
    if _PLAIN(subject) is None:
        raise BadSubjectError
    return subject.encode()


_known: Final = lru_cache(maxsize=4096)(_token)  # what is said of a run goes to few subjects; an answer goes to one of its own


class Straight:
    """To be given to `subscribe` as `cb`: `hear` is called with each message when it is read, in their order."""

    def __init__(self, hear: Hear) -> None:
        self.hear = hear

    async def func(self, message: Msg) -> None:
        raise AssertionError("its messages go no other way")

    def __call__(self, message: Msg) -> Any:
        return self.func(message)


class SturdyClient(Client):
    """See above; otherwise the client it is made from."""

    _ended = False

    def __init__(self) -> None:
        super().__init__()
        self._ps: Reader = Reader(self)

    async def subscribe(self, subject: str, queue: str = "", cb: Any = None, **more: Any) -> Subscription:  # type: ignore[override]
        if not isinstance(cb, Straight):
            return await super().subscribe(subject, queue, cb, **more)
        sid = b"%d" % (self._sid + 1)  # which it will have
        self._ps.hearing[sid] = cb.hear
        try:
            return await super().subscribe(subject, queue, cb, **more)
        except BaseException:
            del self._ps.hearing[sid]
            raise

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._ps.hearing.pop(b"%d" % sid, None)
        super()._remove_sub(sid, max_msgs)

    async def send(self, lines: bytes) -> None:
        """Send messages that `line` made, joined. Raises what `publish` does, and as there waits only for a full buffer."""
        size = self._pending_data_size + len(lines)
        if self._status != Client.CONNECTED:
            if self.is_closed:
                raise ConnectionClosedError
            if not self.is_connected and size > self._max_pending_size:
                raise OutboundBufferLimitError
        self._pending.append(lines)
        self._pending_data_size = size
        if size > self._max_pending_size:
            await self._flush_pending(force_flush=True)
        elif self._flush_queue is None or self._flush_queue.empty():
            await self._flush_pending()

    async def flush(self, timeout: int = FLUSH_SECONDS) -> None:  # noqa: ASYNC109
        """Until the server has heard all that was sent before. The client's own goes past what it has not written yet."""
        if self._pending and self.is_connected:
            lines, self._pending, self._pending_data_size = self._pending, [], 0
            assert self._transport is not None
            self._transport.writelines(lines)
        await super().flush(timeout)

    async def close(self) -> None:
        """A connection that is broken already cannot be flushed, and is as closed as any; after a TLS handshake that failed, the
        end of the connection is never told (Python 3.11), and whoever waits for it waits for ever."""
        self._ended = True
        with suppress(OSError), anyio.move_on_after(CLOSE_SECONDS):
            await super().close()
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]

    async def _connect_to_server(self, server: Any) -> None:
        """A task that reconnects can lose its cancellation (to a timeout of the same moment), and would try for ever."""
        if self._ended:
            raise asyncio.CancelledError
        if self._transport is None and server.uri.scheme in ("nats", "tls"):
            self._transport = Upgradable()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(server)

    async def _attempt_reconnect(self) -> None:
        """What waits goes out on the next connection, but no acknowledgement: the answer it is for may be lost with this one."""
        self._pending = [lines for lines in self._pending if not lines.startswith(ACKNOWLEDGES)]
        self._pending_data_size = sum(map(len, self._pending))
        await super()._attempt_reconnect()

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
