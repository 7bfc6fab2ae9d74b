"""Reading a log on JetStream: by direct gets and the state of its streams alone, which an auditor may be allowed.

Beside the records the stream holds a few messages of three tokens: leases, policies, parts of large records, checkpoints. The
position of a record counts records only, so it is the place in the stream less the number of those others before it; both are
settled for good, since nothing is ever removed. A place that is missing is damage.
A direct get is answered by any replica, which may be behind: what must be exact is compared with what the leader says.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import anyio
import msgspec

from gated.core.chain import COLUMNS, CheckpointNote
from gated.events import AgentId, Record, RunId, ThreadId
from gated.shell.log import LogDamaged, LogUnavailable, Positioned
from gated.shell.log.jetstream_api import JetStreamApi, Stored, Truncated
from gated.shell.log.jetstream_names import Names, partition_of

FETCH: Final = 512
CHUNK: Final = 1000  # subjects of one question for last messages
POLL: Final = 0.1  # seconds between looks while following
BEHIND: Final = 0.02  # seconds that a replica is given to catch up
PATIENCE: Final = 250  # such waits
REMEMBERED: Final = 4096  # places of records that are known without a search

HASH: Final = "Gated-Hash"
PARTS: Final = "Gated-Parts"
PLACE: Final = "Gated-Place"
SEQ: Final = "Gated-Seq"
SHA256: Final = "Gated-SHA256"


class Head(NamedTuple):
    """The last record of a thread: its number, its hash, its place in the stream."""

    seq: int
    hash: str
    place: int


class JetStreamReader:
    """The reading half. Where it is made by `open_log` it owns its connection."""

    def __init__(self, api: JetStreamApi, names: Names, partitions: int, *, owns: bool = False) -> None:
        self.api, self.names, self.partitions = api, names, partitions
        self._owns = owns
        self._others: list[int] = []
        self._places: OrderedDict[tuple[ThreadId, int], int] = OrderedDict()
        self._closed = False

    def subject(self, thread: ThreadId) -> str:
        return self.names.record(partition_of(thread, self.partitions), thread)

    # --- one thread --------------------------------------------------------------------------------------------------

    async def head_of(self, thread: ThreadId) -> Head | None:
        """The last record of a thread."""
        self._check_open()
        subject = self.subject(thread)
        found = (await self.api.last_of(self.names.log, [subject])).get(subject)
        return None if found is None else await self.head_in(found)

    async def head_in(self, found: Stored) -> Head:
        """What a thread's last message says of its end."""
        record = await self._record(found)
        self._remember(record.thread, record.seq, found.place)
        return Head(record.seq, record.hash, found.place)

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailable("cannot read the log: it is closed")

    async def get(self, thread: ThreadId, seq: int) -> Record | None:
        place = self._places.get((thread, seq)) if seq > 0 else None
        if place is not None:
            self._check_open()
            found = await self.api.get_batch(self.names.log, {"seq": place, "batch": 1})
            if found and found[0].place == place:
                return await self._record(found[0])
        head = await self.head_of(thread)
        if head is None or not 0 < seq <= head.seq:
            return None
        return await self._search(thread, seq, head)

    async def _search(self, thread: ThreadId, seq: int, head: Head) -> Record:
        """Halve the stretch of the stream that the record can be in."""
        low, high, subject = 1, head.place, self.subject(thread)
        while low <= high:
            middle = (low + high) // 2
            found = await self.api.get_batch(self.names.log, {"seq": middle, "batch": 1, "next_by_subj": subject})
            if not found:
                raise LogUnavailable("cannot read the log: a replica is behind")
            record = await self._record(found[0])
            self._remember(record.thread, record.seq, found[0].place)
            if record.seq == seq:
                return record
            low, high = (found[0].place + 1, high) if record.seq < seq else (low, middle - 1)
        raise LogDamaged(head.place, f"record {seq} of thread `{thread}` is missing from the stream {self.names.log}")

    async def read(self, thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
        head = await self.head_of(thread)
        if head is None or head.seq <= after:
            return
        place, expected = await self._place_behind(thread, after, head), after + 1
        for _ in range(PATIENCE):
            question = {"seq": place, "batch": FETCH, "next_by_subj": self.subject(thread)}
            for found in await self.api.get_batch(self.names.log, question):
                record = await self._record(found)
                if record.seq != expected:
                    raise LogDamaged(found.place, f"record {record.seq} of thread `{thread}` stands where {expected} should")
                self._remember(record.thread, record.seq, found.place)
                place, expected = found.place + 1, expected + 1
                yield record
            if expected > head.seq:
                return
            await anyio.sleep(BEHIND if place <= head.place else 0)
        raise LogUnavailable("cannot read the log: a replica stays behind")

    async def _place_behind(self, thread: ThreadId, seq: int, head: Head) -> int:
        """The place from which a thread's records after `seq` are read."""
        if seq <= 0:
            return 1
        if (thread, seq) not in self._places:
            await self._search(thread, seq, head)
        return self._places[(thread, seq)] + 1

    def _remember(self, thread: ThreadId, seq: int, place: int) -> None:
        self._places[(thread, seq)] = place
        if len(self._places) > REMEMBERED:
            self._places.popitem(last=False)

    async def _record(self, found: Stored) -> Record:
        """The record that a message is, with its parts where it is in several."""
        body, parts = found.data, int(found.headers.get(PARTS, "0"))
        if parts:
            first = found.place - parts
            before = await self.api.get_batch(self.names.log, {"seq": first, "batch": parts})
            if [one.place for one in before] != list(range(first, found.place)):
                raise LogDamaged(found.place, f"a part of a record is missing from the stream {self.names.log}")
            body = b"".join(one.data for one in before) + body
        return _record(found.place, found.headers.get(HASH, ""), body)

    # --- the whole log -----------------------------------------------------------------------------------------------

    async def read_all(self, after: int = 0) -> AsyncIterator[Positioned]:
        async for _, found in self._from(after):
            yield found

    async def _from(self, after: int) -> AsyncIterator[tuple[int, Positioned]]:
        """The records behind a position, each with its place."""
        end = await self.end()
        place = await self._place_at(after, end)
        async for found in self._on(place, after, end):
            yield found

    async def _on(self, place: int, position: int, end: int) -> AsyncIterator[tuple[int, Positioned]]:
        """The records from a place to another; `position` is that of the last record before."""
        waits = 0
        while place <= end:
            batch = await self.api.get_batch(self.names.log, {"seq": place, "batch": min(FETCH, end - place + 1)})
            waits = 0 if batch else waits + 1
            if waits > PATIENCE:
                raise LogUnavailable("cannot read the log: a replica stays behind")
            for found in batch:
                if found.place != place:
                    raise LogDamaged(position, f"place {place} of the stream {self.names.log} is missing")
                place += 1
                if self._is_record(found.subject):
                    position += 1
                    yield found.place, Positioned(position, await self._record(found))
            if not batch:
                await anyio.sleep(BEHIND)

    async def between(self, after: int, until: int, partition: int) -> AsyncIterator[tuple[int, Record]]:
        """The records of a partition behind a place and up to another, each with its place; without those that are damaged."""
        subject, waits = self.names.record(partition, "*"), 0
        while True:
            batch = await self.api.get_batch(self.names.log, {"seq": after + 1, "batch": FETCH, "next_by_subj": subject})
            for found in batch:
                if found.place > until:
                    return
                after = found.place
                try:
                    record = await self._record(found)
                except LogDamaged:
                    continue
                yield after, record
            if not batch:  # a replica may be behind: the leader knows whether there are more
                more = await self.api.next_from_leader(self.names.log, after + 1, subject)
                if more is None or more > until:
                    return
                waits += 1
                if waits > PATIENCE:
                    raise LogUnavailable("cannot read the log: a replica stays behind")
                await anyio.sleep(BEHIND)

    async def agents_counted(self) -> set[AgentId]:
        """The agents whose open runs were ever counted."""
        found = await self._subjects(self.names.snapshots, self.names.open_runs("*"))
        return {AgentId(subject.split(".")[-2]) for subject in found}

    def _is_record(self, subject: str) -> bool:
        return subject.startswith(f"{self.names.prefix}.log.")

    async def tail(self, after: int) -> AsyncIterator[Positioned]:
        end = await self.end()
        place, position = await self._place_at(after, end), after
        while True:
            async for at, found in self._on(place, position, end):
                place, position = at + 1, found.position
                yield found
            place = max(place, end + 1)
            await anyio.sleep(POLL)
            end = await self.end()

    async def end(self) -> int:
        """The last place of the stream, by its leader."""
        self._check_open()
        return int((await self.api.ask(f"STREAM.INFO.{self.names.log}"))["state"]["last_seq"])

    async def head(self) -> int:
        self._check_open()
        state = (await self.api.ask(f"STREAM.INFO.{self.names.log}", {"subjects_filter": self.names.others}))["state"]
        others: dict[str, int] = state.get("subjects") or {}
        return int(state["messages"]) - sum(others.values())

    async def _place_at(self, position: int, end: int) -> int:
        """The place behind the record at a position: the position and the number of others before it."""
        place = position + 1
        await self._learn_others(place)
        while place <= end and (further := position + 1 + bisect_left(self._others, place)) > place:
            place = further
            await self._learn_others(place)
        return place

    async def _learn_others(self, place: int) -> None:
        """Know every message before a place that is no record. The leader confirms the end of what replicas told."""
        while not self._others or self._others[-1] < place:
            known = self._others[-1] if self._others else 0
            question = {"seq": known + 1, "batch": FETCH, "next_by_subj": self.names.others}
            found = [one.place for one in await self.api.get_batch(self.names.log, question)]
            if not found:
                more = await self.api.next_from_leader(self.names.log, known + 1, self.names.others)
                if more is None:
                    return
                found = [more]
            self._others += found

    # --- threads, policies, snapshots, checkpoints -------------------------------------------------------------------

    async def heads(self) -> dict[ThreadId, tuple[int, str]]:
        return await self._ends()

    async def _ends(self, until: Stored | None = None) -> dict[ThreadId, tuple[int, str]]:
        found: dict[ThreadId, tuple[int, str]] = {}
        async for last in self._last_of_all(self.names.log, self.names.record("*", "*"), until):
            head = await self.head_in(last)
            found[ThreadId(last.subject.rpartition(".")[2])] = (head.seq, head.hash)
        return dict(sorted(found.items()))

    async def heads_at(self, position: int) -> tuple[Record, dict[ThreadId, tuple[int, str]]]:
        """The record at a position, and the last record of every thread as they were then, sorted by thread."""
        place = await self._place_at(position - 1, 2**63)
        async for at, found in self._on(place, position - 1, 2**63):
            until = Stored(at, self.subject(found.record.thread), {}, b"")
            return found.record, await self._ends(until)
        raise LogUnavailable("the log has no record to seal")

    async def threads(self) -> AsyncIterator[ThreadId]:
        for thread in sorted(
            subject.rpartition(".")[2] for subject in await self._subjects(self.names.log, self.names.record("*", "*"))
        ):
            yield ThreadId(thread)

    async def _subjects(self, stream: str, pattern: str) -> list[str]:
        self._check_open()
        found: dict[str, int] = {}
        while True:
            page = await self.api.ask(f"STREAM.INFO.{stream}", {"subjects_filter": pattern, "offset": len(found)})
            found |= page["state"].get("subjects") or {}
            if len(found) >= page.get("total", 0):
                return list(found)

    async def _last_of_all(self, stream: str, pattern: str, until: Stored | None = None) -> AsyncIterator[Stored]:
        """The last message of every subject; or those `until` a message, by a replica that has it."""
        subjects = await self._subjects(stream, pattern)
        size, witness = CHUNK, [] if until is None else [until.subject]
        while subjects:
            try:
                last = await self.api.last_of(stream, [*subjects[:size], *witness], 0 if until is None else until.place)
                if until is not None and (until.subject not in last or last[until.subject].place < until.place):
                    await anyio.sleep(BEHIND)
                    continue
            except Truncated:
                size = max(1, size // 4)
                continue
            for found in last.values():
                yield found
            subjects = subjects[size:]

    async def policy(self, digest: str) -> bytes | None:
        self._check_open()
        subject = self.names.policy(digest)
        found = (await self.api.last_of(self.names.log, [subject])).get(subject)
        return None if found is None else found.data

    async def policies(self) -> dict[str, bytes]:
        return {
            found.subject.rpartition(".")[2]: found.data
            for found in sorted(
                [f async for f in self._last_of_all(self.names.log, self.names.policy("*"))], key=lambda f: f.subject
            )
        }

    async def load_snapshot(self, thread: ThreadId) -> tuple[int, bytes] | None:
        """The last snapshot, if it is whole; else the records say it all."""
        self._check_open()
        partition, stream = partition_of(thread, self.partitions), self.names.snapshots
        first = self.names.snapshot(partition, thread, 0)
        head = (await self.api.last_of(stream, [first])).get(first)
        if head is None:
            return None
        wanted = [self.names.snapshot(partition, thread, n) for n in range(1, int(head.headers[PARTS]) + 1)]
        parts = [head, *[found for name in wanted for found in (await self.api.last_of(stream, [name])).values()]]
        same = [part.data for part in parts if part.headers[SHA256] == head.headers[SHA256]]
        if len(same) != len(wanted) + 1:
            return None
        seq, place = int(head.headers[SEQ]), int(head.headers[PLACE])
        if place:  # its writer may not have known it
            self._remember(thread, seq, place)
        return seq, b"".join(same)

    async def open_deadlines(self) -> AsyncIterator[tuple[int, ThreadId, RunId]]:
        found = []
        async for timer in self._last_of_all(self.names.timers, self.names.timer("*", "*", "*")):
            _, _, _, thread, run = timer.subject.split(".")
            found.append((int(msgspec.json.decode(timer.data)["due"]), ThreadId(thread), RunId(run)))
        for due in sorted(found):
            yield due

    async def checkpoints(self) -> list[CheckpointNote]:
        self._check_open()
        found: list[CheckpointNote] = []
        place = 1
        while batch := await self.api.get_batch(
            self.names.log, {"seq": place, "batch": FETCH, "next_by_subj": self.names.checkpoint}
        ):
            found += [msgspec.json.decode(one.data, type=CheckpointNote) for one in batch]
            place = batch[-1].place + 1
        return sorted(found, key=lambda note: note.position)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self.api.close()
        if self._owns:
            await self.api.client.close()


def _record(place: int, digest: str, body: bytes) -> Record:
    try:
        c = COLUMNS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LogDamaged(place, f"the record cannot be read: {error}") from error
    return Record(ThreadId(c.thread), RunId(c.run), c.seq, c.at, c.kind, c.prev, digest, body)
