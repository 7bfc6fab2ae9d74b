"""The daemon: the log, the serialiser and the bus put together; start, readiness, reload, drain.

Exit statuses: 0 stopped as asked, 1 failed while running, 2 could not start (policy, log, bus).
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import structlog
from msgspec import Struct
from nats.errors import Error as NatsError

from gated import wire
from gated.core import decide as core
from gated.core.policy import Policy
from gated.core.redaction.vault import Vault
from gated.errors import GatedError
from gated.events import Body, NoticeReported
from gated.shell import api, bus, connection, health_file
from gated.shell.background import background_tasks
from gated.shell.custody import Custody, publish_copies
from gated.shell.deciding import Decide
from gated.shell.detectors.judge import judge_of
from gated.shell.erasing import NO_FOLDER
from gated.shell.input_places import newest_place
from gated.shell.keys import VAULT_BYTES
from gated.shell.log import EventLog, LogUnavailable, Sealed
from gated.shell.metrics import Gauges
from gated.shell.nats_client import SturdyClient
from gated.shell.notify.notifier import Counts, Cursor, Notifier
from gated.shell.notify.settings import NotifySettings
from gated.shell.observing import Observing, observed
from gated.shell.policies import read_policy
from gated.shell.runs import Runs
from gated.shell.said import Outlet, Said
from gated.shell.scoring import Scorer
from gated.shell.watching import changes_in

log = structlog.get_logger("gated.daemon")

SKEW: Final = 5.0  # seconds that clocks may differ before it is said
DRAIN_SECONDS = 30.0
FLUSH_SECONDS = 5  # for the bus to take what was said


class Settings(Struct, frozen=True):
    """What a daemon needs to know. `credentials` go to the NATS client as they are."""

    url: str
    policy: Path
    credentials: dict[str, Any]
    prefix: str = wire.PREFIX
    replicas: int = 1
    decide: Decide = core.record
    custody: Custody | None = None  # none: keys for this process only, which read nothing that was sealed before
    notify: NotifySettings | None = None
    notify_cursor: Path = Path("notify.json")
    partitions: int = 64
    observing: Observing = Observing()
    health_file: Path | None = None


class Daemon:
    """A running daemon; `stop()` drains it."""

    def __init__(self, runs: Runs, receiver: bus.Bus, settings: Settings, scorer: Scorer, notifier: Notifier | None) -> None:
        self.runs, self.receiver, self.settings, self.scorer, self.notifier = runs, receiver, settings, scorer, notifier
        self.metrics_port: int | None = None
        self._stopping = anyio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def wait_stopping(self) -> None:
        await self._stopping.wait()

    def why_not(self) -> str:
        """Why nothing is decided just now; empty where it is."""
        return self.runs.health.why or connection.why_away(self.receiver.client)

    def notices(self) -> Counts | None:
        return None if self.notifier is None else self.notifier.counts

    async def reload(self) -> bool:
        """Read the policy again; a broken one changes nothing. True where another policy holds now."""
        try:
            policy = await anyio.to_thread.run_sync(read_policy, self.settings.policy)
            await anyio.to_thread.run_sync(self.scorer.need, policy.semantic)
            await anyio.to_thread.run_sync(check_keys, self.settings.custody, policy)
            await self.runs.log.put_policy(policy.digest, policy.text)
        except GatedError as error:
            log.error("policy.reload_failed", error=str(error), kept=self.runs.registry.current.digest)
            self.runs.health.reload_failed = str(error)
            return False
        mended, self.runs.health.reload_failed = bool(self.runs.health.reload_failed), ""
        if policy.digest == self.runs.registry.current.digest:
            if mended:
                log.info("the policy file is whole again: it says what holds", policy=policy.digest)
            return False
        self.runs.threads.bind(policy)
        log.info("policy reloaded: new runs are bound to it", policy=policy.digest)
        return True


@asynccontextmanager
async def daemon(settings: Settings, event_log: EventLog, policy: Policy) -> AsyncIterator[Daemon]:
    """Run a daemon while the block runs, then drain it: what was taken is decided, published and acknowledged."""
    await anyio.to_thread.run_sync(check_keys, settings.custody, policy)
    await event_log.put_policy(policy.digest, policy.text)
    if isinstance(event_log, Sealed):
        event_log.seal_only_when_asked()
    holder: list[Daemon] = []
    client = await connection.connect(
        settings.url, "gated", lambda: holder[0].receiver.rewind() if holder else None, **settings.credentials
    )
    try:
        await bus.ensure_stream(client, settings.prefix, settings.replicas, await newest_place(event_log))
        if abs(ahead := await connection.seconds_ahead(client)) > SKEW:
            log.warning(
                "this clock and the bus's differ: approvals end by this one, and answers are timed by that", ahead_s=ahead
            )
        made = _assemble(settings, event_log, policy, client)
        holder.append(made)
        await made.runs.arm()
        async with background_tasks() as tasks:
            ended = anyio.Event()
            tasks.start_soon(made.receiver.consume)
            tasks.start_soon(made.runs.find_open_tickets)
            tasks.start_soon(_work, made.runs, ended)
            if made.notifier is not None:
                tasks.start_soon(made.notifier.run_on)
            service = await api.serve(client, made.runs, settings.prefix)
            try:
                gauges = partial(_gauges, made.runs)
                with observed(settings.observing, made.runs.telemetry, gauges, made.notices) as made.metrics_port:
                    log.info("ready", policy=policy.digest, agents=len(policy.agents))
                    yield made
            finally:
                with anyio.CancelScope(shield=True):
                    await _drain(made, event_log, client, ended)
                    await api.stop(service)
                    await made.scorer.close()
    finally:
        await connection.disconnect(client)
        log.info("stopped", records=made.runs.health.records if holder else 0)


async def _work(runs: Runs, ended: anyio.Event) -> None:
    try:
        await runs.run()
    finally:
        ended.set()


async def _drain(made: Daemon, event_log: EventLog, client: SturdyClient, ended: anyio.Event) -> None:
    """Settle what was taken and say it; the log is sealed only then. What is not settled in time is delivered again."""
    try:
        with anyio.move_on_after(DRAIN_SECONDS):
            made.runs.drain()
            await made.receiver.stop()
            await ended.wait()
            await client.flush(FLUSH_SECONDS)
            if made.runs.drained.is_set():
                if isinstance(event_log, Sealed):
                    await event_log.seal()
                return
        why = made.runs.health.why
    except NatsError as error:
        why = str(error) or type(error).__name__
    log.warning("not everything is settled and said: the next start goes on with it", why=why)


def check_keys(custody: Custody | None, policy: Policy) -> None:
    """Raises `LogUnavailable` where a policy keeps data under keys of subjects, and there is no folder to make them in."""
    if policy.redactor.subject is not None:
        if custody is None:
            raise LogUnavailable(NO_FOLDER)
        custody.keyring.name()


def _assemble(settings: Settings, event_log: EventLog, policy: Policy, client: SturdyClient) -> Daemon:
    receiver = bus.Bus(client, lambda item: runs.take(item), lambda: runs.room())
    outlet = Outlet(receiver.line, receiver.send, receiver.acknowledge, settings.prefix, receiver.caught_up)
    custody = settings.custody
    vault = Vault(secrets.token_bytes(VAULT_BYTES)) if custody is None else custody.vault
    if custody is not None:
        publish_copies(custody, client)
    scorer = Scorer(vault.key_for("fingerprints"), lambda entry: judge_of(entry, client, os.environ))
    scorer.need(policy.semantic)
    signer = None if custody is None else custody.signer
    keyring = None if custody is None else custody.keyring
    runs = Runs(event_log, policy, outlet, vault, scorer, settings.decide, signer, keyring)
    return Daemon(runs, receiver, settings, scorer, _notifier(settings, event_log, runs, client))


def _gauges(runs: Runs) -> Gauges:
    health = runs.health
    waiting, threads = health.waiting, health.threads
    counts = (waiting, threads, len(runs.open_tickets), health.records, len(health.damaged))
    return Gauges(*counts, bool(health.why), bool(health.reload_failed))


def _notifier(settings: Settings, event_log: EventLog, runs: Runs, client: SturdyClient) -> Notifier | None:
    if settings.notify is None:
        return None

    def report(body: Body, said: NoticeReported) -> None:
        runs.say(Said(body.thread, body.run, said, time.time_ns() // 1000, 0, None, None))

    made = Notifier(
        settings.notify,
        event_log,
        Cursor(settings.notify_cursor),
        runs.look,
        report,
        client.publish,
        lambda digest: runs.registry.known.get(digest),
    )
    runs.answering.on_ticket = made.noticed
    return made


def rarely_collect() -> None:
    """Tune the garbage collector of a process that is a daemon: what the states let go of is freed by its reference counts,
    so looking for cycles among them, thousands of times a second, only costs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


class Running(Protocol):
    """A daemon, or a worker of a cluster."""

    settings: Settings

    def stop(self) -> None: ...

    async def wait_stopping(self) -> None: ...

    async def reload(self) -> bool: ...

    def why_not(self) -> str: ...


async def run_until_told(started: AbstractAsyncContextManager[Running], ready: Callable[[], None]) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP and a change of the policy file reload the policy.

    A signal that comes while the daemon starts is heard once it runs.
    """
    rarely_collect()
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as heard:
        async with started as made, anyio.create_task_group() as tasks:
            tasks.start_soon(_hear_signals, made, heard)
            unwatched = anyio.Event()
            tasks.start_soon(_watch_policy, made, unwatched)
            if (file := made.settings.health_file) is not None:
                await health_file.write(file, made.why_not())
                tasks.start_soon(health_file.keep, file, made.why_not)
            ready()
            await made.wait_stopping()
            unwatched.set()
            tasks.cancel_scope.cancel()


async def _hear_signals(made: Running, heard: AsyncIterator[signal.Signals]) -> None:
    async for number in heard:
        if number == signal.SIGHUP:
            await made.reload()
        else:
            log.info("stopping", signal=number.name)
            made.stop()


MODEL: Final = ".onnx"  # a policy's model beside it, whose weights are part of it


async def _watch_policy(made: Running, unwatched: anyio.Event) -> None:
    """Reload on a change. The folder of a file is watched, since editors replace files."""
    path = made.settings.policy
    folder = path if path.is_dir() else path.parent
    async for changed in changes_in(folder, until=unwatched):
        if path.is_dir() or any(file.name == path.name or file.suffix == MODEL for file in changed):
            await made.reload()
