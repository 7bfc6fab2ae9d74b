"""Two workers of a cluster of which one has read another policy, while calls wait for people and partitions move."""

import hashlib
from collections import Counter
from pathlib import Path

from gated import wire
from gated.client import Verdict
from gated.events import Sender
from shell.cluster_load import LIMIT, bodies
from shell.live import Ears, agent, ears, intents, server, tell, write_policy
from shell.test_worker import settled, working

OLD = """
version: 1
agents:
  payer: {checks: [privilege], allowed_tools: [refund, look], approval_required: [refund], runs: {max_open: 50}}
approvals: {default: {approvers: [user:bob], timeout: 15m}}
"""
NEW = OLD.replace("max_open: 50", "max_open: 2")
RUNS = 16
BOB = Sender("approver", "bob")


async def verdicts(heard: Ears, count: int) -> dict[str, Verdict]:
    found = {said.call: said for said in await heard.count(count) if isinstance(said, Verdict)}
    assert len(found) == count
    heard.heard.clear()
    return found


def asked(run: int) -> wire.Intents:
    """Every other one as an atomic batch."""
    calls = [wire.WantedCall(id=f"{tool}{run}", tool=tool, args={"n": run}) for tool in ("refund", "look")]
    return wire.Intents(calls=calls, mode="atomic" if run % 2 else "each", nesting="explicit")


async def test_runs_keep_their_policy_and_their_tickets_wherever_they_go_on(tmp_path: Path) -> None:
    old, new = (write_policy(tmp_path / name, OLD).parent for name in ("old", "new"))
    (new / "keys").symlink_to(old / "keys")
    async with server(tmp_path) as (_, bus), bus.user("agent", "payer") as payer, bus.user("approver", "bob") as bob:
        heard = await ears(payer, "payer")
        async with working(bus, old, "w1") as one:
            for run in range(RUNS):
                await tell(payer, agent("payer"), f"t{run}", asked(run))
            first = await verdicts(heard, 2 * RUNS)
            before = {verdict.policy for verdict in first.values()}
            async with working(bus, new, "w2") as two:
                await settled(one, two)
                write_policy(new, NEW)
                assert await two.reload()
                for run in range(RUNS):
                    digests = [first[f"{tool}{run}"].args_sha256 for tool in ("refund", "look")]
                    digest = hashlib.sha256("".join(digests).encode()).hexdigest() if run % 2 else digests[0]
                    ticket = first[f"refund{run}"].ticket
                    assert ticket is not None
                    said = wire.Resolution(ticket=ticket, decision="approve", decision_id=f"d{run}", args_sha256=digest)
                    await tell(bob, BOB, f"t{run}", said)
                    if run in (7, 11):
                        await two.leave("draining" if run == 7 else "working")
                after = await verdicts(heard, RUNS + RUNS // 2)
                assert {(verdict.decision, verdict.policy) for verdict in after.values()} == {("allow", *before)}
                await settled(one, two)
                for run in range(RUNS, 2 * RUNS):
                    await tell(payer, agent("payer"), f"t{run}", intents((f"look{run}", "look", {})))
                last = await verdicts(heard, RUNS)
        made = await bodies(bus)
    told = Counter((verdict.policy in before, verdict.code) for verdict in last.values())
    assert set(told) == {(True, None), (False, LIMIT)}  # the runs of both are counted, and each worker has its own limit
    assert len(made) == 3 * RUNS
