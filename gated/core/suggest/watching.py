"""What a log shows of each agent: the calls that ran, with their arguments, and the most that one run took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from gated.core.history import WINDOW
from gated.events import (
    AgentId,
    CallDecided,
    CallId,
    CallSettled,
    IntentsReceived,
    Record,
    RunId,
    RunOpened,
    ThreadId,
    Value,
    Wanted,
    unseal,
)

Place = tuple[ThreadId, RunId]


class Ran(Struct, frozen=True):
    """A call that was allowed."""

    tool: str
    args: dict[str, Value]


class Admitted(Struct, frozen=True):
    """What a call took when it was allowed. `estimate_microusd` is what its agent said of its cost."""

    call: tuple[RunId, CallId]
    tool: str
    estimate_microusd: int | None
    reserved_microusd: int


class Settled(Struct, frozen=True):
    """What it cost in the end."""

    call: tuple[RunId, CallId]
    cost_microusd: int


class RunSeen(Struct):
    """One run, in numbers, its children's calls among its own as budgets count them; `ran` and `nested` are its own alone.

    `together` are the tools that stood in one window of the safety barrier.
    """

    agent: AgentId
    policy: str
    parent: RunId | None
    tools: Counter[str]
    ran: int = 0
    nested: int = 0
    tokens: int = 0
    spent: list[Admitted | Settled] = []
    recent: tuple[str, ...] = ()
    together: set[frozenset[str]] = set()

    def admit(self, taken: Admitted) -> None:
        self.tools[taken.tool] += 1
        self.recent = (*self.recent[1 - WINDOW :], taken.tool)
        self.together.update(frozenset((taken.tool, other)) for other in self.recent)
        self.spent.append(taken)

    def settle(self, settled: Settled, tokens: int) -> None:
        self.tokens += tokens
        self.spent.append(settled)


class Watch:
    """Feed it the records of a log in order. `calls` are those that ran, by agent; `runs` every run that was opened; `owners`
    are the agents that opened each thread.
    """

    def __init__(self) -> None:
        self.calls: dict[AgentId, list[Ran]] = {}
        self.runs: dict[Place, RunSeen] = {}
        self.owners: dict[ThreadId, AgentId] = {}
        self._asked: dict[tuple[Place, CallId], Wanted] = {}

    def feed(self, record: Record) -> None:
        body = unseal(record)
        place = body.thread, body.run
        if isinstance(body.observation, IntentsReceived):
            for wanted in body.observation.calls:
                if wanted.id is not None and wanted.refused is None:
                    self._asked.setdefault((place, wanted.id), wanted)
        for decision in body.decisions:
            match decision:
                case RunOpened():
                    self.owners.setdefault(body.thread, decision.agent)
                    self.runs[place] = RunSeen(decision.agent, decision.policy, decision.parent, Counter())
                case CallDecided() if decision.decision == "allow":
                    self._ran(place, decision)
                case CallSettled():
                    settled = Settled((body.run, decision.call), decision.cost_microusd)
                    for run in self._counted(place):
                        run.settle(settled, decision.tokens)
                case _:
                    pass

    def _ran(self, place: Place, decided: CallDecided) -> None:
        run = self.runs.get(place)
        if run is None:
            return
        asked, admission = self._asked.pop((place, decided.call), None), decided.admission
        reserved = 0 if admission is None else admission.reserved_microusd
        estimate = None if asked is None else asked.cost_microusd
        for counting in self._counted(place):
            counting.admit(Admitted((place[1], decided.call), decided.tool, estimate, reserved))
        run.ran += 1
        run.nested += admission is not None and admission.nested
        args = decided.args if decided.args is not None else {} if asked is None else asked.args
        self.calls.setdefault(run.agent, []).append(Ran(decided.tool, args))

    def _counted(self, place: Place) -> Iterator[RunSeen]:
        """The run and those above it."""
        while (run := self.runs.get(place)) is not None:
            yield run
            if run.parent is None:
                return
            place = place[0], run.parent
