"""How long agents wait while one of two workers stops as a service is stopped, and hands its partitions over.

A run for every partition asks every 20 ms. From the moment the worker is told to stop until half a second after it has gone, each
verdict's time is taken; beside it stands the longest of the second before.
"""

from __future__ import annotations

import asyncio
import subprocess
import time

from benchmarks.bench import Load
from benchmarks.core import percentiles
from gated.shell.log.jetstream_names import partition_of
from gated.shell.nats_config import inbox_prefix, login

PARTITIONS = 64
PAUSE = 0.02  # seconds between a verdict and the next question
AFTER = 0.5


def _runs() -> list[str]:
    """A thread in each partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < PARTITIONS:
        found.setdefault(partition_of(f"h{number}", PARTITIONS), f"h{number}")
        number += 1
    return list(found.values())


async def measure(url: str, password: str, worker: subprocess.Popen[str]) -> dict[str, float]:
    """`handover_ms_p50` and `handover_ms_max`: of every run the longest verdict; `handover_before_ms_max`; `handover_stop_ms`."""
    load = await Load.connected(url, user=login("agent", "a"), password=password, inbox_prefix=inbox_prefix("agent", "a"))
    ended = asyncio.Event()
    asked: dict[str, list[tuple[float, float]]] = {run: [] for run in _runs()}

    async def ask_on(run: str) -> None:
        number = 0
        while not ended.is_set():
            started = time.perf_counter()
            await load.ask(run, number)
            asked[run].append((started, time.perf_counter()))
            number += 1
            await asyncio.sleep(PAUSE)

    asking = [asyncio.create_task(ask_on(run)) for run in asked]
    await asyncio.sleep(3.0)  # the runs are opened, and each partition has found its worker
    told = time.perf_counter()
    assert worker.stdin is not None
    worker.stdin.close()
    await asyncio.to_thread(worker.wait, 30)
    gone = time.perf_counter()
    await asyncio.sleep(AFTER)
    ended.set()
    await asyncio.gather(*asking)
    await load.client.close()
    longest = [1000 * max(heard - said for said, heard in each if heard >= told) for each in asked.values()]
    before = [heard - said for each in asked.values() for said, heard in each if told - 1.0 <= said and heard < told]
    return {
        "handover_ms_p50": percentiles(longest)[0],
        "handover_ms_max": max(longest),
        "handover_before_ms_max": 1000 * max(before),
        "handover_stop_ms": 1000 * (gone - told),
    }
