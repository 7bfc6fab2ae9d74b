"""Looks of a worker whether open runs are counted: at its start, and whenever it has another policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
import structlog

from gated.core.policy import Policy
from gated.shell.handover import Bell
from gated.shell.ledger import Ledgers
from gated.shell.log import LogUnavailable
from gated.shell.places import limited, whose_run
from gated.shell.threads import Threads

RETRY: Final = 0.5  # seconds between two attempts

log = structlog.get_logger("gated.places")


class Audits:
    """Of the agents that a worker's policy limits: somebody may have had another policy until now."""

    def __init__(self, ledgers: Ledgers, threads: Threads, policy: Callable[[], Policy]) -> None:
        self._ledgers, self._threads, self._policy = ledgers, threads, policy
        self._wanted = Bell()

    def want(self) -> None:
        self._wanted.ring()

    async def keep(self) -> None:
        """Look whenever it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            try:
                await self.look()
            except LogUnavailable as error:
                log.warning("cannot count open runs just now", error=str(error))
                self.want()
                await anyio.sleep(RETRY)

    async def look(self) -> None:
        """Raises `LogUnavailable`."""
        for agent in sorted(limited(self._policy())):
            await self._ledgers.of(agent).audit(whose_run(self._threads))
