"""The daemon's connection to the bus: what it says when it cannot have one, and streams that are not as they must be."""

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from nats.aio.msg import Msg
from nats.js.api import RetentionPolicy, StreamConfig

from gated import wire
from gated.shell import bus, connection
from gated.shell.nats_client import Heard, SturdyClient
from patience import until
from ports import own_port
from shell.live import Bus, server


async def failure(url: str, seconds: float, **credentials: str) -> str:
    with pytest.raises(connection.BusError) as caught:
        await connection.connect(url, "test", lambda: None, seconds, **credentials)
    return str(caught.value)


async def test_a_server_that_is_not_there_is_said_and_not_waited_for_without_end() -> None:
    assert "cannot connect to `nats://127.0.0.1:1`" in (said := await failure("nats://127.0.0.1:1", 0.5))
    assert "is the server running?" in said


async def test_a_wrong_password_fails_in_time_and_asks_about_the_credentials(tmp_path: Path) -> None:
    """The server closes at once, so whether its own words are still read is a race; ours are always there."""
    async with server(tmp_path) as (_, there):
        assert "wrong user or password" in await failure(there.url, 0.5, user="daemon", password="guess")


async def test_a_server_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MIN_SERVER", (99, 1, 0))
    async with server(tmp_path) as (_, there):
        assert "at least 99.1.0" in await failure(there.url, 5, **there.credentials("daemon"))


async def test_a_stream_that_would_lose_inputs_is_refused(tmp_path: Path) -> None:
    async with server(tmp_path) as (_, there), there.user("daemon") as daemon:
        stream = StreamConfig(name=wire.STREAM, subjects=["gated.in.>"], retention=RetentionPolicy.WORK_QUEUE)
        await daemon.jetstream().add_stream(stream)
        with pytest.raises(connection.BusError, match=f"the stream {wire.STREAM} has retention .*: correct or remove the stream"):
            await bus.ensure_stream(daemon)


async def connected(there: Bus) -> bus.Bus:
    client = await connection.connect(there.url, "test", lambda: None, **there.credentials("daemon"))
    return bus.Bus(client, lambda _: None, lambda: 0)


@pytest.mark.parametrize(
    ("reply", "taken"),
    [
        (b"$JS.ACK.GATED_IN.gated.1.7.1.1700000000000001999.0", [(7, 1700000000000001)]),
        (b"$JS.ACK._.hash.GATED_IN.gated-3.1.7.1.1700000000000001999.0", [(7, 1700000000000001)]),
        (b"$JS.ACK.hub.hash.GATED_IN.gated-3.1.7.1.1700000000000001999.0.token", [(7, 1700000000000001)]),
        (b"$JS.ACK.GATED_IN.gated.1.7.2.1700000000000001999.0", []),  # one is missing before it
        (b"$JS.ACK.GATED_IN.gated.1.7.1.1700000000000001999.0\r", None),
        (b"$JS.ACK.GATED_IN.gated.1.x.1.1700000000000001999.0", None),
        (b"elsewhere", None),
        (b"", None),
    ],
)
def test_an_input_is_what_the_server_says_where_to_acknowledge(reply: bytes, taken: list[tuple[int, int]] | None) -> None:
    """Both forms of the subject, old and new; anything else is the end of a pull, or nothing that the server says."""
    inputs: list[bus.Input] = []
    own = bus.Bus(SturdyClient(), inputs.append, lambda: 0)
    said = Heard(b"gated.in.t.r.agent.a", reply, b"{}", b"NATS/1.0\r\nNats-Msg-Id: m\r\n\r\n")
    if taken is None:
        with pytest.raises(KeyError, match="Status"):
            own._take(said)
        taken = []
    else:
        own._take(said)
    assert [(one.position, one.at) for one in inputs] == taken
    assert [(one.ack.subject, one.message_id) for one in inputs] == [(reply, "m")] * len(taken)


def heard(number: int, position: int) -> Heard:
    return Heard(
        b"gated.in.t.r.agent.a", b"$JS.ACK.GATED_IN.gated.1.%d.%d.1700000000000001999.0" % (position, number), b"{}", b""
    )


def test_after_a_gap_nothing_is_taken_before_a_rewind_whatever_its_number() -> None:
    """Somebody rewound the consumer after two inputs: the third that came then was taken, and two before it passed over."""
    taken: list[bus.Input] = []
    own = bus.Bus(SturdyClient(), taken.append, lambda: 0)
    for number, position in [(1, 11), (2, 12), (1, 13), (2, 14), (3, 15), (4, 16)]:
        own._take(heard(number, position))
    assert [one.position for one in taken] == [11, 12]
    assert own._rewind_wanted


async def test_what_is_too_large_for_the_server_is_not_sent_and_the_connection_lives(tmp_path: Path) -> None:
    async with server(tmp_path) as (_, there), there.user("auditor", "local") as auditor:
        heard: list[int] = []

        async def hear(message: Msg) -> None:
            heard.append(len(message.data))

        await auditor.subscribe("gated.events.>", cb=hear)
        await auditor.flush()
        own = await connected(there)
        most = own.client.max_payload
        for size in (most + 1, most, most - 10, most - bus.HEADER - 1, 1):
            await own.send(own.line("gated.events.t.r", b"x" * size, "m"))
        await until(lambda: heard[-1:] == [1])
        assert heard == [most - bus.HEADER - 1, 1]
        assert own.client.stats["reconnects"] == 0
        await own.client.close()


async def test_while_the_bus_is_away_publishing_waits_and_loses_nothing(tmp_path: Path) -> None:
    """The client of nats-py keeps 2 MB meanwhile and raises then."""
    async with AsyncExitStack() as stack:
        running, there = await stack.enter_async_context(server(tmp_path, own_port()))
        own = await connected(there)
        running.process.kill()
        await stack.aclose()
        await until(lambda: not own.client.is_connected)
        sent = 0

        async def publish() -> None:
            nonlocal sent
            for _ in range(40):
                await own.send(own.line("gated.events.t.r", b"x" * 100_000))
                sent += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            await until(lambda: sent > 10)
            await anyio.sleep(0.1)
            assert sent < 40
            await stack.enter_async_context(server(tmp_path, int(there.url.rpartition(":")[2])))
        assert sent == 40
        await own.client.close()


async def test_what_was_answered_on_a_lost_connection_is_not_acknowledged_on_the_next(tmp_path: Path) -> None:
    """Its answer may have been lost with the connection: it comes again, and is answered again."""
    async with server(tmp_path) as (_, there), there.user("agent", "worker") as agent, anyio.create_task_group() as tasks:
        taken: list[bus.Input] = []
        client = await connection.connect(there.url, "test", lambda: own.rewind(), **there.credentials("daemon"))
        await bus.ensure_stream(client)
        own = bus.Bus(client, taken.append, lambda: 10)
        tasks.start_soon(own.consume)
        await agent.publish("gated.in.t.r.agent.worker", b"{}")
        await until(lambda: len(taken) == 1)
        await client.force_reconnect()
        await own.acknowledge([taken[0].ack])
        await until(lambda: len(taken) == 2)
        await own.acknowledge([taken[0].ack])
        assert await floor(client) == 0
        await own.acknowledge([taken[1].ack])
        assert await until(lambda: floor(client)) == 1
        tasks.cancel_scope.cancel()
        await connection.disconnect(client)


async def floor(client: SturdyClient) -> int:
    """The last input of the stream up to which all are acknowledged."""
    await client.flush()
    found = (await client.jetstream().consumer_info(wire.STREAM, bus.CONSUMER)).ack_floor
    return found.stream_seq if found else 0
