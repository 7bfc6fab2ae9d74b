"""`scripts/bench --canned`: what a verdict costs a process that serves, without a server, a disk or a network.

Canned inputs go through the real reader, serialiser and answers; what would go to a server is counted, and what it would say of
an append is read as it would be. Bytecodes of Python a verdict are the same however busy the machine is; the CPU time is the
least of many windows, the kinds in turns. In `daemon` each read brings 32 inputs, and the log takes everything; in `worker` it
brings one or two for each of some of 64 partitions, and the log is the one on JetStream. `--rows` says which functions take most.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any, Final

import anyio
from nats.aio.client import Client

from benchmarks import core, null_gate
from benchmarks.cluster_worker import Passing
from gated.core import decide
from gated.core.policy import load_text
from gated.core.redaction.vault import Vault
from gated.events import Record, ThreadId
from gated.shell.bus import Bus, Input
from gated.shell.daemon import rarely_collect
from gated.shell.log import Due
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.log.jetstream_api import JetStreamApi
from gated.shell.log.jetstream_names import Names, partition_of
from gated.shell.log.jetstream_streams import Shape
from gated.shell.nats_client import SturdyClient
from gated.shell.partition import take
from gated.shell.runs import Runs
from gated.shell.said import Outlet
from gated.shell.together import Together

READ: Final = 32  # inputs that one read brings
READS: Final = 16  # of one window
PARTITIONS: Final = 64
RUNS: Final = {"daemon": 64, "worker": 256}
KINDS: Final = {"daemon": ("gate", "null"), "worker": ("gate", "null", "pass")}
STARTED: Final = 1_700_000_000_000_000_000  # ns
POLICY: Final = load_text(core.PLAIN, "bench.yaml")
_APPENDS: Final = re.compile(rb"HPUB gated\.write\.\S+ (\S+) ").finditer
_ACKNOWLEDGED: Final = b" 4\r\n+ACK\r\n"


class Unconnected(SturdyClient):
    """Counts what is acknowledged, and has an answer for each append: it is stored."""

    def __init__(self) -> None:
        super().__init__()
        self._status = Client.CONNECTED
        self.acknowledged = self.stored = 0
        self.answers: list[bytes] = []

    async def send(self, lines: bytes) -> None:
        self.acknowledged += lines.count(_ACKNOWLEDGED)
        for append in _APPENDS(lines):
            self.stored += 1
            body = b'{"stream":"GATED_LOG","seq":%d}' % self.stored
            self.answers.append(b"MSG %b 1 %d\r\n%b\r\n" % (append[1], len(body), body))


class TakesAll:
    """As much of a log as a daemon asks for while nothing goes wrong."""

    async def append_many(self, records: Sequence[Record], dues: Sequence[Due] = ()) -> None:
        await asyncio.sleep(0)

    async def load_snapshot(self, thread: ThreadId) -> None:
        return None

    async def read(self, thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
        none: Sequence[Record] = ()
        for record in none:
            yield record


class Serving:
    """The serialisers of a process, one or one a partition, and what is said to them."""

    def __init__(self, place: str, kind: str) -> None:
        self.client, self.cluster = Unconnected(), place == "worker"
        self.made: type[Runs] = Passing if kind == "pass" else Runs
        self.decide = null_gate.record if kind == "null" else decide.record
        self.threads = [ThreadId(f"run{number}") for number in range(RUNS[place])]
        if self.cluster:  # what came while the last records were stored is decided together
            self.threads.sort(key=lambda thread: partition_of(thread, PARTITIONS))
        self.asked: Counter[ThreadId] = Counter()
        self.sequences: Counter[int] = Counter()
        self.all: list[Runs] = []
        self.together: Together | None = None
        if not self.cluster:
            self._serve(TakesAll(), 0, Runs.take)
            return
        api, shape = JetStreamApi(self.client), Shape(PARTITIONS, 1, "secret")
        self.client._ps.hearing[b"1"], self.together = api._hear, Together(api)
        for number in range(PARTITIONS):
            log = JetStreamLog(api, Names(), shape, "w")
            log.leases.held[number] = 1
            log._heads._known.update(dict.fromkeys(self.threads))
            self._serve(log, number, take)

    def _serve(self, log: Any, number: int, hear: Callable[[Runs, Input], None]) -> None:
        bus = Bus(self.client, lambda item: hear(runs, item), lambda: runs.room())
        bus._outstanding = sys.maxsize  # it never asks for more
        outlet = Outlet(bus.line, bus.send, bus.acknowledge, tells_time=self.cluster)
        runs = self.made(log, POLICY, outlet, Vault(b"bench"), None, self.decide)
        if self.together is not None:
            self.together.join(runs, log)
        self.client._ps.hearing[b"%d" % (number + 2)] = bus._take
        self.all.append(runs)

    def reads(self, count: int) -> list[bytes]:
        """What so many reads bring: the next call of each thread in turn."""
        said = self.asked.total()
        turns = (self.threads[(said + number) % len(self.threads)] for number in range(count * READ))
        return [b"".join([self._input(next(turns)) for _ in range(READ)]) for _ in range(count)]

    def _input(self, thread: ThreadId) -> bytes:
        number = self.asked[thread]
        self.asked[thread] += 1
        partition = partition_of(thread, PARTITIONS) if self.cluster else 0
        self.sequences[partition] += 1
        position = self.asked.total()
        subject = f"gated.in.{partition}.{thread}" if self.cluster else f"gated.in.{thread}"
        reply = f"$JS.ACK.GATED_IN.gated.1.{position}.{self.sequences[partition]}.{STARTED + 1000 * position}.0"
        call = f'{{"id":"c{number}","tool":"Read","args":{{"file_path":"src/f{number % 50}.py"}}}}'
        data = f'{{"type":"intents","calls":[{call}],"nesting":"explicit"}}'
        return f"MSG {subject}.{thread}.agent.a {partition + 2} {reply} {len(data)}\r\n{data}\r\n".encode()

    async def answer(self, read: bytes) -> None:
        """Take what a read brings, until all of it is acknowledged."""
        client, until = self.client, self.client.acknowledged + READ
        await client._ps.parse(read)
        while client.acknowledged < until:
            await asyncio.sleep(0)
            heard, client.answers = b"".join(client.answers), []
            if heard:
                await client._ps.parse(heard)

    async def window(self) -> float:
        """µs of CPU time a verdict."""
        reads = self.reads(READS)
        started = time.process_time()
        for read in reads:
            await self.answer(read)
        return (time.process_time() - started) * 1e6 / (READ * READS)


@contextmanager
def bytecodes() -> Iterator[Counter[CodeType]]:
    """Those that are executed while the block runs, but for this file's."""
    found: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and frame.f_code.co_filename != __file__:
            found[frame.f_code] += 1
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return trace

    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None:
            trace(frame, "call", None)
            frame.f_trace = trace
    sys.settrace(trace)
    yield found
    sys.settrace(None)


async def measure(place: str, windows: int, rows: int) -> dict[str, float]:
    told: dict[str, float] = {}
    async with anyio.create_task_group() as tasks:
        all_kinds = {kind: Serving(place, kind) for kind in KINDS[place]}
        for serving in all_kinds.values():
            if serving.together is not None:
                tasks.start_soon(serving.together.run)
            for runs in serving.all:
                tasks.start_soon(runs.run)
            await serving.window()
        rarely_collect()
        for _, (kind, serving) in ((n, each) for n in range(windows) for each in all_kinds.items()):
            spent, key = await serving.window(), f"{place}_{kind}_us"
            told[key] = min(spent, told.get(key, spent))
        for kind, serving in all_kinds.items():
            with bytecodes() as found:
                await serving.window()
            told[f"{place}_{kind}_bytecodes"] = found.total() / (READ * READS)
            for code, count in found.most_common(rows):
                print(
                    f"{count / (READ * READS):10.1f}  {place} {kind}: {code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
                )
        tasks.cancel_scope.cancel()
    return told


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench --canned", description=__doc__)
    parser.add_argument("--windows", type=int, default=40, help="of 512 inputs, of which the least CPU time is told")
    parser.add_argument("--rows", type=int, default=0, help="of the functions that execute most bytecodes")
    parser.add_argument("--place", choices=list(KINDS), help="only there")
    chosen = parser.parse_args(arguments)
    for place in [chosen.place] if chosen.place else KINDS:
        for key, value in anyio.run(partial(measure, place, chosen.windows, chosen.rows)).items():
            print(f"{key:32} {value:12,.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
