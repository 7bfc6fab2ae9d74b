"""A week of runs in minutes: scripts/soak [--days 7] [--runs 2000] [--json]

One gate, in this process, with the clock of its deadlines set forward. A day is so many runs of four kinds: finished, suspended
with nobody to answer, forgotten by their agent, aborted after calls that came twice; then six hours pass, and what was open is
over. After each day: the memory of the process, the blocks that Python holds, and what the gate itself holds. In the second half
of the week nothing may stand higher than in the first by more than a little; exit status 1 where it does.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
from nats.aio.msg import Msg

from gated.shell import threads, timers
from gated.shell.daemon import Daemon, Settings, daemon
from gated.shell.embedded import embedded_server
from gated.shell.log.sqlite import open_for_writing
from gated.shell.nats_config import inbox_prefix
from gated.shell.policies import read_policy
from gated.wire import subjects

POLICY = """
version: 1
agents:
  a:
    allowed_tools: [Read, refund]
    approval_required: [refund]
    data_scope: any
    resource_budget: {max_calls: 1000}
approvals: {default: {approvers: [user:bob], timeout: 1h}}
machines:
  - {name: reads, scope: run, key: "{file}", initial: n, transitions: [{on: Read, from: "*", to: r}]}
"""

TOGETHER = 100  # runs that are asked for at a time
CACHE = 500  # threads in memory: fewer than a day has, so that each day fills it
PASSED = 6 * 3600
BLOCKS_A_RUN = 0.5  # that may stay behind: one forgotten object a run would be one or more
BYTES_A_RUN = 512  # the same for the process, whose allocators keep some; the state of a forgotten run would be six times that

# What four runs, one of each kind, are told in a day: type and decision. Told anything else, a week measures something else.
TOLD = {
    ("verdict", "allow"): 6,
    ("verdict", "suspend"): 1,
    ("verdict", "deny"): 1,
    ("refusal", None): 1,
    ("reminder", None): 5,  # three outcomes, and two that nobody reported in time
    ("run.status", None): 2,
}


_MEASURED = ("blocks", "resident_bytes")


class Clock:
    """The clock that deadlines are told by, `ahead` of the true one by so many seconds."""

    ahead = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead * 1_000_000_000


def _call(name: str, tool: str) -> dict[str, Any]:
    return {"type": "intents", "nesting": "explicit", "calls": [{"id": name, "tool": tool, "args": {"file": f"{name}.py"}}]}


def _told(number: int) -> Iterator[dict[str, Any]]:
    kind = number % 4
    if kind == 0:
        for name in ("c0", "c1", "c2"):
            yield _call(name, "Read")
            yield {"type": "outcome", "call": name, "status": "success", "content": "ok"}
        yield {"type": "run.finish"}
    elif kind == 1:
        yield _call("asked", "refund")
    elif kind == 2:
        yield _call("forgotten", "Read")
    else:
        yield _call("twice", "Read")
        yield _call("twice", "Read")
        yield _call("twice", "refund")  # refused: the id is another call's
        yield {"type": "run.abort", "reason": "enough"}


class Agent:
    """Says what runs say, and counts the answers: one for each message, and for what time alone decides."""

    def __init__(self, client: nats.NATS) -> None:
        self._client, self._owed, self._came = client, 0, asyncio.Event()
        self.heard: Counter[tuple[str, str | None]] = Counter()

    async def hear(self, message: Msg) -> None:
        said = json.loads(message.data)
        self.heard[said["type"], said.get("decision")] += 1
        self._came.set()

    async def say(self, runs: list[str], numbers: list[int]) -> None:
        for run, number in zip(runs, numbers, strict=True):
            for message in _told(number):
                self._owed += 1
                await self._client.publish(f"gated.in.{run}.{run}.agent.a", json.dumps(message).encode())
        await self.answered()

    async def answered(self, more: int = 0) -> None:
        self._owed += more
        while self.heard.total() < self._owed:
            self._came.clear()
            await asyncio.wait_for(self._came.wait(), 60)


async def _day(day: int, count: int, agent: Agent, clock: Clock, made: Daemon) -> dict[str, int]:
    before = agent.heard.copy()
    for first in range(0, count, TOGETHER):
        numbers = list(range(first, min(first + TOGETHER, count)))
        await agent.say([f"d{day}r{number}" for number in numbers], numbers)
    clock.ahead += PASSED
    made.runs.timers._sooner.set()
    await agent.answered(more=3 * (count // 4))  # of those that nobody approved or reported
    as_it_should = agent.heard - before == {kind: number * (count // 4) for kind, number in TOLD.items()}
    runs = made.runs
    while runs.timers._deadlines or runs.timers._armed or runs.health.waiting:  # noqa: ASYNC110 (the gate tells nobody of these)
        await asyncio.sleep(0.05)
    return {
        "day": day,
        "records": runs.health.records,
        **_memory(),
        "threads": len(runs.threads.states),
        "open_tickets": len(runs.open_tickets),
        "as_it_should": as_it_should,
    }


def _memory() -> dict[str, int]:
    subjects.parse_in_subject.cache_clear()  # bounded, and not full in so short a week
    subjects.parse_stored_subject.cache_clear()
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"resident_bytes": pages * resource.getpagesize(), "blocks": sys.getallocatedblocks()}


async def soak(days: int, count: int) -> list[dict[str, int]]:
    clock = Clock()
    timers.time = clock  # type: ignore[assignment]
    threads.CACHE = CACHE  # type: ignore[misc]
    with tempfile.TemporaryDirectory(prefix="gated-soak-") as name:
        folder = Path(name)
        (folder / "policy.yaml").write_text(POLICY)
        event_log = await open_for_writing(folder / "log.db")
        async with embedded_server(folder / "bus", [("agent", "a"), ("approver", "bob")]) as server:
            credentials = {"user": "daemon", "password": server.bus.users["daemon"], "inbox_prefix": inbox_prefix("daemon", "")}
            settings = Settings(server.bus.url, folder / "policy.yaml", credentials)
            async with daemon(settings, event_log, read_policy(folder / "policy.yaml")) as made:
                password = server.bus.users["agent:a"]
                client = await nats.connect(server.bus.url, user="agent:a", password=password, inbox_prefix="_INBOX.agent.a")
                agent = Agent(client)
                await client.subscribe("gated.out.*.*.agent.a", cb=agent.hear)
                await client.flush()
                found = [await _day(day, count, agent, clock, made) for day in range(days)]
                await client.close()
        await event_log.close()
    return found


def grown(found: list[dict[str, int]], count: int) -> dict[str, float]:
    """What each run left behind: the highest of the second half of the days against that of the first, since which threads stay
    in memory differs from day to day."""
    half = len(found) // 2
    runs = count * (len(found) - half)
    return {name: (max(d[name] for d in found[half:]) - max(d[name] for d in found[:half])) / runs for name in _MEASURED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=7, help="at least 6")
    parser.add_argument("--runs", type=int, default=2000, help="of a day; at least 2000")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    chosen = parser.parse_args()
    if chosen.days < 6 or chosen.runs < 4 * CACHE or chosen.runs % 4:
        parser.error(f"a soak is of at least 6 days of {4 * CACHE} runs, as many of each of the four kinds")
    found = asyncio.run(soak(chosen.days, chosen.runs))
    left = grown(found, chosen.runs)
    if not all(day["as_it_should"] for day in found):
        sys.exit("the gate answered something else than these runs are to hear: the week measures nothing")
    bounded = left["blocks"] <= BLOCKS_A_RUN and left["resident_bytes"] <= BYTES_A_RUN
    if chosen.json:
        print(json.dumps({"days": found, "left_by_a_run": left, "bounded": bounded}))
    else:
        for line in found:
            print("  ".join(f"{name} {value:,}" for name, value in line.items()))
        said = f"left by a run: {left['blocks']:.2f} blocks, {left['resident_bytes']:.0f} bytes"
        print(f"{said}; bounded: {'yes' if bounded else 'NO'}")
    sys.exit(0 if bounded else 1)


if __name__ == "__main__":
    main()
