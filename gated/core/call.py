"""One tool call under decision, as every stage sees it. Knows nothing of stages or state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gated.events import CallId, Embedding, Score


class Call(Struct, frozen=True, gc=False):
    """`estimate_microusd` is what the agent said that it costs. `others` calls of other messages were in flight when it came."""

    id: CallId
    tool: str
    args: dict[str, Any]
    args_sha256: str
    parent: CallId | None = None
    estimate_microusd: int | None = None
    nesting: str = "inferred"
    others: int = 0
    scores: Mapping[str, Score] | None = None  # what detectors said of it
    embedding: Embedding | None = None
    links: Mapping[str, str] | None = None  # where its paths really led
