"""What an agent is told that asks before it acts: what is left of every budget, and what would be decided on some calls."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gated.events.ids import Decided

Unit = Literal["calls", "usd", "tokens", "seconds", "errors", "loops"]


class Limit(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One limit of the policy: `key` is its name there, `code` what a call gets that goes beyond it.

    `run` is the ancestor whose limit it is, `scope` whose calls count in it. What is not `enforced` is only observed.
    """

    key: str
    code: str
    unit: Unit
    limit: float
    used: float
    left: float
    scope: Literal["run", "thread"] = "run"
    run: str | None = None
    enforced: bool = True


class Foreseen(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """What would be decided on a call. `unsure` names what was not asked about it and may make the verdict stricter."""

    call: str
    tool: str
    decision: Decided | Literal["refused"]
    stage: str | None = None
    code: str | None = None
    reason: str | None = None
    would: Literal["deny", "suspend"] | None = None
    unsure: tuple[str, ...] = ()


class Remaining(Struct, frozen=True, gc=False, omit_defaults=True, tag="remaining", kw_only=True):
    """The answer to `can_i`: nothing was taken for it, and nothing is promised.

    `calls` is how many more calls the limits that count calls let in (absent: none counts them); `barriers` are the values
    now, in the safe set from 0 up; `verdicts` are those on the calls of the question, each as if those before it had been
    asked for in one message.
    """

    status: Literal["open", "complete", "aborted", "failed"]
    calls: int | None = None
    limits: tuple[Limit, ...] = ()
    barriers: dict[str, float] = {}
    verdicts: tuple[Foreseen, ...] = ()
    policy: str = ""
    at: str = ""

    def left(self, key: str) -> float | None:
        """The least that is left under an enforced limit of this name, as in `max_total_cost_usd`; None: there is none."""
        found = [limit.left for limit in self.limits if limit.key == key and limit.enforced]
        return min(found) if found else None
