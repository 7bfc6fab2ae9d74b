"""A session's places: what it knows of the open runs in its own partition, and what it writes of them in the ledger."""

import asyncio
import time
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
from gated.events import RunId, RunStarted, Sender, ThreadId
from gated.shell import audits, places
from gated.shell.ledger import Ledgers, Row, Whose
from gated.shell.log import LogUnavailable, ThreadDamaged
from gated.shell.log.jetstream_names import partition_of
from gated.shell.places import Places, whose_run
from gated.shell.policies import read_policy
from gated.shell.said import Said
from gated.shell.threads import Threads
from patience import PATIENCE
from shell.counted_runs import MAILER, WORKER, Session, held, ledger_of, until_held, until_row
from shell.live import write_policy
from shell.log.backends import JetStreamBackend

LIMITED = """
version: 1
agents:
  worker: {checks: [privilege], allowed_tools: ["*"], runs: {max_open: 3}}
"""


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
