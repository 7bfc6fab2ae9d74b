"""What every backend of the log must do: what was said to be durable is there, once, in order; what was refused is not."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.events import Record, RunId, ThreadId
from gated.shell.log import EventLog, LogConflict, LogLocked, LogUnavailable
from patience import PATIENCE
from shell.log.backends import BACKENDS, Backend, all_of, chained, intact

T, U = ThreadId("t"), ThreadId("u")

# --- appending and reading -------------------------------------------------------------------------------------------


async def test_what_was_appended_is_read_in_order_by_everybody_and_later(backend: Backend) -> None:
    one, two = chained("t", 3), chained("u", 2)
    log = await backend.open()
    await log.append(T, 0, one[:2])
    await log.append(U, 0, two)
    await log.append(T, 2, one[2:])
    reader = await backend.reader()
    await log.close()
    for each in (reader, await backend.reader()):
        assert await all_of(each) == [*one[:2], *two, one[2]]
        assert await all_of(each, 3) == [two[1], one[2]]
        assert [r async for r in each.read(T, 1)] == one[1:]
        assert [await each.get(T, n) for n in range(5)] == [None, *one, None]
        assert await each.head() == 5
        assert list((await each.heads()).items()) == [(T, (3, one[2].hash)), (U, (2, two[1].hash))]
        assert [t async for t in each.threads()] == [T, U]
        await each.close()


async def test_more_than_one_look_takes(backend: Backend) -> None:
    long = chained("t", 1100)
    log = await backend.open()
    await log.append_many([*long, *(chained(f"x{n:04}", 1)[0] for n in range(600))])
    assert [r async for r in log.read(T)] == long
    assert [t async for t in log.threads()] == [T, *(f"x{n:04}" for n in range(600))]
    assert await intact(log) == 1700
    await log.close()


async def test_a_tail_shows_what_comes(backend: Backend) -> None:
    records = chained("t", 4)
    log = await backend.open()
    await log.append(T, 0, records[:2])
    reader = await backend.reader()
    seen: list[int] = []
    with anyio.fail_after(PATIENCE):
        async for position, record in reader.tail(1):
            seen.append(position)
            assert record == records[position - 1]
            if position == 4:
                break
            await log.append(T, position, [records[position]])
    assert seen == [2, 3, 4]
    await reader.close()
    await log.close()


async def test_policies_snapshots_and_deadlines_outlive_a_restart(backend: Backend) -> None:
    log = await backend.open()
    await log.append_many(chained("t", 1), [(T, RunId("r"), 50), (T, RunId("s"), 40)])
    await log.append_many([], [(T, RunId("r"), 30), (U, RunId("s"), 0)])
    await log.put_policy("e", b"other")
    await log.put_policy("d", b"first")
    await log.put_policy("d", b"never taken: a digest has one text")
    await log.save_snapshot(T, 1, b"one")
    await log.save_snapshot(T, 2, b"two")
    await log.close()
    again = await backend.open()
    assert [due async for due in again.open_deadlines()] == [(30, T, "r"), (40, T, "s")]
    assert list((await again.policies()).items()) == [("d", b"first"), ("e", b"other")]
    assert [await again.policy(d) for d in ("d", "x")] == [b"first", None]
    assert [await again.load_snapshot(t) for t in (T, U)] == [(2, b"two"), None]
    await again.close()


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (chained("t", 3)[:1], "record 1 of thread `t` is not the next one: the log is at 3"),
        (chained("t", 3)[2:], "record 3 of thread `t` is not the next one: the log is at 3"),
        (chained("t", 6)[4:], "record 5 of thread `t` is not the next one: the log is at 3"),
        (chained("v", 2)[1:], "record 2 of thread `v` is not the next one: the log is at 0"),
        (chained("t", 1, chained("t", 3, text="x")[2]), "record 4 .* does not continue the chain of record 3"),
        (chained("v", 1)[:1] * 2, "record 1 of thread `v` is not the next one: the log is at 1"),
    ],
    ids=["again", "last again", "gap", "new with gap", "fork", "twice"],
)
async def test_a_record_that_is_not_the_next_is_a_conflict_and_nothing_is_kept(
    backend: Backend, records: list[Record], message: str
) -> None:
    log = await backend.open()
    await log.append_many(chained())
    with pytest.raises(LogConflict, match=message):
        await log.append_many([*chained("u", 2), *records])
    assert await all_of(log) == chained()
    assert await intact(log) == 3
    await log.close()


@pytest.mark.parametrize("expected", [0, 2, 4])
async def test_another_sequence_number_than_the_expected_is_a_conflict(backend: Backend, expected: int) -> None:
    log = await backend.open()
    await log.append(T, 0, chained())
    for records in ([], chained("t", 5)[expected:]):
        with pytest.raises(LogConflict) as caught:
            await log.append(T, expected, records)
        assert (caught.value.thread, caught.value.seq, caught.value.found) == ("t", expected + 1, 3)
    assert await log.head() == 3
    await log.append(T, 3, [])
    await log.close()


@pytest.mark.parametrize("records", [chained("u", 1), chained("t", 2)[1:], chained("t", 3)[::2]])
async def test_records_that_do_not_belong_together_are_no_append(backend: Backend, records: list[Record]) -> None:
    log = await backend.open()
    with pytest.raises(ValueError, match="not those of thread `t` after 0"):
        await log.append(T, 0, records)
    await log.close()


async def test_a_bad_append_fails_alone(backend: Backend) -> None:
    log = await backend.open()
    await log.append_many(chained())
    unstorable, error = backend.unstorable
    bad = [chained(), [unstorable]]
    batches = [chained("u", 1), bad[0], chained("v", 1), bad[1], bad[0], chained("w", 1)]
    results = await asyncio.gather(*(log.append_many(batch) for batch in batches), return_exceptions=True)
    assert [type(r) for r in results] == [type(None), LogConflict, type(None), error, LogConflict, type(None)]
    assert [r.thread for r in await all_of(log)] == ["t", "t", "t", "u", "v", "w"]
    assert await intact(log) == 6
    await log.close()


async def test_a_hundred_concurrent_appends_verify(backend: Backend) -> None:
    log = await backend.open()

    async def write(thread: str) -> None:
        for seq, record in enumerate(chained(thread, 5)):
            await log.append(ThreadId(thread), seq, [record])

    await asyncio.gather(*(write(f"t{n}") for n in range(100)))
    assert await intact(log) == 500
    await log.close()


@given(st.lists(st.tuples(st.sampled_from("tuv"), st.integers(0, 4), st.integers(1, 2)), max_size=12))
def test_queued_appends_go_in_as_if_one_after_another(ops: Sequence[tuple[str, int, int]]) -> None:
    """The slow obvious reading: a dictionary of lists, one append at a time."""
    for made in BACKENDS:
        asyncio.run(_as_if_serial(made, ops))


async def _as_if_serial(made: type[Backend], ops: Sequence[tuple[str, int, int]]) -> None:
    stories = {name: chained(name, 6) for name in "tuv"}
    model: dict[str, int] = {}
    expected = []
    for name, seq, count in ops:
        expected.append(model.get(name, 0) == seq)
        if expected[-1]:
            model[name] = seq + count
    async with anyio.TemporaryDirectory() as folder:
        with pytest.MonkeyPatch.context() as patch:
            backend = made(Path(folder), patch)
            log = await backend.open()
            appends = (log.append(ThreadId(n), seq, stories[n][seq : seq + count]) for n, seq, count in ops)
            results = await asyncio.gather(*appends, return_exceptions=True)
            assert [r is None for r in results] == expected
            assert {t: seq for t, (seq, _) in (await log.heads()).items()} == model
            await intact(log)
            await log.close()


# --- one writer ------------------------------------------------------------------------------------------------------


async def _outlived(log: EventLog, backend: Backend) -> None:
    """A second writer comes; then the first writes."""
    other = await backend.open()
    try:
        await log.append(T, 3, chained("t", 1, chained()[2]))
    finally:
        await other.close()


async def test_of_two_writers_one_writes_and_the_next_has_a_larger_epoch(backend: Backend) -> None:
    log = await backend.open()
    first = log.epoch
    await log.append(T, 0, chained())
    with pytest.raises(LogLocked, match=r"is open in another daemon .*: one log has one writer") as caught:
        await _outlived(log, backend)
    assert caught.value.holder
    await log.close()
    second = await backend.open()
    assert second.epoch > first
    await second.append(T, 3, chained("t", 1, chained()[2]), fence=second.epoch)
    assert await intact(second) == 4
    await second.close()


async def test_a_late_write_under_a_stale_fence_is_refused(backend: Backend) -> None:
    log = await backend.open()
    stale = log.epoch
    await log.close()
    log = await backend.open()
    with pytest.raises(LogLocked):
        await log.append(T, 0, chained(), fence=stale)
    assert await log.head() == 0
    await log.close()


async def test_a_writer_that_was_taken_over_never_writes_again(backend: Backend) -> None:
    log = await backend.open()
    await log.append(T, 0, chained())
    await backend.take_over()
    for n in range(2):
        results = await asyncio.gather(
            log.append(T, 3, chained("t", 1, chained()[2])), log.save_snapshot(T, n, b""), return_exceptions=True
        )
        assert [type(r) for r in results] == [LogLocked, LogLocked]
    assert await log.head() == 3
    assert await log.load_snapshot(T) is None
    await log.close()


async def test_a_reader_and_a_closed_log_write_nothing(backend: Backend) -> None:
    log = await backend.open()
    await log.close()
    with pytest.raises(LogUnavailable):
        await log.append(T, 0, chained())
    with pytest.raises(LogUnavailable):
        await log.head()
    await log.close()
    reader = await backend.reader()
    assert await reader.head() == 0
    await reader.close()


# --- stalls, failures, unknown outcomes ------------------------------------------------------------------------------


async def test_a_short_stall_is_waited_for_and_the_loop_goes_on(backend: Backend) -> None:
    log = await backend.open()
    with backend.stalled():
        waiting = [asyncio.create_task(log.append(ThreadId(t), 0, chained(t))) for t in "tuv"]
        for _ in range(20):  # a loop that stands still would never come to let go
            await asyncio.sleep(0.005)
        assert not any(task.done() for task in waiting)
    await asyncio.gather(*waiting)
    assert await intact(log) == 9
    await log.close()


async def test_a_long_stall_is_unavailable_and_over_when_it_is_over(backend: Backend) -> None:
    backend.hurry()
    log = await backend.open()
    await log.append(T, 0, chained())
    more = chained("t", 2, chained()[2])
    reader = await backend.reader()
    with backend.stalled():
        with pytest.raises(LogUnavailable, match="cannot write"):
            await log.append(T, 3, more)
        assert await reader.get(T, 4) is None
        assert await reader.head() == 3
    await reader.close()
    if await log.get(T, 5) is None:  # what was sent may still have come: asked, never assumed
        await log.append(T, 3, more)
    assert await intact(log) == 5
    await log.append(T, 5, chained("t", 1, more[1]))
    await log.close()


async def test_the_outcome_of_a_failed_append_can_be_asked_for(backend: Backend) -> None:
    log = await backend.open()
    with backend.outcome_lost(log), pytest.raises(LogUnavailable):
        await log.append(T, 0, chained())
    assert await log.get(T, 3) == chained()[2]
    with pytest.raises(LogConflict, match="the log is at 3"):
        await log.append(T, 0, chained())
    await log.append(T, 3, chained("t", 1, chained()[2]))
    assert await intact(log) == 4
    await log.close()


async def test_an_append_whose_waiter_is_cancelled_is_whole(backend: Backend) -> None:
    log = await backend.open()
    with backend.stalled():
        task = asyncio.create_task(log.append(T, 0, chained()))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await log.append(U, 0, chained("u"))
    assert await intact(log) == 6
    await log.close()


async def test_what_was_queued_before_the_close_is_written(backend: Backend) -> None:
    log = await backend.open()
    tasks = [asyncio.create_task(log.append(ThreadId(t), 0, chained(t))) for t in "tuv"]
    await asyncio.sleep(0)
    await log.close()
    await asyncio.gather(*tasks)
    again = await backend.open()
    assert await intact(again) == 9
    await again.close()
