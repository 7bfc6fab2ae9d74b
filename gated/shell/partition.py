"""One partition in one worker: wait for it, take it over, work, hand it over.

Where the server gives it, taking over is, in this order: write the lease (nobody else's append is taken from then on), drop the
old inbox, rewind the consumer to its acknowledged floor, take inputs only from a fresh inbox and only without a gap, know nothing
but the log. Each was found to be needed. What the log decided already is answered again from it.
Where an owner hands it over, that one has stopped, and everything it took is acknowledged: so the consumer goes on where it ended
while the lease is written, and threads are in memory as they were, once the log has been read under the lease and ends there.
INVARIANT: a session that has lost its lease, its pin, or its certainty of what the log holds ends, and nothing of its memory is
used again. What it had taken is delivered again, here or elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import anyio
import msgspec
import structlog
from msgspec.structs import replace
from nats.errors import Error as NatsError

from gated import wire
from gated.core import state as states
from gated.core.state import ThreadState
from gated.events import DeadlineReached, RunId, ThreadId
from gated.ingress import is_id
from gated.shell.bus import Input, Source
from gated.shell.log import LogConflict, LogError, LogLocked
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.log.jetstream_reader import Head
from gated.shell.log.jetstream_streams import GROUP
from gated.shell.passed_bus import PassedBus
from gated.shell.place import Host, Place
from gated.shell.places import Places
from gated.shell.runs import Runs
from gated.shell.said import TIMER, Health, Outlet, Said
from gated.shell.stand_by import Claim, StandBy, first_of, quietly, unwanted, wake_up
from gated.shell.succession import CARRIED, HEED, LOOK, Heir, Legacy, Told
from gated.shell.threads import Threads

RELEASE_SECONDS: Final = 10.0  # for what was taken before a hand-over
PAUSE: Final = 0.2

log = structlog.get_logger("gated.partition")


class Partition:
    """`number` of the cluster's partitions. `hold` runs for as long as the worker does."""

    def __init__(self, number: int, place: Place, host: Host) -> None:
        self.number, self.place, self.host = number, place, host
        self.runs: Runs | None = None
        self.bus: PassedBus | None = None
        self.gone = Health()  # what sessions before this one did
        self._heir = Heir()

    async def hold(self) -> None:
        """Have the partition whenever it should be here, until cancelled."""
        while True:
            while not self.host.wants(self.number):
                await self.host.changed()
            try:
                claim = await StandBy(self.number, self.place, self.host).wait()
                while claim is not None:
                    claim = await self._work(claim)
            finally:
                self._end_turn()

    def _end_turn(self) -> None:
        turns = self.host.turns
        if self.number in turns.statistics().borrowers:
            turns.release_on_behalf_of(self.number)

    def asked(self, reply: str) -> None:
        """Another worker, which listens there, would have this partition. Heard where it should not be here."""
        if self.runs is not None and not self.host.wants(self.number):
            self._heir.note(reply)

    # --- working -----------------------------------------------------------------------------------------------------

    async def _work(self, claim: Claim) -> Claim | None:
        """One session. Returns what it has the partition by, where that may still hold and the session has to begin again."""
        try:
            if claim.left is None and not await self._pinned(claim.pin):
                return None
            event_log = JetStreamLog(self.place.api, self.place.names, self.place.shape, self.place.worker)
            if claim.left is None:
                await event_log.take_over([self.number])
            await self._session(event_log, claim)
            return None
        except Exception as error:
            ends = leaves(error)
            if not all(isinstance(end, (LogError, NatsError, OSError)) for end in ends):
                raise
            why = "; ".join(dict.fromkeys(str(end) or type(end).__name__ for end in ends))
            log.warning("a session of a partition ended", partition=self.number, why=why)
            if any(isinstance(end, LogLocked) for end in ends):
                return None  # the pin went with the lease, or the server will say who has it
            await anyio.sleep(0 if all(isinstance(end, LogConflict) for end in ends) else PAUSE)
            return Claim(claim.pin)
        finally:
            self._forget()
            self._end_turn()

    async def _pinned(self, pin: str) -> bool:
        """Whether the server still knows this worker by its pin: one that slept must not take the lease of who came after it."""
        info = await self.place.api.ask(f"CONSUMER.INFO.{self.place.consumer(self.number)}")
        return any(group.get("pinned_client_id") == pin for group in info.get("priority_groups") or ())

    async def _session(self, event_log: JetStreamLog, claim: Claim) -> None:
        source = Source(self.place.names.inputs, self.place.names.consumer(self.number), GROUP, claim.pin)
        place = self.place
        upcoming = 0 if claim.left is None else claim.left.upcoming
        bus = PassedBus(place.client, place.api, lambda item: take(runs, item), lambda: runs.room(), source, upcoming)
        outlet = Outlet(bus.line, bus.send, bus.acknowledge, place.names.prefix, tells_time=True)
        more = (place.vault, place.scorer, place.decide, place.signer, place.keyring)
        runs = Runs(event_log, self.host.policy(), outlet, *more)
        runs.telemetry = self.host.telemetry
        if place.shape.replicas == 1:  # with more, an append is a batch of its own
            self.host.together.join(runs, event_log)
        self.runs, self.bus, self._heir = runs, bus, Heir()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bus.consume)
                if claim.left is not None:
                    await event_log.succeed(self.number, claim.left.lease)
                    await self._adopt(runs.threads, event_log, claim.left.threads)
                log.info("partition taken over", partition=self.number, lease=event_log.epoch, given=claim.left is not None)
                places = Places(event_log, self.number, place.ledgers, runs.threads, await event_log.agents_counted())
                runs.count_with(places)
                tasks.start_soon(places.work)
                over = anyio.Event()
                tasks.start_soon(_until_over, runs, over)
                self._end_turn()
                tasks.start_soon(bus.check_whole)
                await first_of(self._outlived, bus.unpinned.wait)
                if not bus.unpinned.is_set():
                    await self._release(runs, over, bus, event_log, claim.pin)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await quietly(bus.stop)  # a session that is over must not keep the pin by pulling
        log.info("partition left", partition=self.number, lost=bus.unpinned.is_set())

    async def _adopt(self, threads: Threads, event_log: JetStreamLog, told: Sequence[Told]) -> None:
        """Go on with the threads that the last owner told, where the log ends as it said."""
        found = {state.thread: (one.saved, state) for one in told if (state := _state_of(one)) is not None}
        ends = await event_log.heads_of(list(found))
        sound = [(saved, state) for thread, (saved, state) in found.items() if _ends_with(ends[thread], state)]
        policies = await self.host.known({digest for _, state in sound for digest in state.policies})
        for saved, state in reversed(sound):
            if policies.keys() >= set(state.policies):
                threads.adopt(state, saved, policies)

    async def _outlived(self) -> None:
        """Until the partition is to be left: it should be elsewhere, and is asked for, or nobody will ask."""
        while True:
            await unwanted(self.host, self.number)
            until = anyio.current_time() + HEED
            while not self.host.wants(self.number):
                if self._heir.reply or anyio.current_time() > until or not self.host.has_heirs():
                    return
                with anyio.move_on_after(LOOK):  # one that dies is not heard, and nothing tells
                    await first_of(self._heir.heard.wait, self.host.changed)

    async def _release(self, runs: Runs, over: anyio.Event, bus: PassedBus, event_log: JetStreamLog, pin: str) -> None:
        """Finish what was taken, and hand the partition over; or let the server give it to who waits for it."""
        heir = self._heir.reply
        with anyio.CancelScope(shield=True), anyio.move_on_after(RELEASE_SECONDS):
            await quietly(bus.finish)
            runs.drain()
            await over.wait()
            if not runs.drained.is_set():  # it failed, and this session with it
                return
            if runs.places is not None:
                await runs.places.given_back(RELEASE_SECONDS)
            if heir:
                left = Legacy(pin, event_log.epoch, bus.next, tuple(Told(*one) for one in runs.threads.newest(CARRIED)))
                await quietly(lambda: self.place.client.publish(heir, msgspec.msgpack.encode(left)))
                return
            try:
                await self.place.api.ask(f"CONSUMER.UNPIN.{self.place.consumer(self.number)}", {"group": GROUP})
            except LogError as error:
                log.warning("cannot unpin, the pin ends by itself", partition=self.number, error=str(error))
            await wake_up(self.place, self.number)  # what was sent here and not taken any more is for the next one, at once

    def _forget(self) -> None:
        if self.runs is not None:
            self.gone.records += self.runs.health.records
            self.gone.verdicts += self.runs.health.verdicts
        self.runs, self.bus = None, None
        self.host.left(self.number)


async def _until_over(runs: Runs, over: anyio.Event) -> None:
    try:
        await runs.run()
    finally:
        over.set()


def _ends_with(end: Head | None, state: ThreadState) -> bool:
    return end is not None and (end.seq, end.hash) == (state.seq, state.head)


def _state_of(told: Told) -> ThreadState | None:
    """None where it is of another version than this worker's: then its records are read."""
    try:
        return states.load(told.state)
    except ValueError as error:
        log.info("a thread cannot be read as it was handed over", why=str(error))
        return None


def take(runs: Runs, item: Input) -> None:
    """An input as the stream stores it: with its partition before its thread. Deadlines are inputs of the daemon itself."""
    origin = wire.parse_stored_subject(item.subject, runs.outlet.prefix)
    if origin is not None:
        runs.hear(origin, item)
        return
    tokens = item.subject.split(".")
    due = _due(item.data) if len(tokens) == 7 and tokens[5] == "timer" else 0
    if due and is_id(tokens[3]) and is_id(tokens[4]):
        runs.say(Said(ThreadId(tokens[3]), RunId(tokens[4]), DeadlineReached(TIMER, due), item.at, item.position, item.ack, None))
    else:  # which says what is wrong with it, in its sender's words
        runs.take(replace(item, subject=".".join(tokens[:2] + tokens[3:])))


def _due(data: bytes) -> int:
    try:
        return msgspec.json.decode(data, type=dict[str, int]).get("due", 0)
    except msgspec.MsgspecError:
        return 0


def leaves(error: BaseException) -> list[BaseException]:
    """What is in a group of exceptions, however deep."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
