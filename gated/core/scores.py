"""Detectors' answers, given to the observation that they were asked about: from then on they are part of what was observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec.structs import replace

from gated.events import CallId, IntentsReceived, Observation, OutcomeReported, Reading, ResolutionReceived, Score

Scores = Mapping[CallId, Mapping[str, Score]]

Said = TypeVar("Said", bound=Observation)


def with_answers(said: Said, scores: Scores, reading: Reading | None) -> Said:
    """The observation with what detectors say of its calls, by id, and of its result. What was said before stays."""
    match said:
        case IntentsReceived():
            calls = tuple(
                replace(wanted, scores={**(wanted.scores or {}), **scores[wanted.id]})
                if wanted.id is not None and wanted.id in scores and wanted.refused is None
                else wanted
                for wanted in said.calls
            )
            return replace(said, calls=calls)
        case ResolutionReceived():
            merged = {call: {**said.scores.get(call, {}), **given} for call, given in scores.items()}
            return replace(said, scores={**said.scores, **merged}, reading=reading or said.reading)
        case OutcomeReported():
            return replace(said, reading=reading or said.reading)
    return said
