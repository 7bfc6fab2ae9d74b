"""A call that is being decided, and a verdict that is not applied yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from gated.core.turn import Repeat
from gated.events import CallDecided, CallId, Embedding, Finding, RunEnded, Score


class Plea(Struct, frozen=True):
    """One call to decide. `others` calls of other messages were in flight when its message came."""

    id: CallId
    tool: str
    args: dict[str, Any]
    args_sha256: str
    parent: CallId | None
    cost_microusd: int | None
    nesting: str
    others: int
    scores: Mapping[str, Score] | None = None
    embedding: Embedding | None = None
    links: Mapping[str, str] | None = None


class Refused(Struct, frozen=True):
    code: str
    reason: str


class Judged(Struct, frozen=True):
    """A verdict not yet applied; with what must follow from it."""

    plea: Plea
    decided: CallDecided
    asks: tuple[Finding, ...] = ()
    ends: RunEnded | None = None


Judgement = Refused | Repeat | Judged


def denied(
    plea: Plea, code: str, reason: str, *, skipped: tuple[str, ...] = (), known: bool = True, hop: bool = True
) -> CallDecided:
    """A denial that no stage of the pipeline made. `skipped` are the enabled stages, where they were still to come."""
    stage = code.partition(".")[0]
    return CallDecided(
        call=plea.id,
        tool=plea.tool,
        args_sha256=plea.args_sha256,
        decision="deny",
        stage=stage,
        code=code,
        reason=reason,
        findings=(Finding(stage, "deny", code, reason),),
        checks_failed=(stage,),
        checks_skipped=skipped,
        known=known,
        hop=hop,
    )
