"""Threads as the console folds them from the log: the state of now, and what the values of the barriers were on the way.

The console asks for records and folds them itself, as any auditor could, so that the gate's loop is not held up by people who
look at runs. Threads that were looked at stay folded for a while, and only new records are asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import anyio
import anyio.lowlevel
import msgspec
from msgspec import Struct

from gated.console.line import Lines, NoAnswer
from gated.core.fold import fold
from gated.core.pipeline import barrier_state
from gated.core.policy import Policy
from gated.core.stages import dcbf
from gated.core.state import ThreadState
from gated.documents import DocumentError
from gated.events import Body, RunId, ThreadId
from gated.shell.policies import load_stored

KEPT: Final = 32  # threads that stay folded
RECORDS: Final = 50_000  # and their records in all
BREATH: Final = 50  # records that are folded before others have their turn


class Stored(Struct, frozen=True):
    """A record as the API tells it."""

    hash: str
    body: Body


class Records(Struct, frozen=True):
    records: list[Stored]
    after: int
    complete: bool


class _PolicyText(Struct, frozen=True):
    policy: str
    text: msgspec.Raw


class Policies:
    """Compiled policies by digest, asked for once and kept: runs stay bound to old ones."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.known: dict[str, Policy] = {}

    async def get(self, digest: str) -> Policy:
        """Raises `NoAnswer`."""
        if digest not in self.known:
            found = await self._lines.ask("policy.show", _PolicyText, policy=digest)
            try:
                made = load_stored(bytes(found.text), digest, lenient=True)
            except DocumentError as error:
                raise NoAnswer(f"the policy {digest[:12]} cannot be read by this version of the console: {error}") from error
            self.known[digest] = made
        return self.known[digest]


class Moment(Struct, frozen=True):
    """The values of a run's barriers after a record."""

    seq: int
    at: int
    values: dict[str, float]


class Thread:
    """A folded thread. `bodies` are its records in order, `curves` the moments of each run."""

    def __init__(self, thread: ThreadId) -> None:
        self.state = ThreadState(thread)
        self.bodies: list[Body] = []
        self.curves: dict[RunId, list[Moment]] = {}

    def of(self, run: RunId) -> list[Body]:
        return [body for body in self.bodies if body.run == run]


class Threads:
    """The threads that were looked at last."""

    def __init__(self, lines: Lines, policies: Policies) -> None:
        self._lines, self._policies = lines, policies
        self._kept: OrderedDict[str, tuple[anyio.Lock, Thread]] = OrderedDict()

    async def look(self, thread: str) -> Thread:
        """The thread as it is now; without records where the log has none of it. Raises `NoAnswer`."""
        lock, found = self._kept.setdefault(thread, (anyio.Lock(), Thread(ThreadId(thread))))
        self._kept.move_to_end(thread)
        async with lock:
            await self._catch_up(found)
        while len(self._kept) > 1 and (len(self._kept) > KEPT or self._records() > RECORDS):
            self._kept.popitem(last=False)
        return found

    def _records(self) -> int:
        return sum(len(thread.bodies) for _, thread in self._kept.values())

    async def _catch_up(self, found: Thread) -> None:
        while True:
            page = await self._lines.ask("log.thread", Records, thread=found.state.thread, after=found.state.seq)
            for number, stored in enumerate(page.records):
                await self._fold(found, stored)
                if number % BREATH == BREATH - 1:
                    await anyio.lowlevel.checkpoint()
            if page.complete:
                return

    async def _fold(self, found: Thread, stored: Stored) -> None:
        body = stored.body
        for digest in policies_of(body):
            await self._policies.get(digest)
        known = self._policies.known
        found.state = fold(known, found.state, body, stored.hash)
        found.bodies.append(body)
        run = found.state.runs.get(body.run)
        if run is not None:
            profile = known[run.policy].profile(run.agent)
            values = dcbf.get_barrier_values(profile.dcbf, barrier_state(profile, run, found.state.tally, body.at, run.drift))
            curve = found.curves.setdefault(body.run, [])
            if not curve or curve[-1].values != values:
                curve.append(Moment(body.seq, body.at, values))


def policies_of(body: Body) -> set[str]:
    """The digests of the policies that folding a record needs."""
    said: list[Any] = [body, body.observation, *body.decisions]
    return {digest for digest in (getattr(part, "policy", None) for part in said) if isinstance(digest, str) and digest}
