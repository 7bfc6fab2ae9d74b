"""What a policy would meet on threads that are there already: machine instances in states that its machines do not have."""

from __future__ import annotations

from collections.abc import Iterator

from gated.core.lint.advice import Advice, Subject
from gated.core.lint.machines import machine_place
from gated.core.order.engine import stray
from gated.core.policy import Policy
from gated.core.state import ThreadState
from gated.events import AgentId, RunId
from gated.units import some

SHOWN = 3


def threads(policy: Policy, states: list[ThreadState]) -> list[Advice]:
    """One finding for each machine and thread."""
    subject = Subject(policy)
    return list(dict.fromkeys(advice for state in states for advice in _thread(subject, state)))


def _thread(subject: Subject, state: ThreadState) -> Iterator[Advice]:
    for agent, runs in _agents(state).items():
        profile = subject.policy.agents.get(agent)
        if profile is None:
            continue
        found: dict[str, dict[str, None]] = {}
        for run in runs:
            for machine, shown in stray(profile.machines, state.order, run):
                found.setdefault(machine, {})[shown] = None
        for machine, strangers in found.items():
            yield Advice(machine_place(subject, agent, machine), _message(state, machine, sorted(strangers)))


def _agents(state: ThreadState) -> dict[AgentId, list[RunId | None]]:
    """The agents of a thread, each with its open runs; None is a later one, which has the thread's instances alone."""
    found: dict[AgentId, list[RunId | None]] = {}
    for run_id in state.runs:
        run = state.runs[run_id]
        runs = found.setdefault(run.agent, [None])
        if not run.end:
            runs.append(run_id)
    return found


def _message(state: ThreadState, machine: str, strangers: list[str]) -> str:
    more = f" and {len(strangers) - SHOWN} more" if len(strangers) > SHOWN else ""
    shown = ", ".join(f"`{stranger}`" for stranger in strangers[:SHOWN])
    are = "is in a state" if len(strangers) == 1 else "are in states"
    where = f"on thread `{state.thread}` {some(len(strangers), 'instance')} {are} that it does not have"
    return f'machine `{machine}`: {where}, and that only `from: "*"` lists: {shown}{more}'
