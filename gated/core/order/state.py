"""What the machines of a thread remember: instances with the calls in flight on them, reminders' throttle, counters.

INVARIANT: everything here came out of recorded decisions. What a call in flight may still do to an instance is kept with it
(its *kind*), so nobody's policy is needed to say which states are possible, and a call can be taken off its instance whatever
has become of its policy. `Instance.kinds` counts the kinds of `Instance.flights`, so that a decision need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from immutables import Map
from msgspec import Struct
from msgspec.structs import replace

from gated.core.packed import Packed
from gated.events import CallId, RunId

ANY: Final = "*"
MAX_VIOLATIONS: Final = 64
MAX_ISSUED: Final = 4096

Kind = tuple[tuple[str, str], ...]  # (state it moves from, or `*`; state it moves to), sorted
Kinds = tuple[tuple[Kind, int], ...]  # how many calls of each kind, sorted


def kind_of(moves: Iterable[tuple[str, str]]) -> Kind:
    """The normal form of possible moves: kinds are equal where they move every state alike."""
    moves = set(moves)
    anywhere = {target for source, target in moves if source == ANY}
    return tuple(sorted(m for m in moves if m[0] == ANY or (m[1] not in anywhere and m[0] != m[1])))


class Flight(Struct, frozen=True, gc=False, array_like=True):
    """A call in flight on an instance."""

    run: RunId
    call: CallId
    kind: Kind


class Instance(Struct, frozen=True, gc=False, array_like=True):
    """`moved`: it has left a state at least once, so the end of a run looks at it."""

    state: str
    moved: bool = False
    flights: tuple[Flight, ...] = ()
    kinds: Kinds = ()

    def joined(self, run: RunId, call: CallId, kind: Kind) -> Instance:
        """With one more call in flight."""
        flights = self.flights
        if not flights:
            return Instance(self.state, self.moved, (Flight(run, call, kind),), ((kind, 1),))
        return Instance(self.state, self.moved, (*flights, Flight(run, call, kind)), _shifted(self.kinds, kind, 1))

    def left(self, run: RunId, call: CallId) -> Instance | None:
        """Without that call; None where it is not in flight here."""
        if len(self.flights) == 1:  # the usual case
            flight = self.flights[0]
            return Instance(self.state, self.moved) if flight.call == call and flight.run == run else None
        for index, flight in enumerate(self.flights):
            if flight.call == call and flight.run == run:
                flights = self.flights[:index] + self.flights[index + 1 :]
                return Instance(self.state, self.moved, flights, _shifted(self.kinds, flight.kind, -1))
        return None


def _shifted(kinds: Kinds, kind: Kind, by: int) -> Kinds:
    for index, (known, count) in enumerate(kinds):
        if known == kind:
            rest = ((kind, count + by),) if count + by else ()
            return kinds[:index] + rest + kinds[index + 1 :]
    return tuple(sorted((*kinds, (kind, by))))


class Violation(Struct, frozen=True, gc=False):
    machine: str
    key: str
    tool: str
    action: str
    reason: str


class Counts(Struct, frozen=True, gc=False):
    asked: int = 0
    denied: int = 0
    warned: int = 0
    transitioned: int = 0
    emitted: int = 0

    def plus(self, name: str) -> Counts:
        return replace(self, **{name: getattr(self, name) + 1})


class OrderState(Struct, frozen=True, gc=False):
    """Instances by slot (`slot_of`) and key; `size` counts them, those in `retired` slots (of runs that ended) not.

    Slots of runs that ended are `past`, packed, once nothing is in flight on them. `issued` is the tick of each machine and key's
    reminder.
    """

    instances: Map[str, Map[str, Instance]] = Map()
    size: int = 0
    retired: Map[str, bool] = Map()
    tick: int = 0
    issued: Map[str, int] = Map()
    metrics: Counts = Counts()
    by_machine: Map[str, Counts] = Map()
    violations: tuple[Violation, ...] = ()
    past: Packed = Packed()

    def at(self, slot: str, key: str) -> Instance | None:
        keys = self.instances.get(slot)
        if keys is None:
            return self.keys(slot).get(key) if self.past.size else None
        return keys.get(key)

    def put(self, changes: Iterable[tuple[str, str, Instance]]) -> OrderState:
        """With these instances, by slot and key; one that never moved and has nothing in flight is as good as none."""
        instances, size, retired = self.instances.mutate(), self.size, self.retired
        resting: list[str] = []
        for slot, key, instance in changes:
            keys: Map[str, Instance] = instances.get(slot) or Map()
            before = len(keys)
            if instance.moved or instance.flights:
                keys = keys.set(key, instance)
            elif key in keys:
                keys = keys.delete(key)
            else:
                continue
            if keys:
                instances[slot] = keys
            else:
                del instances[slot]
            if slot in retired:
                resting.append(slot)
            else:
                size += len(keys) - before
        order = replace(self, instances=instances.finish(), size=size)
        for slot in dict.fromkeys(resting):
            order = order._rested(slot)
        return order

    def retire(self, slots: Iterable[str]) -> OrderState:
        """What a run leaves behind in its own slots can be looked at, and takes no room any more."""
        held = [slot for slot in slots if slot in self.instances]
        if not held:
            return self
        freed = sum(len(self.instances[slot]) for slot in held)
        order = replace(self, size=self.size - freed, retired=self.retired.update(dict.fromkeys(held, True)))
        for slot in held:
            order = order._rested(slot)
        return order

    def _rested(self, slot: str) -> OrderState:
        """A retired slot is packed, unless a call is in flight on it."""
        keys = self.instances.get(slot)
        if keys is None:
            return replace(self, retired=self.retired.delete(slot))
        if any(instance.flights for instance in keys.values()):
            return self
        past = self.past.set(slot, _ENCODER.encode(dict(keys)))
        return replace(self, instances=self.instances.delete(slot), retired=self.retired.delete(slot), past=past)

    def keys(self, slot: str) -> Mapping[str, Instance]:
        """The instances of a slot, also one of a run that ended."""
        keys = self.instances.get(slot)
        if keys is not None:
            return keys
        raw = self.past.get(slot)
        return {} if raw is None else _KEYS.decode(raw)

    def counted(self, machine: str, name: str) -> OrderState:
        counts = self.by_machine.get(machine, _NO_COUNTS).plus(name)
        return replace(self, metrics=self.metrics.plus(name), by_machine=self.by_machine.set(machine, counts))

    def reminded(self, machine: str, key: str) -> OrderState:
        """A reminder went out now. At the cap the older half is forgotten: at worst one comes again too early."""
        issued = self.issued
        if len(issued) >= MAX_ISSUED:
            issued = Map(sorted(issued.items(), key=lambda item: (item[1], item[0]))[MAX_ISSUED // 2 :])
        return replace(self, issued=issued.set(f"{machine}/{key}", self.tick))

    def reminded_at(self, machine: str, key: str) -> int | None:
        return self.issued.get(f"{machine}/{key}")

    def noted(self, violation: Violation) -> OrderState:
        return replace(self, violations=(*self.violations[1 - MAX_VIOLATIONS :], violation))

    def totals(self) -> dict[str, int]:
        return {field: getattr(self.metrics, field) for field in self.metrics.__struct_fields__}

    def view(self, run: RunId) -> dict[str, dict[str, str]]:
        """Machine to key to state, as the run sees them."""
        found: dict[str, dict[str, str]] = {}
        for slot in sorted((*self.instances, *self.past.keys())):
            owner, _, machine = slot.partition("/")
            if owner in ("", run):
                keys = self.keys(slot)
                found.setdefault(machine, {}).update({key: keys[key].state for key in sorted(keys)})
        return found


_NO_COUNTS: Final = Counts()
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_KEYS: Final = msgspec.json.Decoder(dict[str, Instance])


def slot_of(machine: str, scope: str, run: RunId) -> str:
    """Where a machine's instances are: run ids have no slash, so no run's slot is another's or the thread's."""
    return f"/{machine}" if scope == "thread" else f"{run}/{machine}"
