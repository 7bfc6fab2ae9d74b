"""Who cannot get to the bus is told why, and at once where waiting would not help."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gated.client import GateUnavailable, connect
from gated.shell.dialling import Unreachable, dial
from gated.shell.embedded import embedded_server
from gated.shell.nats_client import SturdyClient


async def failure(url: str, seconds: float = 10, **options: Any) -> str:
    client = SturdyClient()
    with pytest.raises(Unreachable) as raised:
        await dial(client, url, seconds, reconnect_time_wait=0.05, max_reconnect_attempts=-1, **options)
    return str(raised.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nats://127.0.0.1:1", "nothing listens there: is the server running?"),
        ("nats://127.0.0.1:1,nats://127.0.0.1:2", "nothing listens there: is the server running?"),
        ("nats://nobody.invalid:4222", "the name of its host is not known"),
    ],
)
async def test_where_no_server_is(url: str, why: str) -> None:
    assert await failure(url, 0.5) == f"cannot connect to `{url}`: {why}"


async def test_an_address_of_another_kind() -> None:
    said = "`http://127.0.0.1:4222` is no address of a NATS server: write one like `nats://127.0.0.1:4222`"
    assert await failure("http://127.0.0.1:4222") == said
    with pytest.raises(GateUnavailable, match="is no address of a NATS server"):
        async with connect("http://127.0.0.1:4222", agent="coder"):
            pass


async def test_who_is_not_let_in_hears_so_at_once(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, [("agent", "coder")]) as server:
        begun, url = monotonic(), server.bus.url
        assert (await failure(url, 60)).endswith("the server lets nobody in without a user and a password")
        guess = {"user": "agent:coder", "password": "guess"}
        assert (await failure(url, 60, **guess)).endswith("the server does not let in `agent:coder`: wrong user or password")
        with pytest.raises(GateUnavailable, match=r"does not let in `agent:coder`"):
            async with connect(url, agent="coder", timeout=60, **guess):
                pass
        assert monotonic() - begun < 50


INFO = b'INFO {"server_id":"s","version":"2.15.0","max_payload":1048576,"auth_required":true}\r\n'
NOT_LET_IN = b"-ERR 'Authorization Violation'\r\n"


@pytest.mark.parametrize("words", [[b"", NOT_LET_IN], [NOT_LET_IN]], ids=["its words are lost once", "it says why and is gone"])
async def test_the_words_of_a_server_that_cuts_the_line_are_heard(words: list[bytes]) -> None:
    """On a busy machine the close overtakes the words; and the close, an error too, must not stand in their place."""
    said = iter(words)

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        await reader.readline()  # and no more: what is left unread makes the close a reset
        writer.write(next(said))
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as listening:
        url = f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        why = "the server does not let in `agent:coder`: wrong user or password"
        assert await failure(url, 60, user="agent:coder", password="guess") == f"cannot connect to `{url}`: {why}"
    assert next(said, None) is None


async def test_a_closed_client_stops_trying_although_its_cancellation_was_lost(tmp_path: Path) -> None:
    client, trying = SturdyClient(), asyncio.Event()

    async def swallow(_: Exception) -> None:
        if client._reconnection_task is asyncio.current_task():
            trying.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    async with embedded_server(tmp_path, [("agent", "coder")]) as server:
        login = {"user": "agent:coder", "password": server.bus.users["agent:coder"]}
        await dial(client, server.bus.url, 10, swallow, reconnect_time_wait=0.05, max_reconnect_attempts=-1, **login)
    await asyncio.wait_for(trying.wait(), 10)
    reconnecting = client._reconnection_task
    assert reconnecting is not None
    await client.close()
    await asyncio.wait({reconnecting}, timeout=10)
    assert reconnecting.done()
