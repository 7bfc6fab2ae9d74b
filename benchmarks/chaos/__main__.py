"""Three workers, agents that never give up, and faults at random: `scripts/chaos --seconds 60 --seed 1 --replicas 3`.

Ends with a verifier over the log, the stream of inputs and what the agents heard; exit status 1 where anything is not as it must
be. The seed fixes the faults and what is asked, not the machine's timing: a run is not a replay of another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.chaos.agents import Agents, Asked, Openers
from benchmarks.chaos.machines import Cluster, Node
from benchmarks.chaos.verifier import Found, verify
from gated.shell.nats_client import SturdyClient
from gated.shell.nats_config import inbox_prefix

POLICY = """
version: 1
agents:
  mailer:
    checks: [dcbf]
    allowed_tools: [send_email, search]
    data_scope: any
  counter:
    checks: [privilege]
    allowed_tools: [count, look]
    forbidden_tools: [look]
    resource_budget: {max_calls: 5}
  opener:
    checks: [privilege]
    allowed_tools: [open]
    runs: {max_open: 3}
"""
LIMITS = {"send_email": 2, "count": 5, "look": 0}
TOOLS = {"mailer": ["send_email", "search"], "counter": ["count", "count", "look"]}
MAX_OPEN = {"opener": 3}
LOOPS = 8  # threads at a time, of each agent
QUIET = 5.0  # seconds at the end without faults
PATIENCE = 90.0  # seconds for what is open then


class Faults:
    """Breaks one thing after another, and mends it again."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster, self._draw = cluster, random.Random(seed)
        self.done: Counter[str] = Counter()
        self._hurting: set[str] = set()
        self.story: list[tuple[float, str]] = []  # when what was hurt and mended

    async def work(self, until: float) -> None:
        pending: set[asyncio.Task[None]] = set()
        keeper = asyncio.create_task(self._keep_running())
        server_hurt = 0.0
        while (now := time.monotonic()) < until:
            kind = self._draw.choice(self._kinds(now > server_hurt))
            if "server" in kind:
                server_hurt = now + 10.0  # a majority that never comes together decides nothing
            well = [node for node in self._cluster.workers if node.name not in self._hurting]
            if "server" in kind or len(well) > 1:  # one worker is left alone: with none, nothing fails over
                node = self._draw.choice(self._cluster.servers if "server" in kind else well)
                task = asyncio.create_task(self._hurt(kind, node))
                pending.add(task)
                task.add_done_callback(pending.discard)
            await asyncio.sleep(self._draw.uniform(0.7, 3.0))
        await asyncio.gather(*pending)
        keeper.cancel()

    async def _keep_running(self) -> None:
        """A worker that cannot start while its servers are away ends; a service manager starts it again."""
        while True:
            for node in self._cluster.workers:
                if node.name not in self._hurting:
                    node.start()
            await asyncio.sleep(0.5)

    def _kinds(self, servers: bool) -> list[str]:
        kinds = ["stop worker", "stop worker", "kill worker", "end worker"]
        kinds += ["cut worker"] if self._cluster.network.isolated else []
        if servers:
            kinds += ["kill server", "stop server"] + (["cut server"] if self._cluster.network.isolated else [])
        return kinds

    async def _hurt(self, kind: str, node: Node) -> None:
        self._hurting.add(node.name)
        self.done[kind] += 1
        self.story.append((time.monotonic(), f"{kind} {node.name}"))
        match kind.split()[0]:
            case "stop":
                node.signal(signal.SIGSTOP)
                await asyncio.sleep(self._draw.uniform(3.0, 7.0))
                node.signal(signal.SIGCONT)
            case "kill":
                await asyncio.to_thread(node.kill)
                await asyncio.sleep(self._draw.uniform(0.1, 2.0))
                node.start()
            case "end":
                await asyncio.to_thread(node.end)
                node.start()
            case "cut":
                node.cut(off=True)
                await asyncio.sleep(self._draw.uniform(3.0, 7.0))
                node.cut(off=False)
        self.story.append((time.monotonic(), f"{node.name} mended after {kind}"))
        self._hurting.discard(node.name)


async def chaos(seconds: float, seed: int, replicas: int, folder: Path) -> dict[str, Any]:
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    cluster = Cluster(folder, replicas, policy)
    try:
        await asyncio.to_thread(cluster.start)
        await _working(cluster)
        agents = [Agents(name, tools, seed * 1000 + n) for n, (name, tools) in enumerate(TOOLS.items())]
        openers = Openers("opener", ["open"], seed * 1000 + len(agents))
        everyone = [*agents, openers]
        for each in everyone:
            await each.connect(cluster.url, cluster.passwords[f"agent:{each.name}"])
        until, faults = time.monotonic() + seconds, Faults(cluster, seed)
        work = [asyncio.create_task(each.work(until)) for each in everyone for _ in range(LOOPS)]
        await faults.work(until - QUIET)
        cluster.heal()
        _, unfinished = await asyncio.wait(work, timeout=QUIET + PATIENCE)
        for task in unfinished:
            task.cancel()
        unopened = await openers.fill(MAX_OPEN["opener"], PATIENCE)
        asked = {call: one for each in agents for call, one in each.asked.items()}
        client = SturdyClient()
        await client.connect(
            cluster.url.split(","), user="daemon", password=cluster.passwords["daemon"], inbox_prefix=inbox_prefix("daemon", "")
        )
        found = await verify(client, asked, LIMITS, MAX_OPEN)
        await client.close()
        slowest = max((one.answered - one.at for one in asked.values() if one.answered), default=0.0)
        _write_story(folder / "story.txt", faults, asked)
        published = sum(each.publications for each in everyone)
        for each in everyone:
            await each.client.close()
        return _told(found, slowest, published, faults, cluster, len(unfinished) + unopened)
    finally:
        await asyncio.to_thread(cluster.end)


async def _working(cluster: Cluster) -> None:
    """Until every worker has said that it works."""
    for _ in range(600):
        said = [(cluster.folder / f"{node.name}.out").read_text(errors="replace") for node in cluster.workers]
        if all("gated works" in text for text in said):
            return
        for node in cluster.workers:
            node.start()  # one that came before its servers were ready has ended
        await asyncio.sleep(0.1)
    raise RuntimeError("the workers do not start: " + " | ".join(text[-500:] for text in said))


def _write_story(path: Path, faults: Faults, asked: dict[str, Asked]) -> None:
    """What was broken when, and whom it kept waiting: for who looks into a run that was kept."""
    waits = [(one.at, f"{call} waited {one.answered - one.at:.1f} s") for call, one in asked.items() if one.answered - one.at > 2]
    lines = sorted([*faults.story, *waits])
    path.write_text("".join(f"{at - lines[0][0]:7.2f} {text}\n" for at, text in lines))


def _told(found: Found, slowest: float, published: int, faults: Faults, cluster: Cluster, unfinished: int) -> dict[str, Any]:
    return {
        "intents": found.intents,
        "lost": found.lost,
        "duplicate": found.duplicate,
        "out_of_order": found.out_of_order,
        "over_admitted": found.over_admitted,
        "failover_s_max": round(slowest, 2),
        "contradicted": found.contradicted,
        "damaged": found.damaged,
        "records": found.records,
        "publications": published,
        "unfinished": unfinished,
        "faults": dict(sorted(faults.done.items())),
        "network_partitions": cluster.network.isolated,
        "examples": found.examples,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replicas", type=int, choices=(1, 3), default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--keep", type=Path, help="keep the files of all processes in this folder")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gated-chaos-") as made:
        folder = told.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        result = asyncio.run(chaos(told.seconds, told.seed, told.replicas, folder))
    if told.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        for key, value in result.items():
            sys.stdout.write(f"{key:20} {value}\n")
    wrong = ("lost", "duplicate", "out_of_order", "over_admitted", "contradicted", "damaged", "unfinished")
    return 1 if any(result[key] for key in wrong) or not result["intents"] else 0


if __name__ == "__main__":
    sys.exit(main())
