"""The world of one scenario: threads, their logs, a clock that steps move, and the names that the file uses.

It speaks to the core as the daemon does and has nothing of its own to decide. Its parts are immutable or copied whole, so an
interleaving of `concurrent` steps is played on a fork.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gated.core.answers import due_times
from gated.core.decide import record
from gated.core.links import follow, with_links
from gated.core.policy import Policy
from gated.core.redaction.cover import revealed
from gated.core.redaction.vault import Vault
from gated.core.state import RunState, ThreadState
from gated.core.turn import Registry, Repeat, Reply, Unfollowed
from gated.events import (
    AgentId,
    CallDecided,
    CallId,
    DeadlineReached,
    Decision,
    IntentsReceived,
    Observation,
    Record,
    RunId,
    RunStarted,
    Score,
    Sender,
    ThreadId,
    TicketId,
    unseal,
)

START = 1_700_000_000_000_000  # µs; any fixed moment does
TIMER = Sender("timer", "scenario")
VAULT = Vault(b"scenario")  # any fixed key does: what a scenario redacts is nobody's secret


Prepare = Callable[[Observation, Policy], Observation]  # adds what a daemon records with an input: its embeddings


class Entry(Struct, frozen=True):
    """A record of the scenario, with the policy that was current when it was made."""

    record: Record
    policy: Policy


class World:
    def __init__(self, policy: Policy, prepare: Prepare | None = None) -> None:
        self.current = policy
        self._prepare = prepare
        self.known: dict[str, Policy] = {policy.digest: policy}
        self.threads: dict[ThreadId, ThreadState] = {}
        self.log: list[Entry] = []
        self.now = START
        self.agents: dict[tuple[ThreadId, RunId], AgentId] = {}
        self.thread_of: dict[RunId, ThreadId] = {}
        self.deadlines: dict[tuple[int, ThreadId, RunId], None] = {}  # in the order in which they were set
        self.thread, self.run, self.agent = ThreadId(""), RunId(""), AgentId("")
        self.links: dict[str, str] = {}  # symbolic links of the scenario's disk, and where they lead
        self.scores: dict[str, float | int | str] = {}  # what detectors say of every call that says nothing else
        self.scored: dict[tuple[ThreadId, RunId, CallId], dict[str, Score]] = {}

    def fork(self) -> World:
        twin = copy.copy(self)
        twin.known, twin.threads, twin.log = dict(self.known), dict(self.threads), list(self.log)
        twin.scored = dict(self.scored)
        twin.agents, twin.thread_of, twin.deadlines = dict(self.agents), dict(self.thread_of), dict(self.deadlines)
        return twin

    def speak_for(self, thread: ThreadId, run: RunId, agent: AgentId) -> None:
        self.thread, self.run, self.agent = thread, run, agent
        self.thread_of[run] = thread
        self.agents[(thread, run)] = agent

    @property
    def sender(self) -> Sender:
        return Sender("agent", self.agent)

    @property
    def state(self) -> ThreadState:
        return self.threads.get(self.thread) or ThreadState(self.thread)

    @property
    def run_state(self) -> RunState | None:
        return self.state.runs.get(self.run)

    def bind(self, policy: Policy) -> None:
        self.current = policy
        self.known[policy.digest] = policy

    def observe(self, observation: Observation) -> list[Decision | Reply]:
        """Say something for the present run; what the core decided and answered, repeats looked up in the log."""
        if self._prepare is not None and self.current.embeds:
            observation = self._prepare(observation, self.current)
        return self._observe(self.thread, self.run, observation, self.now)

    def _with_open(self, thread: ThreadId, observation: Observation) -> Observation:
        """As the daemon says it: with the agent's open runs on other threads, where the policy caps them."""
        if not isinstance(observation, RunStarted | IntentsReceived):
            return observation
        agent = observation.agent if isinstance(observation, RunStarted) else AgentId(observation.by.name)
        profile = self.current.agents.get(agent)
        if profile is None or profile.max_open is None:
            return observation
        others = sum(state.open_runs.get(agent, 0) for name, state in self.threads.items() if name != thread)
        return replace(observation, open_elsewhere=others)

    def _followed(self, unfollowed: tuple[Unfollowed, ...]) -> dict[CallId, dict[str, str]]:
        found: dict[CallId, dict[str, str]] = {}
        for item in unfollowed:
            followed = found.setdefault(item.call, {})
            for path in item.paths:
                with suppress(OSError):  # a loop of links leads nowhere
                    followed[path] = follow(path, self.links.get)
        return found

    def _observe(self, thread: ThreadId, run: RunId, observation: Observation, at: int) -> list[Decision | Reply]:
        state = self.threads.get(thread) or ThreadState(thread)
        said = self._with_open(thread, observation)
        registry = Registry(self.current, self.known, VAULT)
        made, sealed = record(registry, state, run, said, at)
        if made.unfollowed:
            made, sealed = record(registry, state, run, with_links(said, self._followed(made.unfollowed)), at)
        if sealed is not None:
            self.log.append(Entry(sealed, self.current))
        self.threads[thread] = made.state
        self.deadlines.update(((due, thread, run), None) for due in due_times(made.decisions))
        decisions = [revealed(d, VAULT) if isinstance(d, CallDecided) else d for d in made.decisions]
        return [*decisions, *made.replies]

    def verdict_of(self, repeat: Repeat) -> CallDecided:
        """The recorded verdict that a repeated call is answered with."""
        body = next(
            unseal(entry.record) for entry in self.log if entry.record.thread == self.thread and entry.record.seq == repeat.seq
        )
        return next(d for d in reversed(body.decisions) if isinstance(d, CallDecided) and d.call == repeat.call)

    def advance(self, by: int, fire: bool) -> list[Decision | Reply]:
        """Move the time; timers that are due run in order, each at its own moment."""
        self.now += by
        fired: list[Decision | Reply] = []
        while fire and (due := min((d for d in self.deadlines if d[0] <= self.now), key=lambda d: d[0], default=None)):
            del self.deadlines[due]
            at, thread, run = due
            fired += self._observe(thread, run, DeadlineReached(TIMER, at), at)
        return fired

    def history(self) -> list[str]:
        """The admitted tools of the present run, in order, read from the log."""
        return [
            decision.tool
            for entry in self.log
            if entry.record.thread == self.thread and entry.record.run == self.run
            for decision in unseal(entry.record).decisions
            if isinstance(decision, CallDecided) and decision.admission is not None
        ]

    def ticket_named(self, name: str) -> tuple[TicketId, str]:
        """The ticket of a call (its newest; `c1.2` a certain one) and its digest; an unknown name stands for itself."""
        call, _, number = name.partition(".")
        run = self.run_state
        mine = [] if run is None else [t for t in run.tickets.values() if any(c.call == call for c in t.calls)]
        mine.sort(key=lambda ticket: (ticket.opened_at, len(ticket.id), ticket.id))
        numbered = {str(place): ticket for place, ticket in enumerate(mine, 1)}
        ticket = numbered.get(number or str(len(mine)))
        if ticket is None:
            return TicketId(name), ""
        return ticket.id, ticket.args_sha256


def call_id(value: Any) -> CallId:
    return CallId(str(value))
