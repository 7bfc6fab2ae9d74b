"""Inputs that are set aside keep their thread's order, whatever is answered when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gated.events import ThreadId
from gated.shell.held import CROWD, Held

THREADS = [ThreadId(name) for name in "abc"]


@given(st.lists(st.tuples(st.sampled_from(["say", "say", "hold", "answer", "release"]), st.sampled_from(THREADS))))
def test_every_thread_keeps_its_order_and_nothing_is_lost(acts: list[tuple[str, ThreadId]]) -> None:
    """A serialiser in small: what is released is gone through again before anything newer."""
    held: Held[tuple[ThreadId, int]] = Held()
    waiting: dict[ThreadId, tuple[ThreadId, int]] = {}
    answered: set[ThreadId] = set()
    done: list[tuple[ThreadId, int]] = []
    inbox: list[tuple[ThreadId, int]] = []
    asked: set[tuple[ThreadId, int]] = set()
    wants: set[ThreadId] = set()
    number = 0

    def work() -> None:
        batch, inbox[:] = [*held.released(), *inbox], []
        answered.clear()
        for item in batch:
            thread = item[0]
            if held.follows(thread, item):
                continue
            if thread in wants and item not in asked:
                held.hold(thread)
                waiting[thread] = item
                continue
            done.append(item)

    for act, thread in acts:
        if act == "say":
            number += 1
            inbox.append((thread, number))
        elif act == "hold":
            wants.add(thread)
        elif act == "answer" and thread in waiting and thread not in answered:
            item = waiting.pop(thread)
            asked.add(item)
            answered.add(thread)
            held.answered(thread, item)
        else:
            work()
        assert len(held) + len(done) + len(inbox) == number
    for _ in range(2 * number + 2):
        for thread, item in list(waiting.items()):
            asked.add(waiting.pop(thread))
            held.answered(thread, item)
        work()
    assert len(held) == 0
    assert len(done) == number
    for thread in THREADS:
        mine = [n for owner, n in done if owner == thread]
        assert mine == sorted(mine)


def test_a_crowd_hurries_once() -> None:
    held: Held[int] = Held()
    hurried: list[int] = []
    held.hold(THREADS[0], lambda: hurried.append(1))
    for number in range(CROWD + 5):
        assert held.follows(THREADS[0], number)
        assert hurried == ([1] if number >= CROWD - 1 else [])
    held.answered(THREADS[0], -1)
    assert held.released() == [-1, *range(CROWD + 5)]
    assert (len(held), THREADS[0] in held) == (0, False)
