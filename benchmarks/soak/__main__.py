"""Days of runs in minutes: scripts/soak [--days 12] [--runs 2000] [--json] [--leak]

One gate, in this process, with the clock of its deadlines set forward. A day is so many runs of eight kinds: finished, suspended
with nobody to answer, forgotten by their agent, aborted after calls that came twice, approved, rejected, with personal data that
is erased, and runs that follow one another on threads long enough for snapshots. The policy is reloaded at each day's end. The
caches are made so small that each day fills them.

After each day nothing is open, and the gate must hold nothing of it: its queues, timers and tickets are counted. Then all threads
are made to leave memory, and what is left is measured: the blocks that Python holds, and the bytes that malloc gave (glibc 2.33
or newer). What a run leaves behind is the slope of these over the second half of the days; exit status 1 where it is more than
noise. `--leak` keeps one object of each run, to show that the soak would tell.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import functools
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import nats

from benchmarks.soak import runs as kinds
from benchmarks.soak.people import People
from gated.core.packed import Packed
from gated.events import DataErased, Decision, Record
from gated.shell import keyring, open_tickets, threads, timers
from gated.shell.custody import Copies, open_custody
from gated.shell.daemon import Daemon, Settings, daemon
from gated.shell.embedded import embedded_server
from gated.shell.log.sqlite import open_for_writing
from gated.shell.nats_config import inbox_prefix
from gated.shell.policies import read_policy

TOGETHER = 80  # runs that are asked for at a time
SMALL = 200  # threads, keys and places of closed tickets in memory: fewer than a day has, so that each day fills them
SNAPSHOT = 50  # records of a thread between two snapshots: its runs on one thread have more of them in a day
PASSED = 6 * 3600
BLOCKS_A_RUN = 0.1  # one forgotten object in every tenth run: one kind of run that forgets one leaves an eighth
BYTES_A_RUN = 100  # of malloc's; the state of a forgotten run is ten times that

Day = dict[str, Any]


class Clock:
    """The clock that deadlines are told by, `ahead` of the true one by so many seconds."""

    ahead = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead * 1_000_000_000


class Week:
    def __init__(self, made: Daemon, people: People, clock: Clock, folder: Path, count: int, *, leak: bool) -> None:
        self._made, self._people, self._clock, self._folder, self._count = made, people, clock, folder, count
        self._kept: list[Packed] | None = [] if leak else None
        self._erased = self._due_erasures = 0
        made.runs.telemetry.listeners.append(self)

    def heard(self, record: Record, decisions: Sequence[Decision], agent: str) -> None:
        """A listener of the daemon's."""
        self._erased += sum(isinstance(decision, DataErased) for decision in decisions)

    async def day(self, day: int) -> Day:
        before, started = self._people.heard.copy(), time.process_time()
        for first in range(0, self._count, TOGETHER):
            await self._people.tell(day, range(first, min(first + TOGETHER, self._count)))
        await self._people.erase(day, range(kinds.ERASED, self._count, kinds.KINDS))
        self._clock.ahead = PASSED
        self._made.runs.timers._sooner.set()
        some = self._count // kinds.KINDS
        await self._people.answered(more=(kinds.LATER.total()) * some)
        if self._kept is not None:
            self._kept += [Packed(size=day) for _ in range(self._count)]
        heard, due = self._people.heard - before, self._due(some)
        await self._settled()
        self._clock.ahead = 0  # else the calls of the next day, which begins now, were overdue at once
        full = _memory()
        (self._folder / "policy.yaml").write_text(kinds.POLICY % (1000 + day % 2))
        await self._made.reload()
        held = self._held()
        await self._empty()
        return {
            "day": day,
            "records": self._made.runs.health.records,
            "cpu_s": round(time.process_time() - started, 1),
            "full_blocks": full["blocks"],
            "full_bytes": full["bytes"],
            **await _least(),
            "held": held,
            "unexpected": [f"{heard[what]} {what}, not {due[what]}" for what in heard | due if heard[what] != due[what]],
        }

    def _due(self, some: int) -> Any:
        due = kinds.LATER.copy()
        for heard in kinds.HEARD.values():
            due += heard
        return type(due)({what: number * some for what, number in due.items()})

    async def _settled(self) -> None:
        """Until all that was said is done: what operators asked for is answered to nobody."""
        runs = self._made.runs
        self._due_erasures += self._count // kinds.KINDS
        timers = runs.timers
        while timers._deadlines or timers._armed or runs.health.waiting or self._erased < self._due_erasures:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def _held(self) -> dict[str, int]:
        """What the gate holds that a day could leave in it; every count is 0 then."""
        runs = self._made.runs
        told = runs.telemetry
        return {
            "inputs": len(runs._mailbox) + len(runs._aside) + len(runs._refused),
            "timers": len(runs.timers._deadlines) + len(runs.timers._armed) + len(runs.timers._changed),
            "tickets": len(runs.open_tickets) + told.open + told.unseen + len(told._answered) + len(told._threads),
        }

    async def _empty(self) -> None:
        """Let every thread leave memory, and empty the caches that are bounded: whatever stays is nobody's."""
        some, threads.CACHE = threads.CACHE, 0  # type: ignore[misc]
        while self._made.runs.threads.states:  # a record may not be durable yet
            await self._made.runs.threads.settle_down((), lambda thread: False)
            await asyncio.sleep(0.05)
        threads.CACHE = some  # type: ignore[misc]
        self._made.runs.open_tickets._closed.clear()
        custody = self._made.settings.custody
        assert custody is not None
        custody.keyring.at_hand.held.clear()
        custody.keyring._read_as.clear()


async def _least() -> dict[str, int]:
    """The least of some looks: what somebody is just about is no leak."""
    looks = []
    for _ in range(5):
        await asyncio.sleep(0.1)
        looks.append(_memory())
    return {name: min(look[name] for look in looks) for name in looks[0]}


def _memory() -> dict[str, int]:
    for found in gc.get_objects():
        if isinstance(found, functools._lru_cache_wrapper) and found.cache_parameters()["maxsize"] is not None:
            found.cache_clear()  # bounded, and not full in so short a week; one without a bound stays, and would tell
    gc.collect()
    return {"blocks": sys.getallocatedblocks(), "bytes": _malloced()}


_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS.split())


def _malloced() -> int:
    """Bytes that malloc has given and not got back: what is too large to be a block of Python's, and what libraries hold.

    The memory of the process would also be what malloc keeps for later, which grows and shrinks as it likes.
    """
    asked = ctypes.CDLL(None).mallinfo2
    asked.restype = _Mallinfo
    found = asked()
    return int(found.uordblks + found.hblkhd)


async def soak(days: int, count: int, *, leak: bool = False) -> list[Day]:
    clock = Clock()
    timers.time = clock  # type: ignore[attr-defined, assignment]
    threads.CACHE = keyring.CACHE = open_tickets.CLOSED = SMALL  # type: ignore[misc]
    threads.SNAPSHOT = SNAPSHOT  # type: ignore[misc]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gated-soak-")))
        policy = folder / "policy.yaml"
        policy.write_text(kinds.POLICY % 1000)
        custody = open_custody(folder / "keys", Copies(every=1000))
        event_log = await open_for_writing(folder / "log.db", custody.sealing)
        stack.push_async_callback(event_log.close)
        users = [("agent", "a"), ("approver", "bob"), ("operator", "local")]
        server = await stack.enter_async_context(embedded_server(folder / "bus", users))  # type: ignore[arg-type]
        url, passwords = server.bus.url, server.bus.users
        credentials = {"user": "daemon", "password": passwords["daemon"], "inbox_prefix": inbox_prefix("daemon", "")}
        settings = Settings(url, policy, credentials, custody=custody)
        made = await stack.enter_async_context(daemon(settings, event_log, read_policy(policy)))
        clients = []
        for role, name in users:
            login = f"{role}:{name}"
            client = await nats.connect(url, user=login, password=passwords[login], inbox_prefix=f"_INBOX.{role}.{name}")
            stack.push_async_callback(client.close)
            clients.append(client)
        people = People(*clients)
        await people.listen()
        week = Week(made, people, clock, folder, count, leak=leak)
        found = []
        for day in range(days):
            found.append(await week.day(day))
            print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return found


def slope(values: Sequence[float]) -> float:
    """What each is more than the one before it: the median over all pairs, which one odd day does not move."""
    pairs = combinations(enumerate(values), 2)
    return statistics.median((later - sooner) / (m - n) for (n, sooner), (m, later) in pairs)


def left_by_a_run(found: Sequence[Day], count: int) -> dict[str, float]:
    """Over the second half of the days: in the first the caches fill, SQLite's last."""
    return {name: slope([day[name] for day in found[len(found) // 2 :]]) / count for name in ("blocks", "bytes", "full_blocks")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=12, help="at least 6")
    parser.add_argument("--runs", type=int, default=2000, help="of a day; at least 1600")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--leak", action="store_true", help="keep one object of each run")
    chosen = parser.parse_args()
    if chosen.days < 6 or chosen.runs < SMALL * kinds.KINDS or chosen.runs % kinds.KINDS:
        parser.error(f"a soak is of at least 6 days of {SMALL * kinds.KINDS} runs, as many of each of the {kinds.KINDS} kinds")
    found = asyncio.run(soak(chosen.days, chosen.runs, leak=chosen.leak))
    left = left_by_a_run(found, chosen.runs)
    unexpected = [text for day in found for text in day.pop("unexpected")]
    if unexpected:
        sys.exit(f"the gate answered something else than these runs are to hear, so the week measures nothing: {unexpected}")
    nothing_held = not any(sum(day["held"].values()) for day in found)
    bounded = nothing_held and max(left["blocks"], left["full_blocks"]) <= BLOCKS_A_RUN and left["bytes"] <= BYTES_A_RUN
    if chosen.json:
        print(json.dumps({"days": found, "left_by_a_run": left, "bounded": bounded}))
    else:
        for day in found:
            held = day.pop("held")
            print("  ".join(f"{name} {value:,}" for name, value in {**day, "held": sum(held.values())}.items()))
        said = f"left by a run: {left['blocks']:.3f} blocks, {left['bytes']:.0f} bytes, full {left['full_blocks']:.3f} blocks"
        print(f"{said}; bounded: {'yes' if bounded else 'NO'}")
    sys.exit(0 if bounded else 1)


if __name__ == "__main__":
    main()
