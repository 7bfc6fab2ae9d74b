"""A log replays byte for byte, a changed decision is found, and snapshot and fold agree."""

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gated.core import state as states
from gated.core.decide import record
from gated.core.flags import LISTED
from gated.core.fold import fold
from gated.core.packed import Packed
from gated.core.policy import Policy, load_text
from gated.core.replay import replay
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    CallDecided,
    CallId,
    FinishRequested,
    IntentsReceived,
    Observation,
    OutcomeReported,
    PolicyBound,
    PolicyRebound,
    Record,
    RunId,
    Sender,
    ThreadId,
    Wanted,
    seal,
    unseal,
)

BY = Sender("agent", "a")
HISTORIES = Path(__file__).parents[1] / "histories"

POLICY = """
version: 1
agents:
  a:
    allowed_tools: ["*"]
    approval_required: [pay]
    machines:
      - name: rbw
        key: "{f}"
        initial: n
        terminal: [w]
        transitions: [{on: Read, from: "*", to: r}, {on: Write, from: r, to: w}]
tools: {mail: {outbound: true, cost_usd: 0.02}}
"""


def story() -> tuple[Policy, list[Record], ThreadState]:
    policy = load_text(POLICY, "policy.yaml")
    registry = Registry(policy, {policy.digest: policy})
    state, records = ThreadState(ThreadId("t")), list[Record]()
    says: list[Observation] = []
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("Read", {"f": "a"}),
        ("mail", {}),
        ("Write", {"f": "a"}),
        ("mail", {"x": 0.1}),
        ("mail", {}),
        ("pay", {"n": 2**70}),
    ]
    for number, (tool, args) in enumerate(wanted):
        call = CallId(f"c{number}")
        says += [
            IntentsReceived(BY, (Wanted(call, tool, args),)),
            OutcomeReported(BY, call, "success", content="ok"),
            OutcomeReported(BY, call, "error"),
        ]
    for at, said in enumerate([*says, FinishRequested(BY)]):
        step, sealed = record(registry, state, RunId("r"), said, 1_000_000 * at, at + 1)
        state = step.state
        records += [sealed] if sealed is not None else []
    return policy, records, state


def test_a_log_replays_byte_for_byte() -> None:
    policy, records, _ = story()
    assert len(records) > 10
    assert replay(records, {policy.digest: policy}.get) is None


def test_a_decision_that_was_changed_is_found() -> None:
    policy, records, _ = story()
    body = unseal(records[0])
    decided = body.decisions[-1]
    assert isinstance(decided, CallDecided)
    forged = replace(decided, decision="deny", admission=None)
    records[0] = seal(replace(body, decisions=(*body.decisions[:-1], forged)))
    difference = replay(records, {policy.digest: policy}.get)
    assert difference is not None
    assert (difference.seq, difference.what) == (1, "call_decided")
    assert difference.recorded["decision"] == "deny"
    assert difference.derived["decision"] == "allow"


@pytest.mark.parametrize(("instances", "listed"), [(3, 3), (100, 100), (130, 100)])
def test_a_rebinding_lists_its_first_strangers_and_counts_the_others(instances: int, listed: int) -> None:
    text = POLICY.replace("    machines:", "    checks: [privilege, order]\n    machines:")
    renamed = text.replace("to: r}", "to: read}").replace("from: r,", "from: read,")
    old, new = load_text(text, "policy.yaml"), load_text(renamed, "policy.yaml")
    registry = Registry(old, {old.digest: old, new.digest: new})
    says: list[Observation] = []
    for number in range(instances):
        call, args = CallId(f"c{number}"), {"f": f"{number:03}" + "\x00" * 1000}
        says += [IntentsReceived(BY, (Wanted(call, "Read", args),)), OutcomeReported(BY, call, "success")]
    state, records = ThreadState(ThreadId("t")), list[Record]()
    for at, said in enumerate([*says, PolicyBound(Sender("operator", "o"), new.digest)]):
        step, sealed = record(registry, state, RunId("r"), said, at, at + 1)
        state = step.state
        records += [sealed] if sealed is not None else []
    body = unseal(records[-1])
    (rebound,) = body.decisions
    assert isinstance(rebound, PolicyRebound)
    assert (len(rebound.strangers), rebound.more) == (listed, instances - listed)
    assert list(rebound.strangers) == sorted(rebound.strangers)
    assert body.flags == (LISTED,)
    assert len(records[-1].body) < 200_000
    assert replay(records, registry.known.get) is None


def test_a_policy_that_the_log_lacks_is_said() -> None:
    _, records, _ = story()
    difference = replay(records, lambda _: None)
    assert difference is not None
    assert difference.what == "policy"


@pytest.mark.parametrize("cut", range(0, 12, 3))
def test_snapshot_and_tail_are_the_whole_fold(cut: int) -> None:
    policy, records, final = story()
    state = ThreadState(ThreadId("t"))
    for number, stored in enumerate(records):
        if number == cut:
            state = states.load(states.dump(state))
        state = fold({policy.digest: policy}, state, unseal(stored), stored.hash)
    assert states.dump(state) == states.dump(final)


def live(state: ThreadState) -> ThreadState:
    """The state, its machines of runs that ended as anyone sees them: what rests when, and written how, means nothing."""
    order = state.order
    seen = {run: order.of(run) for run in state.runs if state.runs[run].end}
    sites = {owner: sites for owner, sites in order.instances.items() if owner not in seen}
    return replace(state, order=replace(order, instances=sites, retired=seen, past=Packed()))


@pytest.mark.parametrize("stored", (HISTORIES / "v1-machines.states").read_text().splitlines(), ids=lambda line: line.split()[0])
def test_a_state_from_before_machines_shared_their_keys_is_read(stored: str) -> None:
    """An archive keeps the states of threads whose records are gone; what follows them is decided as if they were folded."""
    from gated.shell.log.jsonl import open_export

    log = open_export(HISTORIES / "v1-machines.jsonl")
    policies = {digest: load_text(text, file="p.json") for digest, text in log._policies.items()}
    seq, raw = stored.split()
    read, folded = states.load(b64decode(raw)), ThreadState(ThreadId("t"))
    for entry in log._records:
        body = unseal(entry)
        if entry.seq > int(seq):
            read = fold(policies, read, body, entry.hash)
        folded = fold(policies, folded, body, entry.hash)
        if entry.seq >= int(seq):
            assert live(read) == live(folded)


@pytest.mark.parametrize("path", sorted(HISTORIES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_frozen_histories_replay(path: Path) -> None:
    from gated.shell.log.jsonl import open_export

    log = open_export(path)
    policies = {digest: load_text(text, file="p.json") for digest, text in log._policies.items()}
    assert log._records
    assert replay(log._records, policies.get) is None
