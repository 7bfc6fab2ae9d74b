"""Big state: a start with many past runs, a long thread through its snapshot, what an idle run keeps in memory.

The start is that of `gated up`, from the command to the line that says it is up: Python, the embedded bus and all. Once after a
clean stop, once after a kill, which has it look again at what it may not have said.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks import core, long_threads
from benchmarks.long_threads import Said
from gated.core import state as states
from gated.core.decide import record
from gated.core.policy import Policy, load_text
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import Record, RunId, ThreadId
from gated.shell.log import EventLog
from gated.shell.log.sqlite import open_for_writing
from gated.shell.open_runs import OpenRuns
from gated.shell.threads import Threads

PAST = 100_000  # runs of the log that a daemon starts with
LONG = 100_000  # records of the long threads
LOADS = 7


def measure(past: int = PAST, long: int = LONG) -> dict[str, float]:
    found = asyncio.run(_loads(long))
    found |= _memory()
    found |= _starts(past)
    return found


# --- a start with many past runs -------------------------------------------------------------------------------------


def _starts(past: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="gated-bench-", dir=os.environ.get("GATED_BENCH_DIR")) as name:
        folder = Path(name)
        (folder / "policy.yaml").write_text(core.PLAIN)
        found = {"start_s_no_runs": min(_start(folder) for _ in range(3))}
        found["first_cap_s"] = asyncio.run(_fill(folder / "data" / "log.db", past))
        found["start_s_after_a_kill"] = _start(folder)  # the log goes on behind what was sealed
        found["start_s"] = min(_start(folder) for _ in range(3))
    return found


def _start(folder: Path) -> float:
    """Seconds from the command to its being up."""
    command = [sys.executable, "-m", "gated", "up", "--data", "data", "--no-console"]
    began = time.perf_counter()
    with (folder / "errors").open("w") as errors:
        gate = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert gate.stdout is not None
        line = gate.stdout.readline()
        spent = time.perf_counter() - began
        if "is up" not in line:
            sys.exit((folder / "errors").read_text())
        gate.terminate()
        gate.wait(60)
    return spent


async def _fill(path: Path, past: int) -> float:
    """Put finished runs into a log, each on a thread of its own; the CPU time of a first count of its open runs (s)."""
    log, policy = await open_for_writing(path), load_text(core.PLAIN, "bench.yaml")
    await log.put_policy(policy.digest, policy.text)
    try:
        registry, batch = _registry(policy), list[Record]()
        for number in range(past):
            batch += _played(registry, ThreadState(ThreadId(f"past{number}")), long_threads.finished(RunId("r"), 1))[0]
            if len(batch) > 5000:
                await log.append_many(batch)
                batch.clear()
        await log.append_many(batch)
        began = time.process_time()
        await OpenRuns.of(log, {})
        return time.process_time() - began
    finally:
        await log.close()


def _registry(policy: Policy) -> Registry:
    return Registry(policy, {policy.digest: policy}, Vault(b"bench"))


def _played(registry: Registry, state: ThreadState, said: Iterator[Said]) -> tuple[list[Record], ThreadState]:
    records: list[Record] = []
    for run, observation in said:
        step, sealed = record(registry, state, run, observation, state.at + 1000)
        state = step.state
        if sealed is not None:
            records.append(sealed)
    return records, state


# --- a long thread through its snapshot ------------------------------------------------------------------------------


async def _loads(long: int) -> dict[str, float]:
    """CPU time (ms) from a log with a snapshot to the state of a thread, best of some, and what making the snapshot takes."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="gated-bench-", dir=os.environ.get("GATED_BENCH_DIR")) as name:
        for shape, (text, said) in long_threads.SHAPES.items():
            policy = load_text(text, "bench.yaml")
            _, state = _played(_registry(policy), ThreadState(long_threads.THREAD), said(long))
            log = await open_for_writing(Path(name) / f"{shape}.db")
            try:
                found[f"load_ms_{shape}"] = await _load(log, policy, state)
            finally:
                await log.close()
            found[f"snapshot_ms_{shape}"] = min(_seconds(partial(states.dump, state)) for _ in range(LOADS)) * 1000
    return found


async def _load(log: EventLog, policy: Policy, state: ThreadState) -> float:
    await log.put_policy(policy.digest, policy.text)
    await log.save_snapshot(state.thread, state.seq, states.dump(state))
    spent: list[float] = []
    for _ in range(LOADS):
        threads = Threads(log, policy, Vault(b"bench"))
        began = time.process_time()
        loaded = await threads.look(state.thread)
        spent.append(time.process_time() - began)
        assert loaded == state
    return min(spent) * 1000


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


# --- an idle run -----------------------------------------------------------------------------------------------------


def _memory(runs: int = 400) -> dict[str, float]:
    """Bytes that an open run keeps in memory, by the calls that it has made, each on a thread of its own."""
    policy = load_text(core.PLAIN, "bench.yaml")
    core.play(policy, 10)
    found: dict[str, float] = {}
    for calls in (0, 10, 1000):
        gc.collect()
        tracemalloc.start()
        kept = [core.play(policy, calls, thread=f"m{calls}x{number}")[1] for number in range(runs if calls < 1000 else 10)]
        gc.collect()
        found[f"bytes_per_run_{calls}_calls"] = tracemalloc.get_traced_memory()[0] / len(kept)
        tracemalloc.stop()
    return found
