"""Random histories whose arguments are redacted: a replay without the keys finds no difference, and the log is the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core.gate_of_core import CoreGate
from gated.core import state as states
from gated.core.fold import fold
from gated.core.replay import Replayer
from gated.core.state import ThreadState
from gated.events import unseal
from oracle.strategies import apply, asking, beside, rebinding, thrown

FIELDS = (["f", "to"], ["f"], ["to", "a"])
SEEDS = [71_053, 71_061, 71_167, 71_375, *range(6)]  # the first quote what was redacted in a reminder or a reason


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", [thrown, rebinding, asking, beside])
def test_a_replay_without_keys_finds_no_difference(
    make: Callable[[int], tuple[dict[str, Any], list[dict[str, Any]]]], seed: int
) -> None:
    policy, operations = make(seed)
    gate = CoreGate({**policy, "redact": {"detectors": ["secrets", "card"], "fields": FIELDS[seed % len(FIELDS)]}})
    for operation in operations:
        apply(gate, operation)
    world, again = gate.world, dict[str, ThreadState]()
    replayer = Replayer(world.known.get)
    for entry in world.log:
        assert replayer.feed(entry.record) is None
        before = again.get(entry.record.thread) or ThreadState(entry.record.thread)
        again[entry.record.thread] = fold(world.known, before, unseal(entry.record), entry.record.hash)
    assert {thread: states.dump(state) for thread, state in again.items()} == {
        thread: states.dump(state) for thread, state in world.threads.items() if state.seq
    }
