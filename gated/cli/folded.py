"""The threads of a log as they stand: what commands that show states begin with."""

from __future__ import annotations

from gated.cli.progress import progressed
from gated.core.fold import fold
from gated.core.policy import Policy
from gated.core.state import ThreadState
from gated.events import Body, Record, ThreadId, unseal
from gated.shell.log.anchors import archived_states
from gated.shell.log.following import fed
from gated.shell.log.open import open_log, policies_of


async def folded(log: str, run: str | None) -> tuple[dict[ThreadId, ThreadState], list[Body], dict[str, Policy]]:
    """The state of every thread, the records of the run, and the policies that the log knows."""
    states: dict[ThreadId, ThreadState] = {}
    bodies: list[Body] = []
    async with open_log(log) as opened:
        known = await policies_of(opened)
        states.update(await archived_states(opened))

        def feed(record: Record) -> None:
            body = unseal(record)
            state = states.get(body.thread) or ThreadState(body.thread)
            states[body.thread] = fold(known, state, body, record.hash)
            if body.run == run:
                bodies.append(body)

        async for _ in fed(opened, progressed(opened, "reading"), feed):
            pass
    return states, bodies, known
