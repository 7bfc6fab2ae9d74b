"""The states that an instance may be in by the time a call runs, while other calls are in flight on it.

Every call in flight ends at most once and in any order, and each may or may not move the instance. Calls that move every
state alike are one kind, so a combination is a state and how many of each kind are left. Beyond `CAP` combinations the
fixpoint over all kinds stands in, which is never smaller.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Final

from gated.core.order.state import Instance, Kind

CAP: Final = 1000


def possible_states(instance: Instance) -> frozenset[str]:
    if not instance.flights:
        return frozenset((instance.state,))
    counts = Counter(flight.kind for flight in instance.flights)
    return _possible(instance.state, tuple(sorted(counts.items(), key=_order)))


def _order(item: tuple[Kind, int]) -> tuple[tuple[tuple[str, str], ...], int]:
    return tuple((source or "", target) for source, target in item[0]), item[1]


@lru_cache(maxsize=4096)
def _possible(state: str, kinds: tuple[tuple[Kind, int], ...]) -> frozenset[str]:
    start = (state, tuple(count for _, count in kinds))
    seen = {start}
    queue = [start]
    while queue:
        here, left = queue.pop()
        for index, (kind, _) in enumerate(kinds):
            if not left[index]:
                continue
            rest = (*left[:index], left[index] - 1, *left[index + 1 :])
            for target in targets(kind, here):
                step = (target, rest)
                if target != here and step not in seen:
                    seen.add(step)
                    queue.append(step)
        if len(seen) > CAP:
            return _fixpoint(state, [kind for kind, _ in kinds])
    return frozenset(found for found, _ in seen)


def _fixpoint(state: str, kinds: list[Kind]) -> frozenset[str]:
    found = {state}
    queue = [state]
    while queue:
        here = queue.pop()
        for kind in kinds:
            for target in targets(kind, here):
                if target not in found:
                    found.add(target)
                    queue.append(target)
    return frozenset(found)


def targets(kind: Kind, state: str) -> tuple[str, ...]:
    return tuple(target for source, target in kind if source is None or source == state)
