"""Drift: how far a call lies from the task of its run, by local embeddings. 0: they say the same, 1: nothing is shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gated.core.embedding import MILLION, cosine
from gated.events import Score
from gated.shell.embedding import action_text, embedder


def score(task: str | None, tool: str, arguments: Mapping[str, Any]) -> Score:
    """Raises `EmbeddingsMissing` where the extra is not installed."""
    if not task:
        return Score(reason="the run has no task to compare with")
    said, done = embedder().embed([task, action_text(tool, arguments)])
    if said is None or done is None:
        return Score(reason="the task or the call has no words to compare")
    return Score(min(MILLION, max(0, MILLION - cosine(said, done))))
