"""Reading a log to make states of it: each record must follow the one before it in its thread, and say what can be.

Hashes are not looked at: that is what `gated verify` does.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gated.core.chain import ChainChecker
from gated.errors import GatedError
from gated.events import Record, UnsealError
from gated.shell.log import LogDamaged, Positioned, ReadableLog
from gated.shell.log.anchors import anchors_of

Made = TypeVar("Made")


async def fed(log: ReadableLog, records: AsyncIterable[Positioned], feed: Callable[[Record], Made]) -> AsyncIterator[Made]:
    """What `feed` makes of each of the log's records. Raises `LogDamaged` where one is missing, or cannot be followed."""
    checker = ChainChecker(await anchors_of(log))
    async for position, record in records:
        damage = checker.believe(position, record)
        if damage is not None:
            raise LogDamaged(position, f"thread `{record.thread}`: {damage.what} (`gated verify` checks the whole log)")
        with followable(position, f"record {record.seq} of thread `{record.thread}`"):
            made = feed(record)
        yield made


@contextmanager
def followable(position: int, what: str) -> Iterator[None]:
    """Of what is not such as the gate writes no state can be made, whatever fails on it. Raises `LogDamaged`."""
    try:
        yield
    except (GatedError, UnsealError):
        raise
    except Exception as error:
        raise LogDamaged(position, f"{what} cannot be followed: {type(error).__name__}: {error}") from error
