"""Standing approvals: what answers leave behind for later calls, and which asks that lifts.

INVARIANT: what is remembered lifts asks of the same sources for the same tool and agent under the same policy; never a denial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gated.core.order.patterns import compile_pattern
from gated.core.tickets import Ticket
from gated.events import (
    AgentId,
    Remember,
    Remembered,
)

_NARROW: Final = {"call": 1, "run": 2, "thread": 3}


def remembered(ticket: Ticket, policy: str, agent: AgentId) -> Remembered | None:
    """What the answers of an approved ticket leave standing: of several, the narrowest counts; `once` leaves nothing."""
    wishes = [answer.remember for answer in ticket.answers]
    if not wishes or any(wish is None for wish in wishes):
        return None
    chosen: Remember = min((wish for wish in wishes if wish is not None), key=_narrowness)
    call = ticket.calls[0]
    people = ", ".join(dict.fromkeys(answer.by for answer in ticket.answers))
    what = f"{call.tool} with the same arguments" if chosen.scope == "call" else f"{chosen.pattern}"
    where = "this run" if chosen.scope != "thread" else "this thread"
    return Remembered(
        id=f"{ticket.id}-{chosen.scope}",
        scope=chosen.scope,
        tool=call.tool,
        sources=tuple(dict.fromkeys(ask.source for ask in ticket.asks)),
        policy=policy,
        by=people,
        agent=agent,
        args_sha256=call.args_sha256 if chosen.scope == "call" else None,
        pattern=chosen.pattern if chosen.scope != "call" else None,
        text=f"{people} approved {what} for {where}",
    )


def _narrowness(wish: Remember) -> tuple[int, Any]:
    sharp = compile_pattern(wish.pattern).specificity if wish.pattern else ()
    return (_NARROW[wish.scope], tuple(-part for part in sharp))


def lifted(
    standing: Sequence[Remembered], policy: str, agent: AgentId, tool: str, args: Mapping[str, Any], digest: str
) -> frozenset[str]:
    """The sources of asks that standing approvals lift for this call."""
    sources: set[str] = set()
    for item in standing:
        if item.policy != policy or item.tool != tool or item.agent != agent:
            continue
        if item.args_sha256 == digest or (item.pattern and compile_pattern(item.pattern).matches(tool, args)):
            sources.update(item.sources)
    return frozenset(sources)
