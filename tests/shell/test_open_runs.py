"""`runs: {max_open}` is an agent's, over all its threads, whatever is in memory and whenever the daemon started."""

from pathlib import Path

from gated import wire
from gated.client import Verdict
from gated.core.replay import Replayer
from gated.shell.log.open import open_log
from shell.live import agent, daemon_on, ears, gate, intents, server, tell, write_policy

POLICY = """
version: 1
agents:
  worker: {checks: [privilege], allowed_tools: ["*"], runs: {max_open: 2}}
  mailer: {checks: [privilege], allowed_tools: ["*"]}
"""


async def codes(heard: object, wanted: int) -> dict[str, str | None]:
    answers = await heard.count(wanted)  # type: ignore[attr-defined]
    return {answer.call: answer.code for answer in answers if isinstance(answer, Verdict)}


async def test_the_third_open_run_is_denied_whichever_its_thread(tmp_path: Path) -> None:
    async with gate(tmp_path, POLICY) as live, live.bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        for number in range(3):
            await tell(worker, agent("worker"), f"r{number}", intents((f"c{number}", "T", {})))
        assert await codes(heard, 3) == {"c0": None, "c1": None, "c2": "lifecycle.limit"}
        await tell(worker, agent("worker"), "r0", wire.RunFinish())
        await tell(worker, agent("worker"), "r2", intents(("again", "T", {})))
        await heard.until(lambda: any(isinstance(a, Verdict) and a.call == "again" for _, a in heard.heard))
        assert (await codes(heard, 5))["again"] is None


async def test_a_daemon_that_starts_counts_what_its_log_holds_open(tmp_path: Path) -> None:
    write_policy(tmp_path, POLICY)
    async with server(tmp_path) as (_, bus), bus.user("agent", "worker") as worker:
        heard = await ears(worker, "worker")
        async with daemon_on(bus, tmp_path):
            for number in range(2):  # what an agent says does not end a run
                await tell(worker, agent("worker"), f"r{number}", intents((f"c{number}", "T", {"kind": "run_ended"})))
            await heard.count(2)
        async with daemon_on(bus, tmp_path) as live:
            await tell(worker, agent("worker"), "r2", intents(("c2", "T", {})))
            assert (await codes(heard, 3))["c2"] == "lifecycle.limit"
            await tell(worker, agent("worker"), "r0", wire.RunFinish())
            await tell(worker, agent("worker"), "r3", intents(("c3", "T", {})))
            assert (await codes(heard, 5))["c3"] is None
            known = live.daemon.runs.registry.known
        async with open_log(str(tmp_path / "log.db")) as log:
            replayer = Replayer(known.get)
            async for _, record in log.read_all():
                assert replayer.feed(record) is None
