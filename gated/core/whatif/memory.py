"""The policy on trial, and what is kept of a log beside the states of its threads: what was asked, waits, would have ended."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from gated.core.fold import KNOWN_AS
from gated.core.policy import Policy
from gated.core.state import Known, RunState
from gated.core.turn import Registry
from gated.core.whatif.counting import OpenRuns
from gated.events import CallDecided, CallId, RunId, ThreadId, TicketId, TicketOpened

Place = tuple[ThreadId, RunId]


class Asked:
    """The calls of a run that got a verdict, as recorded; `asks` are the sources of those that the policy on trial asks about."""

    def __init__(self) -> None:
        self.calls: dict[CallId, Known] = {}
        self.asks: dict[CallId, frozenset[str]] = {}

    def note(self, decided: CallDecided, seq: int) -> None:
        before = self.calls.get(decided.call)
        first = seq if before is None else before.asked
        self.calls[decided.call] = Known(decided.args_sha256, decided.tool, seq, KNOWN_AS[decided.decision], first)

    def within(self, run: RunState, calls: Iterable[CallId]) -> RunState:
        """The run that also knows those of these calls that were not allowed."""
        known = run.calls
        for call in calls:
            if call in self.calls and run.known(call) is None:
                known = known.set(call, self.calls[call])
        return replace(run, calls=known)

    def beside(self, run: RunState, call: CallId) -> int:
        """How many calls of other messages than the call's own are in flight."""
        known = self.calls.get(call)
        return len(run.in_flight) if known is None else sum(entry.asked != known.asked for entry in run.in_flight.values())


class Memory:
    def __init__(self, open_runs: OpenRuns) -> None:
        self.open = open_runs
        self.tickets: dict[TicketId, TicketOpened] = {}  # that wait for people
        self.barred: dict[Place, tuple[str, str]] = {}  # runs that the policy on trial would not have opened, and why
        self.failed: dict[Place, str] = {}  # runs that it would have ended, and why
        self.blind: set[tuple[ThreadId, str]] = set()  # machines whose moves rest on a redacted result
        self.lost: set[tuple[ThreadId, str]] = set()  # machines that calls moved whose keys nobody can read
        self._asked: dict[Place, Asked] = {}

    def asked(self, place: Place) -> Asked:
        return self._asked.setdefault(place, Asked())

    def fail(self, place: Place, reason: str | None) -> None:
        """The policy on trial would have ended the run here: what comes after would have come too late."""
        if reason is not None:
            self.failed.setdefault(place, reason)

    def end(self, place: Place) -> None:
        """The run ended: nothing new is asked in it."""
        self._asked.pop(place, None)


class OnTrial(Struct, frozen=True):
    """A policy whose rules are `acted` on, or only `watched`: what happened happens again, whatever they say of it."""

    policy: Policy
    acted: Registry
    watched: Registry
    memory: Memory
