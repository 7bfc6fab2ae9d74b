"""The time by the servers of a log: what is compared with times in the log, or written in it, is never a worker's own clock."""

from __future__ import annotations

from datetime import datetime

from gated.shell.log.jetstream_api import JetStreamApi


async def time_of(api: JetStreamApi, stream: str) -> int:
    """Now (µs since 1970), by the leader of a stream. Raises `Refused`, `LogUnavailable`."""
    return microseconds((await api.ask(f"STREAM.INFO.{stream}"))["ts"])


def microseconds(stamp: str) -> int:
    """A time as the server writes it, with up to nine digits of a second or none, in µs since 1970."""
    seconds, _, fraction = stamp.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{seconds}+00:00").timestamp()) * 1_000_000 + int(fraction[:6].ljust(6, "0"))
