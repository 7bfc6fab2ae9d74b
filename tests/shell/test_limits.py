"""`limits` of the policy hold of every message that comes in, also after a reload."""

from pathlib import Path

from gated import wire
from gated.client import Verdict
from shell.live import agent, ears, gate, intents, tell, write_policy

POLICY = (
    "version: 1\nlimits: {{max_payload_bytes: {payload}, max_depth: 6}}\nagents: {{worker: {{checks: [], allowed_tools: [T]}}}}\n"
)


async def test_the_limits_of_the_policy_hold_of_messages(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY.format(payload=1024)) as live, live.bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        long, deep = {"note": "x" * 1024}, {"a": {"b": {"c": {"d": 1}}}}
        await tell(worker, agent("worker"), "r", intents(("long", "T", long)))
        await tell(worker, agent("worker"), "r", intents(("deep", "T", deep)))
        await tell(worker, agent("worker"), "r", intents(("fits", "T", {"a": 1})))
        first, second, third = await heard.count(3)
        assert isinstance(first, wire.Refusal)
        assert first.code == "ingress.too_large"
        assert isinstance(second, wire.Refusal)
        assert second.code == "ingress.args"
        assert isinstance(third, Verdict)
        assert third.decision == "allow"
        write_policy(tmp_path, POLICY.format(payload=4096))
        await live.daemon.reload()
        await tell(worker, agent("worker"), "r", intents(("long", "T", long)))
        last = (await heard.count(4))[3]
        assert isinstance(last, Verdict)
        assert (last.call, last.decision) == ("long", "allow")
