"""What the frameworks' tests ask a real gate: a tool that is allowed, one that is denied, one that people are asked about."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gated import wire
from gated.client import Run
from gated.core.state import RunState
from gated.events import CallDecided, IntentsReceived, OutcomeReported, Sender, Wanted, unseal
from gated.shell.log.open import open_log
from patience import until
from shell.live import Live, decided, gate, tell

POLICY = """
version: 1
agents:
  worker:
    checks: [privilege]
    allowed_tools: [read, refund, fail, ask, helper, crm.find, "mcp__box__*"]
    forbidden_tools: [shell, mcp__box__shell]
    approval_required: [refund]
    data_scope: any
    resource_budget: {max_calls: 100}
approvals:
  default: {approvers: [user:bob], may_answer: true}
"""


class Asked(NamedTuple):
    live: Live
    run: Run

    async def state(self) -> RunState:
        return (await self.live.daemon.runs.look(self.run.thread)).runs[self.run.id]

    async def answer(self, call: str | None = None, **more: Any) -> None:
        """Bob approves what waits, once it does."""
        found = await until(lambda: self.waiting(call))
        async with self.live.bus.user("approver", "bob") as bob:
            digest, ticket = found.args_sha256, found.ticket or ""
            said = wire.Resolution(ticket=ticket, decision="approve", decision_id="d", args_sha256=digest, **more)
            await tell(bob, Sender("approver", "bob"), self.run.id, said)
            await bob.flush()

    async def waiting(self, call: str | None = None) -> CallDecided | None:
        """The call that waits, or any."""
        made = await decided(self.live.log)
        found = [d[-1] for name, d in made.items() if d[-1].decision == "suspend" and call in (None, name)]
        return found[0] if found else None

    async def asked_for(self) -> list[Wanted]:
        """The calls that were asked for, in order."""
        async with open_log(str(self.live.log)) as log:
            said = [unseal(record).observation async for _, record in log.read_all()]
        return [call for o in said if isinstance(o, IntentsReceived) for call in o.calls]

    async def outcomes(self) -> list[tuple[str, str]]:
        """The outcomes that were reported: of which tool, and which."""
        made = await decided(self.live.log)
        async with open_log(str(self.live.log)) as log:
            said = [unseal(record).observation async for _, record in log.read_all()]
        return [(made[o.call][0].tool, o.status) for o in said if isinstance(o, OutcomeReported)]


@asynccontextmanager
async def asked(folder: Path) -> AsyncIterator[Asked]:
    async with gate(folder, POLICY) as live, live.bus.agent("worker") as worker, worker.run(run="r") as run:
        yield Asked(live, run)
