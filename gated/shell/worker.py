"""One worker of a cluster: its connection, its partitions, its signs of life, and the questions it answers.

Workers share the partitions of a log; more of them, on any machine, only have to be started. Reading and lists answer for the
whole cluster, whichever worker is asked.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import anyio
import msgspec
import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from gated import wire
from gated.core.policy import Policy
from gated.core.redaction.vault import Vault
from gated.errors import GatedError
from gated.shell import api as questions
from gated.shell import connection
from gated.shell.audits import Audits
from gated.shell.background import background_tasks
from gated.shell.cluster_status import status_of
from gated.shell.custody import publish_copies
from gated.shell.daemon import Settings
from gated.shell.detectors.judge import judge_of
from gated.shell.erasing import Subjects
from gated.shell.keys import VAULT_BYTES
from gated.shell.ledger import Ledgers
from gated.shell.log import LogError, LogUnavailable
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.log.jetstream_api import open_api
from gated.shell.log.jetstream_messages import Messages
from gated.shell.log.jetstream_names import Names
from gated.shell.log.jetstream_reader import JetStreamReader
from gated.shell.log.jetstream_streams import ensure_streams
from gated.shell.log.sealing import Sealing
from gated.shell.membership import BEAT, Beat, Members, WorkerState, new_name, share
from gated.shell.metrics import Gauges
from gated.shell.observing import observed
from gated.shell.partition import Partition
from gated.shell.place import Place
from gated.shell.policies import read_policy
from gated.shell.runs import Runs
from gated.shell.said import Health, Outlet
from gated.shell.scoring import Scorer
from gated.shell.succession import wish_of
from gated.shell.together import Together
from gated.shell.unfinished import finish_erasures
from gated.shell.upkeep import keep_streams
from gated.wire.questions import Bare, ClusterDrain

DRAIN, UNDO = b"drain", b"undo"
START_SECONDS: Final = 30.0
LEAVE_SECONDS: Final = 15.0
SEAL_EVERY: Final = 5.0  # seconds between looks whether the log is to be sealed

log = structlog.get_logger("gated.worker")

T = TypeVar("T")


class Worker:
    """A running worker. `stop` hands its partitions over."""

    def __init__(self, settings: Settings, place: Place, policy: Policy, reader: JetStreamReader) -> None:
        self.settings, self.place = settings, place
        self.members = Members()
        self.state: WorkerState = "working"
        self.partitions = [Partition(number, place, self) for number in range(place.shape.partitions)]
        # what is asked of the whole cluster is answered from its log, by a serialiser that is given nothing to serialise
        outlet = Outlet(lambda *_: b"", _nowhere, _nowhere, settings.prefix, tells_time=True)
        self.view = Runs(reader, policy, outlet, place.vault)  # type: ignore[arg-type]
        self.writer = JetStreamLog(place.api, place.names, place.shape, place.worker)
        self.telemetry = self.view.telemetry  # one for all partitions that are here
        self.together = Together(place.api)
        self._policy = policy
        self.audits = Audits(place.ledgers, self.view.threads, self.policy)
        self.reload_failed = ""  # why the policy file was not taken, here
        self._shares: set[int] = set()
        self._reckoned: tuple[WorkerState, frozenset[str]] | None = None  # what the shares were worked out for
        self.turns = anyio.CapacityLimiter(4)  # partitions that are asked for and taken over at a time
        self._changed = anyio.Event()
        self._stopping = anyio.Event()
        self._left = anyio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def wait_stopping(self) -> None:
        await self._stopping.wait()

    def why_not(self) -> str:
        """Why nothing is decided here just now; empty where it is."""
        return self.view.health.why or connection.why_away(self.place.client)

    def gauges(self) -> Gauges:
        """What is here, summed over the partitions that are."""
        here = [partition.runs for partition in self.partitions if partition.runs is not None]
        return Gauges(
            waiting=sum(runs.health.waiting for runs in here),
            threads=sum(runs.health.threads for runs in here),
            open_tickets=self.telemetry.open,
            records=sum(runs.health.records for runs in here),
            damaged_threads=sum(len(runs.health.damaged) for runs in here),
            log_unavailable=any(runs.health.why for runs in here),
            reload_failed=bool(self.reload_failed),
        )

    # --- what partitions ask -----------------------------------------------------------------------------------------

    def policy(self) -> Policy:
        return self._policy

    def wants(self, partition: int) -> bool:
        return partition in self._shares

    async def changed(self) -> None:
        await self._changed.wait()

    def has_owner(self, partition: int) -> bool:
        return bool(self.members.owner(partition, but=self.place.worker))

    def has_heirs(self) -> bool:
        return bool(self._others())

    async def known(self, digests: Iterable[str]) -> Mapping[str, Policy]:
        return await self.view.threads.knowing(digests)

    @property
    def owned(self) -> list[int]:
        return [partition.number for partition in self.partitions if partition.runs is not None]

    # --- who has what ------------------------------------------------------------------------------------------------

    def subject(self, kind: str, worker: str = "*") -> str:
        return f"{self.settings.prefix}.cluster.{kind}.{worker}"

    def reckon(self) -> None:
        """Work out which partitions should be here."""
        others = self._others()
        if (self.state, others) == self._reckoned:  # every worker is heard twice a second, and mostly nothing has changed
            return
        self._reckoned = self.state, others
        names = (*others, self.place.worker) if self.state == "working" else ()
        self._shares = {p for p, name in share(self.place.shape.partitions, names).items() if name == self.place.worker}
        self._wake()

    def _others(self) -> frozenset[str]:
        return frozenset(self.members.working()) - {self.place.worker}

    def left(self, partition: int) -> None:
        self._left.set()
        self._left = anyio.Event()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def hear(self, message: Msg) -> None:
        try:
            self.members.hear(message.data)
        except msgspec.MsgspecError as error:
            log.warning("a sign of life that cannot be read", error=str(error))
            return
        self.reckon()

    async def hear_wish(self, message: Msg) -> None:
        """Another worker would have a partition; what has no reply are the server's own words, at whoever's wish."""
        wish = wish_of(message.data) if message.reply else None
        if wish is not None and wish.worker != self.place.worker and wish.partition < len(self.partitions):
            self.partitions[wish.partition].asked(message.reply)

    async def beat(self) -> None:
        """Say that this worker lives, and in what state."""
        self._count()
        told = Beat(
            self.place.worker,
            self.state,
            socket.gethostname(),
            os.getpid(),
            tuple(self.owned),
            self.view.health.records,
            self.view.health.why,
            self.reload_failed,
        )
        try:
            await self.place.client.publish(self.subject("beat", self.place.worker), msgspec.json.encode(told))
        except NatsError as error:
            log.info("nobody hears this worker just now", error=str(error) or type(error).__name__)

    async def keep_beating(self) -> None:
        """Raises `BusError` where nobody can hear this worker any more."""
        while True:
            await self.beat()
            await anyio.sleep(BEAT)
            connection.check_open(self.place.client)
            self.reckon()

    def _count(self) -> None:
        """The health of all partitions is that of the worker."""
        health = self.view.health
        each: list[Health] = [p.runs.health for p in self.partitions if p.runs is not None]
        past = [p.gone for p in self.partitions]
        health.records = sum(h.records for h in (*each, *past))
        health.verdicts = sum(h.verdicts for h in (*each, *past))
        health.waiting = sum(h.waiting for h in each)
        health.threads = sum(h.threads for h in each)
        health.damaged = {**self.view.threads.damages, **{thread: why for h in each for thread, why in h.damaged.items()}}
        health.why = next((h.why for h in each if h.why), "")
        others = [b for b in self.members.living() if b.reload_failed and b.worker != self.place.worker]
        health.reload_failed = self.reload_failed or next((f"worker {b.worker}: {b.reload_failed}" for b in others), "")

    async def leave(self, state: WorkerState) -> None:
        """Hand every partition over, and take none (`working` takes its share again)."""
        self.state = state
        await self.beat()
        self.reckon()
        with anyio.move_on_after(LEAVE_SECONDS):
            while state != "working" and self.owned:
                await self._left.wait()

    # --- policy ------------------------------------------------------------------------------------------------------

    async def reload(self) -> bool:
        """Read the policy again; a broken one changes nothing. True where another policy holds now."""
        try:
            policy = await anyio.to_thread.run_sync(read_policy, self.settings.policy)
            await anyio.to_thread.run_sync(self.place.scorer.need, policy.semantic)
            await self.put_policy(policy)
        except GatedError as error:
            log.error("policy.reload_failed", error=str(error), kept=self._policy.digest)
            self.reload_failed = self.view.health.reload_failed = str(error)
            return False
        mended, self.reload_failed, self.view.health.reload_failed = bool(self.reload_failed), "", ""
        if policy.digest == self._policy.digest:
            if mended:
                log.info("the policy file is whole again: it says what holds", policy=policy.digest)
            return False
        self._policy = policy
        for runs in [self.view, *(p.runs for p in self.partitions if p.runs is not None)]:
            runs.threads.bind(policy)
            if runs.places is not None:
                runs.places.look_again()
        self.audits.want()
        log.info("policy reloaded: new runs are bound to it", policy=policy.digest)
        return True

    async def put_policy(self, policy: Policy) -> None:
        keyring = self.place.keyring
        if policy.redactor.subject is not None and keyring is not None:
            await self.writer.agree_on_folder(await anyio.to_thread.run_sync(keyring.name))
        await self.writer.put_policy(policy.digest, policy.text)

    async def keep_sealed(self, sealing: Sealing) -> None:
        """Whoever has the first partition seals the log, all of it."""
        while True:
            await anyio.sleep(SEAL_EVERY)
            if self.partitions[0].runs is not None:
                await self.writer.seal_when_due(sealing)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def note_ticket(self, message: Msg) -> None:
        """What any worker publishes of a ticket: lists are of the whole cluster."""
        try:
            self.view.open_tickets.note(msgspec.json.decode(message.data, type=wire.TicketMessage))
        except msgspec.MsgspecError as error:
            log.warning("a ticket that cannot be read", error=str(error))

    async def find_tickets(self) -> None:
        while True:
            try:
                async for _, thread, run in self.view.log.open_deadlines():
                    self.view.open_tickets.search_later(thread, run)
                break
            except LogError as error:
                log.warning("cannot look for open tickets now", error=str(error))
                await anyio.sleep(BEAT)
        await self.view.find_open_tickets()

    async def hear_drain(self, message: Msg) -> None:
        """`gated cluster drain`: hand over and take nothing, or take part again."""
        if message.data not in (DRAIN, UNDO):  # the server's own words on this subject, at whoever's wish
            return
        undo = message.data == UNDO
        had = self.owned
        log.info("taking part again" if undo else "draining", partitions=len(had))
        await self.leave("working" if undo else "draining")
        await message.respond(json.dumps({"worker": self.place.worker, "released": len(had), "left": len(self.owned)}).encode())


async def _nowhere(*_: Any) -> bool:
    """The view says nothing and acknowledges nothing."""
    return True


async def _when_ready(work: Callable[[], Awaitable[T]]) -> T:
    """Wait a while for servers that are electing. Raises `LogUnavailable`."""
    until = anyio.current_time() + START_SECONDS
    while True:
        try:
            return await work()
        except LogUnavailable as error:
            if anyio.current_time() > until:
                raise
            log.warning("the servers are not ready, waiting for them", error=str(error))
            await anyio.sleep(BEAT)


@asynccontextmanager
async def worker(settings: Settings, policy: Policy, name: str = "") -> AsyncIterator[Worker]:
    """Run a worker while the block runs, then hand its partitions over. Raises `SetupError`, `BusError`, `LogUnavailable`."""
    holder: list[Worker] = []

    def reconnected() -> None:
        if holder:
            holder[0].place.api.interrupt()
        for partition in holder[0].partitions if holder else ():
            if partition.bus is not None:
                partition.bus.rewind()

    name = name or new_name()
    client = await connection.connect(settings.url, f"gated {name}", reconnected, **settings.credentials)
    try:
        names, api = Names(settings.prefix), await open_api(client)
        shape = await _when_ready(lambda: ensure_streams(api, names, settings.partitions, settings.replicas))
        custody = settings.custody
        vault = Vault(secrets.token_bytes(VAULT_BYTES)) if custody is None else custody.vault
        scorer = Scorer(vault.key_for("fingerprints"), lambda entry: judge_of(entry, client, os.environ))
        scorer.need(policy.semantic)
        signer, keyring = (None, None) if custody is None else (custody.signer, custody.keyring)
        reader = JetStreamReader(api, names, shape.partitions)
        ledgers = Ledgers(reader, Messages(api, names, shape.partitions, shape.secret))
        place = Place(client, api, names, shape, name, settings.decide, vault, scorer, signer, keyring, ledgers)
        made = Worker(settings, place, policy, reader)
        holder.append(made)
        await _when_ready(lambda: made.writer.agree_on_key(vault.digest("the redaction key of a cluster")))
        await _when_ready(lambda: made.put_policy(policy))
        await _when_ready(made.audits.look)
        await client.subscribe(made.subject("beat"), cb=made.hear)
        await client.subscribe(place.wishes, cb=made.hear_wish)
        await client.subscribe(made.subject("drain", name), cb=made.hear_drain)
        await client.subscribe(f"{settings.prefix}.tickets.>", cb=made.note_ticket)
        async with background_tasks() as tasks:
            service = await questions.serve(client, made.view, settings.prefix, cluster(made))
            tasks.start_soon(made.together.run)
            tasks.start_soon(made.keep_beating)
            tasks.start_soon(made.find_tickets)
            tasks.start_soon(made.audits.keep)
            tasks.start_soon(keep_streams, place)
            if custody is not None:
                publish_copies(custody, client)
                tasks.start_soon(made.keep_sealed, custody.sealing)
                subjects = Subjects(custody.keyring, custody.vault)
                tasks.start_soon(finish_erasures, made.view, subjects, made.partitions, made.writer)
            await anyio.sleep(2 * BEAT)  # who else is there
            for partition in made.partitions:
                tasks.start_soon(partition.hold)
            log.info("ready", worker=name, policy=policy.digest, partitions=shape.partitions, replicas=shape.replicas)
            try:
                with observed(settings.observing, made.telemetry, made.gauges):
                    yield made
            finally:
                with anyio.CancelScope(shield=True):
                    seals = made.partitions[0].runs is not None
                    await made.leave("leaving")
                    if custody is not None and seals:
                        await made.writer.seal_when_due(custody.sealing, ending=True)
                    await questions.stop(service)
                    await scorer.close()
    finally:
        await connection.disconnect(client)
        log.info("stopped", worker=name, records=holder[0].view.health.records if holder else 0)


def cluster(made: Worker) -> dict[str, questions.Verb]:
    """The verbs that only a cluster answers."""

    async def status(_: Bare) -> Any:
        return await status_of(made.place, made.members.living())

    async def drain(asked: ClusterDrain) -> Any:
        name = asked.worker
        known = [beat.worker for beat in made.members.living()]
        if name not in known:
            raise questions.NotThere(f"there is no worker `{name}`: {', '.join(known) or 'none'} are there")
        try:
            said = await made.place.client.request(
                made.subject("drain", name), UNDO if asked.undo else DRAIN, timeout=LEAVE_SECONDS + 1
            )
        except (NatsError, TimeoutError) as error:
            raise questions.ApiError(f"worker `{name}` does not answer: {str(error) or 'no answer in time'}") from error
        return json.loads(said.data)

    async def tickets_list(_: Bare) -> Any:
        """The open tickets of all workers."""
        await made.view.open_tickets.whole()
        places = {(place.thread, place.run) for _, place in made.view.open_tickets.after(0)}
        threads = dict.fromkeys(thread for thread, _ in sorted(places))
        return [view for thread in threads for view in await questions.tickets_of(made.view, thread)]

    return {
        "cluster.status": questions.Verb(Bare, status),
        "cluster.drain": questions.Verb(ClusterDrain, drain),
        "tickets.list": questions.Verb(Bare, tickets_list),
    }
