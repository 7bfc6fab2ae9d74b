"""Embeddings as they stand in the log, and how far apart two of them are: whole numbers, so a replay computes the same.

What a model makes of a text cannot be repeated to the last bit on another machine, so it is an observation: the shell
records a vector of signed bytes, and the core compares what was recorded.
"""

from __future__ import annotations

import math
import operator
from typing import Final

from gated.events import Embedding

MILLION: Final = 1_000_000


class EmbeddingError(ValueError):
    """Two embeddings that cannot be compared: another model, another length, or no direction."""


def cosine(one: Embedding, other: Embedding) -> int:
    """The cosine of the angle between two embeddings in millionths, cut towards 0. Raises `EmbeddingError`."""
    if one.model != other.model or len(one.vector) != len(other.vector):
        raise EmbeddingError(f"an embedding by `{one.model}` and one by `{other.model}` cannot be compared")
    a, b = memoryview(one.vector).cast("b"), memoryview(other.vector).cast("b")
    lengths = sum(map(operator.mul, a, a)) * sum(map(operator.mul, b, b))
    if lengths == 0:
        raise EmbeddingError("an embedding without a direction cannot be compared")
    dot = sum(map(operator.mul, a, b))
    size = min(math.isqrt(dot * dot * MILLION * MILLION // lengths), MILLION)
    return size if dot >= 0 else -size
