"""The event log on JetStream: appends that a lease fences, one lease a partition.

The lease is a message on `gated.lease.<p>` in the log's own stream. Who takes a partition over writes one, and every append says
which lease it was made under (`Nats-Expected-Last-Subject-Sequence`, on that literal subject): the server refuses it as soon as
another lease stands there, however late it comes. Rejected: a wildcard for all leases, which is unsafe on replicated streams;
pins, leases elsewhere and message ids, which let a worker that slept for a minute write a second decision when it wakes.

An append goes as an atomic batch; on one replica records of different threads go one by one, all under way at once, since a batch
costs the server two milliseconds, however large it is. INVARIANT: one append is under way at a time. Where its outcome is unknown
the lease is written again before anything else is read or written: what was late then is either in the log already, or never will
be.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

import anyio
import msgspec

from gated.core.chain import CheckpointNote
from gated.events import Record, RunId, ThreadId
from gated.ingress import is_id
from gated.shell.handover import Lock
from gated.shell.log import Due, LogConflict, LogLocked, LogUnavailable
from gated.shell.log.jetstream_api import WRONG_SEQUENCE, JetStreamApi, Outgoing, Refused, open_api
from gated.shell.log.jetstream_heads import Heads, check_chain, is_next, seq_of
from gated.shell.log.jetstream_leases import EXPECTED, Leases
from gated.shell.log.jetstream_messages import Messages
from gated.shell.log.jetstream_names import Names, partition_of
from gated.shell.log.jetstream_reader import Head, JetStreamReader
from gated.shell.log.jetstream_sealing import Seals
from gated.shell.log.jetstream_streams import SetupError, Shape, ensure_streams, partitions_of
from gated.shell.log.sealing import Sealing
from gated.shell.nats_client import SturdyClient

TOGETHER: Final = 900  # messages of one atomic batch; the server takes 1,000


class JetStreamLog(JetStreamReader):
    """Some partitions of a log, opened for writing: no other writes them until it takes them over."""

    def __init__(self, api: JetStreamApi, names: Names, shape: Shape, worker: str, *, owns: bool = False) -> None:
        super().__init__(api, names, shape.partitions, owns=owns)
        self.worker = worker
        self.messages = Messages(api, names, shape.partitions, shape.secret)
        self.leases = Leases(api, names, worker, self.messages.of)
        self._heads = Heads(self, self.leases)
        self._seals = Seals(self, self.put_checkpoint)
        self._sealing: Sealing | None = None
        self._seal_at_end = True
        self._single = shape.replicas == 1
        self._doubtful = False
        self._stored = 0  # the place of the last record that the server said is stored
        self._lock = Lock()

    @property
    def epoch(self) -> int:
        return max(self.leases.held.values(), default=0)

    @property
    def reach(self) -> int:
        """A place: of this writer's partitions, every record up to it was written before its lease or is known to be stored."""
        return max(self._stored, self.epoch)

    async def take_over(self, partitions: Iterable[int]) -> None:
        """Become the one writer of partitions, whoever had them. Raises `LogUnavailable`."""
        await self.leases.take_over(partitions)

    async def succeed(self, partition: int, lease: int) -> None:
        """Become the one writer after an owner that has stopped, if its lease is still the newest. Raises `LogLocked`."""
        await self.leases.succeed(partition, lease)

    async def _settled(self) -> None:
        """Know again what is in the log, where the outcome of an append is unknown: the lease anew, and nothing remembered."""
        if self.leases.lost is not None:
            raise self.leases.lost
        if self._doubtful:
            await self.leases.renew()
            self._heads.forget()
            self._doubtful = False

    async def head_of(self, thread: ThreadId) -> Head | None:
        """The last record of a thread, as its one writer knows it."""
        return (await self.heads_of([thread]))[thread]

    async def heads_of(self, threads: Sequence[ThreadId]) -> dict[ThreadId, Head | None]:
        """The last record of each thread, as their one writer knows it."""
        async with self._lock:
            self._check_open()
            await self._settled()
            return await self._heads.of(threads)

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
            heads = await self._heads.of(list(threads))
            if expected is not None and seq_of(heads[expected[0]]) != expected[1]:
                raise LogConflict(expected[0], expected[1] + 1, seq_of(heads[expected[0]]))
            check_chain(records, heads)
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
        made = [self._made_of(record) for record in records]
        messages = [message for each in made for message in each]
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
        self._grew(records, [places[end - 1] for end in accumulate(map(len, made))])

    def _grew(self, records: Sequence[Record], places: Sequence[int]) -> None:
        self._doubtful, self._stored = False, max(places)
        for record, place in zip(records, places, strict=True):
            self._heads.grew(record, place)
            self._remember(record.thread, record.seq, place)

    async def begin(self, records: Sequence[Record]) -> list[Outgoing] | None:
        """The messages of an append of records of different threads, which is under way from now on until `ended` is told of it.

        They are to be stored one by one, so on one replica. None: something stands in the way of that, and `append_many` is to be
        asked, which waits for it or says what it is.
        """
        if self._doubtful or self._closed or self.leases.lost is not None or self._lock.wanted:
            return None
        heads = self._heads.known({record.thread for record in records})
        if heads is None or len(heads) < len(records) or not is_next(records, heads):
            return None
        messages = [message for record in records for message in self._made_of(record)]
        if len(messages) > len(records):
            return None
        await self._lock.acquire()
        self._doubtful = True
        return messages

    def ended(self, records: Sequence[Record], places: Sequence[int] | None) -> None:
        """Where an append that has begun put its records. None: that is not known, or not all of them are stored."""
        if places is not None:
            self._grew(records, places)
        self._lock.release()

    def _made_of(self, record: Record) -> list[Outgoing]:
        return self.messages.of_record(record, self.leases.place_of(partition_of(record.thread, self.partitions)))

    async def _explain(self, error: Refused) -> None:
        """Raises `LogLocked` where another has the partition now; else the log cannot be written, for whatever reason."""
        if error.code in WRONG_SEQUENCE:
            await self._settled()
        raise LogUnavailable(f"cannot write the log: {error.why}") from error

    def _one_by_one(self, records: Sequence[Record], messages: Sequence[Outgoing]) -> bool:
        """Of one thread, a record must not be stored where the one before it was lost."""
        return self._single and len(messages) == len(records) == len({record.thread for record in records})

    # --- deadlines ---------------------------------------------------------------------------------------------------

    async def _schedule(self, dues: Sequence[Due]) -> None:
        """One schedule a run: the next replaces the last, and 0 removes it."""
        try:
            await self.api.store_each([self.messages.of_deadline(due) for due in dues if due[2] > 0])
            for due in dues:
                if due[2] <= 0:
                    await self.api.ask(f"STREAM.PURGE.{self.names.timers}", {"filter": self.messages.timer(due)})
        except Refused as error:
            raise LogUnavailable(f"cannot set a deadline: {error.why}") from error

    async def wake(self, thread: ThreadId, run: RunId, now: int) -> None:
        """Have the partition of a run taken over, which nobody does before an input comes: by an alarm for nothing.

        It stands in the place of the run's next deadline, which is set again when the alarm is heard. Raises `LogUnavailable`.
        """
        await self._schedule([(thread, run, now)])

    # --- policies, snapshots, checkpoints ----------------------------------------------------------------------------

    async def put_policy(self, digest: str, text: bytes) -> None:
        self._check_writing()
        try:
            await self.api.store(self.messages.of(self.names.policy(digest), text, {EXPECTED: "0"}))
        except Refused as error:
            if error.code not in WRONG_SEQUENCE:
                raise LogUnavailable(f"cannot write the policy: {error.why}") from error

    async def load_snapshot(self, thread: ThreadId) -> tuple[int, bytes] | None:
        """The last snapshot. A new thread, which has no record, is not asked for one: its head is what is read next anyway."""
        if self.leases.lost is None and await self.head_of(thread) is None:
            return None
        return await super().load_snapshot(thread)

    async def save_snapshot(self, thread: ThreadId, seq: int, data: bytes) -> None:
        async with self._lock:
            self._check_writing()
            await self._settled()
            await self.leases.check_still(partition_of(thread, self.partitions))
            try:
                for message in self.messages.of_snapshot(thread, seq, self._places.get((thread, seq), 0), data):
                    await self.api.store(message)
            except Refused as error:
                raise LogUnavailable(f"cannot write a snapshot: {error.why}") from error

    async def agree_on_key(self, fingerprint: str) -> None:
        """The first worker says which redaction key the cluster has; raises `SetupError` where this one has another."""
        if await self._first_said(self.names.key, fingerprint) != fingerprint:
            raise SetupError("this worker's redaction key is not the cluster's: give every worker the same folder of `--keys`")

    async def agree_on_folder(self, folder: str) -> None:
        """The same of the folder in which keys of subjects are made and erased: what is erased in one must be so for all."""
        if await self._first_said(self.names.subjects, folder) != folder:
            raise SetupError("this worker's keys of subjects are not the cluster's: its workers share one folder of `--keys`")

    async def _first_said(self, subject: str, value: str) -> str:
        """What the first worker said there, which may have been this one, now."""
        self._check_writing()
        try:
            await self.api.store(self.messages.of(subject, value.encode(), {EXPECTED: "0"}))
        except Refused as error:
            if error.code not in WRONG_SEQUENCE:
                raise LogUnavailable(f"cannot write what the cluster agrees on: {error.why}") from error
        said = await self.api.ask(f"STREAM.MSG.GET.{self.names.log}", {"last_by_subj": subject})
        return base64.b64decode(said["message"]["data"]).decode()

    async def put_checkpoint(self, note: CheckpointNote) -> None:
        self._check_writing()
        if note in await self.checkpoints():
            return
        try:
            await self.api.store(self.messages.of(self.names.checkpoint, msgspec.json.encode(note), {}))
        except Refused as error:
            raise LogUnavailable(f"cannot write a checkpoint: {error.why}") from error

    # --- sealing -----------------------------------------------------------------------------------------------------

    def keep_sealed(self, sealing: Sealing) -> None:
        """Seal after appends, and at the end; for who has all partitions."""
        self._sealing = sealing

    async def seal_when_due(self, sealing: Sealing, *, ending: bool = False) -> None:
        """Seal the whole log, all partitions, if enough came since the last seal. A log that cannot be sealed still decides."""
        await self._seals.seal_when_due(sealing, ending=ending)

    async def seal(self) -> None:
        """Seal what came since the last seal, before its time."""
        if self._sealing is not None:
            await self.seal_when_due(self._sealing, ending=True)

    def seal_only_when_asked(self) -> None:
        self._seal_at_end = False

    async def close(self) -> None:
        """Wait for what is being written, and write no more."""
        async with self._lock:
            if self._sealing is not None and self._seal_at_end and not self._closed and self.leases.lost is None:
                await self.seal_when_due(self._sealing, ending=True)
            await super().close()


def _check_threads(records: Sequence[Record]) -> None:
    for record in records:
        if not is_id(record.thread):
            raise ValueError(f"thread `{record.thread}` cannot be a token of a subject")


# --- opening ---------------------------------------------------------------------------------------------------------


async def open_for_writing(
    client: SturdyClient,
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


async def open_for_reading(client: SturdyClient, prefix: str = "gated", *, owns: bool = False) -> JetStreamReader:
    """Raises `LogUnavailable` where there is no log."""
    names = Names(prefix)
    api = await open_api(client)
    try:
        return JetStreamReader(api, names, await partitions_of(api, names), owns=owns)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await api.close()
        raise
