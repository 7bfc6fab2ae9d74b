"""How many runs each agent has open, over all threads: what `runs: {max_open}` counts.

A decision sees one thread, so the count of the others goes into what it decides on, and with it into the record: a replay
reads it there. Counted from when a policy first asks; a daemon counts what its own log holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    AgentId,
    Decision,
    IntentsReceived,
    Observation,
    Record,
    RunEnded,
    RunId,
    RunOpened,
    RunStarted,
    ThreadId,
    UnsealError,
    unseal,
)
from gated.shell.log import ReadableLog

Held = dict[tuple[ThreadId, RunId], AgentId]

OPENING = frozenset({RunStarted, IntentsReceived})  # what may open a run
MARKS = (b'"run_opened"', b'"run_ended"')  # what a record that opens or ends a run holds


def agent_of(observation: Observation) -> AgentId:
    """Whose run an observation may open."""
    return observation.agent if isinstance(observation, RunStarted) else AgentId(observation.by.name)


def asks_of_open_runs(registry: Registry, state: ThreadState, run: RunId, observation: Observation) -> bool:
    """Whether the observation may open a run whose agent may have only so many."""
    if type(observation) not in OPENING or run in state.runs:
        return False
    profile = registry.current.agents.get(agent_of(observation))
    return profile is not None and profile.max_open is not None


@runtime_checkable
class Counting(Protocol):
    """A log that finds its open runs by itself."""

    async def open_runs(self) -> Held: ...


async def _read(log: ReadableLog) -> Held:
    held: Held = {}
    async for _, record in log.read_all():
        if any(mark in record.body for mark in MARKS):
            for decision in decisions_of(record):
                if isinstance(decision, RunOpened):
                    held[record.thread, record.run] = decision.agent
                elif isinstance(decision, RunEnded):
                    held.pop((record.thread, record.run), None)
    return held


def decisions_of(record: Record) -> tuple[Decision, ...]:
    """None of a record that cannot be read: nothing is decided on its thread."""
    try:
        return unseal(record).decisions
    except UnsealError:
        return ()


class OpenRuns:
    """The open runs of every agent."""

    def __init__(self, total: Counter[AgentId]) -> None:
        self._total = total

    @classmethod
    async def of(cls, log: ReadableLog, states: Mapping[ThreadId, ThreadState]) -> OpenRuns:
        """By the states in memory, which may be ahead of the log, and for the other threads by the log.

        Raises `LogUnavailable`.
        """
        states = dict(states)  # while the log is read, threads may leave memory
        held = await log.open_runs() if isinstance(log, Counting) else await _read(log)
        total = Counter(agent for (thread, _), agent in held.items() if thread not in states)
        for state in states.values():
            total.update(dict(state.open_runs))
        return cls(total)

    def told(self, state: ThreadState, observation: Observation) -> Observation:
        """The observation with the agent's open runs on other threads than the state's."""
        assert isinstance(observation, RunStarted | IntentsReceived)
        agent = agent_of(observation)
        return replace(observation, open_elsewhere=self._total[agent] - state.open_runs.get(agent, 0))

    def follow(self, before: ThreadState, after: ThreadState) -> None:
        """A thread went from one state to the next."""
        if before.open_runs is not after.open_runs:
            self._total.update(dict(after.open_runs))
            self._total.subtract(dict(before.open_runs))


class OpenRunsWhenAsked:
    """The same, counted from when they are first asked for."""

    def __init__(self, log: ReadableLog, states: Mapping[ThreadId, ThreadState]) -> None:
        self._log, self._states = log, states
        self._counted: OpenRuns | None = None

    async def told(self, state: ThreadState, observation: Observation) -> Observation:
        """Raises `LogUnavailable`."""
        if self._counted is None:
            self._counted = await OpenRuns.of(self._log, self._states)
        return self._counted.told(state, observation)

    def follow(self, before: ThreadState, after: ThreadState) -> None:
        if self._counted is not None:
            self._counted.follow(before, after)
