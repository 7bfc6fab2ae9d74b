"""Many recorded runs of one agent, in one log."""

from __future__ import annotations

import random
from pathlib import Path

from core.acts import Acts
from gated.core.curves import Asked, Recorded
from gated.core.scenario import steps
from gated.events import AbortRequested, AgentId, FinishRequested, RunId, ThreadId
from gated.shell.log.sqlite import open_for_writing

POLICY = """
version: 1
agents:
  a:
    checks: [privilege, dcbf]
    allowed_tools: ["*"]
    forbidden_tools: [rm]
    dcbf: {remove: [safety, scope, stability, resource]}
"""


def worked(runs: int, length: int = 9, *, seed: int = 1) -> Acts:
    """Runs that search, read and send mail: of the mails the first two are allowed, and no more."""
    draw, acts = random.Random(seed), Acts(POLICY)
    for number in range(runs):
        begin(acts, f"run{number}")
        for _ in range(draw.randint(3, length)):
            acts.run(draw.choice(["search", "read", "send_email"]), n=draw.random())
        acts.world.observe(FinishRequested(acts.world.sender))
    return acts


def begin(acts: Acts, run: str, **labels: str) -> None:
    acts.world.speak_for(ThreadId(run), RunId(run), AgentId("a"))
    steps.start(acts.world, task="work", labels=labels)


def abort(acts: Acts) -> None:
    acts.world.observe(AbortRequested(acts.world.sender, "enough"))


def asked_of(acts: Acts) -> tuple[list[Asked], dict[tuple[str, str], str]]:
    recorded = Recorded(acts.world.known, whole=True)
    asked = [one for record in acts.records for one in recorded.feed(record)]
    return asked, {(thread, run): status for (thread, run), status in recorded.ended.items()}


async def write_log(acts: Acts, path: Path) -> None:
    opened = await open_for_writing(path)
    for digest, policy in acts.world.known.items():
        await opened.put_policy(digest, policy.text)
    await opened.append_many(acts.records)
    await opened.close()
