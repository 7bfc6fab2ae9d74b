"""The possible states of an instance, against an enumeration of every combination, and against the rule of the cap."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.order.possible import CAP, possible_states
from gated.core.order.state import ANY, Kind, Kinds, kind_of

STATES = st.sampled_from("abcd")
KINDS = st.lists(st.tuples(st.sampled_from("abcd*"), STATES), max_size=4).map(kind_of)


def kinds_of(*kinds: Kind) -> Kinds:
    return tuple(sorted(Counter(kinds).items()))


def every_order(state: str, calls: list[Kind]) -> set[str]:
    """Each call at most once, in any order, each moving by any of its targets: by trying them all."""
    found = {state}
    for order in permutations(calls):
        here = {state}
        for kind in order:  # to leave a call out is to let it move nothing
            here |= {target for source, target in kind for at in here if source in (at, ANY)}
            found |= here
    return found


def walked(state: str, kinds: Kinds) -> tuple[set[str], set[tuple[str, tuple[int, ...]]]]:
    """All combinations of a state and how many calls of each kind are left, without a cap."""
    start = (state, tuple(count for _, count in kinds))
    seen, queue = {start}, [start]
    for here, left in queue:
        for index, (kind, _) in enumerate(kinds):
            if left[index]:
                rest = (*left[:index], left[index] - 1, *left[index + 1 :])
                for source, target in kind:
                    if target != here and source in (here, ANY) and (target, rest) not in seen:
                        seen.add((target, rest))
                        queue.append((target, rest))
    return {at for at, _ in seen}, seen


def fixpoint(state: str, kinds: Kinds) -> set[str]:
    return walked(state, tuple((kind, 9) for kind, _ in kinds))[0]


@given(STATES, st.lists(KINDS, max_size=5))
def test_it_is_every_state_that_some_order_of_some_calls_leads_to(state: str, calls: list[Kind]) -> None:
    assert possible_states(state, kinds_of(*calls)) == every_order(state, calls)


@given(STATES, st.dictionaries(KINDS, st.integers(1, 9), max_size=4))
def test_beyond_the_cap_the_fixpoint_stands_in(state: str, counts: dict[Kind, int]) -> None:
    kinds = tuple(sorted(counts.items()))
    exact, combinations = walked(state, kinds)
    found = possible_states(state, kinds)
    assert exact <= found
    assert found == (exact if len(combinations) <= CAP else fixpoint(state, kinds))


CHAIN = kind_of([("a", "b"), ("b", "c")])  # one call of it leads to b, only two lead to c


def test_one_call_is_used_once() -> None:
    assert possible_states("a", kinds_of(CHAIN)) == {"a", "b"}
    assert possible_states("a", kinds_of(CHAIN, CHAIN)) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("noise", "capped"),
    [
        ({kind_of([(ANY, f"y{n}")]): 1 for n in range(3)}, False),
        ({kind_of([(ANY, f"y{n}")]): 1 for n in range(12)}, True),  # many kinds
        ({kind_of([(ANY, f"y{n}")]): 12 for n in range(3)}, True),  # few kinds, many calls that change nothing
    ],
)
def test_the_cap_counts_all_calls(noise: dict[Kind, int], capped: bool) -> None:
    kinds = tuple(sorted({CHAIN: 1, **noise}.items()))
    assert (len(walked("a", kinds)[1]) > CAP) is capped
    assert ("c" in possible_states("a", kinds)) is capped


def test_no_calls_no_other_state() -> None:
    assert possible_states("a", ()) == {"a"}


@given(st.lists(st.tuples(st.sampled_from("abcd*"), STATES), max_size=6))
def test_calls_that_move_every_state_alike_are_one_kind(moves: list[tuple[str, str]]) -> None:
    def table(pairs: tuple[tuple[str, str], ...] | list[tuple[str, str]]) -> dict[str, set[str]]:
        return {at: {target for source, target in pairs if source in (at, ANY) and target != at} for at in "abcdz"}

    kind = kind_of(moves)
    assert table(kind) == table(moves)
    assert kind == kind_of(reversed(moves)) == kind_of([*moves, *((target, target) for _, target in moves)])
