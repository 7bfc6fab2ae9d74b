"""`runs: {max_open}` in a cluster: a run has a place before the record that opens it, and until after the one that ends it.

One session's half of it: what it knows of its own partition, which is what the log says up to a place, and what was decided
since. The other half is the ledger (`gated/shell/ledger.py`), where the partitions' numbers meet. An agent is
counted from when a policy first limits it, and for good: a number that some worker's policy let grow old would be believed later.
INVARIANT: an opening waits, with its thread, until it has its place; a session's end gives none back by itself: the next one
says what the log has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, ParamSpec, TypeVar

import anyio
import structlog
from msgspec.structs import replace

from gated.core.policy import Policy
from gated.core.state import RunState, ThreadState
from gated.core.turn import Registry
from gated.events import AgentId, IntentsReceived, Record, RunStarted, ThreadId
from gated.shell import faults
from gated.shell.handover import Bell
from gated.shell.ledger import NOTHING, Ledgers, Placed, Tally, Whose, count
from gated.shell.log import LogUnavailable, ThreadDamaged
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.open_runs import agent_of
from gated.shell.said import Said
from gated.shell.threads import Threads

RETRY: Final = 0.25  # seconds between two attempts to reach the ledger
GIVEN_BACK: Final = 1.0  # seconds that answers wait at most until the places of runs that ended are free
OLD: Final = 10_000  # records of a partition after which its rows are written again: the next owner reads what came since

P = ParamSpec("P")
Made = TypeVar("Made")

log = structlog.get_logger("gated.places")


class _Decided(NamedTuple):
    """A record that opens or ends runs, not yet durable: by how much each agent's runs grow, and whose place it uses."""

    thread: ThreadId
    seq: int
    grown: dict[AgentId, int]
    placed: AgentId | None


class Places:
    """The open runs of a partition's agents, where they are counted."""

    def __init__(
        self, event_log: JetStreamLog, partition: int, ledgers: Ledgers, threads: Threads, before: Iterable[AgentId]
    ) -> None:
        """`before`: the agents that were counted before."""
        self._log, self._partition, self._ledgers, self._threads = event_log, partition, ledgers, threads
        self._wanted = set(before)  # whose runs are to be counted
        self._seen = event_log.reach
        self._since = 0  # records since all rows were written
        self._tallies: dict[AgentId, Tally] = {}  # of those that are, or are about to be
        self._counted: set[AgentId] = set()
        self._decided: deque[_Decided] = deque()
        self._counting = anyio.Lock()
        self._bell, self._written, self._moved = Bell(), anyio.Event(), anyio.Event()

    # --- what the serialiser asks and tells --------------------------------------------------------------------------

    def needed(self, registry: Registry, state: ThreadState, said: Said, run: RunState | None) -> bool:
        """Whether a place is to be asked for, before `run` is opened by what was said."""
        if run is None or said.run in state.runs or said.place is not None:
            return False
        return run.agent in self._wanted or _limit(registry, run.agent) is not None

    async def told(self, state: ThreadState, said: Said) -> Said:
        """What was said, with its agent's open runs on other threads; where one more may be open it has its place now.

        Waits until the ledger can be reached. Raises `LogLocked`.
        """
        observation = said.observation
        assert isinstance(observation, RunStarted | IntentsReceived)
        agent = agent_of(observation)
        found = await self._patiently(self._place, agent)
        if found.place:
            faults.point("placed")
        elsewhere = found.held - state.open_runs.get(agent, 0)
        return replace(said, observation=replace(observation, open_elsewhere=elsewhere), place=found.place)

    async def _place(self, agent: AgentId) -> Placed:
        await self._count([agent])
        return await self._ledgers.of(agent).place(self._tallies[agent], _limit(self._threads.registry, agent))

    def follow(self, before: ThreadState, after: ThreadState, said: Said) -> None:
        """A thread went from one state to the next, by what was said."""
        placed = agent_of(said.observation) if said.place else None
        if placed is not None and said.run not in after.runs:
            self._tallies[placed].pending -= 1
            placed = None
        if before.open_runs is not after.open_runs:
            agents = {*before.open_runs, *after.open_runs}
            grown = {a: after.open_runs.get(a, 0) - before.open_runs.get(a, 0) for a in agents}
            self._decided.append(_Decided(after.thread, after.seq, grown, placed))

    def stored(self, records: Sequence[Record]) -> None:
        """Records are durable."""
        for record in records if self._decided else ():
            if self._decided and (record.thread, record.seq) == self._decided[0][:2]:
                self._add(self._decided.popleft())
                self._moved.set()
        if self._moved.is_set():
            self._moved = anyio.Event()
        self._since += len(records)
        self._seen = self._log.reach
        for tally in self._tallies.values():
            tally.seen = self._seen
        if self._since >= OLD:
            self._bell.ring()

    def _add(self, decided: _Decided) -> None:
        for agent, grown in decided.grown.items():
            if agent in self._tallies:
                self._tallies[agent].open += grown
        if decided.placed is not None:
            self._tallies[decided.placed].pending -= 1

    @property
    def owes(self) -> bool:
        """Whether a row says more than there is."""
        for tally in self._tallies.values():
            if tally.written is not None and tally.held < tally.written.held:
                return True
        return False

    async def given_back(self, seconds: float = GIVEN_BACK) -> None:
        """Wait until no row says more than there is; that long at most, and not again where that was too long."""
        if self.owes:
            late = not self._written.is_set()
            if not late:
                self._written = anyio.Event()
            self._bell.ring()
            with anyio.move_on_after(0 if late else seconds):
                await self._written.wait()
            faults.point("given_back")

    # --- counting ----------------------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """The policy may be another."""
        self._bell.ring()

    async def work(self) -> None:
        """Count whom a policy limits, and whoever was counted before; keep their rows true. Raises `LogLocked`."""
        while True:
            written, registry = self._written, self._threads.registry  # as they were rung for before now
            await self._patiently(self._count, self._wanted | limited(registry.current))
            await self._patiently(self._write)
            written.set()
            await self._bell.wait()

    async def _patiently(self, work: Callable[P, Awaitable[Made]], *given: P.args, **named: P.kwargs) -> Made:
        said = ""
        while True:
            try:
                return await work(*given, **named)
            except LogUnavailable as error:
                if str(error) != said:
                    said = str(error)
                    log.warning(
                        "open runs cannot be counted just now: who would open one waits", why=said, partition=self._partition
                    )
                await anyio.sleep(RETRY)

    async def _write(self) -> None:
        """Write the rows that say too much, or are old."""
        old, self._since = self._since >= OLD, 0 if self._since >= OLD else self._since
        for agent in sorted(self._counted):
            tally = self._tallies[agent]
            if old or tally.written is None or tally.written.held != tally.held:
                await self._ledgers.of(agent).write(tally)

    async def _count(self, agents: Iterable[AgentId]) -> None:
        """Know the open runs of agents in this partition: by their rows up to a place, by the log from there on."""
        async with self._counting:
            new = [agent for agent in agents if agent not in self._counted]
            self._wanted.update(new)
            until = self._seen
            tallies = {agent: Tally(self._partition, lambda: self._log.epoch, until) for agent in new}
            self._tallies |= tallies  # which hear from now on what is stored after that
            try:
                rows = {agent: (await self._ledgers.of(agent).rows())[self._partition] for agent in new}
                rows = {agent: row if row.seen <= until else NOTHING for agent, row in rows.items()}
                found = await count(self._log, self._partition, rows, until, whose_run(self._threads)) if rows else {}
                while any(self._without_place(agent) for agent in new):  # a row says no less than there is
                    await self._moved.wait()
            except BaseException:
                for agent in new:
                    del self._tallies[agent]
                raise
            for agent, tally in tallies.items():
                tally.open += found[agent]
            self._counted.update(new)
            for agent, tally in tallies.items():
                await self._ledgers.of(agent).write(tally)

    def _without_place(self, agent: AgentId) -> bool:
        """Whether a run of the agent was opened before it was counted, and is on its way into the log."""
        return any(decided.placed is None and decided.grown.get(agent, 0) > 0 for decided in self._decided)


def whose_run(threads: Threads) -> Whose:
    """Whose run a record ended. Nobody's where its thread is damaged: a run of it keeps its place."""

    async def whose(record: Record) -> AgentId | None:
        try:
            run = (await threads.look(record.thread)).runs.get(record.run)
        except ThreadDamaged:
            return None
        return None if run is None else run.agent

    return whose


def limited(policy: Policy) -> set[AgentId]:
    """The agents that may have only so many runs open."""
    return {agent for agent, profile in policy.agents.items() if profile.max_open is not None}


def _limit(registry: Registry, agent: AgentId) -> int | None:
    profile = registry.current.agents.get(agent)
    return None if profile is None else profile.max_open
