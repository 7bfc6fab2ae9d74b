"""`scripts/bench --cluster`: workers on the JetStream log, and beside them a loop that only consumes, appends and publishes.

The loop has the same consumers, the same pins and the same fenced appends; it decides nothing and keeps no state.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import nats

from benchmarks import core
from benchmarks.bench import Load
from gated import wire
from gated.shell.nats_binary import server_binary
from gated.shell.nats_config import User, UserRole, inbox_prefix, login, users_block

ROOT: Final = Path(__file__).parents[1]
USERS: Final[list[tuple[UserRole, str]]] = [("daemon", ""), ("agent", "a")]
PASSWORD: Final = "bench"  # of a server on loopback that lives for a minute


@contextmanager
def bus(folder: Path) -> Iterator[str]:
    """One server with JetStream on files."""
    users = users_block([User(role, name, PASSWORD) for role, name in USERS])
    (folder / "nats.conf").write_text(
        f'listen: "127.0.0.1:-1"\nports_file_dir: "{folder}"\nmax_payload: {2 * wire.MAX_PAYLOAD}\n'
        f'jetstream {{ store_dir: "{folder}/js" }}\nauthorization {{ {users} }}\n'
    )
    with (folder / "server.out").open("w") as out:
        server = subprocess.Popen([server_binary(), "-c", str(folder / "nats.conf")], stdout=out, stderr=out)
    try:
        ports = folder / f"nats-server_{server.pid}.ports"
        while not ports.exists() or not ports.read_text().endswith("}"):
            time.sleep(0.02)
        yield json.loads(ports.read_text())["nats"][0]
    finally:
        server.terminate()
        server.wait(20)


@contextmanager
def workers(folder: Path, url: str, count: int, kind: str) -> Iterator[None]:
    """So many worker processes: gates, null gates, or loops that only pass on."""
    running = []
    for number in range(count):
        command = [sys.executable, "-m", "benchmarks.cluster_worker", url, str(folder), f"w{number}", kind]
        with (folder / f"w{number}.out").open("w") as out:
            running.append(
                subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True)
            )
    for worker in running:
        assert worker.stdout is not None
        while "ready" not in worker.stdout.readline():
            if worker.poll() is not None:
                sys.exit("".join(path.read_text() for path in folder.glob("w*.out")))
    try:
        yield
    finally:
        for worker in running:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait(30)


async def closed_loop(url: str, runs: int, seconds: float, tag: str) -> list[float]:
    """ms of every verdict; a second to let the partitions find their owners is left out."""
    client = await nats.connect(url, user=login("agent", "a"), password=PASSWORD, inbox_prefix=inbox_prefix("agent", "a"))
    load = Load(client)
    await client.subscribe("gated.out.*.*.agent.a", cb=load.hear)
    await client.flush()
    warm: list[float] = []
    await asyncio.gather(*(load.loop(f"{tag}w{n}", time.perf_counter() + 1.0, warm) for n in range(max(runs, 256))))
    spent: list[float] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(load.loop(f"{tag}{n}", until, spent) for n in range(runs)))
    await client.close()
    return spent


def measure(seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, count in (("gate", 1), ("gate", 2), ("null", 1), ("pass", 1), ("pass", 2)):
        with tempfile.TemporaryDirectory(prefix="gated-bench-", dir=os.environ.get("GATED_BENCH_DIR")) as name:
            folder = Path(name)
            (folder / "policy.yaml").write_text(core.PLAIN)
            with bus(folder) as url, workers(folder, url, count, kind):
                spent = asyncio.run(closed_loop(url, 1, seconds, "one"))
                half, most = core.percentiles(spent)
                many = len(asyncio.run(closed_loop(url, 256, seconds, "many"))) / seconds
        found |= {
            f"{kind}_{count}_verdict_ms_p50": half,
            f"{kind}_{count}_verdict_ms_p99": most,
            f"{kind}_{count}_verdicts_per_s_256": many,
        }
    found["share_of_pass_1"] = found["gate_1_verdicts_per_s_256"] / found["pass_1_verdicts_per_s_256"]
    found["share_of_pass_2"] = found["gate_2_verdicts_per_s_256"] / found["pass_2_verdicts_per_s_256"]
    found["two_against_one"] = found["gate_2_verdicts_per_s_256"] / found["gate_1_verdicts_per_s_256"]
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench --cluster", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each closed loop")
    told = parser.parse_args(arguments)
    found = measure(told.seconds)
    if told.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:32} {value:12.2f}")
