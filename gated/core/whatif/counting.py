"""How many runs each agent had open, over all threads, as the log says: what `runs: {max_open}` bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gated.core.state import ThreadState
from gated.events import AgentId, Body, RunEnded, RunId, RunOpened, ThreadId


class OpenRuns:
    """`begun` are the states of threads whose first records are not in the log."""

    def __init__(self, begun: Iterable[ThreadState] = ()) -> None:
        self._agents: dict[tuple[ThreadId, RunId], AgentId] = {}
        self._total: Counter[AgentId] = Counter()
        self._here: Counter[tuple[ThreadId, AgentId]] = Counter()
        for state in begun:
            for run_id, run in state.runs.items():
                if not run.end:
                    self._note(state.thread, run_id, run.agent)

    def note(self, body: Body) -> None:
        """What a record opened and ended, by whatever rule."""
        for decision in body.decisions:
            if isinstance(decision, RunOpened):
                self._note(body.thread, body.run, decision.agent)
            elif isinstance(decision, RunEnded) and (agent := self._agents.pop((body.thread, body.run), None)) is not None:
                self._total[agent] -= 1
                self._here[(body.thread, agent)] -= 1

    def _note(self, thread: ThreadId, run: RunId, agent: AgentId) -> None:
        self._agents[(thread, run)] = agent
        self._total[agent] += 1
        self._here[(thread, agent)] += 1

    def held(self, thread: ThreadId, agent: AgentId, elsewhere: int) -> int:
        """The agent's open runs; at least those here and those that the gate counted `elsewhere`, in a log of some threads."""
        return max(self._total[agent], self._here[(thread, agent)] + elsewhere)
