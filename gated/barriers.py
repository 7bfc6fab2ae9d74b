"""Barriers for those who design them: values, the composite, and whether the condition holds over states of their own.

    monitor = Monitor.of(Path("policy.yaml"), "mailer")
    monitor.get_barrier_values(State(tools=["send_email"]))           # {"safety": 0.9, "privacy": 0.3, ...}
    monitor.verify_forward_invariance([State()], [Action("send_email")])

Over recorded runs `gated policy barriers` does the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from immutables import Map
from msgspec import Struct

from gated.core.barriers.barrier import BarrierCall, BarrierState
from gated.core.history import RECENT, Tally
from gated.core.policy import Policy, Profile
from gated.core.runview import View
from gated.core.stages import dcbf
from gated.events import AgentId, Phase
from gated.shell.policies import read_policy
from gated.units import parse_usd


class State(Struct, frozen=True, kw_only=True):
    """A run: its admitted tools, oldest first, of which the last `in_flight` have no outcome yet. `at` in µs.

    `cost_usd` is settled plus reserved; absent: the policy's cost of a call for each tool.
    """

    tools: Sequence[str] = ()
    in_flight: int = 0
    cost_usd: float | int | str | None = None
    phase: Phase = Phase.PLANNING
    task: str | None = None
    labels: Mapping[str, str] = {}
    failed: bool = False
    at: int = 0


class Action(Struct, frozen=True):
    """A call that is asked for; without a cost it is charged what the policy says."""

    tool: str
    cost_usd: float | int | str | None = None


class Monitor:
    """The barriers of one agent of a policy."""

    def __init__(self, policy: Policy, agent: str) -> None:
        """Raises `LookupError` where the policy has no such agent."""
        found = policy.agents.get(AgentId(agent))
        if found is None:
            raise LookupError(f"the policy has no agent `{agent}`: it has {', '.join(f'`{a}`' for a in sorted(policy.agents))}")
        self._policy, self._profile = policy, found

    @classmethod
    def of(cls, path: Path, agent: str) -> Monitor:
        """The barriers of an agent of a policy file. Raises `DocumentError`, `LookupError`."""
        return cls(read_policy(path), agent)

    def get_barrier_values(self, state: State) -> dict[str, float]:
        """h of every barrier; the state is safe where each is at least 0."""
        return dcbf.get_barrier_values(self._rules, self._state(state))

    def evaluate_state(self, state: State) -> float:
        """The weighted average of the barriers. It can be positive where one of them is breached: decide nothing by it."""
        return dcbf.evaluate_state(self._rules, self._state(state))

    def verify_forward_invariance(self, states: Iterable[State], actions: Iterable[Action]) -> dict[str, Any]:
        """`{total_checks, violations, violation_rate, forward_invariant}`: how often an action would break the condition
        h(next) >= h(now) - alpha(h(now)) of some barrier. States that are outside already are skipped.
        """
        calls = (self._call(action) for action in actions)
        return dcbf.verify_forward_invariance(self._rules, (self._state(state) for state in states), calls)

    @property
    def _rules(self) -> dcbf.DcbfRules:
        return self._profile.dcbf

    def _call(self, action: Action) -> BarrierCall:
        cost = None if action.cost_usd is None else parse_usd(action.cost_usd)
        return BarrierCall(action.tool, self._cost(action.tool) if cost is None else cost)

    def _cost(self, tool: str) -> int:
        return self._policy.costs.get(tool, self._profile.dcbf.per_call_microusd)

    def _state(self, state: State) -> BarrierState:
        tools, profile = tuple(state.tools), self._profile
        ended = len(tools) - state.in_flight
        cost = sum(map(self._cost, tools)) if state.cost_usd is None else parse_usd(state.cost_usd)
        window = max(self._policy.window, RECENT)
        counts = Map(Counter(tools))
        tally = Tally(0, len(tools), ended, state.in_flight, cost, 0, counts, tools[-window:])
        recent = tuple((tool, "in_flight" if n >= ended else "success", "") for n, tool in enumerate(tools))[-RECENT:]
        view = _view(profile, state, counts, cost, recent)
        return BarrierState(tally, tally, view)


def _view(profile: Profile, state: State, counts: Map[str, int], cost: int, recent: tuple[tuple[str, str, str], ...]) -> View:
    labels, calls = dict(state.labels), len(state.tools)
    return View(profile.name, state.phase, calls, counts, cost, state.task, labels, state.failed, recent, state.at)
