"""An export as a log that can be read: one JSON line a record or a policy, held in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from gated.core.chain import import_line
from gated.events import Record, ThreadId
from gated.shell.log import LogUnavailable, Positioned


class JsonlLog:
    """The reading half of an event log."""

    def __init__(self, records: list[Record], policies: dict[str, bytes]) -> None:
        self._records, self._policies = records, policies

    async def read(self, thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
        for record in self._records:
            if record.thread == thread and record.seq > after:
                yield record

    async def read_all(self, after: int = 0) -> AsyncIterator[Positioned]:
        for position, record in enumerate(self._records[after:], after + 1):
            yield Positioned(position, record)

    async def head(self) -> int:
        return len(self._records)

    async def policies(self) -> dict[str, bytes]:
        return dict(self._policies)

    async def close(self) -> None:
        self._records = []


def open_export(path: Path) -> JsonlLog:
    """Raises `LogUnavailable` with the line that cannot be read."""
    records: list[Record] = []
    policies: dict[str, bytes] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise LogUnavailable(f"cannot read `{path}`: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            item = import_line(line)
        except ValueError as error:
            raise LogUnavailable(f"{path}:{number}: {error}") from error
        if isinstance(item, Record):
            records.append(item)
        else:
            policies[item[0]] = item[1]
    return JsonlLog(records, policies)
