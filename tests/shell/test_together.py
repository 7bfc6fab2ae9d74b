"""Serialisers that take their turns together: one write for all, and what fails or waits does so for one alone."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from gated.core import decide as core
from gated.core.policy import load_text
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import CallDecided, Record, ThreadId, unseal
from gated.shell.bus import Ack, Input
from gated.shell.log import Due, LogConflict, LogError, LogUnavailable
from gated.shell.log.jetstream_api import Outcome
from gated.shell.nats_client import line
from gated.shell.runs import MANY, Runs
from gated.shell.said import Outlet
from gated.shell.together import MOST, Together
from patience import until

POLICY: Final = load_text("version: 1\nagents: {a: {allowed_tools: [read]}}\n", "policy.yaml")
AWAY: Final = LogUnavailable("the server is away")
VERDICTS: Final = re.compile(rb"PUB gated\.out\.\S+  \d+\r\n(\{.*?\})\r\n").findall

Group = Sequence[Record]
OnEnd = Callable[[list[Outcome]], None]


class Log:
    """A log whose appends of turns come through `Api`, and all others at once."""

    def __init__(self) -> None:
        self.durable: list[Record] = []
        self.alone: list[int] = []  # how many records each append of its own had
        self.under_way = False
        self.busy = False  # a turn's append cannot begin
        self.broken = False  # nor be asked for

    def heads(self, thread: ThreadId) -> int:
        return sum(record.thread == thread for record in self.durable)

    async def append_many(self, records: Sequence[Record], dues: Sequence[Due] = ()) -> None:
        await anyio.lowlevel.checkpoint()
        assert not self.under_way
        for record in records:
            if record.seq != self.heads(record.thread) + 1:
                raise LogConflict(record.thread, record.seq, self.heads(record.thread))
            self.durable.append(record)
        self.alone.append(len(records))

    async def begin(self, records: Sequence[Record]) -> Group | None:
        assert len({record.thread for record in records}) == len(records)
        if self.broken:
            raise OSError("the log is broken")
        if self.under_way or self.busy:
            return None
        self.under_way = True
        return records

    def ended(self, records: Sequence[Record], places: Sequence[int] | None) -> None:
        assert self.under_way
        self.under_way = False

    async def get(self, thread: ThreadId, seq: int) -> Record | None:
        await anyio.lowlevel.checkpoint()
        return next((record for record in self.durable if (record.thread, record.seq) == (thread, seq)), None)

    async def load_snapshot(self, thread: ThreadId) -> None:
        return None

    async def read(self, thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
        for record in list(self.durable):
            if record.thread == thread and record.seq > after:
                yield record


class Api:
    """Keeps what is to be stored until it is told what becomes of it."""

    def __init__(self) -> None:
        self.posted: list[tuple[Sequence[Group], OnEnd]] = []

    async def post(self, groups: Sequence[Group], on_end: OnEnd) -> None:
        self.posted.append((groups, on_end))


class Bus:
    """What went out, once it was durable: the calls of verdicts, and the positions that were acknowledged after them."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.said: list[str] = []
        self.acknowledged: list[int] = []
        self.broken = False

    async def send(self, lines: bytes) -> None:
        if self.broken:
            raise OSError("the connection is broken")
        told = [json.loads(data)["call"] for data in VERDICTS(lines)]
        decisions = (decision for record in self.log.durable for decision in unseal(record).decisions)
        decided = {decision.call for decision in decisions if isinstance(decision, CallDecided)}
        assert set(told) <= decided
        self.said += told

    async def acknowledge(self, acks: Sequence[Ack]) -> None:
        self.acknowledged += [int(ack.subject) for ack in acks]
        assert len(self.acknowledged) == len(self.said)


class Cluster:
    """Some serialisers in one process, each with a log and a bus of its own."""

    def __init__(self, count: int) -> None:
        self.api = Api()
        self.together = Together(self.api)  # type: ignore[arg-type]
        self.logs = [Log() for _ in range(count)]
        self.buses = [Bus(log) for log in self.logs]
        self.runs = [self._serving(log, bus) for log, bus in zip(self.logs, self.buses, strict=True)]
        self.asked = 0
        self.undecidable = ""  # a thread

    def _serving(self, log: Log, bus: Bus) -> Runs:
        outlet = Outlet(lambda subject, data, re: line(subject, data), bus.send, bus.acknowledge, tells_time=True)
        runs = Runs(log, POLICY, outlet, Vault(b"test"), decide=self._decide)  # type: ignore[arg-type]
        self.together.join(runs, log)  # type: ignore[arg-type]
        return runs

    def _decide(self, registry: Registry, state: ThreadState, *said: Any) -> tuple[core.Step, Record | None]:
        if state.thread == self.undecidable:
            raise OSError("the folder of keys is broken")
        return core.record(registry, state, *said)

    def ask(self, number: int, thread: str = "t") -> str:
        """Ask one of the serialisers for a call on a thread; the call's id."""
        self.asked += 1
        call = f"c{self.asked}"
        data = f'{{"type":"intents","calls":[{{"id":"{call}","tool":"read","args":{{}}}}]}}'.encode()
        subject = f"gated.in.{number}-{thread}.r.agent.a"
        self.runs[number].take(Input(subject, data, self.asked, self.asked, Ack(b"%d" % self.asked, 1), None, None))
        return call

    async def know(self, *threads: str) -> None:
        """All have these threads in memory, and nothing to do."""
        for number, thread in itertools.product(range(len(self.runs)), threads):
            self.ask(number, thread)
        await until(lambda: all(len(bus.acknowledged) == len(threads) for bus in self.buses))
        await anyio.wait_all_tasks_blocked()
        assert not self.api.posted
        for log, bus in zip(self.logs, self.buses, strict=True):
            bus.said, bus.acknowledged, log.alone = [], [], []

    async def decided(self) -> None:
        """What came is decided, and what can be under way is."""
        await anyio.wait_all_tasks_blocked()

    def store(self, failing: Mapping[int, LogError] = MappingProxyType({}), partly: bool = False) -> None:
        """End what is under way. Of what fails nothing is stored, or `partly` the first record."""
        posted, self.api.posted = self.api.posted, []
        for groups, on_end in posted:
            outcomes: list[Outcome] = []
            for group in groups:
                number = int(group[0].thread.partition("-")[0])
                log, error = self.logs[number], failing.get(number)
                log.durable += group if error is None else group[:partly]
                outcomes.append([len(log.durable)] * len(group) if error is None else error)
            on_end(outcomes)


@asynccontextmanager
async def together(count: int) -> AsyncIterator[Cluster]:
    made = Cluster(count)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.together.run)
        for runs in made.runs:
            tasks.start_soon(runs.run)
        yield made
        tasks.cancel_scope.cancel()


async def test_what_came_for_all_is_one_write_and_nothing_is_said_before_it_is_stored() -> None:
    async with together(3) as cluster:
        await cluster.know("t", "u")
        calls = [[cluster.ask(number, "t"), cluster.ask(number, "u")] for number in range(3)]
        await cluster.decided()
        assert [len(groups) for groups, _ in cluster.api.posted] == [3]
        assert [bus.said for bus in cluster.buses] == [[], [], []]
        cluster.store()
        await until(lambda: all(len(bus.acknowledged) == 2 for bus in cluster.buses))
        assert [bus.said for bus in cluster.buses] == calls
        assert [log.alone for log in cluster.logs] == [[], [], []]


async def test_what_comes_for_others_meanwhile_does_not_wait_for_a_write_that_is_under_way() -> None:
    async with together(2) as cluster:
        await cluster.know("t")
        first = cluster.ask(0)
        await cluster.decided()
        second, after = cluster.ask(1), cluster.ask(0)
        await cluster.decided()
        groups, on_end = cluster.api.posted[1]
        assert [len(group) for group in groups] == [1]
        cluster.logs[1].durable += groups[0]
        on_end([[1]])
        await until(lambda: cluster.buses[1].said == [second])
        assert cluster.buses[0].said == []
        cluster.api.posted = cluster.api.posted[:1]
        cluster.store()
        await until(lambda: cluster.buses[0].said == [first])
        await cluster.decided()
        cluster.store()
        await until(lambda: cluster.buses[0].said == [first, after])


async def test_much_is_several_writes_so_that_the_first_is_stored_while_the_next_is_decided() -> None:
    async with together(MOST + 1) as cluster:
        await cluster.know("t")
        for number in range(MOST + 1):
            cluster.ask(number)
        await cluster.decided()
        assert [len(groups) for groups, _ in cluster.api.posted] == [MOST, 1]


@pytest.mark.parametrize("partly", [False, True])
async def test_what_is_not_stored_for_one_is_said_to_the_others_and_made_durable_by_its_own_task(partly: bool) -> None:
    async with together(2) as cluster:
        await cluster.know("t", "u")
        calls = [[cluster.ask(number, "t"), cluster.ask(number, "u")] for number in range(2)]
        await cluster.decided()
        cluster.store({0: AWAY}, partly)
        await until(lambda: all(len(bus.acknowledged) == 2 for bus in cluster.buses))
        assert [bus.said for bus in cluster.buses] == calls
        assert [log.alone for log in cluster.logs] == [[2 - partly], []]
        assert [log.heads(ThreadId(f"{number}-t")) for number, log in enumerate(cluster.logs)] == [2, 2]


async def test_where_a_write_cannot_begin_its_own_task_makes_it() -> None:
    async with together(2) as cluster:
        await cluster.know("t")
        cluster.logs[0].busy = True
        calls = [cluster.ask(number) for number in range(2)]
        await until(lambda: cluster.buses[0].said == calls[:1])
        cluster.store()
        await until(lambda: cluster.buses[1].said == calls[1:])
        assert [log.alone for log in cluster.logs] == [[1], []]


async def test_an_input_for_which_something_must_be_fetched_is_not_overtaken_nor_waited_for() -> None:
    async with together(2) as cluster:
        await cluster.know("t")
        calls = [cluster.ask(0, "t"), cluster.ask(0, "new"), cluster.ask(0, "new"), cluster.ask(0, "t")]
        other = cluster.ask(1)
        await cluster.decided()
        assert [[len(group) for group in groups] for groups, _ in cluster.api.posted] == [[1, 1]]
        cluster.store()
        await until(lambda: len(cluster.buses[0].acknowledged) == 4)
        assert cluster.buses[0].said == calls
        assert cluster.buses[1].said == [other]


@pytest.mark.parametrize(("more", "writes", "alone"), [(1, 2, []), (MANY, 1, [MANY])])
async def test_of_a_thread_a_write_has_one_record_and_many_are_stored_by_its_own_task(
    more: int, writes: int, alone: list[int]
) -> None:
    async with together(1) as cluster:
        await cluster.know("t")
        calls = [cluster.ask(0) for _ in range(1 + more)]
        for _ in range(writes):
            await cluster.decided()
            assert [[len(group) for group in groups] for groups, _ in cluster.api.posted] == [[1]]
            cluster.store()
        await until(lambda: cluster.buses[0].said == calls)
        assert cluster.logs[0].alone == alone


async def test_who_is_to_stop_finishes_the_turn_and_what_waits() -> None:
    async with together(1) as cluster:
        await cluster.know("t")
        calls = [cluster.ask(0)]
        await cluster.decided()
        calls.append(cluster.ask(0))
        cluster.runs[0].drain()
        await cluster.decided()
        assert not cluster.runs[0].drained.is_set()
        cluster.store()
        await until(lambda: cluster.runs[0].drained.is_set())
        assert cluster.buses[0].said == calls


async def test_who_is_over_says_nothing_more() -> None:
    cluster = Cluster(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cluster.together.run)
        session = anyio.CancelScope()
        tasks.start_soon(_within, session, cluster.runs[0])
        await cluster.know("t")
        cluster.ask(0)
        await cluster.decided()
        cluster.ask(0)
        session.cancel()
        await until(lambda: cluster.runs[0].over)
        cluster.store()
        await cluster.decided()
        assert (cluster.buses[0].said, cluster.buses[0].acknowledged) == ([], [])
        assert not cluster.logs[0].under_way
        tasks.cancel_scope.cancel()


async def _within(scope: anyio.CancelScope, runs: Runs) -> None:
    with scope:
        await runs.run()


def break_decisions(cluster: Cluster) -> None:
    cluster.undecidable = "0-t"


def break_log(cluster: Cluster) -> None:
    cluster.logs[0].broken = True


def break_bus(cluster: Cluster) -> None:
    cluster.buses[0].broken = True


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        (break_decisions, "the folder of keys is broken"),
        (break_log, "the log is broken"),
        (break_bus, "the connection is broken"),
    ],
)
async def test_what_fails_in_a_turn_ends_its_own_serialiser_and_no_other(breaks: Callable[[Cluster], None], why: str) -> None:
    cluster, ended = Cluster(2), list[str]()

    async def run(number: int) -> None:
        try:
            await cluster.runs[number].run()
        except* OSError as group:
            ended.append(f"{number}: {group.exceptions[0]}")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cluster.together.run)
        for number in range(2):
            tasks.start_soon(run, number)
        await cluster.know("t")
        breaks(cluster)
        calls = [cluster.ask(number) for number in range(2)]
        await cluster.decided()
        cluster.store()
        await until(lambda: cluster.buses[1].said == calls[1:])
        await until(lambda: ended == [f"0: {why}"])
        assert cluster.buses[0].acknowledged == []
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(12))
async def test_each_call_has_one_verdict_in_the_order_of_its_thread_whatever_fails(seed: int) -> None:
    chance, threads = random.Random(seed), ["t", "u", "v"]
    async with together(3) as cluster:
        await cluster.know("t")
        asked: dict[tuple[int, str], list[str]] = {}
        for _ in range(60):
            for _ in range(chance.randrange(5)):
                place = chance.randrange(3), chance.choice(threads)
                asked.setdefault(place, []).append(cluster.ask(*place))
            if chance.random() < 0.7:
                await anyio.lowlevel.checkpoint()
            if chance.random() < 0.5:
                failing = {number: AWAY for number in range(3) if chance.random() < 0.2}
                cluster.store(failing, partly=chance.random() < 0.5)
            for log in cluster.logs:
                log.busy = chance.random() < 0.1
        while sum(len(bus.said) for bus in cluster.buses) < sum(map(len, asked.values())):
            await anyio.sleep(0.001)
            cluster.store()
        for (number, _), calls in asked.items():
            assert [call for call in cluster.buses[number].said if call in calls] == calls
        for bus in cluster.buses:
            assert len(bus.said) == len(set(bus.said)) == len(bus.acknowledged)
