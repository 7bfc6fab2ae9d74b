"""A thread comes into memory as its records say, whatever has become of its snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from gated.core import state as states
from gated.core.decide import record
from gated.core.policy import Policy, load_text
from gated.core.redaction.vault import Vault
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.core.writing import write_json
from gated.events import CallId, IntentsReceived, OutcomeReported, Record, RunId, Sender, ThreadId, Wanted
from gated.shell.log import ThreadDamaged
from gated.shell.log.sqlite import SqliteLog, open_for_writing
from gated.shell.threads import Threads

POLICY = """
version: 1
limits: {max_calls: 100000}
agents: {a: {allowed_tools: [Read], data_scope: any, resource_budget: {max_calls: 100000}}}
machines: [{name: m, key: "{file}", initial: n, transitions: [{on: Read, from: "*", to: r}]}]
"""
THREAD, BY = ThreadId("t"), Sender("agent", "a")


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_text(POLICY, "p.yaml")


def played(policy: Policy, calls: int, args: str = "f") -> tuple[list[Record], list[ThreadState]]:
    """The records of a thread, and the states after each; five calls of a run."""
    registry = Registry(policy, {policy.digest: policy}, Vault(b"k" * 32))
    found, after = list[Record](), [ThreadState(THREAD)]
    for number in range(calls):
        run, call = RunId(f"r{number // 5}"), CallId(f"c{number}")
        asked = IntentsReceived(BY, (Wanted(call, "Read", {"file": f"{args}{number}"}),), nesting="explicit")
        for said in (asked, OutcomeReported(BY, call, "success", content="ok")):
            step, stored = record(registry, after[-1], run, said, after[-1].at + 1000)
            assert stored is not None
            found.append(stored)
            after.append(step.state)
    return found, after


@asynccontextmanager
async def log_of(folder: Path, policy: Policy, records: list[Record]) -> AsyncIterator[SqliteLog]:
    log = await open_for_writing(folder / "log.db")
    try:
        await log.put_policy(policy.digest, policy.text)
        await log.append_many(records)
        yield log
    finally:
        await log.close()


async def loaded(log: SqliteLog, policy: Policy) -> tuple[ThreadState, list[str]]:
    """The state of the thread, and the warnings that came with it."""
    with structlog.testing.capture_logs() as lines:
        state = await Threads(log, policy, Vault(b"k" * 32)).look(THREAD)
    return state, [line["event"] for line in lines]


@pytest.mark.parametrize("behind", [None, 0, 1, 2, 499, 1000])
async def test_a_snapshot_may_be_missing_or_as_old_as_it_likes(tmp_path: Path, policy: Policy, behind: int | None) -> None:
    records, after = played(policy, 550)
    async with log_of(tmp_path, policy, records) as log:
        if behind is not None:
            old = after[len(records) - behind]
            await log.save_snapshot(THREAD, old.seq, states.dump(old))
        assert await loaded(log, policy) == (after[-1], [])


@pytest.mark.parametrize("place", [0, 1, 3, 5, 6, 100, 0.5, 0.9, -1])
async def test_a_snapshot_with_a_flipped_bit_is_passed_over(tmp_path: Path, policy: Policy, place: float) -> None:
    """What is packed in it is decoded late, so that nobody would have seen it before it was decided on."""
    records, after = played(policy, 100)
    raw = bytearray(states.dump(after[-1]))
    raw[int(place * len(raw)) if 0 < place < 1 else int(place)] ^= 4
    async with log_of(tmp_path, policy, records) as log:
        await log.save_snapshot(THREAD, len(records), bytes(raw))
        assert await loaded(log, policy) == (after[-1], ["a snapshot cannot be read, folding the records"])


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 6, 1000])
async def test_a_snapshot_that_was_cut_is_passed_over(tmp_path: Path, policy: Policy, cut: int) -> None:
    records, after = played(policy, 100)
    async with log_of(tmp_path, policy, records) as log:
        await log.save_snapshot(THREAD, len(records), states.dump(after[-1])[:cut])
        assert await loaded(log, policy) == (after[-1], ["a snapshot cannot be read, folding the records"])


async def test_a_snapshot_of_the_version_before_is_read(tmp_path: Path, policy: Policy) -> None:
    records, after = played(policy, 300)
    async with log_of(tmp_path, policy, records) as log:
        await log.save_snapshot(THREAD, 500, write_json(after[500]))
        assert await loaded(log, policy) == (after[-1], [])


async def test_a_snapshot_that_is_not_of_this_log_is_passed_over(tmp_path: Path, policy: Policy) -> None:
    records, after = played(policy, 20)
    _, elsewhere = played(policy, 20, args="other")
    strangers = {
        "of another chain": elsewhere[20],
        "of another thread": replace(after[20], thread=ThreadId("u")),
        "of another record": after[19],
        "ahead of the log": replace(after[-1], seq=20),
    }
    async with log_of(tmp_path, policy, records) as log:
        for what, state in strangers.items():
            await log.save_snapshot(THREAD, 20, states.dump(state))
            assert await loaded(log, policy) == (after[-1], ["a snapshot is not of this log, folding the records"]), what
        await log.save_snapshot(THREAD, 99, states.dump(replace(after[-1], seq=99)))
        assert await loaded(log, policy) == (after[-1], ["a snapshot is not of this log, folding the records"])


async def test_a_damaged_thread_is_read_again_after_a_while(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs no more than that to be asked about it, and a log that was mended needs no new start."""
    records, after = played(policy, 20)
    async with log_of(tmp_path, policy, records) as log:
        threads, whole, reads = Threads(log, policy, Vault(b"k" * 32)), log.read, 0

        async def broken(thread: ThreadId, after: int = 0) -> AsyncIterator[Record]:
            nonlocal reads
            reads += 1
            async for stored in whole(thread, after):
                yield replace(stored, body=b"{}") if stored.seq == 7 else stored

        monkeypatch.setattr(log, "read", broken)
        for _ in range(3):
            with pytest.raises(ThreadDamaged, match="damaged at record 7: the body does not have the recorded hash"):
                await threads.look(THREAD)
        assert (reads, list(threads.damages)) == (1, ["t"])
        monkeypatch.setattr(log, "read", whole)
        monkeypatch.setattr("gated.shell.threads.LOOK_AGAIN", 0.0)
        assert await threads.look(THREAD) == after[-1]
        assert threads.damages == {}
