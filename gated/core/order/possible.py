"""The states that an instance may be in by the time a call runs, while other calls are in flight on it.

Every call in flight ends at most once and in any order, and each may or may not move the instance. Calls that move every
state alike are one kind, so a *combination* is a state and how many of each kind are left. Beyond `CAP` combinations the
fixpoint over all kinds stands in, which is never smaller.

Few combinations are ever walked. The way to a state that passes no state twice uses a kind at most once for each state it
leads to (and from), so more calls of a kind than that change nothing: fifty parallel reads are one. All results are
remembered, by what comes from policies alone.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Final

from gated.core.order.state import ANY, Kind, Kinds

CAP: Final = 1000


@lru_cache(maxsize=4096)
def possible_states(state: str, kinds: Kinds) -> frozenset[str]:
    """`state` and whatever calls of these kinds may make of it."""
    useful = tuple((kind, min(count, _useful(kind))) for kind, count in kinds)
    widest = _fixpoint(state, tuple(kind for kind, _ in kinds))
    found = _search(state, useful)
    if found is None:
        return widest
    if found == widest or useful == kinds or _bound(kinds) <= CAP:
        return found
    # Whether the cap is passed is a matter of all calls, useful or not: that is how the rule is written down.
    return found if _search(state, kinds) is not None else widest


@lru_cache(maxsize=4096)
def _useful(kind: Kind) -> int:
    """How many calls of the kind can matter."""
    targets = len({target for _, target in kind})
    sources = {source for source, _ in kind}
    return targets if ANY in sources else min(targets, len(sources))


def _bound(kinds: Kinds) -> int:
    """No more combinations than this."""
    states = 1 + len({target for kind, _ in kinds for _, target in kind})
    return states * prod(count + 1 for _, count in kinds)


@lru_cache(maxsize=4096)
def _search(state: str, kinds: Kinds) -> frozenset[str] | None:
    """The states of all combinations; None beyond the cap."""
    start = (state, tuple(count for _, count in kinds))
    seen = {start}
    queue = [start]
    while queue:
        here, left = queue.pop()
        for index, (kind, _) in enumerate(kinds):
            if left[index]:
                rest = (*left[:index], left[index] - 1, *left[index + 1 :])
                fresh = {(target, rest) for target in _targets(kind, here)} - seen
                seen |= fresh
                queue += fresh
        if len(seen) > CAP:
            return None
    return frozenset(found for found, _ in seen)


@lru_cache(maxsize=4096)
def _fixpoint(state: str, kinds: tuple[Kind, ...]) -> frozenset[str]:
    found = {state}
    queue = [state]
    while queue:
        here = queue.pop()
        fresh = {target for kind in kinds for target in _targets(kind, here)} - found
        found |= fresh
        queue += fresh
    return frozenset(found)


def _targets(kind: Kind, state: str) -> list[str]:
    return [target for source, target in kind if target != state and source in (state, ANY)]
