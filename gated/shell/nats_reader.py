"""The protocol of NATS as it is read: whole messages, in one pass over their bytes.

The parser of nats-py tries a regular expression for each kind of line, cuts its buffer twice for each message, and stops for ever
at a subject that holds a carriage return or what else it takes for an end. Here a line ends where the protocol says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

if TYPE_CHECKING:
    from gated.shell.nats_client import SturdyClient

END: Final = b"\r\n"


class Reader(Parser):
    """Tells its client of every message that is there as a whole; other lines are for the parser that it is made from."""

    nc: SturdyClient

    def reset(self) -> None:
        super().reset()
        self._unread = bytearray()
        self._enough = 0  # bytes that there must be to go on: those of the message that has begun

    async def parse(self, data: bytes = b"") -> None:
        unread, at = self._unread, 0
        unread += data
        if len(unread) < self._enough:
            return
        self._enough, read = 0, bytes(unread)
        while (line := read.find(END, at)) >= 0:
            begun, parts, at = at, read[at:line].split(b" "), line + len(END)
            if (size := _size(parts)) is None:
                await super().parse(read[begun:at])
            elif len(read) < at + size + len(END):
                self._enough, at = at + size + len(END) - begun, begun
                break
            else:
                whole, at = read[at : at + size], at + size + len(END)
                await self._tell(parts, whole)
            if self._unread is not unread:
                return  # the connection that this was read from is no more
        del unread[:at]

    async def _tell(self, parts: list[bytes], whole: bytes) -> None:
        if parts[0] == b"MSG":
            await self.nc._process_msg(int(parts[2]), parts[1], parts[3] if len(parts) == 5 else b"", whole, b"")
        else:
            cut = int(parts[-2])
            await self.nc._process_msg(int(parts[2]), parts[1], parts[3] if len(parts) == 6 else b"", whole[cut:], whole[:cut])


def _size(parts: list[bytes]) -> int | None:
    """How many bytes follow the first line of a message; None where the line is another. Raises `ProtocolError`."""
    kind, count = parts[0], len(parts)
    if kind == b"MSG":
        plain = 4 <= count <= 5 and parts[2].isdigit() and parts[-1].isdigit()
    elif kind == b"HMSG":
        plain = 5 <= count <= 6 and parts[2].isdigit() and parts[-2].isdigit() and parts[-1].isdigit()
    else:
        return None
    if not plain:
        raise ProtocolError
    return int(parts[-1])
