"""`scripts/bench --cluster`: workers on the JetStream log, and beside them loops that only consume, append and publish.

`pass` does so by the gate's own ways to the bus and the log, `plain` (`plain_loop.py`) by nothing but nats-py: the least that any
gate must do. Both have the same consumers, the same pins and the same fenced appends, and their messages are as many and as
large; they decide nothing and keep no state. All are measured in turns, and the medians are told: the wall clock of a machine
that others use says little, so each figure has the CPU time beside it that the processes took for a verdict. `handover_ms_*` is
what agents wait while one of two workers stops as a service is stopped (`handover.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks import core, handover
from benchmarks.bench import Load
from gated import wire
from gated.shell.nats_binary import server_binary
from gated.shell.nats_config import User, UserRole, inbox_prefix, login, users_block

ROOT: Final = Path(__file__).parents[1]
USERS: Final[list[tuple[UserRole, str]]] = [("daemon", ""), ("agent", "a")]
PASSWORD: Final = "bench"  # of a server on loopback that lives for a minute


@contextmanager
def bus(folder: Path) -> Iterator[tuple[str, int]]:
    """One server with JetStream on files: where it is, and its process."""
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
        yield json.loads(ports.read_text())["nats"][0], server.pid
    finally:
        server.terminate()
        server.wait(20)


@contextmanager
def workers(folder: Path, url: str, count: int, kind: str) -> Iterator[list[subprocess.Popen[str]]]:
    """So many worker processes: gates, null gates, or loops of either kind."""
    running = []
    for number in range(count):
        command = [sys.executable, "-m", "benchmarks.cluster_worker", url, str(folder), kind, str(number), str(count)]
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
        yield running
    finally:
        for worker in running:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait(30)


def cpu_seconds(processes: Sequence[int]) -> float:
    """The CPU time that processes have taken since their start (Linux)."""
    spent = [Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13] for process in processes]
    return sum(int(user) + int(system) for user, system in spent) / os.sysconf("SC_CLK_TCK")


async def closed_loop(url: str, runs: int, seconds: float, tag: str, watched: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """What so many open runs at once get; a second in which they are opened and the partitions find their owners is left out.

    `verdict_ms_p50`, `verdict_ms_p99`, `verdicts_per_s`, and of every group of processes the µs of CPU time a verdict.
    """
    load = await Load.connected(url, user=login("agent", "a"), password=PASSWORD, inbox_prefix=inbox_prefix("agent", "a"))
    warm: list[float] = []
    opened = time.perf_counter() + 1.0
    numbers = await asyncio.gather(*(load.loop(f"{tag}{n}", opened, warm) for n in range(max(runs, 256))))
    spent: list[float] = []
    before = {name: cpu_seconds(processes) for name, processes in watched.items()}
    started = time.perf_counter()
    await asyncio.gather(*(load.loop(f"{tag}{n}", started + seconds, spent, numbers[n]) for n in range(runs)))
    took = time.perf_counter() - started
    cpu = {f"{name}_cpu_us": 1e6 * (cpu_seconds(each) - before[name]) / len(spent) for name, each in watched.items()}
    await load.client.close()
    half, most = core.percentiles(spent)
    return {"verdict_ms_p50": half, "verdict_ms_p99": most, "verdicts_per_s": len(spent) / took, **cpu}


def one_round(kind: str, count: int, seconds: float) -> dict[str, float]:
    """So many workers of a kind, with a server of their own: one call in flight, then 256."""
    with tempfile.TemporaryDirectory(prefix="gated-bench-", dir=os.environ.get("GATED_BENCH_DIR")) as name:
        folder = Path(name)
        (folder / "policy.yaml").write_text(core.PLAIN)
        with bus(folder) as (url, server), workers(folder, url, count, kind) as running:
            watched = {"worker": [worker.pid for worker in running], "server": [server], "load": [os.getpid()]}
            alone = asyncio.run(closed_loop(url, 1, seconds, "one", {}))
            many = asyncio.run(closed_loop(url, 256, seconds, "many", watched))
    found = {key: alone[key] for key in ("verdict_ms_p50", "verdict_ms_p99")}
    return found | {f"{key}_256": many[key] for key in many if not key.startswith("verdict_ms")}


def stopped() -> dict[str, float]:
    """What agents notice where one of two workers stops."""
    with tempfile.TemporaryDirectory(prefix="gated-bench-", dir=os.environ.get("GATED_BENCH_DIR")) as name:
        folder = Path(name)
        (folder / "policy.yaml").write_text(core.PLAIN)
        with bus(folder) as (url, _), workers(folder, url, 2, "gate") as running:
            return asyncio.run(handover.measure(url, PASSWORD, running[0]))


def measure(seconds: float, rounds: int) -> dict[str, float]:
    kinds = [("gate", 1), ("pass", 1), ("plain", 1), ("gate", 2), ("pass", 2), ("plain", 2), ("null", 1)]
    found: dict[tuple[str, int], list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            found[kind].append(one_round(*kind, seconds))
    told = {
        f"{kind}_{count}_{key}": statistics.median(each[key] for each in of)
        for (kind, count), of in found.items()
        for key in of[0]
    }
    for count, loop in itertools.product((1, 2), ("pass", "plain")):
        pairs = list(zip(found["gate", count], found[loop, count], strict=True))
        told[f"share_of_{loop}_{count}"] = statistics.median(g["verdicts_per_s_256"] / p["verdicts_per_s_256"] for g, p in pairs)
        told[f"share_of_{loop}_{count}_by_cpu"] = statistics.median(
            p["worker_cpu_us_256"] / g["worker_cpu_us_256"] for g, p in pairs
        )
    stops = [stopped() for _ in range(rounds)]
    told |= {key: statistics.median(each[key] for each in stops) for key in stops[0]}
    told["two_against_one"] = told["gate_2_verdicts_per_s_256"] / told["gate_1_verdicts_per_s_256"]
    return told


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench --cluster", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each closed loop")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, in turns")
    told = parser.parse_args(arguments)
    found = measure(told.seconds, told.rounds)
    if told.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:32} {value:12.2f}")
