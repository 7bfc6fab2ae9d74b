"""What is set aside while something is fetched for it: where links lead, what detectors say, the state of a long thread, a place
for a run.

INVARIANT: a thread's inputs go on in the order in which they came (`Held`), and other threads go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
from anyio.abc import TaskGroup
from msgspec.structs import replace

from gated.core.decide import Step
from gated.core.links import with_links
from gated.core.policy import Policy
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Unfollowed, Unscored
from gated.shell.held import Held
from gated.shell.paths import links_of
from gated.shell.places import Places
from gated.shell.said import Said
from gated.shell.scoring import About, Scorer, unanswered

ASKED: Final = 3  # rounds of asking detectors about one input: an admitted call of it may let another reach them


class Aside(Held[Said]):
    """`ring` is called when something may go on. Without a `scorer` nobody is asked what detectors must be asked."""

    def __init__(self, vault: Vault, scorer: Scorer | None, ring: Callable[[], None]) -> None:
        super().__init__()
        self.tasks: TaskGroup | None = None  # whose tasks fetch
        self._vault, self._scorer, self._ring = vault, scorer, ring

    def set_aside(self, said: Said, made: Step, bound: Policy) -> bool:
        """Hold an input back until the disk, or the detectors, were asked about it. `bound` is the policy of its run."""
        if made.unfollowed and not said.looked and self.tasks is not None:
            self.hold(said.thread)
            self.tasks.start_soon(self._follow, said, made.unfollowed)
            return True
        return bool(made.unscored) and self._ask(said, made, bound)

    def find_place(self, said: Said, state: ThreadState, places: Places) -> None:
        """Hold an input back until its agent's open runs in the whole cluster are known, and its own has a place."""
        assert self.tasks is not None
        self.hold(said.thread)
        self.tasks.start_soon(self._find_place, said, state, places)

    async def _find_place(self, said: Said, state: ThreadState, places: Places) -> None:
        self._go_on(await places.told(state, said))

    def until(self, said: Said, done: Callable[[], Awaitable[object]]) -> None:
        """Hold an input back until something was done."""
        assert self.tasks is not None  # inputs are settled by one of them
        self.hold(said.thread)
        self.tasks.start_soon(self._do, said, done)

    async def _do(self, said: Said, done: Callable[[], Awaitable[object]]) -> None:
        await done()
        self._go_on(said)

    async def _follow(self, said: Said, unfollowed: Sequence[Unfollowed]) -> None:
        observation = with_links(said.observation, await links_of(unfollowed))
        self._go_on(replace(said, observation=observation, looked=True))

    def _ask(self, said: Said, made: Step, bound: Policy) -> bool:
        """Set an input aside and ask the detectors about it. False: there is nobody to ask, or they were asked enough."""
        run = made.state.runs.get(said.run)
        if self._scorer is None or self.tasks is None or bound.semantic is None or said.asked >= ASKED:
            return False
        about = About(
            said.thread,
            said.run,
            said.observation.by.name if run is None else run.agent,
            None if run is None else run.task,
            bound.semantic,
            made.state.semantic,
            lambda text: bound.redactor.text(text, self._vault),
        )
        scope = anyio.CancelScope()
        self.hold(said.thread, scope.cancel)
        self.tasks.start_soon(self._score, self._scorer, said, about, made.unscored, scope)
        return True

    async def _score(
        self, scorer: Scorer, said: Said, about: About, unscored: Sequence[Unscored], scope: anyio.CancelScope
    ) -> None:
        observation = unanswered(said.observation, unscored, "too much was said in the thread meanwhile")
        with scope:
            observation = await scorer.answered(said.observation, about, unscored)
        self._go_on(replace(said, observation=observation, asked=said.asked + 1))

    def _go_on(self, said: Said) -> None:
        self.answered(said.thread, said)
        self._ring()
