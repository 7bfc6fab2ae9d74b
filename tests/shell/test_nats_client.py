"""The client that reads whole messages at once: the same in any pieces, whatever bytes a publisher chose, and after a reset."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.errors import BadSubjectError, ConnectionClosedError, OutboundBufferLimitError, ProtocolError

from gated.shell.nats_client import Heard, Straight, SturdyClient, header_lines, headers_of, line
from gated.shell.nats_config import inbox_prefix
from gated.shell.nats_reader import Reader
from shell.live import server

Told = tuple[int, bytes, bytes, bytes, bytes]

TOKEN = st.binary(min_size=1, max_size=20).filter(lambda token: not set(token) & set(b" \t\n"))
ASKED = st.tuples(
    TOKEN,
    st.integers(0, 10**6),
    st.just(b"") | TOKEN,
    st.binary(max_size=60) | st.sampled_from([b"\r\n", b"MSG a 1 2\r\nhi\r\n"]),
    st.binary(max_size=40),
)


class Listening:
    """In place of a client: what its reader tells."""

    def __init__(self) -> None:
        self.told: list[Told | str] = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        self.told.append((sid, subject, reply, data, headers))

    async def _process_ping(self) -> None:
        self.told.append("ping")

    async def _process_err(self, said: str) -> None:
        self.told.append(said)


def written(subject: bytes, sid: int, reply: bytes, data: bytes, headers: bytes) -> bytes:
    """As the server writes it."""
    between = b" ".join(part for part in (subject, b"%d" % sid, reply) if part)
    if not headers:
        return b"MSG %b %d\r\n%b\r\n" % (between, len(data), data)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (between, len(headers), len(headers) + len(data), headers, data)


def told_in(pieces: list[bytes]) -> list[Any]:
    listening = Listening()
    reader = Reader(listening)  # type: ignore[arg-type]

    async def read() -> None:
        for piece in pieces:
            await reader.parse(piece)

    asyncio.run(read())
    return listening.told


@given(st.lists(ASKED | st.just("ping"), max_size=8), st.lists(st.integers(0, 600), max_size=6))
def test_messages_are_the_same_in_any_pieces(asked: list[Any], cuts: list[int]) -> None:
    whole = b"".join(b"PING\r\n" if each == "ping" else written(*each) for each in asked)
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    expected = ["ping" if each == "ping" else (each[1], each[0], each[2], each[3], each[4]) for each in asked]
    assert told_in(pieces) == expected
    assert told_in([whole]) == expected


@pytest.mark.parametrize("line", [b"MSG a b 5\r\n", b"MSG a 1\r\n", b"HMSG a 1 x 5\r\n", b"MSG  1 2 3 4 5\r\n", b"WHAT\r\n"])
def test_what_is_no_line_of_the_protocol_ends_the_reading(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        told_in([line])


async def test_nothing_is_told_of_a_connection_that_was_lost_meanwhile() -> None:
    listening = Listening()
    reader = Reader(listening)  # type: ignore[arg-type]

    async def lost(said: str) -> None:
        reader.reset()

    listening._process_err = lost  # type: ignore[method-assign]
    await reader.parse(b"-ERR 'Stale Connection'\r\n" + written(b"a", 1, b"", b"old", b""))
    await reader.parse(written(b"a", 1, b"", b"new", b""))
    assert listening.told == [(1, b"a", b"", b"new", b"")]


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (b"", {}),
        (b"NATS/1.0\r\n\r\n", {}),
        (b"NATS/1.0 404 No Messages\r\n\r\n", {"Status": "404", "Description": "No Messages"}),
        (
            b"NATS/1.0 408 Late\r\nNats-Pending-Messages: 7\r\n\r\n",
            {"Status": "408", "Description": "Late", "Nats-Pending-Messages": "7"},
        ),
        (b"NATS/1.0\r\nA: b\r\nno colon\r\nC:\td \r\n\r\n", {"A": "b", "C": "d"}),
        (b"NATS/1.0\r\nA: \xff\r\n\r\n", {"A": "\ufffd"}),
        (b"\xff", {}),
    ],
)
def test_headers(block: bytes, found: dict[str, str]) -> None:
    assert headers_of(block) == found


# --- with a server ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(folder: Path, errors: list[Exception]) -> AsyncIterator[SturdyClient]:
    async def failed(error: Exception) -> None:
        errors.append(error)

    async with server(folder) as (_, bus):
        client = SturdyClient()
        login: dict[str, Any] = {
            "user": "daemon",
            "password": bus.passwords["daemon"],
            "inbox_prefix": inbox_prefix("daemon", ""),
        }
        await client.connect(bus.url, error_cb=failed, **login)
        try:
            yield client
        finally:
            await client.close()


class Ear:
    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self._came = asyncio.Event()

    def hear(self, message: Heard) -> None:
        self.heard.append(message)
        self._came.set()
        if message.data == b"bad":
            raise ValueError("bad")

    async def count(self, wanted: int) -> list[Heard]:
        async with asyncio.timeout(10):
            while len(self.heard) < wanted:
                self._came.clear()
                await self._came.wait()
        return self.heard


async def test_what_is_sent_is_heard_in_order_with_what_is_published(tmp_path: Path) -> None:
    async with connected(tmp_path, []) as client:
        ear = Ear()
        heard = await client.subscribe("gated.cluster.here.>", cb=Straight(ear.hear))
        headers = header_lines({"A": "b\r\nC: d"})
        for number in range(0, 300, 2):
            plain = line(f"gated.cluster.here.{number}", b"x" * number, "to")
            await client.send(plain + line(f"gated.cluster.here.{number + 1}", b"x" * (number + 1), headers=headers))
        await client.publish("gated.cluster.here.300", b"")
        found = await ear.count(301)
        await heard.unsubscribe()
        await client.send(line("gated.cluster.here.later", b""))
        await client.flush()
    assert [message.subject for message in found] == [b"gated.cluster.here.%d" % number for number in range(301)]
    assert [len(message.data) for message in found] == [*range(300), 0]
    assert (headers_of(found[1].headers), found[2].headers, found[0].reply) == ({"A": "b  C: d"}, b"", b"to")


async def test_a_flush_goes_past_nothing_that_was_sent_before(tmp_path: Path) -> None:
    """Who was told that a daemon is ready asked it, and heard that nobody listens: its subscriptions came behind the PING."""
    async with connected(tmp_path, []) as client:
        written: list[bytes] = []
        transport: Any = client._transport
        write, writelines = transport.write, transport.writelines

        def noted(data: bytes) -> None:
            written.append(data)
            write(data)

        def all_noted(lines: list[bytes]) -> None:
            written.extend(lines)
            writelines(lines)

        transport.write, transport.writelines = noted, all_noted
        await client.subscribe("gated.cluster.here", cb=Straight(lambda _: None))
        await client.send(line("gated.cluster.there", b"x"))
        await client.flush()
    (ping,) = [number for number, data in enumerate(written) if data.startswith(b"PING")]
    assert [data[:4] for data in written[:ping]] == [b"SUB ", b"PUB "]


async def test_whoever_hears_may_fail_and_hears_on(tmp_path: Path) -> None:
    errors: list[Exception] = []
    async with connected(tmp_path, errors) as client:
        ear = Ear()
        await client.subscribe("gated.cluster.here", cb=Straight(ear.hear))
        await client.send(line("gated.cluster.here", b"bad") + line("gated.cluster.here", b"good"))
        assert [message.data for message in await ear.count(2)] == [b"bad", b"good"]
    assert [str(error) for error in errors] == ["bad"]


@pytest.mark.parametrize("token", ["a b", "a\r\nPUB b 0\r\n", "a\x0bb", ""])
def test_what_is_no_subject(token: str) -> None:
    with pytest.raises(BadSubjectError):
        line(token, b"")
    if token:
        with pytest.raises(BadSubjectError):
            line("a", b"", token)


async def test_what_is_sent_while_the_bus_is_away_has_its_room(tmp_path: Path) -> None:
    async with connected(tmp_path, []) as client:
        client._status = client.RECONNECTING
        await client.send(line("a", b"x"))
        with pytest.raises(OutboundBufferLimitError):
            await client.send(b"x" * client._max_pending_size)
        client._status = client.CONNECTED
    with pytest.raises(ConnectionClosedError):
        await client.send(line("a", b""))


async def test_no_acknowledgement_waits_for_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is for may be lost with the old one."""

    async def reconnected(self: Client) -> None:
        pass

    monkeypatch.setattr(Client, "_attempt_reconnect", reconnected)
    client, kept = SturdyClient(), line("gated.tickets.t.r", b"kept")
    client._pending = [line("$JS.ACK.GATED_IN.gated.1.1.1.1.0", b"+ACK"), kept]
    await client._attempt_reconnect()
    assert (client._pending, client.pending_data_size) == ([kept], len(kept))
