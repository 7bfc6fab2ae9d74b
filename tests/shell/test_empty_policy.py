"""A gate whose policy says nothing: it denies everything, and says so where people look."""

import json
from pathlib import Path

from patience import PATIENCE
from shell.live import gate


async def test_an_empty_policy_denies_everybody_and_health_shows_that_there_are_no_agents(tmp_path: Path) -> None:
    async with gate(tmp_path, "version: 1\n") as live, live.bus.agent("worker") as worker:
        verdict = await worker.run(run="r").check("read", {})
        assert (verdict.decision, verdict.code) == ("deny", "privilege.no_profile")
        async with live.bus.user("operator", "local") as operator:
            answer = await operator.request("gated.api.health", b"", timeout=PATIENCE)
        assert json.loads(answer.data)["agents"] == []
