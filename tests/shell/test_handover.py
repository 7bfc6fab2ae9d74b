"""The bell misses no ring, the queue loses nothing and keeps order, the lock knows who waits, and all can be cancelled."""

from __future__ import annotations

import anyio
from anyio.lowlevel import checkpoint

from gated.shell.handover import Bell, Handover, Lock


async def test_a_ring_before_the_wait_is_kept_and_many_are_one() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    await bell.wait()
    with anyio.move_on_after(0.01) as waited:
        await bell.wait()
    assert waited.cancelled_caught


async def test_a_wait_that_is_cancelled_takes_no_ring_with_it() -> None:
    bell = Bell()
    with anyio.move_on_after(0.01) as waited:
        await bell.wait()
    assert waited.cancelled_caught
    bell.ring()
    with anyio.fail_after(1):
        await bell.wait()


async def test_all_that_is_given_is_taken_in_order_and_never_more_waits_than_there_is_room_for() -> None:
    queue: Handover[int] = Handover(3)
    taken: list[int] = []
    most = 0

    async def give() -> None:
        for number in range(100):
            await queue.put(number)
            if number % 7 == 0:
                await checkpoint()
        queue.close()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(give)
        while items := await queue.take_all():
            most = max(most, len(items))
            taken += items
    assert taken == list(range(100))
    assert most == 3


async def test_a_queue_knows_whether_its_taker_waits() -> None:
    queue: Handover[int] = Handover(2)
    assert (queue.waits, queue.idle) == (False, False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.take_all)
        await anyio.wait_all_tasks_blocked()
        assert (queue.waits, queue.idle) == (False, True)
        await queue.put(1)
        assert (queue.waits, queue.idle) == (True, False)
    assert (queue.waits, queue.idle) == (False, False)


async def test_a_closed_queue_gives_what_is_left_and_then_nothing() -> None:
    queue: Handover[str] = Handover(2)
    await queue.put("a")
    queue.close()
    assert await queue.take_all() == ["a"]
    assert await queue.take_all() == []


async def test_whoever_waits_for_room_can_be_cancelled_and_nothing_is_lost() -> None:
    queue: Handover[str] = Handover(1)
    await queue.put("a")
    with anyio.move_on_after(0.01) as waited:
        await queue.put("b")
    assert waited.cancelled_caught
    assert await queue.take_all() == ["a"]
    with anyio.fail_after(1):
        await queue.put("c")
    assert await queue.take_all() == ["c"]


async def test_a_lock_that_was_left_to_the_next_is_wanted_and_who_gives_up_wants_it_no_more() -> None:
    lock = Lock()
    async with anyio.create_task_group() as tasks:
        await lock.acquire()
        for wait in (60.0, 0.0):
            tasks.start_soon(_hold, lock, wait)
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.01):
            await lock.acquire()
        assert lock.wanted == 3
        lock.release()
        assert (lock.locked(), lock.wanted) == (False, 2)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert (lock.locked(), lock.wanted) == (False, 0)


async def _hold(lock: Lock, seconds: float) -> None:
    async with lock:
        await anyio.sleep(seconds)
