"""What the gate says of itself that whoever decides should know: that nothing is decided, at all or on some threads, and that the
policy file is broken.
"""

from __future__ import annotations

from typing import Final

import anyio
from msgspec import Struct

from gated.console.line import Lines, NoAnswer
from gated.units import some

LOOK: Final = 15.0  # seconds between two looks
SHOWN: Final = 5  # damaged threads that are named


class _Health(Struct):
    why: str = ""
    policy: str = ""
    reload_failed: str = ""
    damaged: dict[str, str] = {}


class GateHealth:
    """`why` is why no verdict leaves, `broken` why the policy file was not taken, `damaged` what is wrong with threads.

    That a gate is away the board says.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.why, self.broken, self.policy = "", "", ""
        self.damaged: tuple[str, ...] = ()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(LOOK)

    async def look(self) -> None:
        try:
            told = await self._lines.ask("health", _Health)
        except NoAnswer:
            return  # what was known is shown on
        more = len(told.damaged) - SHOWN
        self.why, self.broken, self.policy = told.why, told.reload_failed, told.policy
        self.damaged = (*list(told.damaged.values())[:SHOWN], *((f"and {some(more, 'more thread')}",) if more > 0 else ()))
