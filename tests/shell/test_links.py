"""`resolve: true`: the daemon follows links on its disk, records what it saw, and a replay reads the record."""

import json
from pathlib import Path

import pytest

from gated import wire
from gated.client import Verdict
from gated.core.replay import Replayer
from gated.events import IntentsReceived, ResolutionReceived, RunId, Sender, ThreadId, unseal
from gated.shell.log.open import open_log
from gated.shell.policies import read_policy
from shell.live import agent, ears, gate, intents, tell

POLICY = """
version: 1
agents:
  worker:
    checks: [privilege]
    allowed_tools: [fs.write]
    approval_required: ['fs.write(note ~ "*")']
    data_scope: {{allowed_paths: ["{root}"], base_path: "{root}", resolve: true}}
tools: {{fs.write: {{resources: {{args: {{path: path}}}}}}}}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "workspace"
    made.mkdir()
    (made / "outbox").symlink_to(made.parent)
    return made


async def test_links_are_followed_recorded_and_replayed(tmp_path: Path, root: Path) -> None:
    policy = POLICY.format(root=root)
    async with gate(tmp_path, policy) as live, live.bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        asked = {"in": {"path": "new/a.txt"}, "out": {"path": f"{root}/outbox/new.txt"}, "wait": {"path": "later", "note": "x"}}
        await tell(worker, agent("worker"), "r", intents(*((call, "fs.write", args) for call, args in asked.items())))
        answers = [answer for answer in await heard.count(3) if isinstance(answer, Verdict)]
        assert [(a.call, a.decision, a.code) for a in answers] == [
            ("in", "allow", None),
            ("out", "deny", "privilege.data_scope"),
            ("wait", "suspend", "privilege.approval_required"),
        ]
        (root / "later").symlink_to(root.parent / "elsewhere")  # after the call was looked at, before it is approved
        async with live.bus.user("approver", "bob") as bob:
            state = await live.daemon.runs.threads.look(ThreadId("r"))
            (ticket,) = state.runs[RunId("r")].tickets.values()
            answer = wire.Resolution(ticket=ticket.id, decision="approve", decision_id="d", args_sha256=ticket.args_sha256)
            await tell(bob, Sender("approver", "bob"), "r", answer)
            await heard.until(lambda: len(heard.heard) > 3)
        last = heard.heard[-1][1]
        assert isinstance(last, Verdict)
        assert (last.call, last.decision, last.code) == ("wait", "deny", "privilege.data_scope")
    (root / "outbox").unlink()  # the disk changes; what was seen stays
    (root / "outbox").mkdir()
    loaded = read_policy(tmp_path / "policy.yaml")
    async with open_log(str(tmp_path / "log.db")) as log:
        records = [record async for _, record in log.read_all()]
    replayer = Replayer({loaded.digest: loaded}.get)
    assert [replayer.feed(record) for record in records] == [None] * len(records)
    seen = [unseal(record).observation for record in records]
    (first,) = (s for s in seen if isinstance(s, IntentsReceived))
    assert [wanted.links for wanted in first.calls] == [
        {f"{root}/new/a.txt": f"{root}/new/a.txt"},
        {f"{root}/outbox/new.txt": f"{root.parent}/new.txt"},
        {f"{root}/later": f"{root}/later"},
    ]
    (second,) = (s for s in seen if isinstance(s, ResolutionReceived))
    assert json.loads(json.dumps(second.links)) == {"wait": {f"{root}/later": f"{root.parent}/elsewhere"}}
