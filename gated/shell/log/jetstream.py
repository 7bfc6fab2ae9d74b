"""The event log on JetStream: appends that a lease fences, one lease a partition.

The lease is a message on `gated.lease.<p>` in the log's own stream. Who takes a partition over writes one, and every append says
which lease it was made under (`Nats-Expected-Last-Subject-Sequence`, on that literal subject): the server refuses it as soon as
another lease stands there, however late it comes. Rejected: a wildcard for all leases, which is unsafe on replicated streams;
pins, leases elsewhere and message ids, which let a worker that slept for a minute write a second decision when it wakes.

An append goes as an atomic batch; on one replica fewer than `PIPELINED` records of different threads go one by one, all under
way at once, which is faster. INVARIANT: one append is under way at a time. Where its outcome is unknown the lease is written
again before anything else is read or written: what was late then is either in the log already, or never will be.
"""

from __future__ import annotations

import base64
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import anyio
import msgspec
import structlog
from nats.aio.client import Client

from gated.core.chain import CheckpointNote
from gated.events import GENESIS, Record, ThreadId
from gated.ingress import is_id
from gated.shell.log import Due, LogConflict, LogError, LogLocked, LogUnavailable
from gated.shell.log.jetstream_api import SPARE, WRONG_SEQUENCE, JetStreamApi, Outgoing, Refused, Stored, Truncated, open_api
from gated.shell.log.jetstream_leases import EXPECTED, EXPECTED_ON, Leases
from gated.shell.log.jetstream_reader import BEHIND, HASH, PARTS, PATIENCE, PLACE, SEQ, SHA256, Head, JetStreamReader
from gated.shell.log.jetstream_streams import Names, SetupError, Shape, ensure_streams, partition_of, partitions_of
from gated.shell.log.sealing import Sealing
from gated.units import rfc3339

log = structlog.get_logger("gated.log")

PIPELINED: Final = 16  # records from which on a batch is faster on one replica too
TOGETHER: Final = 900  # messages of one atomic batch; the server takes 1,000
DUE_STAYS: Final = "1h"  # that long a deadline that came may be taken over by the stream of inputs
HEADS: Final = 20_000  # threads whose last record is remembered


class JetStreamLog(JetStreamReader):
    """Some partitions of a log, opened for writing: no other writes them until it takes them over."""

    def __init__(self, api: JetStreamApi, names: Names, shape: Shape, worker: str, *, owns: bool = False) -> None:
        super().__init__(api, names, shape.partitions, owns=owns)
        self._secret = shape.secret
        self._sealing: Sealing | None = None
        self._seal_at_end = True
        self._tried = 0
        self.worker = worker
        self.leases = Leases(api, names, worker, self._out)
        self._single = shape.replicas == 1
        self._doubtful = False
        self._heads: OrderedDict[ThreadId, Head | None] = OrderedDict()
        self._lock = anyio.Lock()

    @property
    def epoch(self) -> int:
        return max(self.leases.held.values(), default=0)

    def _out(self, subject: str, data: bytes, headers: dict[str, str]) -> Outgoing:
        """What is to be stored under a subject."""
        return Outgoing(self.names.written(subject, self._secret), data, headers)

    async def take_over(self, partitions: Iterable[int]) -> None:
        """Become the one writer of partitions, whoever had them. Raises `LogUnavailable`."""
        await self.leases.take_over(partitions)

    async def _settled(self) -> None:
        """Know again what is in the log, where the outcome of an append is unknown: the lease anew, and nothing remembered."""
        if self.leases.lost is not None:
            raise self.leases.lost
        if self._doubtful:
            await self.leases.renew()
            self._heads.clear()
            self._doubtful = False

    # --- what is known of a thread -----------------------------------------------------------------------------------

    async def head_of(self, thread: ThreadId) -> Head | None:
        """The last record of a thread, by a replica that has this writer's lease, and so all that was written before it."""
        async with self._lock:
            self._check_open()
            await self._settled()
            return (await self._learn([thread]))[thread]

    async def _learn(self, threads: Sequence[ThreadId]) -> dict[ThreadId, Head | None]:
        unknown = [thread for thread in threads if thread not in self._heads]
        for start in range(0, len(unknown), TOGETHER):
            await self._ask_heads(unknown[start : start + TOGETHER])
        found = {thread: self._heads[thread] for thread in threads}
        while len(self._heads) > HEADS:
            self._heads.popitem(last=False)
        return found

    async def _ask_heads(self, threads: Sequence[ThreadId]) -> None:
        leases = {self.names.lease(p): p for p in {partition_of(thread, self.partitions) for thread in threads}}
        for partition in leases.values():
            self.leases.place_of(partition)
        for _ in range(PATIENCE):
            try:
                found = await self.api.last_of(self.names.log, [*leases, *map(self.subject, threads)])
            except Truncated:
                for half in (threads[: len(threads) // 2], threads[len(threads) // 2 :]):
                    await self._ask_heads(half)
                return
            if all(subject in found and found[subject].place >= self.leases.held[p] for subject, p in leases.items()):
                for subject, partition in leases.items():
                    self.leases.check(partition, found[subject])
                for thread in threads:
                    last = found.get(self.subject(thread))
                    self._heads[thread] = None if last is None else await self._head(last)
                return
            await anyio.sleep(BEHIND)
        raise LogUnavailable("cannot read the log: a replica stays behind")

    # --- appending ---------------------------------------------------------------------------------------------------

    async def append(self, thread: ThreadId, expected_seq: int, records: Sequence[Record], fence: int | None = None) -> None:
        if any(r.thread != thread or r.seq != expected_seq + n for n, r in enumerate(records, 1)):
            raise ValueError(f"the records are not those of thread `{thread}` after {expected_seq}")
        if fence is not None and fence != self.epoch:
            raise LogLocked(self.names.log, f"epoch {self.epoch}, the fence is {fence}")
        await self._write(records, (), (thread, expected_seq))

    async def append_many(self, records: Sequence[Record], dues: Sequence[Due] = ()) -> None:
        await self._write(records, dues, None)

    async def _write(self, records: Sequence[Record], dues: Sequence[Due], expected: tuple[ThreadId, int] | None) -> None:
        async with self._lock:
            self._check_writing()
            await self._settled()
            _check_threads(records)
            threads = dict.fromkeys([*(r.thread for r in records), *([expected[0]] if expected else [])])
            heads = await self._learn(list(threads))
            if expected is not None and _seq(heads[expected[0]]) != expected[1]:
                raise LogConflict(expected[0], expected[1] + 1, _seq(heads[expected[0]]))
            _check_chain(records, heads)
            if dues:  # first: a deadline that comes for nothing does no harm, one that never comes would
                await self._schedule(dues)
            for start in range(0, len(records), TOGETHER):
                await self._store(records[start : start + TOGETHER])
        if self._sealing is not None and records:
            await self.seal_when_due(self._sealing)

    def _check_writing(self) -> None:
        if self._closed:
            raise LogUnavailable("cannot write the log: it is closed")

    async def _store(self, records: Sequence[Record]) -> None:
        messages = [message for record in records for message in self._messages(record)]
        self._doubtful = True  # until the server has said otherwise, whatever ends the wait
        try:
            if self._one_by_one(records, messages):
                places = await self.api.store_each(messages)
            else:
                places = await self.api.store_together(messages)
        except Refused as error:
            await self._explain(error)
        except LogUnavailable as error:
            raise LogUnavailable(f"cannot write the log: {error.why}") from error
        self._doubtful = False
        stored = [place for place, message in zip(places, messages, strict=True) if HASH in message.headers]
        for record, place in zip(records, stored, strict=True):
            self._heads[record.thread] = Head(record.seq, record.hash, place)
            self._heads.move_to_end(record.thread)
            self._remember(record.thread, record.seq, place)

    async def _explain(self, error: Refused) -> None:
        """Raises `LogLocked` where another has the partition now; else the log cannot be written, for whatever reason."""
        if error.code in WRONG_SEQUENCE:
            await self._settled()
        raise LogUnavailable(f"cannot write the log: {error.why}") from error

    def _one_by_one(self, records: Sequence[Record], messages: Sequence[Outgoing]) -> bool:
        """Of one thread, a record must not be stored where the one before it was lost."""
        few = self._single and len(messages) == len(records) < PIPELINED
        return few and len({record.thread for record in records}) == len(records)

    def _messages(self, record: Record) -> list[Outgoing]:
        """A record is one message; what is over the server's limit has parts in front of it."""
        partition = partition_of(record.thread, self.partitions)
        fence = {EXPECTED: str(self.leases.place_of(partition)), EXPECTED_ON: self.names.lease(partition)}
        size = self.api.client.max_payload - SPARE
        pieces = [record.body[n : n + size] for n in range(0, len(record.body), size)]
        parts = [self._out(self.names.part(partition), piece, fence) for piece in pieces[:-1]]
        headers = {**fence, HASH: record.hash, **({PARTS: str(len(parts))} if parts else {})}
        return [*parts, self._out(self.names.record(partition, record.thread), pieces[-1], headers)]

    # --- deadlines ---------------------------------------------------------------------------------------------------

    async def _schedule(self, dues: Sequence[Due]) -> None:
        """One schedule a run: the next replaces the last, and 0 removes it."""
        try:
            await self.api.store_each([self._timer(due) for due in dues if due[2] > 0])
            for thread, run, _ in (due for due in dues if due[2] <= 0):
                subject = self.names.timer(partition_of(thread, self.partitions), thread, run)
                await self.api.ask(f"STREAM.PURGE.{self.names.timers}", {"filter": subject})
        except Refused as error:
            raise LogUnavailable(f"cannot set a deadline: {error.why}") from error

    def _timer(self, due: Due) -> Outgoing:
        thread, run, at = due
        headers = {
            "Nats-Schedule": f"@at {rfc3339(at)}",
            "Nats-Schedule-Target": self.names.due(thread, run),
            "Nats-Schedule-TTL": DUE_STAYS,
            "Nats-Rollup": "sub",
        }
        subject = self.names.timer(partition_of(thread, self.partitions), thread, run)
        return self._out(subject, msgspec.json.encode({"due": at}), headers)

    # --- policies, snapshots, checkpoints ----------------------------------------------------------------------------

    async def put_policy(self, digest: str, text: bytes) -> None:
        self._check_writing()
        try:
            await self.api.store(self._out(self.names.policy(digest), text, {EXPECTED: "0"}))
        except Refused as error:
            if error.code not in WRONG_SEQUENCE:
                raise LogUnavailable(f"cannot write the policy: {error.why}") from error

    async def save_snapshot(self, thread: ThreadId, seq: int, data: bytes) -> None:
        async with self._lock:
            self._check_writing()
            await self._settled()
            partition = partition_of(thread, self.partitions)
            await self.leases.check_still(partition)
            place = self._places.get((thread, seq), 0)
            digest = hashlib.sha256(data).hexdigest()
            size = self.api.client.max_payload - SPARE
            pieces = [data[n : n + size] for n in range(0, len(data), size)] or [b""]
            headers = {SEQ: str(seq), PLACE: str(place), SHA256: digest, PARTS: str(len(pieces) - 1)}
            messages = [self._out(self.names.snapshot(partition, thread, n), piece, headers) for n, piece in enumerate(pieces)]
            try:
                for message in reversed(messages):  # the first one last: it names the others
                    await self.api.store(message)
            except Refused as error:
                raise LogUnavailable(f"cannot write a snapshot: {error.why}") from error

    async def agree_on_key(self, fingerprint: str) -> None:
        """The first worker says which redaction key the cluster has; raises `SetupError` where this one has another."""
        self._check_writing()
        subject = self.names.key
        try:
            await self.api.store(self._out(subject, fingerprint.encode(), {EXPECTED: "0"}))
        except Refused as error:
            if error.code not in WRONG_SEQUENCE:
                raise LogUnavailable(f"cannot write which key the cluster has: {error.why}") from error
        said = await self.api.ask(f"STREAM.MSG.GET.{self.names.log}", {"last_by_subj": subject})
        if base64.b64decode(said["message"]["data"]).decode() != fingerprint:
            raise SetupError("this worker's redaction key is not the cluster's: give every worker the same folder of `--keys`")

    async def put_checkpoint(self, note: CheckpointNote) -> None:
        self._check_writing()
        if note in await self.checkpoints():
            return
        try:
            await self.api.store(self._out(self.names.checkpoint, msgspec.json.encode(note), {}))
        except Refused as error:
            raise LogUnavailable(f"cannot write a checkpoint: {error.why}") from error

    # --- sealing -----------------------------------------------------------------------------------------------------

    async def seal_when_due(self, sealing: Sealing, *, ending: bool = False) -> None:
        """Seal the whole log, all partitions, if enough came since the last seal. A log that cannot be sealed still decides."""
        try:
            notes = await self.checkpoints()
            sealed = max((note.position for note in notes), default=0)
            position = await self.head()
            if not (position > sealed if ending else sealing.due(position, max(sealed, self._tried))):
                return
            self._tried = position
            note = await self._seal(sealing, position)
            await self.put_checkpoint(note)
            await anyio.to_thread.run_sync(sealing.publish, note.note)  # which may wait for files and the bus
        except (LogError, OSError) as error:
            log.error("cannot seal the log", log=self.names.log, error=str(error))

    async def _seal(self, sealing: Sealing, position: int) -> CheckpointNote:
        place = await self._place_at(position - 1, 2**63)
        async for at, found in self._on(place, position - 1, 2**63):
            until = Stored(at, self.subject(found.record.thread), {}, b"")
            heads = {
                ThreadId(last.subject.rpartition(".")[2]): _end(await self._head(last))
                async for last in self._last_of_all(self.names.log, self.names.record("*", "*"), until)
            }
            return CheckpointNote(position, sealing.seal(position, found.record.hash, heads))
        raise LogUnavailable("the log has no record to seal")

    async def seal(self) -> None:
        """Seal what came since the last seal, before its time."""
        if self._sealing is not None:
            await self.seal_when_due(self._sealing, ending=True)

    def seal_only_when_asked(self) -> None:
        self._seal_at_end = False

    def keep_sealed(self, sealing: Sealing) -> None:
        """Seal after appends, and at the end; for who has all partitions."""
        self._sealing = sealing

    async def close(self) -> None:
        """Wait for what is being written, and write no more."""
        async with self._lock:
            if self._sealing is not None and self._seal_at_end and not self._closed and self.leases.lost is None:
                await self.seal_when_due(self._sealing, ending=True)
            await super().close()


def _end(head: Head) -> tuple[int, str]:
    return head.seq, head.hash


def _seq(head: Head | None) -> int:
    return 0 if head is None else head.seq


def _check_threads(records: Sequence[Record]) -> None:
    for record in records:
        if not is_id(record.thread):
            raise ValueError(f"thread `{record.thread}` cannot be a token of a subject")


def _check_chain(records: Sequence[Record], heads: dict[ThreadId, Head | None]) -> None:
    """Raises `LogConflict` where a record is not the next of its thread."""
    ends = {thread: (0, GENESIS) if head is None else (head.seq, head.hash) for thread, head in heads.items()}
    for record in records:
        seq, last = ends[record.thread]
        if record.seq != seq + 1 or record.prev != last:
            raise LogConflict(record.thread, record.seq, seq)
        ends[record.thread] = (record.seq, record.hash)


# --- opening ---------------------------------------------------------------------------------------------------------


async def open_for_writing(
    client: Client,
    worker: str,
    *,
    prefix: str = "gated",
    only: Iterable[int] | None = None,
    partitions: int = 64,
    replicas: int = 1,
    owns: bool = False,
    sealing: Sealing | None = None,
) -> JetStreamLog:
    """Take over a log, or `only` some partitions of it; its streams are made where they are missing.

    `owns`: closing the log closes the connection.

    Raises `SetupError` where the server or its streams are not as they must be, `LogUnavailable`.
    """
    names = Names(prefix)
    api = await open_api(client)
    try:
        shape = await ensure_streams(api, names, partitions, replicas)
        made = JetStreamLog(api, names, shape, worker, owns=owns)
        await made.take_over(range(shape.partitions) if only is None else only)
        if sealing is not None:
            made.keep_sealed(sealing)
        return made
    except BaseException:
        with anyio.CancelScope(shield=True):
            await api.close()
        raise


async def open_for_reading(client: Client, prefix: str = "gated", *, owns: bool = False) -> JetStreamReader:
    """Raises `LogUnavailable` where there is no log."""
    names = Names(prefix)
    api = await open_api(client)
    try:
        return JetStreamReader(api, names, await partitions_of(api, names), owns=owns)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await api.close()
        raise
