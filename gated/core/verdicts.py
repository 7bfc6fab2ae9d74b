"""A verdict that is not applied yet."""

from __future__ import annotations

from msgspec import Struct

from gated.core.call import Call
from gated.core.turn import Repeat
from gated.events import CallDecided, Finding, RunEnded


class Refused(Struct, frozen=True, gc=False):
    code: str
    reason: str


class Judged(Struct, frozen=True, gc=False):
    """A verdict not yet applied; with what must follow from it."""

    call: Call
    decided: CallDecided
    asks: tuple[Finding, ...] = ()
    ends: RunEnded | None = None


Judgement = Refused | Repeat | Judged


def denied(
    call: Call, code: str, reason: str, *, skipped: tuple[str, ...] = (), known: bool = True, hop: bool = True
) -> CallDecided:
    """A denial that no stage of the pipeline made. `skipped` are the enabled stages, where they were still to come."""
    stage = code.partition(".")[0]
    return CallDecided(
        call=call.id,
        tool=call.tool,
        args_sha256=call.args_sha256,
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
