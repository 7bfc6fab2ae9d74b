"""The ledger of an agent's open runs, with many writers, stale ones, and writes of unknown outcome."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest
from immutables import Map
from msgspec.structs import replace

from gated.core.decide import record
from gated.core.policy import Policy
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import AgentId, FinishRequested, Record, RunId, RunStarted, Sender, ThreadId
from gated.shell import audits, places
from gated.shell.ledger import NOTHING, Ledger, Ledgers, Row, Tally, Whose, count
from gated.shell.log import LogLocked, LogUnavailable, ThreadDamaged
from gated.shell.log.jetstream import JetStreamLog
from gated.shell.log.jetstream_names import partition_of
from gated.shell.places import Places, whose_run
from gated.shell.policies import read_policy
from gated.shell.said import Said
from gated.shell.threads import Threads
from patience import PATIENCE
from shell.live import write_policy
from shell.log.backends import JetStreamBackend

WORKER = AgentId("worker")
LIMITED = """
version: 1
agents:
  worker: {checks: [privilege], allowed_tools: ["*"], runs: {max_open: 3}}
"""


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JetStreamBackend]:
    made = JetStreamBackend(tmp_path, monkeypatch)
    yield made
    await made.disconnect()


def ledger_of(log: JetStreamLog) -> Ledger:
    return Ledger(log, log.messages, WORKER)


def tally(partition: int, lease: int = 1) -> Tally:
    return Tally(partition, lambda: lease, lease)


async def held(log: JetStreamLog) -> list[int]:
    """The rows as another worker finds them."""
    return [row.held for _, row in sorted((await ledger_of(log).rows()).items())]


async def until_held(log: JetStreamLog, rows: list[bool]) -> None:
    with anyio.fail_after(PATIENCE):
        for _ in range(1000):
            if await held(log) == rows:
                return
            await anyio.sleep(0.02)
    pytest.fail(f"the rows are not {rows}")


async def test_many_workers_at_once_take_as_many_places_as_there_are(cluster: JetStreamBackend) -> None:
    logs = [await cluster.open() for _ in range(4)]
    got = []

    async def ask(ledger: Ledger, mine: Tally) -> None:
        got.append((await ledger.place(mine, 7)).place)

    async with anyio.create_task_group() as tasks:
        for partition, log in enumerate(logs):
            ledger, mine = ledger_of(log), tally(partition)
            for _ in range(20):
                tasks.start_soon(ask, ledger, mine)
    assert (len(got), sum(got)) == (80, 7)
    assert sum(await held(logs[0])) == 7


async def test_what_a_worker_wishes_at_once_is_one_write(cluster: JetStreamBackend) -> None:
    log = await cluster.open()
    ledger, tallies = ledger_of(log), [tally(partition) for partition in range(4)]
    await ledger.write(tallies[0])
    before = ledger._known
    async with anyio.create_task_group() as tasks:
        for n in range(80):
            tasks.start_soon(ledger.place, tallies[n % 4], 100)
    assert before is not None
    assert ledger._known is not None
    assert ledger._known[0] - before[0] <= 2
    assert await held(log) == [20, 20, 20, 20]


async def test_a_place_is_told_how_many_runs_there_are_without_it(cluster: JetStreamBackend) -> None:
    log = await cluster.open()
    ledger, mine, other = ledger_of(log), tally(0), tally(1)
    told = [await ledger.place(each, 3) for each in (mine, other, mine, other)]
    assert told == [(True, 0), (True, 1), (True, 2), (False, 3)]
    assert (mine.pending, other.pending) == (2, 1)
    assert await ledger.place(other, None) == (True, 3)  # who has no limit is counted


async def test_nobody_is_refused_by_what_was_known_before(cluster: JetStreamBackend) -> None:
    one, two = ledger_of(await cluster.open()), ledger_of(await cluster.open())
    mine, other = tally(0), tally(1)
    assert (await one.place(mine, 1)).place
    assert not (await two.place(other, 1)).place
    mine.pending = 0
    await one.write(mine)
    assert (await two.place(other, 1)).place
    assert not (await one.place(mine, 1)).place


async def test_a_place_of_unknown_outcome_is_nobodys_and_taken_once(cluster: JetStreamBackend) -> None:
    log = await cluster.open()
    ledger, mine = ledger_of(log), tally(0)
    await ledger.write(mine)
    with cluster.outcome_lost(log), pytest.raises(LogUnavailable, match="no answer"):
        await ledger.place(mine, 2)
    assert mine.pending == 0
    assert await held(log) == [1, 0, 0, 0]  # which it may be, and is too much
    assert (await ledger.place(mine, 2)).place
    assert await held(log) == [1, 0, 0, 0]


async def test_a_write_that_comes_late_changes_nothing_that_was_written_meanwhile(cluster: JetStreamBackend) -> None:
    slow, quick = await cluster.open(), await cluster.open()
    theirs, mine = tally(0), tally(1)
    ledger = ledger_of(slow)
    await ledger.write(theirs)
    with cluster.stalled():
        late = asyncio.create_task(ledger.place(theirs, 2))
        await anyio.sleep(0.05)
        quick.api.client.stalled = False  # type: ignore[attr-defined]
        assert (await ledger_of(quick).place(mine, 2)).place
        assert (await ledger_of(quick).place(mine, 2)).place
    assert await late == (False, 2)
    assert await held(quick) == [0, 2, 0, 0]


async def test_who_gives_up_waiting_has_no_place_and_keeps_nobody_waiting(cluster: JetStreamBackend) -> None:
    log = await cluster.open()
    ledger, mine = ledger_of(log), tally(0)
    await ledger.write(mine)
    with cluster.stalled():
        first, second = (asyncio.create_task(ledger.place(mine, 1)) for _ in range(2))
        await anyio.sleep(0.05)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
    assert await second == (True, 0)
    assert mine.pending == 1


async def test_a_session_whose_lease_is_over_writes_nothing(cluster: JetStreamBackend) -> None:
    old, new = ledger_of(await cluster.open()), ledger_of(await cluster.open())
    sleeper, owner = tally(0, lease=5), tally(0, lease=9)
    assert (await old.place(sleeper, 2)).place
    await new.write(owner)  # who found nothing of it in the log
    for work in (old.place(sleeper, 2), old.write(sleeper)):
        with pytest.raises(LogLocked, match="lease 9"):
            await work
    assert (await new.rows())[0] == Row(9, 9, 0, 0)
    assert (await new.place(owner, 1)).place


async def test_an_audit_leaves_alone_what_its_owner_knows_better(cluster: JetStreamBackend) -> None:
    log = await cluster.open()
    ledger, mine = ledger_of(log), tally(0)
    assert (await ledger.place(mine, 2)).place

    async def nobodys(record: Record) -> None:
        raise AssertionError(record)

    await ledger.audit(nobodys)
    assert await held(log) == [1, 0, 0, 0]


async def test_a_record_on_its_way_while_its_agent_begins_to_be_counted_counts_once(
    cluster: JetStreamBackend, tmp_path: Path
) -> None:
    """It is in the ledger that is made, from the log, and its session hears only later that it is stored."""
    policy, thread, run = read_policy(write_policy(tmp_path)), ThreadId("t"), RunId("r")
    log = await cluster.open()
    partition, threads = partition_of(thread, 4), Threads(log, policy, Vault(b"v" * 32))
    own = Places(log, partition, Ledgers(log, log.messages), threads, ())
    said = Said(thread, run, RunStarted(by=Sender("agent", WORKER), agent=WORKER), 1, 1, None, None)
    before = ThreadState(thread)
    step, opened = record(Registry(policy, {policy.digest: policy}), before, run, said.observation, 1, 1)
    assert opened is not None
    own.follow(before, step.state, said)
    await log.append_many([opened])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(own._count, [WORKER])
        await until_held(log, [n == partition for n in range(4)])
        await anyio.sleep(0.1)
        assert await held(log) == [n == partition for n in range(4)]  # no less is written before it is known to be stored
        own.stored([opened])
    assert own._tallies[WORKER].row() == (await ledger_of(log).rows())[partition] == Row(log.epoch, log.reach, 1, 1)


# --- a session's places ----------------------------------------------------------------------------------------------


MAILER = AgentId("mailer")


class Session:
    """A partition's places, on the log that it writes; `open` and `end` make records that are not stored yet."""

    def __init__(self, log: JetStreamLog, tmp_path: Path) -> None:
        self.log, self.policy = log, read_policy(write_policy(tmp_path))
        self.threads = Threads(log, self.policy, Vault(b"v" * 32))
        self.partition = partition_of(ThreadId("t"), 4)
        self.places = Places(log, self.partition, Ledgers(log, log.messages), self.threads, ())
        self.states: dict[ThreadId, ThreadState] = {}

    def threads_here(self, count: int) -> list[ThreadId]:
        names = (ThreadId(f"t{number}") for number in range(1000))
        return [name for name in names if partition_of(name, 4) == self.partition][:count]

    def _do(self, thread: ThreadId, observation: RunStarted | FinishRequested, *, place: bool) -> Record:
        before = self.states.get(thread, ThreadState(thread))
        registry = Registry(self.policy, {self.policy.digest: self.policy})
        step, made = record(registry, before, RunId("r"), observation, before.at + 1, 1)
        assert made is not None
        self.states[thread] = step.state
        said = Said(thread, RunId("r"), observation, 1, 1, None, None, place=place)
        self.places.follow(before, step.state, said)
        return made

    def open(self, thread: ThreadId, agent: AgentId = WORKER, *, place: bool = False) -> Record:
        return self._do(thread, RunStarted(by=Sender("agent", agent), agent=agent), place=place)

    def end(self, thread: ThreadId, agent: AgentId = WORKER) -> Record:
        return self._do(thread, FinishRequested(Sender("agent", agent)), place=False)

    async def store(self, *records: Record) -> None:
        await self.log.append_many(list(records))
        self.places.stored(records)

    async def count(self) -> None:
        await self.places._patiently(self.places._count, [WORKER])

    async def row(self) -> Row:
        return (await ledger_of(self.log).rows())[self.partition]


async def nobodys(record: Record) -> None:
    raise AssertionError(record)


async def test_agents_are_counted_each_from_where_its_own_row_ends(cluster: JetStreamBackend, tmp_path: Path) -> None:
    session = Session(await cluster.open(), tmp_path)
    one, two, three = session.threads_here(3)
    await session.store(session.open(one), session.open(two, MAILER))
    middle = session.log.reach
    await session.store(session.open(three, MAILER))
    rows = {WORKER: Row(0, 0, 0, 0), MAILER: Row(0, middle, 1, 1)}
    assert await count(session.log, session.partition, rows, session.log.reach, nobodys) == {WORKER: 1, MAILER: 2}


async def test_an_audit_raises_a_row_that_says_too_little_and_no_other(cluster: JetStreamBackend, tmp_path: Path) -> None:
    """The row is then of the newest lease: who had an older one knew nothing of these runs."""
    session = Session(await cluster.open(), tmp_path)
    await session.store(session.open(session.threads_here(1)[0]))
    place, rows = 0, dict.fromkeys(range(4), NOTHING)
    for held in (1, 0):
        stored = await ledger_of(session.log)._store(place, {**rows, session.partition: Row(1, 0, 0, held)})
        assert stored is not None
        place = stored[0]
        await ledger_of(session.log).audit(nobodys)
        if held:
            assert await session.row() == Row(1, 0, 0, 1)
    end = await session.log.end()
    found = await ledger_of(session.log).rows()
    assert found[session.partition] == Row(session.log.leases.held[session.partition], end, 1, 1)
    assert [found[other] for other in range(4) if other != session.partition] == [NOTHING] * 3


async def test_a_row_has_nothing_of_what_was_refused_along_with_it(cluster: JetStreamBackend) -> None:
    log = await cluster.open()
    ledger, mine, told = ledger_of(log), tally(0), list[bool]()

    async def ask(limit: int) -> None:
        told.append((await ledger.place(mine, limit)).place)

    async with anyio.create_task_group() as tasks:
        for limit in (10, 1):
            tasks.start_soon(ask, limit)
    assert sorted(told) == [False, True]
    assert (await held(log), mine.pending) == ([1, 0, 0, 0], 1)


async def test_a_place_is_used_once_or_not_at_all(cluster: JetStreamBackend, tmp_path: Path) -> None:
    session = Session(await cluster.open(), tmp_path)
    used, unused = session.threads_here(2)
    started = RunStarted(by=Sender("agent", WORKER), agent=WORKER)
    for thread in (used, unused):
        said = Said(thread, RunId("r"), started, 1, 1, None, None)
        assert (await session.places.told(ThreadState(thread), said)).place
    assert (await session.row()).held == 2
    again = await session.places.told(replace(ThreadState(used), open_runs=Map({WORKER: 1})), said)
    assert isinstance(again.observation, RunStarted)
    assert (again.place, again.observation.open_elsewhere) == (True, 1)  # of two, one is on the run's own thread
    session.places._tallies[WORKER].pending -= 1
    await session.store(session.open(used, place=True))
    session.places.follow(ThreadState(unused), ThreadState(unused), replace(said, place=True))  # it was denied for another reason
    own = session.places._tallies[WORKER]
    assert (own.open, own.pending) == (1, 0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.places.work)
        await until_row(session, lambda row: row.held == 1)
        await session.store(session.end(used))
        await session.places.given_back(PATIENCE)
        assert (await session.row()).held == 0
        tasks.cancel_scope.cancel()


async def test_a_place_is_needed_by_who_opens_a_run_of_an_agent_that_has_or_had_a_limit(
    cluster: JetStreamBackend, tmp_path: Path
) -> None:
    session = Session(await cluster.open(), tmp_path)
    thread = session.threads_here(1)[0]
    limited = read_policy(write_policy(tmp_path, LIMITED))
    said = Said(thread, RunId("r"), RunStarted(by=Sender("agent", WORKER), agent=WORKER), 1, 1, None, None)
    session.open(thread)
    after, before = session.states[thread], ThreadState(thread)
    run = after.runs[RunId("r")]

    def needed(policy: Policy, state: ThreadState, said: Said = said) -> bool:
        return session.places.needed(Registry(policy, {policy.digest: policy}), state, said, run)

    assert needed(limited, before)  # whose runs are not counted yet
    assert not needed(session.policy, before)
    session.places._wanted.add(WORKER)
    assert needed(session.policy, before)
    assert not needed(limited, after)  # it is open
    assert not needed(limited, before, replace(said, place=True))
    assert not needed(limited, before, replace(said, place=False))  # which was refused it


async def test_rows_are_written_again_before_the_next_owner_would_have_much_to_read(
    cluster: JetStreamBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "OLD", 3)
    session = Session(await cluster.open(), tmp_path)
    await session.count()
    first, *others = session.threads_here(4)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.places.work)
        await session.store(session.open(first))
        await until_row(session, lambda row: row.held == 1)
        await session.store(*(session.open(thread, MAILER) for thread in others))
        await until_row(session, lambda row: row.seen == session.log.reach, asked=False)
        tasks.cancel_scope.cancel()


async def until_row(session: Session, holds: Callable[[Row], bool], *, asked: bool = True) -> None:
    """`asked`: it is written because somebody asks for it."""
    with anyio.fail_after(PATIENCE):
        while not holds(await session.row()):
            if asked:
                session.places.look_again()
            await anyio.sleep(0.02)


async def test_answers_wait_once_for_a_ledger_that_cannot_be_reached_and_not_again(
    cluster: JetStreamBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(await cluster.open(), tmp_path)
    write, there = session.places._write, anyio.Event()

    async def away() -> None:
        await there.wait()
        await write()

    await session.count()
    (thread,) = session.threads_here(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session.places.work)
        await session.store(session.open(thread))
        await until_row(session, lambda row: row.held == 1)
        monkeypatch.setattr(session.places, "_write", away)
        await session.store(session.end(thread))
        before = anyio.current_time()
        await session.places.given_back(0.3)
        assert anyio.current_time() - before >= 0.3
        with anyio.fail_after(PATIENCE):
            await session.places.given_back(100 * PATIENCE)
        there.set()
        await until_row(session, lambda row: row.held == 0)
        await session.places.given_back(0.0)
        assert session.places._written.is_set()
        tasks.cancel_scope.cancel()


async def test_who_gives_up_counting_leaves_nothing_half_counted(cluster: JetStreamBackend, tmp_path: Path) -> None:
    session = Session(await cluster.open(), tmp_path)
    await session.store(session.open(session.threads_here(1)[0]))
    with cluster.stalled():
        counting = asyncio.create_task(session.places._count([WORKER]))
        await anyio.sleep(0.05)
        counting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await counting
        assert session.places._tallies == {}
    await session.count()
    assert (await session.row()).held == 1


async def test_the_end_of_a_run_whose_thread_is_damaged_is_nobodys(cluster: JetStreamBackend, tmp_path: Path) -> None:
    session = Session(await cluster.open(), tmp_path)
    (thread,) = session.threads_here(1)
    await session.store(session.open(thread), end := session.end(thread))
    assert await whose_run(session.threads)(end) == WORKER
    session.threads._damaged[thread] = ThreadDamaged(thread, 1, "it is"), time.monotonic()
    assert await whose_run(session.threads)(end) is None


async def test_an_audit_that_cannot_be_made_is_made_later(
    cluster: JetStreamBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "RETRY", 0.01)
    session, policy = Session(await cluster.open(), tmp_path), read_policy(write_policy(tmp_path, LIMITED))
    await ledger_of(session.log)._store(0, dict.fromkeys(range(4), Row(1, 0, 0, 0)))
    await session.store(session.open(session.threads_here(1)[0]))
    ledgers, failures = Ledgers(session.log, session.log.messages), [LogUnavailable("it is away"), LogUnavailable("still")]
    real = ledgers.of(WORKER).audit

    async def audit(whose: Whose) -> None:
        if failures:
            raise failures.pop()
        await real(whose)

    monkeypatch.setattr(ledgers.of(WORKER), "audit", audit)
    made = audits.Audits(ledgers, session.threads, lambda: policy)
    made.want()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.keep)
        await until_row(session, lambda row: row.held == 1)
        tasks.cancel_scope.cancel()
