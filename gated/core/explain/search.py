"""The smallest changes under which the call is allowed: tried against the core, cheapest first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from gated.core.explain.case import Case, Change, Draft
from gated.core.explain.other_ways import other_ways
from gated.core.explain.places import agent_path, change_at
from gated.core.explain.policy_edits import policy_edits
from gated.core.explain.stages import findings_of

MOST_DRAFTS: Final = 300  # looked at; a policy is compiled for each
MOST_CHANGES: Final = 4
MOST_WAYS: Final = 5


class Way(Struct, frozen=True):
    """Changes that together lead to an allow; `size` ranks ways."""

    changes: tuple[Change, ...]
    size: float


def find_ways(case: Case) -> tuple[Way, ...]:
    """The smallest first; none of them holds another."""
    ways: list[Way] = []
    order = itertools.count()
    queue: list[tuple[float, int, Draft]] = [(0.0, next(order), case.draft)]
    seen: set[frozenset[str]] = set()
    looked_at = 0
    while queue and looked_at < MOST_DRAFTS and len(ways) < MOST_WAYS:
        _, _, draft = heapq.heappop(queue)
        texts = frozenset(change.text for change in draft.changes)
        if texts in seen or any(_places(way.changes) <= _places(draft.changes) for way in ways):
            continue
        seen.add(texts)
        looked_at += 1
        if draft.changes and case.allows(draft):
            least = _without_idle(case, draft)
            if not any(_places(way.changes) <= _places(least.changes) for way in ways):
                ways.append(Way(least.changes, least.size))
        elif len(draft.changes) < MOST_CHANGES:
            for found in _candidates(case, draft):
                heapq.heappush(queue, (found.size, next(order), found))
    return tuple(sorted(ways, key=lambda way: way.size)) or _last_resort(case)


def _without_idle(case: Case, draft: Draft) -> Draft:
    """The way without changes that it does without: a later one may have made an earlier one idle."""
    for position in range(len(draft.redo)):
        made: Draft | None = case.draft
        for redo in (*draft.redo[:position], *draft.redo[position + 1 :]):
            made = None if made is None else redo(made)
        if made is not None and case.allows(made):
            return _without_idle(case, made)
    return draft


def _places(changes: tuple[Change, ...]) -> frozenset[tuple[object, ...]]:
    """Where they change something: of two ways that differ only in what they put there, the smaller is enough."""
    return frozenset((change.kind, change.path) for change in changes)


def _candidates(case: Case, draft: Draft) -> Iterator[Draft]:
    """What may answer the first thing that stands in the way, denials before asks: the others come in their turn."""
    findings = sorted(findings_of(case, draft), key=lambda finding: finding.outcome == "ask")
    for finding in findings[:1]:
        for found in (*other_ways(case, draft, finding), *policy_edits(case, draft, finding)):
            if found is not None and found.changes != draft.changes:
                yield found


def _last_resort(case: Case) -> tuple[Way, ...]:
    """Where nothing smaller was found: the stages that deny, switched off."""
    stages = list(dict.fromkeys(finding.stage for finding in findings_of(case, case.draft)))
    path = agent_path(case.draft, case.agent, "checks")
    enabled = [stage for stage, _ in case.draft.policy.profile(case.agent).stages]
    kept = [stage for stage in enabled if stage not in stages]
    words = f"switch the stage {', '.join(f'`{stage}`' for stage in stages)} off for `{case.agent}`"
    made = change_at(case.draft, path, kept, words, 9)
    return (Way(made.changes, made.size),) if made is not None and case.allows(made) else ()
