"""What the machines of a thread remember: instances with the calls in flight on them, reminders' throttle, counters.

INVARIANT: everything here came out of recorded decisions. What a call in flight may still do to an instance is kept with it
(its *kind*), so no other run's policy is needed to say which states are possible.
"""

from __future__ import annotations

from typing import Final

from immutables import Map
from msgspec import Struct

from gated.events import CallId, RunId

MAX_VIOLATIONS: Final = 64

Kind = tuple[tuple[str | None, str], ...]  # (state it moves from, or None for any; state it moves to), sorted


class Flight(Struct, frozen=True, array_like=True):
    """A call in flight on an instance."""

    run: RunId
    call: CallId
    kind: Kind


class Instance(Struct, frozen=True, array_like=True):
    """`moved`: it has left a state at least once, so the end of a run looks at it."""

    state: str
    moved: bool = False
    flights: tuple[Flight, ...] = ()


class Violation(Struct, frozen=True):
    machine: str
    key: str
    tool: str
    action: str
    reason: str


class Counts(Struct, frozen=True):
    asked: int = 0
    denied: int = 0
    warned: int = 0
    transitioned: int = 0
    emitted: int = 0

    def plus(self, name: str) -> Counts:
        values = {field: getattr(self, field) for field in self.__struct_fields__}
        values[name] += 1
        return Counts(**values)


class OrderState(Struct, frozen=True):
    """Instances by slot (`slot_of`) and key; `size` counts them. `issued` is the tick of each machine and key's reminder."""

    instances: Map[str, Map[str, Instance]] = Map()
    size: int = 0
    tick: int = 0
    issued: Map[str, int] = Map()
    metrics: Counts = Counts()
    by_machine: Map[str, Counts] = Map()
    violations: tuple[Violation, ...] = ()

    def at(self, slot: str, key: str) -> Instance | None:
        keys = self.instances.get(slot)
        return None if keys is None else keys.get(key)

    def totals(self) -> dict[str, int]:
        return {field: getattr(self.metrics, field) for field in self.metrics.__struct_fields__}

    def view(self, run: RunId) -> dict[str, dict[str, str]]:
        """Machine to key to state, as the run sees them."""
        found: dict[str, dict[str, str]] = {}
        for slot in sorted(self.instances):
            owner, _, machine = slot.partition("/")
            if owner in ("", run):
                keys = self.instances[slot]
                found.setdefault(machine, {}).update({key: keys[key].state for key in sorted(keys)})
        return found


def slot_of(machine: str, scope: str, run: RunId) -> str:
    """Where a machine's instances are: run ids have no slash, so no run's slot is another's or the thread's."""
    return f"/{machine}" if scope == "thread" else f"{run}/{machine}"
