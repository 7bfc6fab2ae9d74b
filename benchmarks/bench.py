"""`scripts/bench`: a table of what the gate costs, and with `--json` one object (docs/speed.md says what it measures)."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import approvals, big_state, core, detectors, long_threads
from gated.shell.nats_client import Heard, Straight, SturdyClient, line

ROOT = Path(__file__).parents[1]


class Load:
    """Closed loops over one connection: each run asks, waits for its verdict, asks again."""

    def __init__(self, client: SturdyClient) -> None:
        self.client = client
        self.waiting: dict[bytes, asyncio.Future[None]] = {}

    @classmethod
    async def connected(cls, url: str, **credentials: Any) -> Load:
        """One that hears what agent `a` is told."""
        load = cls(SturdyClient())
        await load.client.connect(url, **credentials)
        await load.client.subscribe("gated.out.*.*.agent.a", cb=Straight(load.hear))
        await load.client.flush()
        return load

    def hear(self, message: Heard) -> None:
        self.waiting.pop(message.subject.split(b".")[3]).set_result(None)

    async def ask(self, run: str, number: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting[run.encode()] = future
        call = f'{{"id":"c{number}","tool":"Read","args":{{"file_path":"src/f{number % 50}.py"}}}}'
        data = f'{{"type":"intents","calls":[{call}],"nesting":"explicit"}}'.encode()
        await self.client.send(line(f"gated.in.{run}.{run}.agent.a", data))
        await future

    async def loop(self, run: str, until: float, spent: list[float], number: int = 0) -> int:
        """Ask from a call's number on; the next one's."""
        while (started := time.perf_counter()) < until:
            await self.ask(run, number)
            spent.append((time.perf_counter() - started) * 1000)
            number += 1
        return number


async def closed_loop(folder: Path, runs: int, seconds: float, tag: str) -> list[float]:
    """ms of every verdict of so many runs at once, the first half second left out."""
    bus = json.loads((folder / "bus" / "bus.json").read_text())
    load = await Load.connected(bus["url"], user="agent:a", password=bus["users"]["agent:a"], inbox_prefix="_INBOX.agent.a")
    warm: list[float] = []
    await asyncio.gather(*(load.loop(f"{tag}w{n}", time.perf_counter() + 0.5, warm) for n in range(runs)))
    spent: list[float] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(load.loop(f"{tag}{n}", until, spent) for n in range(runs)))
    await load.client.close()
    return spent


@contextmanager
def serving(kind: str, policy: str, uvloop: bool) -> Iterator[Path]:
    """A daemon with its server, in a folder of its own: the gate or the null gate."""
    with tempfile.TemporaryDirectory(prefix="gated-bench-", dir=os.environ.get("GATED_BENCH_DIR")) as name:
        folder = Path(name)
        (folder / "policy.yaml").write_text(policy)
        command = [sys.executable, "-m", "benchmarks.serve", name, kind, str(folder / "policy.yaml"), *(["--uvloop"] * uvloop)]
        quiet = (folder / "out").open("w")
        server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True)
        assert server.stdin is not None
        assert server.stdout is not None
        while "ready" not in server.stdout.readline():
            if server.poll() is not None:
                sys.exit((folder / "out").read_text())
        yield folder
        server.stdin.close()
        server.wait(30)


ROUNDS = 3


def in_turns(seconds: float, uvloop: bool) -> dict[str, float]:
    """The gate's figures and the null gate's, measured in turns, since a machine is not as fast now as a minute ago: medians."""
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        null = {f"null_{key}": value for key, value in gate("null", seconds, uvloop).items()}
        rounds.append(gate("gate", seconds, uvloop) | null)
    return {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}


def gate(kind: str, seconds: float, uvloop: bool) -> dict[str, float]:
    """The closed-loop figures of one daemon: the gate or the null gate."""
    found: dict[str, float] = {}
    with serving(kind, core.PLAIN, uvloop) as folder:
        for runs in (1, 64, 256):
            spent = asyncio.run(closed_loop(folder, runs, seconds, f"{kind}{runs}x"))
            if runs == 1:
                found["verdict_ms_p50"], found["verdict_ms_p99"] = core.percentiles(spent)
            else:
                found[f"verdicts_per_s_{runs}"] = len(spent) / seconds
    return found


def approve(seconds: float, uvloop: bool) -> dict[str, float]:
    """How long an approve takes to the agent that waits."""
    with serving("gate", approvals.POLICY, uvloop) as folder:
        half, most = core.percentiles(asyncio.run(approvals.measure(folder, seconds)))
    return {"approve_ms_p50": half, "approve_ms_p99": most}


def _loads_in_time(shape: str, found: dict[str, Any]) -> bool:
    return bool(found[f"load_ms_{shape}"] <= 50)


TARGETS: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "decide_us_p50": ("<= 25", lambda f: f["decide_us_p50"] <= 25),
    "decide_us_p50_10000th": ("<= 1.1 x 10th", lambda f: f["decide_us_p50_10000th"] <= 1.1 * f["decide_us_p50_10th"]),
    "verdict_ms_p50": ("<= 1.25 x null", lambda f: f["verdict_ms_p50"] <= 1.25 * f["null_verdict_ms_p50"]),
    "verdicts_per_s_64": (
        ">= 5000, >= 0.7 x null",
        lambda f: f["verdicts_per_s_64"] >= max(5000, 0.7 * f["null_verdicts_per_s_64"]),
    ),
    "approve_ms_p50": ("<= null verdict + 3", lambda f: f["approve_ms_p50"] <= f["null_verdict_ms_p50"] + 3),
    "replay_records_per_s": (">= 20000", lambda f: f["replay_records_per_s"] >= 20_000),
    "decide_us_p50_100_machines_10000_instances": (
        "<= none + 10",
        lambda f: f["decide_us_p50_100_machines_10000_instances"] <= f["decide_us_p50_path_in_scope"] + 10,
    ),
    "decide_us_p50_20_contracts_2_applying": ("<= 50", lambda f: f["decide_us_p50_20_contracts_2_applying"] <= 50),
    "decide_us_p50_50_in_flight_on_5_instances": ("<= 40", lambda f: f["decide_us_p50_50_in_flight_on_5_instances"] <= 40),
    "decide_us_p50_100_machines_5_touching": ("<= 25", lambda f: f["decide_us_p50_100_machines_5_touching"] <= 25),
    "bytes_per_idle_run": ("<= 4096", lambda f: f["bytes_per_idle_run"] <= 4096),
    "bytes_per_run_10_calls": ("<= 4096", lambda f: f["bytes_per_run_10_calls"] <= 4096),
    "start_s": ("<= 2", lambda f: f["start_s"] <= 2),
    "first_cap_s": ("<= 2", lambda f: f["first_cap_s"] <= 2),
    **{f"load_ms_{shape}": ("<= 50", partial(_loads_in_time, shape)) for shape in long_threads.SHAPES},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each closed loop, three times")
    parser.add_argument("--core", action="store_true", help="only what needs no bus")
    parser.add_argument("--uvloop", action="store_true", help="the daemon on uvloop (extra `gated[uvloop]`)")
    parser.add_argument("--state", action="store_true", help="starts, loads and memory with big state, nothing else")
    parser.add_argument("--cluster", action="store_true", help="workers on the JetStream log, nothing else")
    parser.add_argument("--canned", action="store_true", help="what a verdict costs without a server or a disk, nothing else")
    if "--cluster" in sys.argv or "--canned" in sys.argv:  # which have options of their own
        from benchmarks import canned, cluster  # which need this module

        own = canned.main if "--canned" in sys.argv else cluster.main
        own([argument for argument in sys.argv[1:] if argument not in ("--cluster", "--canned")])
        return
    chosen = parser.parse_args()
    found: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"}
    if chosen.state:
        found |= big_state.measure()
    else:
        found |= core.measure()
        found |= detectors.measure()
    if not chosen.core and not chosen.state:
        found |= in_turns(chosen.seconds, chosen.uvloop)
        found |= approve(chosen.seconds, chosen.uvloop)
    if chosen.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        target, holds = TARGETS.get(key, ("", None))
        known = holds is not None and not (chosen.core and ("verdict" in key or "approve" in key))
        mark = ("yes" if holds(found) else "NO") if known and holds is not None else ""
        print(f"{key:46} {value if isinstance(value, str) else f'{value:12,.2f}'}  {target:24} {mark}")


if __name__ == "__main__":
    main()
