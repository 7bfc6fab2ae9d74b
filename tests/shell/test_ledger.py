"""The ledger of an agent's open runs, with many writers, stale ones, and writes of unknown outcome."""

import asyncio
from pathlib import Path

import anyio
import pytest

from gated.events import Record
from gated.shell.ledger import NOTHING, Ledger, Row, Tally, count
from gated.shell.log import LogLocked, LogUnavailable
from shell.counted_runs import MAILER, WORKER, Session, held, ledger_of, nobodys, tally
from shell.log.backends import JetStreamBackend


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
    for says in (1, 0):
        stored = await ledger_of(session.log)._store(place, {**rows, session.partition: Row(1, 0, 0, says)})
        assert stored is not None
        place = stored[0]
        await ledger_of(session.log).audit(nobodys)
        if says:
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
