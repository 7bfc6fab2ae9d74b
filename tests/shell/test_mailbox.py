"""Inputs that wait: a thread's order holds whatever is set aside, released and set aside again between two batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gated.events import ThreadId
from gated.shell.held import Held
from gated.shell.mailbox import Mailbox

THREADS = [ThreadId(name) for name in "ab"]
Item = tuple[ThreadId, int]


def test_what_is_asked_about_twice_stays_before_what_was_released_with_it() -> None:
    """Found by reading: what was released the second time stood behind the rest of the first, and lost its verdict."""
    box: Mailbox[str] = Mailbox(lambda item: ThreadId("t"), lambda item: "agent")
    box.put_first(["asked", "second", "third"])
    assert box.take(2) == ["asked", "second"]
    box.put_first(["asked", "second"])
    assert box.take(9) == ["asked", "second", "third"]
    assert len(box) == 0


@given(
    st.lists(st.tuples(st.sampled_from(["say", "say", "answer", "work"]), st.sampled_from(THREADS)), max_size=60),
    st.integers(1, 4),
)
def test_a_thread_is_settled_in_its_order(acts: list[tuple[str, ThreadId]], most: int) -> None:
    """A serialiser in small: every third input is asked about, twice; batches are smaller than what is released."""
    box: Mailbox[Item] = Mailbox(lambda item: item[0], lambda item: item[0])
    held: Held[Item] = Held()
    asking: dict[ThreadId, Item] = {}
    asked: dict[Item, int] = {}
    done: list[Item] = []
    said = 0

    def answer(thread: ThreadId) -> None:
        if thread in asking:
            item = asking.pop(thread)
            asked[item] = asked.get(item, 0) + 1
            held.answered(thread, item)

    def work() -> None:
        box.put_first(held.released())
        for item in box.take(most):
            if item[0] in held and held.follows(item[0], item):
                continue
            if item[1] % 3 == 0 and asked.get(item, 0) < 2:
                held.hold(item[0])
                asking[item[0]] = item
            else:
                done.append(item)

    for act, thread in acts:
        if act == "say":
            box.put((thread, said := said + 1))
        elif act == "answer":
            answer(thread)
        else:
            work()
    for _ in range(4 * said + 4):
        for thread in THREADS:
            answer(thread)
        work()
    assert len(box) == len(held) == 0
    for thread in THREADS:
        assert [number for of, number in done if of == thread] == sorted(number for of, number in done if of == thread)
    assert len(done) == said
