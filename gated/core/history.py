"""What has been admitted, in numbers: the tally that budgets and barriers are computed from.

A run has a tally of its own calls and its children's, a thread has one of all its runs. Each is brought forward by one
admission or one settlement at a time, so no decision scans the past.
INVARIANT: `calls` and `counts` only grow; `cost_microusd` is settled plus reserved.
"""

from __future__ import annotations

from immutables import Map
from msgspec import Struct

from gated.events import Status

WINDOW = 5  # the last tools that are always remembered; more where a barrier's window asks
RECENT = 5  # the newest calls that an expression sees


class Tally(Struct, frozen=True, gc=False):
    """Counts since `opened_at` (µs). `recent` holds the newest admitted tools, newest last."""

    opened_at: int
    calls: int = 0
    steps: int = 0
    in_flight: int = 0
    cost_microusd: int = 0
    tokens: int = 0
    counts: Map[str, int] = Map()
    recent: tuple[str, ...] = ()

    def admit(self, tool: str, reserved_microusd: int, window: int = WINDOW) -> Tally:
        """`window` is at least 2."""
        return Tally(
            self.opened_at,
            self.calls + 1,
            self.steps,
            self.in_flight + 1,
            self.cost_microusd + reserved_microusd,
            self.tokens,
            self.counts.set(tool, self.counts.get(tool, 0) + 1),
            (*self.recent[1 - window :], tool),
        )

    def without(self, part: Tally) -> Tally:
        """The counts that are not the part's. `recent` stays: nothing asks for the newest tools of a part."""
        counts = {tool: count - part.counts.get(tool, 0) for tool, count in self.counts.items()}
        return Tally(
            self.opened_at,
            self.calls - part.calls,
            self.steps - part.steps,
            self.in_flight - part.in_flight,
            self.cost_microusd - part.cost_microusd,
            self.tokens - part.tokens,
            Map({tool: count for tool, count in counts.items() if count}),
            self.recent,
        )

    def settle(self, status: Status, reserved_microusd: int, cost_microusd: int, tokens: int) -> Tally:
        return Tally(
            self.opened_at,
            self.calls,
            self.steps + (status == "success"),
            self.in_flight - 1,
            self.cost_microusd - reserved_microusd + cost_microusd,
            self.tokens + tokens,
            self.counts,
            self.recent,
        )
