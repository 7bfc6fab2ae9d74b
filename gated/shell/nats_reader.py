"""The protocol of NATS as it is read: whole messages, in one pass over their bytes.

The parser of nats-py tries a regular expression for each kind of line, cuts its buffer twice for each message, and stops for ever
at a subject that holds a carriage return or what else it takes for an end. Here a line ends where the protocol says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

if TYPE_CHECKING:
    from gated.shell.nats_client import SturdyClient

END: Final = b"\r\n"


class Heard(Struct, frozen=True, gc=False):
    """A message as it was read. `headers` begin with their line `NATS/1.0`, and are empty where there are none."""

    subject: bytes
    reply: bytes
    data: bytes
    headers: bytes


Hear = Callable[[Heard], None]


class Reader(Parser):
    """Tells its client of every message that is there as a whole; other lines are for the parser that it is made from.

    `hearing` says of subscriptions, by their numbers, who hears their messages at once.
    """

    nc: SturdyClient

    def __init__(self, client: SturdyClient) -> None:
        self.hearing: dict[bytes, Hear] = {}
        super().__init__(client)

    def reset(self) -> None:
        super().reset()
        self._unread = bytearray()
        self._enough = 0  # bytes that there must be to go on: those of the message that has begun

    async def parse(self, data: bytes = b"") -> None:
        unread, at, hearing = self._unread, 0, self.hearing
        unread += data
        if len(unread) < self._enough:
            return
        self._enough, read = 0, bytes(unread)
        while (line := read.find(END, at)) >= 0:
            begun, parts, at = at, read[at:line].split(b" "), line + 2
            if parts[0] == b"MSG":
                body = at
            elif parts[0] == b"HMSG":
                body = at + _cut(parts)
            else:
                await super().parse(read[begun:at])
                if self._unread is not unread:
                    return  # the connection that this was read from is no more
                continue
            count, size = len(parts), parts[-1]
            if count < 4 or count > 5 or not (parts[2].isdigit() and size.isdigit()):
                raise ProtocolError
            end = at + int(size)
            if len(read) < end + 2:
                self._enough, at = end + 2 - begun, begun
                break
            message = Heard(parts[1], parts[3] if count == 5 else b"", read[body:end], read[at:body])
            at, hear = end + 2, hearing.get(parts[2])
            if hear is not None:
                try:
                    hear(message)
                    continue
                except Exception as error:  # of whoever hears: as the client does it, the connection lives on
                    await self.nc._error_cb(error)
            else:
                await self.nc._process_msg(int(parts[2]), message.subject, message.reply, message.data, message.headers)
            if self._unread is not unread:
                return
        del unread[:at]


def _cut(parts: list[bytes]) -> int:
    """Take the size of the headers out of a message's first line. Raises `ProtocolError`."""
    if len(parts) < 5 or not parts[-2].isdigit():
        raise ProtocolError
    return int(parts.pop(-2))
