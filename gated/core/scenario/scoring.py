"""What detectors say in a scenario: the scores that the file gives, since a scenario asks nobody.

A call's own scores go before those of the scenario. A detector that neither names was not asked, so the call is not let through.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from gated import canonical
from gated.core.scenario.format import OutcomeEntry, Scores
from gated.core.scenario.world import World
from gated.core.stages.semantic import DETECTORS, MARK
from gated.events import MILLION, CallId, Fingerprints, Reading, Score, TicketId, Wanted


def scored(world: World, wanted: Wanted, own: Scores) -> Wanted:
    """The call with its scores, which it keeps for when it is decided again."""
    given = _scores({**world.scores, **own})
    if not given or wanted.id is None or wanted.refused is not None:
        return wanted
    world.scored.setdefault((world.thread, world.run, wanted.id), given)
    return replace(wanted, scores=given)


def again(world: World, ticket: TicketId, own: Scores) -> dict[CallId, dict[str, Score]]:
    """The scores of a ticket's calls."""
    run = world.run_state
    found = None if run is None else run.tickets.get(ticket)
    if found is None:
        return {}
    given = {c.call: {**world.scored.get((world.thread, world.run, c.call), {}), **_scores(own)} for c in found.calls}
    return {call: scores for call, scores in given.items() if scores}


def reading(world: World, call: CallId, entry: OutcomeEntry) -> Reading | None:
    """What the detectors that there are make of an outcome."""
    known = None if world.run_state is None else world.run_state.in_flight.get(call)
    return None if known is None else _reading(world, known.tool, entry.content, entry.facts, entry.scores)


def answered(world: World, ticket: TicketId, result: Any, own: Scores) -> Reading | None:
    """The same of what a person says in a tool's place."""
    found = None if world.run_state is None else world.run_state.tickets.get(ticket)
    return None if found is None else _reading(world, found.calls[0].tool, result, {}, own)


def _reading(world: World, tool: str, content: Any, facts: Mapping[str, Any], own: Scores) -> Reading | None:
    """A sensitive result leaves a mark, which later calls are compared with."""
    rules = None if world.run_state is None else world.known[world.run_state.policy].semantic
    if rules is None:
        return None
    given = _scores({**world.scores, **own})
    injection = given.get("injection") if rules.named("injection") else None
    guarded = tool in rules.sensitive and rules.named("exfiltration") is not None
    sensitive = guarded and (content is not None or bool(facts))
    marks = hashlib.sha256(canonical.encode([content, facts])).digest()[:MARK]
    made = Reading(injection, Fingerprints("scenario", marks, 1, 1) if sensitive else None)
    return None if made == Reading() else made


def _scores(given: Scores) -> dict[str, Score]:
    """Raises `ValueError`."""
    for name in given:
        if name not in DETECTORS:
            raise ValueError(f"there is no detector `{name}`: it is one of {', '.join(DETECTORS)}")
    return {name: _score(value) for name, value in given.items()}


def _score(value: float | int | str) -> Score:
    """Out of range and NaN are no scores, as where a detector says them."""
    if isinstance(value, str):
        return Score(reason=value)
    if not 0 <= value <= 1:
        return Score(reason=f"it said {value}")
    return Score(int(Decimal(repr(value)) * MILLION))
