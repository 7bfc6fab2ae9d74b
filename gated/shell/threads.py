"""The states of the threads in memory: loaded from a snapshot and the records after it, evicted when they are many.

INVARIANT: a snapshot is never ahead of what is durable, and a thread that is being worked on stays in memory.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import anyio
import structlog
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from gated.core import state as states
from gated.core.policy import Policy
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import PolicyBound, ThreadId
from gated.shell import loading
from gated.shell.handover import Bell
from gated.shell.loading import Part
from gated.shell.log import EventLog, LogUnavailable, ThreadDamaged
from gated.shell.policies import load_stored

CACHE: Final = 10_000  # threads whose state stays in memory
HELD: Final = 5_000_000  # records of them together, since a state grows by up to some hundred bytes with each of its records
SNAPSHOT: Final = 500  # records of a thread between two snapshots
OF_WAITING: Final = 20  # the same where much waits: one for so many rows that it has of that, which costs as much as the others
SLOW: Final = 1000  # such rows from which a snapshot is made in slices
LOOK_AGAIN: Final = 60.0  # seconds until a damaged thread is read again: somebody may have mended the log
POLICIES: Final = 16  # that are known at a time, before it is looked which of them nobody needs any more
UNUSED: Final = 600.0  # seconds since a policy was last asked for: until then whoever asked may go on with it
LONG: Final = 50_000  # records of a thread at which people are warned, and at each so many more

log = structlog.get_logger("gated.runs")


class Threads:
    """`registry` holds the policies that are known: those that threads in memory are bound to, and what was asked for lately."""

    def __init__(
        self, event_log: EventLog, policy: Policy, vault: Vault, on_load: Callable[[ThreadState], None] = lambda state: None
    ) -> None:
        self._log, self._on_load = event_log, on_load
        self.registry = Registry(policy, {policy.digest: policy}, vault)
        self.limits = policy.limits.of_messages  # what one message may hold, by the current policy
        self.states: OrderedDict[ThreadId, ThreadState] = OrderedDict()
        self._saved: dict[ThreadId, int] = {}
        self._asked_for = {policy.digest: time.monotonic()}  # when each known policy last was
        self._most_policies = POLICIES
        self._held = 0  # records of the states in memory
        self._slow: dict[ThreadId, ThreadState] = {}  # whose snapshots are made in slices, one after another
        self._slow_came = Bell()
        self.damages: dict[str, str] = {}  # of each thread that is damaged: what is wrong with it
        self._damaged: dict[ThreadId, tuple[ThreadDamaged, float]] = {}  # the same, and when it was last read

    def bind(self, policy: Policy) -> None:
        """New runs are bound to this policy from now on."""
        self._asked_for[self.registry.current.digest] = time.monotonic()
        self.registry, self.limits = replace(self.registry, current=policy), policy.limits.of_messages
        self._take_in(policy)

    async def look(self, thread: ThreadId) -> ThreadState:
        """The state of a thread, loaded where it is not in memory (and not kept then). Raises `ThreadDamaged`."""
        state = self.states.get(thread)
        if state is not None:
            return state
        part = await self._begin(thread)
        return part.state if part.whole else await self._end(part)

    async def begin(self, thread: ThreadId) -> Part | None:
        """The state of a thread that is not in memory, or the first part of it; None where the thread is damaged."""
        try:
            return await self._begin(thread)
        except ThreadDamaged:
            return None

    async def end(self, part: Part) -> None:
        """Load the rest of a thread and keep it. Where that is damaged `begin` will say so."""
        try:
            self.keep(await self._end(part))
        except ThreadDamaged:
            pass  # which was noted

    def keep(self, state: ThreadState) -> None:
        """The state of its thread from now on."""
        thread, states = state.thread, self.states
        before = states.get(thread)
        self._held += state.seq if before is None else state.seq - before.seq
        states[thread] = state
        states.move_to_end(thread)

    async def _begin(self, thread: ThreadId) -> Part:
        known, read_at = self._damaged.get(thread, (None, 0.0))
        if known is not None and time.monotonic() - read_at < LOOK_AGAIN:
            raise known.again()
        try:
            part = await loading.begin(self._log, thread, self._know_policy, self._known)
        except ThreadDamaged as error:
            self._note_damage(thread, error)
            raise
        if part.whole:
            self._loaded(part)
        return part

    async def _end(self, part: Part) -> ThreadState:
        try:
            part = await loading.end(self._log, part, self._know_policy, self._known)
        except ThreadDamaged as error:
            self._note_damage(part.state.thread, error)
            raise
        self._loaded(part)
        return part.state

    def _known(self) -> Mapping[str, Policy]:
        return self.registry.known

    def _loaded(self, part: Part) -> None:
        thread = part.state.thread
        if thread in self._damaged:
            del self._damaged[thread], self.damages[thread]
        if len(self._saved) > 2 * CACHE:  # most of them threads that were only looked at
            self._saved = {known: seq for known, seq in self._saved.items() if known in self.states}
        self._saved[thread] = part.saved
        self._on_load(part.state)

    def _note_damage(self, thread: ThreadId, error: ThreadDamaged) -> None:
        if thread not in self._damaged:
            log.error("a thread is damaged: nothing is decided on it, the others go on", thread=thread, error=str(error))
        self._damaged[thread], self.damages[thread] = (error, time.monotonic()), str(error)

    def adopt(self, state: ThreadState, saved: int, policies: Mapping[str, Policy]) -> None:
        """Keep a thread that was loaded elsewhere and ends as the log does; `saved` is the number of its snapshot's record."""
        self.registry = replace(self.registry, known={**policies, **self.registry.known})
        self._saved[state.thread] = saved
        self.keep(state)
        self._on_load(state)

    def newest(self, size: int) -> list[tuple[int, bytes]]:
        """The threads that were spoken of last, so many bytes of them: each one's snapshot's number, and a snapshot of it now."""
        found: list[tuple[int, bytes]] = []
        for thread, state in reversed(self.states.items()):
            if states.waiting(state) > SLOW:
                continue
            written = states.dump(state)
            size -= len(written)
            if size < 0:
                break
            found.append((self._saved.get(thread, 0), written))
        return found

    async def knowing(self, digests: Iterable[str]) -> Mapping[str, Policy]:
        """The policies that are known, those asked for among them where the log has them."""
        for digest in digests:
            await self._know_policy(digest)
        return self.registry.known

    async def with_policy(self, observation: PolicyBound) -> PolicyBound:
        """A wish to bind a run, with whether the log has the policy: it may have it later, and a replay must decide the same."""
        await self._know_policy(observation.policy)
        return replace(observation, unknown=observation.policy not in self.registry.known)

    async def _know_policy(self, digest: str) -> None:
        if digest in self.registry.known:
            self._asked_for[digest] = time.monotonic()
            return
        text = await self._log.policy(digest)
        if text is not None:
            self._take_in(load_stored(text, digest, lenient=True))

    def _take_in(self, policy: Policy) -> None:
        self._asked_for[policy.digest] = time.monotonic()
        known = {**self.registry.known, policy.digest: policy}
        if len(known) > self._most_policies:
            needed = {self.registry.current.digest, *(digest for state in self.states.values() for digest in state.policies)}
            lately = time.monotonic() - UNUSED
            known = {digest: held for digest, held in known.items() if digest in needed or self._asked_for[digest] > lately}
            self._asked_for = {digest: self._asked_for[digest] for digest in known}
            self._most_policies = max(POLICIES, 2 * len(known))
        self.registry = replace(self.registry, known=known)

    # --- memory ------------------------------------------------------------------------------------------------------

    def unsettled(self, changed: Iterable[ThreadId]) -> bool:
        """Whether `settle_down` has something to do."""
        states, saved = self.states, self._saved
        for thread in changed:
            state = states.get(thread)
            if state is not None and state.seq - saved.get(thread, 0) >= SNAPSHOT:
                return True
        return len(states) > CACHE or self._held > HELD

    async def settle_down(self, changed: Iterable[ThreadId], is_busy: Callable[[ThreadId], bool]) -> None:
        """After a commit: snapshots of what has grown, and the threads that were not spoken of for longest leave."""
        for thread in changed:
            state = self.states.get(thread)
            if state is not None and state.seq - self._saved.get(thread, 0) >= SNAPSHOT:
                await self._snapshot_in_turn(state)
        if len(self.states) <= CACHE and self._held <= HELD:
            return
        leaving = [state for state in self._surplus() if not self._stays(state.thread, is_busy)]
        if not leaving:
            return
        async with anyio.create_task_group() as tasks:  # side by side, so that their snapshots share a commit
            for state in leaving:
                tasks.start_soon(self._leave, state)

    def _surplus(self) -> list[ThreadState]:
        """What is more than may stay, longest not spoken of first."""
        found: list[ThreadState] = []
        count, records = len(self.states), self._held
        for state in self.states.values():
            if count <= CACHE and (records <= HELD or count <= 1):
                break
            found.append(state)
            count, records = count - 1, records - state.seq
        return found

    def _stays(self, thread: ThreadId, is_busy: Callable[[ThreadId], bool]) -> bool:
        if is_busy(thread):
            self.states.move_to_end(thread)
            return True
        return False

    async def _leave(self, state: ThreadState) -> None:
        """A thread leaves memory, if its last record is durable and it is not spoken of meanwhile."""
        if await self._log.get(state.thread, state.seq) is None:
            self.states.move_to_end(state.thread)
            return
        if self._saved.get(state.thread) != state.seq and not await self._snapshot_in_turn(state, leaving=True):
            self.states.move_to_end(state.thread)
            return
        if self.states.get(state.thread) is state:
            del self.states[state.thread]
            self._held -= state.seq
            self._saved.pop(state.thread, None)

    async def _snapshot_in_turn(self, state: ThreadState, *, leaving: bool = False) -> bool:
        """A snapshot now, or later where it is slow to make. False: later, or not yet."""
        rows = states.waiting(state)
        if rows <= SLOW:
            await self._snapshot(state, states.dump(state))
            return True
        since = state.seq - self._saved.get(state.thread, 0)
        if state.thread not in self._slow and (leaving or since >= rows // OF_WAITING):
            self._slow[state.thread] = state
            self._slow_came.ring()
        return False

    async def keep_snapshots(self) -> None:
        """Make the slow ones until cancelled: others have their turn between two slices."""
        while True:
            await self._slow_came.wait()
            while self._slow:
                thread, state = next(iter(self._slow.items()))
                await self._snapshot(state, await _in_slices(state))
                del self._slow[thread]

    async def _snapshot(self, state: ThreadState, written: bytes) -> None:
        try:
            if await self._log.get(state.thread, state.seq) is None:
                return
            await self._log.save_snapshot(state.thread, state.seq, written)
            if state.seq // LONG > self._saved.get(state.thread, 0) // LONG:
                log.warning(
                    "a thread grows long: end its runs, and begin others on a new one", thread=state.thread, records=state.seq
                )
            self._saved[state.thread] = state.seq
        except LogUnavailable as error:
            log.warning("cannot save a snapshot", thread=state.thread, error=str(error))


async def _in_slices(state: ThreadState) -> bytes:
    slices = states.dump_in_slices(state)
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return bytes(done.value)
        await checkpoint()
