"""What a log shows of each agent: the calls that ran, with their arguments, and the most that one run took."""

from __future__ import annotations

from collections import Counter
from typing import Any

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
    unseal,
)

Place = tuple[ThreadId, RunId]


class Ran(Struct, frozen=True):
    """A call that was allowed."""

    tool: str
    args: dict[str, Value]


class RunSeen(Struct):
    """One run, in numbers. `cost_microusd` is the most that was settled and reserved at once, `together` are the tools that
    stood in one window of the safety barrier.
    """

    agent: AgentId
    policy: str
    tools: Counter[str]
    cost_microusd: int = 0
    tokens: int = 0
    settled: int = 0
    reserved: dict[CallId, int] = {}
    recent: tuple[str, ...] = ()
    together: set[frozenset[str]] = set()

    def admit(self, call: CallId, tool: str, reserved: int) -> None:
        self.tools[tool] += 1
        self.recent = (*self.recent[1 - WINDOW :], tool)
        self.together.update(frozenset((tool, other)) for other in self.recent)
        self.reserved[call] = reserved
        self._spent()

    def settle(self, call: CallId, cost: int, tokens: int) -> None:
        self.reserved.pop(call, None)
        self.settled += cost
        self.tokens += tokens
        self._spent()

    def _spent(self) -> None:
        self.cost_microusd = max(self.cost_microusd, self.settled + sum(self.reserved.values()))


class Watch:
    """Feed it the records of a log in order. `calls` are those that ran, by agent; `runs` every run that was opened."""

    def __init__(self) -> None:
        self.calls: dict[AgentId, list[Ran]] = {}
        self.runs: dict[Place, RunSeen] = {}
        self._asked: dict[tuple[Place, CallId], dict[str, Any]] = {}

    def feed(self, record: Record) -> None:
        body = unseal(record)
        place = body.thread, body.run
        if isinstance(body.observation, IntentsReceived):
            for wanted in body.observation.calls:
                if wanted.id is not None and wanted.refused is None:
                    self._asked.setdefault((place, wanted.id), wanted.args)
        for decision in body.decisions:
            match decision:
                case RunOpened():
                    self.runs[place] = RunSeen(decision.agent, decision.policy, Counter())
                case CallDecided() if decision.decision == "allow":
                    self._ran(place, decision)
                case CallSettled() if place in self.runs:
                    self.runs[place].settle(decision.call, decision.cost_microusd, decision.tokens)
                case _:
                    pass

    def _ran(self, place: Place, decided: CallDecided) -> None:
        run = self.runs.get(place)
        if run is None:
            return
        asked = self._asked.pop((place, decided.call), {})
        run.admit(decided.call, decided.tool, 0 if decided.admission is None else decided.admission.reserved_microusd)
        self.calls.setdefault(run.agent, []).append(Ran(decided.tool, asked if decided.args is None else decided.args))
