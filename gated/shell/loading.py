"""The state of a thread out of its log: a snapshot where there is a sound one, and the records behind it.

INVARIANT: only a chain of records is believed. A snapshot that cannot be read, or is of another chain, is passed over, and the
records say it all; records that are not what their hashes say, or that nobody can fold, give no state at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import structlog
from anyio.lowlevel import checkpoint

from gated.core import state as states
from gated.core.fold import fold
from gated.core.policy import Policy
from gated.core.state import ThreadState
from gated.events import GENESIS, PolicyBound, Record, ThreadId, unseal
from gated.shell.damaged import NOT_ITS_HASH, is_whole
from gated.shell.log import LogDamaged, LogError, ReadableLog, ThreadDamaged

Know = Callable[[str], Awaitable[None]]
Known = Callable[[], Mapping[str, Policy]]

SLICE: Final = 511  # records that are folded in one go: nobody else's turn comes meanwhile

log = structlog.get_logger("gated.runs")


class Part(NamedTuple):
    """A thread's state on its way out of the log; `saved` is the record that its snapshot was of, 0 where there was none."""

    state: ThreadState
    saved: int
    whole: bool


async def state_at_end(event_log: ReadableLog, thread: ThreadId, know: Know, known: Known) -> ThreadState:
    """The state of a thread after its last record.

    `know` makes a policy one of those that `known` gives. Raises `ThreadDamaged`, `LogUnavailable`.
    """
    part = await begin(event_log, thread, know, known)
    return part.state if part.whole else (await end(event_log, part, know, known)).state


async def begin(event_log: ReadableLog, thread: ThreadId, know: Know, known: Known) -> Part:
    """The snapshot and the first records behind it, which mostly is the whole thread. Raises the same."""
    with _of(thread):
        saved = await _snapshot(event_log, thread)
        state, whole = await _followed(event_log, saved or ThreadState(thread), know, known, SLICE)
        return Part(state, 0 if saved is None else saved.seq, whole)


async def end(event_log: ReadableLog, part: Part, know: Know, known: Known) -> Part:
    """The rest of the thread; whoever else has work goes on between two slices of it. Raises the same."""
    with _of(part.state.thread):
        while not part.whole:
            await checkpoint()
            state, whole = await _followed(event_log, part.state, know, known, SLICE)
            part = Part(state, part.saved, whole)
    return part


@contextmanager
def _of(thread: ThreadId) -> Iterator[None]:
    """What is damaged is this thread."""
    try:
        yield
    except ThreadDamaged:
        raise
    except LogDamaged as error:  # the file, where the thread's rows are
        raise ThreadDamaged(thread, 0, str(error)) from error


async def _snapshot(event_log: ReadableLog, thread: ThreadId) -> ThreadState | None:
    """The thread's snapshot, if it is one of the chain that the log has."""
    found = await event_log.load_snapshot(thread)
    if found is None:
        return None
    try:
        state = states.load(found[1])
    except ValueError as error:
        log.warning("a snapshot cannot be read, folding the records", thread=thread, error=str(error))
        return None
    why = await _stranger(event_log, thread, found[0], state)
    if why:
        log.warning("a snapshot is not of this log, folding the records", thread=thread, error=why)
        return None
    return state


async def _stranger(event_log: ReadableLog, thread: ThreadId, seq: int, state: ThreadState) -> str:
    """Why a state is not that of the thread after record `seq`; empty where it is."""
    if (state.thread, state.seq) != (thread, seq):
        return f"it is of record {state.seq} of thread `{state.thread}`"
    record = await event_log.get(thread, seq)
    if record is None:  # the thread was archived, and its state is what is left; or the log was cut
        async for first in event_log.read(thread):
            return f"the log has no record {seq}" if first.seq == 1 else ""
        return ""
    return "" if record.hash == state.head else f"record {seq} is another one"


async def _followed(event_log: ReadableLog, state: ThreadState, know: Know, known: Known, most: int) -> tuple[ThreadState, bool]:
    """The state after so many of the records behind it, and whether those were all."""
    for digest in state.policies:  # before the records behind the snapshot are folded
        await know(digest)
    last = state.seq + most
    async for stored in event_log.read(state.thread, state.seq):
        if state.seq == last:
            return state, False
        why = _broken(stored, state)
        if why:
            raise ThreadDamaged(state.thread, stored.seq, why)
        try:
            body = unseal(stored)
            await know(body.policy)
            if body.policy not in known():
                raise ThreadDamaged(state.thread, stored.seq, f"the log does not have the policy `{body.policy}` that it names")
            if isinstance(body.observation, PolicyBound):
                await know(body.observation.policy)
            state = fold(known(), state, body, stored.hash)
        except LogError:
            raise
        except Exception as error:  # whatever it is: of this thread nothing is known, of the others all
            raise ThreadDamaged(state.thread, stored.seq, f"it cannot be followed: {type(error).__name__}: {error}") from error
    return state, True


def _broken(stored: Record, state: ThreadState) -> str:
    """Why a record is not the next one of the thread; empty where it is."""
    if stored.seq != state.seq + 1:
        return f"it follows record {state.seq} and no snapshot tells more"
    if stored.prev != (state.head or GENESIS):
        return "the previous hash is not that of the record before"
    return "" if is_whole(stored) else NOT_ITS_HASH
