"""Deciding a call for trial: under any policy, on any state, with nothing applied and nothing recorded.

What-if and explain share it. A trial speaks for a run that is bound to some policy and decides under another: `bound` is a
registry in which every digest is the policy on trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from gated.core import batches, calls
from gated.core.call import Call
from gated.core.fold import apply
from gated.core.pipeline import source_of
from gated.core.policy import Policy, Profile
from gated.core.state import ThreadState
from gated.core.turn import Registry, Turn, may_speak
from gated.core.verdicts import Judged, Refused, denied
from gated.events import AgentId, Decision, IntentsReceived, RunId, RunOpened


class _Everywhere(Mapping[str, Policy]):
    """One policy under every digest."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __getitem__(self, digest: str) -> Policy:
        return self._policy

    def __iter__(self) -> Iterator[str]:
        return iter((self._policy.digest,))

    def __len__(self) -> int:
        return 1


def bound(policy: Policy) -> Registry:
    """Every run is bound to `policy`, whatever it was opened under."""
    return Registry(policy, _Everywhere(policy))


def observed(policy: Policy) -> Policy:
    """The same rules, watched and not acted on: what happened happens again, whatever the rules say of it."""
    agents = {name: _observed(profile) for name, profile in policy.agents.items()}
    return replace(policy, agents=agents, nobody=_observed(policy.nobody))


def _observed(profile: Profile) -> Profile:
    watched = tuple((stage, True) for stage, _ in profile.stages)
    return replace(profile.staged(watched), observed=True, ceilings_watched=True)


def only(policy: Policy, agent: AgentId, stage: str) -> Policy:
    """The same policy with one of the agent's enabled stages: its finding does not depend on the stages before it."""
    profile = policy.profile(agent)
    alone = profile.staged(tuple(item for item in profile.stages if item[0] == stage))
    return replace(policy, agents={**policy.agents, agent: alone})


def decide_call(
    registry: Registry,
    state: ThreadState,
    run_id: RunId,
    call: Call,
    agent: AgentId,
    at: int,
    lifted: frozenset[str] | None = None,
    elsewhere: int = 0,
) -> Judged:
    """The verdict on one call; a run that is not open is opened by it, if its agent may.

    `lifted` are the sources of asks that people have answered: the call was asked for before and counts as no hop. None: it is
    asked for now. `elsewhere` are the agent's open runs on other threads.
    """
    turn = Turn(registry, state, run_id, at)
    barred = may_speak(turn, agent)
    if barred is None and turn.opened is None:
        barred = calls.may_open(turn, agent, by_operator=False, elsewhere=elsewhere)
        turn = Turn(registry, opened(registry, state, run_id, agent, at), run_id, at)
    if barred is None and agent not in turn.policy.agents:
        barred = "privilege.no_profile", f"the policy has no profile for agent `{agent}`"
    if barred is not None:
        return Judged(call, denied(call, *barred))
    if lifted is not None:
        return calls.judge_again(turn, call, lifted)
    judged = calls.judge(turn, call)
    if isinstance(judged, Judged):
        return judged
    code, reason = (judged.code, judged.reason) if isinstance(judged, Refused) else ("ingress.id_conflict", "the call is known")
    return Judged(call, denied(call, code, reason))


def opened(registry: Registry, state: ThreadState, run_id: RunId, agent: AgentId, at: int) -> ThreadState:
    """The state with the run open, under the current policy."""
    if run_id in state.runs:
        return state
    return apply(registry.known, state, run_id, state.seq + 1, at, RunOpened(agent=agent, policy=registry.current.digest))


def decide_atomic(
    registry: Registry, state: ThreadState, run_id: RunId, intents: IntentsReceived, at: int
) -> tuple[Decision, ...]:
    """What is decided on an atomic batch of an open run."""
    turn = Turn(registry, state, run_id, at)
    batches.receive_atomic(turn, intents)
    return tuple(turn.decisions)


def sources(judged: Judged) -> frozenset[str]:
    """The sources of a suspended call's asks: what an approval of it would lift."""
    return frozenset(source_of(finding) for finding in judged.asks)
