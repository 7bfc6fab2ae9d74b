"""dfa: where in a run a tool call is legal, and how many steps and nested calls the run may take.

The transition table is the seed's edges; a policy adds and removes edges. A call takes the shortest legal path from the
present phase to ACTING, found once for every phase when the policy is loaded.
Codes: `dfa.step_budget` `dfa.loop_budget` `dfa.unreachable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from msgspec import Struct

from gated.core.headroom import Headroom, Rooms, room_of
from gated.events import Finding, Phase

STAGE: Final = "dfa"

_PLANNING, _ACTING, _EXHAUSTED = Phase.PLANNING, Phase.ACTING, Phase.EXHAUSTED  # a class's attribute costs a lookup by name
TERMINAL: Final = frozenset({Phase.ANSWERING, Phase.REJECTED, Phase.EXHAUSTED})

EDGES: Final[tuple[tuple[Phase, Phase], ...]] = (
    (Phase.IDLE, Phase.PLANNING),
    (Phase.PLANNING, Phase.ACTING),
    (Phase.PLANNING, Phase.ANSWERING),
    (Phase.ACTING, Phase.OBSERVING),
    (Phase.OBSERVING, Phase.PLANNING),
    (Phase.OBSERVING, Phase.ANSWERING),
)


class DfaEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`dfa:` of an agent in the policy file."""

    add: tuple[tuple[Phase, Phase], ...] = ()
    remove: tuple[tuple[Phase, Phase], ...] = ()
    on_budget: Literal["deny", "exhaust"] = "deny"
    nesting: Literal["explicit", "inferred"] = "explicit"


class DfaRules(Struct, frozen=True, gc=False):
    """`paths[phase]` is the way from that phase to ACTING, without the phase itself; no entry: unreachable.

    `calm` are the phases from which a call that is not nested is legal, as long as there are steps.
    """

    paths: Mapping[Phase, tuple[Phase, ...]]
    calm: frozenset[Phase]
    max_steps: int
    max_loops: int
    exhaust: bool
    trust_nesting: bool
    thread_steps: bool


class DfaState(Struct, frozen=True, gc=False):
    """The phase, and the ACTING self-loops since the run last returned to PLANNING with nothing in flight."""

    phase: Phase = Phase.IDLE
    loops: int = 0


def compile_dfa(entry: DfaEntry, max_steps: int, max_loops: int, thread_steps: bool) -> DfaRules:
    """A call beside others in flight goes on from where their outcomes will leave the run, as if they came one by one.

    Raises `ValueError` for an edge that is both added and removed.
    """
    both = next((edge for edge in entry.add if edge in entry.remove), None)
    if both is not None:
        raise ValueError(f"the edge `{both[0]} -> {both[1]}` is added and removed: leave one of them out")
    edges = [edge for edge in EDGES if edge not in entry.remove] + list(entry.add)
    paths = {phase: path for phase in Phase if phase is not _ACTING and (path := _shortest(edges, phase)) is not None}
    if Phase.OBSERVING in paths:
        paths[_ACTING] = (Phase.OBSERVING, *paths[Phase.OBSERVING])
    return DfaRules(
        paths=paths,
        calm=frozenset(paths) - {_EXHAUSTED},
        max_steps=max_steps,
        max_loops=max_loops,
        exhaust=entry.on_budget == "exhaust",
        trust_nesting=entry.nesting == "explicit",
        thread_steps=thread_steps,
    )


def _shortest(edges: Iterable[tuple[Phase, Phase]], start: Phase) -> tuple[Phase, ...] | None:
    """The shortest non-empty way from `start` to ACTING, breadth first; ties by the order of the edges. No end leads on."""
    table = tuple(edge for edge in edges if edge[0] not in TERMINAL)
    seen: set[Phase] = set()
    ways: list[tuple[Phase, ...]] = [()]
    while ways:
        longer: list[tuple[Phase, ...]] = []
        for way in ways:
            here = way[-1] if way else start
            for source, target in table:
                if source != here or target in seen:
                    continue
                if target is Phase.ACTING:
                    return (*way, target)
                seen.add(target)
                longer.append((*way, target))
        ways = longer
    return None


def room(rules: DfaRules) -> Rooms:
    """Where the step budget says nothing."""
    return room_of(rules.thread_steps, Headroom(load=rules.max_steps))


def check_steps(rules: DfaRules, taken: int, *, exhausted: bool = False) -> tuple[Finding, ...]:
    """The step budget, which comes before loops and ways: of the run, and of every ancestor in whose budget the call counts.

    `taken` are the steps taken or under way by whoever shares the budget; in EXHAUSTED every call is over it.
    """
    if taken < rules.max_steps and not exhausted:
        return ()
    return (Finding(STAGE, "deny", "dfa.step_budget", f"Step budget exhausted: {taken}/{rules.max_steps}"),)


def check_way(rules: DfaRules, state: DfaState, nested: bool) -> tuple[Finding, ...]:
    """The loops of a nested call, the way to ACTING of any other."""
    if nested:
        if state.loops >= rules.max_loops:
            reason = f"Loop budget exhausted: {state.loops}/{rules.max_loops}"
            return (Finding(STAGE, "deny", "dfa.loop_budget", reason),)
        return ()
    if state.phase not in rules.paths:
        reason = f"no legal path from {state.phase} to {Phase.ACTING}"
        return (Finding(STAGE, "deny", "dfa.unreachable", reason),)
    return ()


def admit(state: DfaState, path: tuple[Phase, ...], nested: bool, nothing_in_flight: bool) -> DfaState:
    """The state after a call was admitted on `path`: a nested call is one more loop, a fresh plan starts the count."""
    if nested:
        return DfaState(_ACTING, state.loops + 1)
    loops = 0 if nothing_in_flight and _PLANNING in path else state.loops
    return DfaState(_ACTING, loops) if loops or state.phase is not _ACTING or state.loops else state
