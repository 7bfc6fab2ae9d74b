"""The daemon's connection to the bus: what it says when it cannot have one, and streams that are not as they must be."""

from pathlib import Path

import pytest
from nats.js.api import RetentionPolicy, StreamConfig
from shell.live import server

from gated import wire
from gated.shell import bus


async def failure(url: str, seconds: float, **credentials: str) -> str:
    with pytest.raises(bus.BusError) as caught:
        await bus.connect(url, "test", lambda: None, seconds, **credentials)
    return str(caught.value)


async def test_a_server_that_is_not_there_is_said_and_not_waited_for_without_end() -> None:
    assert "cannot connect to `nats://127.0.0.1:1`" in (said := await failure("nats://127.0.0.1:1", 0.5))
    assert "is the server running and are the credentials right?" in said


async def test_a_wrong_password_fails_in_time_and_asks_about_the_credentials(tmp_path: Path) -> None:
    """The server closes at once, so whether its own words are still read is a race; ours are always there."""
    async with server(tmp_path) as (_, there):
        assert "are the credentials right?" in await failure(there.url, 0.5, user="daemon", password="guess")


async def test_a_server_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "MIN_SERVER", (99, 1, 0))
    async with server(tmp_path) as (_, there):
        assert "at least 99.1.0" in await failure(there.url, 5, **there.credentials("daemon"))


async def test_a_stream_that_would_lose_inputs_is_refused(tmp_path: Path) -> None:
    async with server(tmp_path) as (_, there), there.user("daemon") as daemon:
        stream = StreamConfig(name=wire.STREAM, subjects=["gated.in.>"], retention=RetentionPolicy.WORK_QUEUE)
        await daemon.jetstream().add_stream(stream)
        with pytest.raises(bus.BusError, match=f"the stream {wire.STREAM} has retention .*: correct or remove the stream"):
            await bus.ensure_stream(daemon)
