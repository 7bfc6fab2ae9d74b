"""What becomes of one input: decided on its thread's state, with what must be fetched for that, or set aside.

What detectors must be asked about, or a long thread that must be read first, is set aside with the rest of its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import anyio
from msgspec.structs import replace

from gated.core import decide as core
from gated.core.answers import due_times, next_due
from gated.core.policy import Policy
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import DeadlineReached, ErasureRequested, Observation, PolicyBound, Record, RunId
from gated.shell import damaged, misaddressed
from gated.shell.aside import Aside
from gated.shell.embedding import embed_all
from gated.shell.erasing import Subjects
from gated.shell.log import EventLog
from gated.shell.open_runs import OpenRunsWhenAsked, asks_of_open_runs
from gated.shell.persisting import Persisting
from gated.shell.places import Places
from gated.shell.said import Said, Settled
from gated.shell.threads import Threads
from gated.shell.timers import Timers

FETCHED_FOR: Final = frozenset({PolicyBound, ErasureRequested})

Decide = Callable[[Registry, ThreadState, RunId, Observation, int, int], tuple[core.Step, Record | None]]


class Deciding:
    """Decides the inputs of one serialiser on `threads`, in the order in which it is given them."""

    def __init__(
        self,
        decide: Decide,
        event_log: EventLog,
        threads: Threads,
        subjects: Subjects,
        timers: Timers,
        aside: Aside,
        persisting: Persisting,
    ) -> None:
        self.threads, self.subjects, self.timers, self.aside = threads, subjects, timers, aside
        self.places: Places | None = None  # what counts open runs, in a cluster
        self._decide, self._persisting = decide, persisting
        self._open_runs = OpenRunsWhenAsked(event_log, threads.states)
        self._embedded_for: Mapping[str, Policy] = {}  # the policies that the newest inputs have embeddings for
        self._embeds = False  # one of them asks for some

    @property
    def registry(self) -> Registry:
        return self.threads.registry

    @property
    def fetches(self) -> bool:
        """Whether something is to be fetched, or waited for, whatever comes next."""
        return bool(self.aside) or self._embeds or self.registry.known is not self._embedded_for

    async def begin(self, batch: list[Said]) -> list[Said]:
        """Look at what is to be decided; the inputs, with embeddings where a policy asks for them."""
        registry = self.registry
        if registry.known is not self._embedded_for or self._embeds:
            self._embedded_for, self._embeds = registry.known, any(each.embeds for each in registry.known.values())
            return await self.embedded(batch)
        return batch

    async def embedded(self, batch: list[Said]) -> list[Said]:
        """The inputs with the embeddings that some policy's barriers read; made in a thread, so that others go on."""
        policies = self.registry.known.values()
        if not any(policy.embeds for policy in policies):
            return batch
        redactors = [policy.redactor for policy in policies]
        found = await anyio.to_thread.run_sync(embed_all, [said.observation for said in batch], redactors)
        return [replace(said, observation=observation) for said, observation in zip(batch, found, strict=True)]

    def at_once(self, said: Said, settled: list[Settled]) -> bool:
        """Decide an input for which nothing must be fetched, as is usual. False: for this something must."""
        state, registry, observation = self.threads.states.get(said.thread), self.threads.registry, said.observation
        if state is None or self.aside or registry.known is not self._embedded_for or type(observation) in FETCHED_FOR:
            return False
        if self.places is None and said.run not in state.runs.open and asks_of_open_runs(registry, state, said.run, observation):
            return False
        made = self.subjects.keyed_at_once(self._decide, registry, state, said.run, observation, said.at, said.position)
        if made is None:
            return False
        self._keep(said, state, registry, *made, settled)
        return True

    async def settle(self, said: Said, settled: list[Settled]) -> None:
        """Decide one input on the state that those before it left, or set it aside."""
        if not said.thread or not said.run:
            settled.append(misaddressed.settled(said))
            return
        if self.aside and self.aside.follows(said.thread, said):
            return
        state = self.threads.states.get(said.thread)
        if state is None:
            part = await self.threads.begin(said.thread)
            if part is not None and not part.whole:
                self.aside.until(said, partial(self._persisting.do, self.threads.end, part))
                return
            state = None if part is None else part.state
        if state is None:
            if type(said.observation) is DeadlineReached:
                self.timers.postpone(said.thread, said.run, said.at)
            settled.append(damaged.settled(said))
            return
        if self.registry.known is not self._embedded_for:  # the thread came with a policy that nobody had asked for
            (said,) = await self.embedded([said])
        handled = 0 < said.position <= state.input
        observation = said.observation
        if type(observation) is PolicyBound:
            observation = await self.threads.with_policy(observation)
        elif type(observation) is ErasureRequested and not handled:
            observation = await self.subjects.erased(self.registry, state.runs.get(said.run), observation)
        elif self.places is None and asks_of_open_runs(self.registry, state, said.run, observation):
            observation = await self._open_runs.told(state, observation)
        said = said if observation is said.observation else replace(said, observation=observation)
        this = (registry := self.registry), state, said.run, observation, said.at, said.position
        made, sealed = await self.subjects.keyed(self._decide, *this)
        self._keep(said, state, registry, made, sealed, settled)

    def _keep(
        self,
        said: Said,
        state: ThreadState,
        registry: Registry,
        made: core.Step,
        sealed: Record | None,
        settled: list[Settled],
    ) -> None:
        """Keep what an input that was decided on a state has made of it; or set it aside, and the state stays as it was."""
        runs, by = made.state.runs, said.observation.by
        run = runs.open.get(said.run) or runs.get(said.run)
        agent = by.name if by.role == "agent" else ("" if run is None else run.agent)
        policy = registry.current.digest if run is None else run.policy
        if 0 < said.position <= state.input:  # it was handled before
            self.threads.keep(state)
            replies = () if made.decisions else made.replies
            settled.append(Settled(said, None, (), replies, agent, policy, again=True))
            return
        if (made.unfollowed or made.unscored) and self.aside.set_aside(said, made, registry.known[policy]):
            self.threads.keep(state)
            return
        if self.places is not None and self.places.needed(registry, state, said, run):
            self.aside.find_place(said, state, self.places)
            self.threads.keep(state)
            return
        self.threads.keep(made.state)
        if self.places is None:
            self._open_runs.follow(state, made.state)
        else:
            self.places.follow(state, made.state, said)
        dues = due_times(made.decisions)
        if type(said.observation) is DeadlineReached and run is not None:
            self.timers.woke(said.thread, said.run)
            dues.append(next_due(run) or 0)
        if dues:
            self.timers.remind(min(dues), said.thread, said.run)
        settled.append(Settled(said, sealed, made.decisions, made.replies, agent, policy))
