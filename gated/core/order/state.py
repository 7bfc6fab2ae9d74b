"""What the machines of a thread remember: instances with the calls in flight on them, reminders' throttle, counters.

Machines often share their keys, and a call then bears on all of them at once: the instances of one key are a *site*, and a call
is in flight on a site, however many machines watch it.
INVARIANT: everything here came out of recorded decisions. What a call in flight may still do to an instance is kept with it
(its *kind*), so nobody's policy is needed to say which states are possible, and a call can be taken off its site whatever has
become of its policy. `Site.kinds` counts the kinds of `Site.flights`, so that a decision need not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec
from immutables import Map
from msgspec import Struct
from msgspec.structs import asdict, replace

from gated.core.packed import Packed
from gated.events import CallId, RunId

ANY: Final = "*"
THREAD: Final = ""  # whose the instances are that outlive runs: no run has an empty id
MAX_VIOLATIONS: Final = 64
MAX_ISSUED: Final = 4096

Kind = tuple[tuple[str, str], ...]  # (state it moves from, or `*`; state it moves to), sorted
Kinds = tuple[tuple[Kind, int], ...]  # how many calls of each kind, sorted
Counted = tuple[tuple[dict[str, Kind], int], ...]  # the same of several machines at once


def kind_of(moves: Iterable[tuple[str, str]]) -> Kind:
    """The normal form of possible moves: kinds are equal where they move every state alike."""
    moves = set(moves)
    anywhere = {target for source, target in moves if source == ANY}
    return tuple(sorted(m for m in moves if m[0] == ANY or (m[1] not in anywhere and m[0] != m[1])))


class Flight(Struct, frozen=True, gc=False, array_like=True):
    """A call in flight on the instances of these machines."""

    run: RunId
    call: CallId
    kinds: dict[str, Kind]


class Instance(Struct, frozen=True, gc=False, array_like=True):
    """`moved`: it has left a state at least once, so the end of a run looks at it."""

    state: str
    moved: bool = False


class Site(Struct, frozen=True, gc=False, array_like=True):
    """The instances of one key, by machine: those that moved or that a call is in flight on."""

    instances: dict[str, Instance]
    flights: tuple[Flight, ...] = ()
    kinds: Counted = ()

    def kinds_of(self, machine: str) -> Kinds:
        """What the calls in flight may do to the machine's instance."""
        counts: dict[Kind, int] = {}
        for kinds, count in self.kinds:
            kind = kinds.get(machine)
            if kind is not None:
                counts[kind] = counts.get(kind, 0) + count
        return tuple(sorted(counts.items()))

    def flight(self, run: RunId, call: CallId) -> Flight | None:
        for flight in self.flights:
            if flight.call == call and flight.run == run:
                return flight
        return None

    def joined(self, flight: Flight, fresh: dict[str, Instance]) -> Site:
        """With one more call in flight; `fresh` are the instances of its machines where there are none."""
        instances, flights = self.instances, self.flights
        for machine in fresh:
            if machine not in instances:
                instances = {**fresh, **instances}
                break
        if not flights:  # the usual case
            return Site(instances, (flight,), ((flight.kinds, 1),))
        return Site(instances, (*flights, flight), _shifted(self.kinds, flight.kinds, 1))

    def left(self, flight: Flight, targets: Mapping[str, str]) -> Site:
        """Without a call, its machines' instances moved; what never moved and has nothing in flight is as good as none."""
        flights: tuple[Flight, ...] = ()
        kinds: Counted = ()
        if len(self.flights) > 1:
            flights = tuple([other for other in self.flights if other is not flight])
            kinds = _shifted(self.kinds, flight.kinds, -1)
        changed, held = False, self.instances
        for machine in flight.kinds:
            if machine in targets or not (held[machine].moved or _is_in(kinds, machine)):
                changed = True
        if changed:
            held = {**held, **{machine: Instance(targets[machine], True) for machine in flight.kinds if machine in targets}}
            held = _shared(tuple([(m, instance) for m, instance in held.items() if instance.moved or _is_in(kinds, m)]))
        return Site(held, flights, kinds)


def _is_in(counts: Counted, machine: str) -> bool:
    for kinds, _ in counts:
        if machine in kinds:
            return True
    return False


@lru_cache(maxsize=1024)
def _shared(instances: tuple[tuple[str, Instance], ...]) -> dict[str, Instance]:
    """Sites mostly are alike."""
    return dict(instances)


def _shifted(counts: Counted, kinds: dict[str, Kind], by: int) -> Counted:
    for index, (known, count) in enumerate(counts):
        if known is kinds or known == kinds:
            rest = ((known, count + by),) if count + by else ()
            return counts[:index] + rest + counts[index + 1 :]
    return (*counts, (kinds, by))


NO_SITES: Final[Map[str, Site]] = Map()


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

    def plus(self, name: str, count: int) -> Counts:
        return replace(self, **{name: getattr(self, name) + count})


class OrderState(Struct, frozen=True, gc=False):
    """Sites by whose they are (`THREAD`, or a run) and key; `size` counts their instances, those of `retired` runs not.

    Instances of runs that ended are `past`, packed by slot (`slot_of`), once nothing is in flight on them. `issued` is the tick
    of each machine and key's reminder.
    """

    instances: Map[str, Map[str, Site]] = Map()
    size: int = 0
    retired: Map[str, bool] = Map()
    tick: int = 0
    issued: Map[str, int] = Map()
    metrics: Counts = Counts()
    by_machine: Map[str, Counts] = Map()
    violations: tuple[Violation, ...] = ()
    past: Packed = Packed()

    def site(self, owner: str, key: str) -> Site | None:
        keys = self.instances.get(owner)
        return None if keys is None else keys.get(key)

    def at(self, owner: str, key: str, machine: str) -> Instance | None:
        """An instance, also one of a run that ended."""
        site = self.site(owner, key)
        found = None if site is None else site.instances.get(machine)
        if found is None and owner and self.past.size:
            found = self._rest(slot_of(owner, machine)).get(key)
        return found

    def joined(self, owner: str, key: str, flight: Flight, fresh: dict[str, Instance]) -> OrderState:
        """With a call in flight at a key; `fresh` are its machines' instances where there are none."""
        sites, size = self.instances.get(owner, NO_SITES), self.size
        before = sites.get(key)
        if before is None:
            size, site = size + len(fresh), Site(fresh, (flight,), ((flight.kinds, 1),))
        else:
            site = before.joined(flight, fresh)
            if site.instances is not before.instances:
                size += len(site.instances) - len(before.instances)
        return replace(self, instances=self.instances.set(owner, sites.set(key, site)), size=size)

    def left(self, run: RunId, call: CallId, keys: Iterable[str], targets: Mapping[str, str]) -> OrderState:
        """Without a call that was in flight at these keys, the instances of its machines moved; a tick later.

        It is taken off wherever it is: the run's policy, and with it the scope of a machine, may have changed.
        """
        instances, size, retired = self.instances, self.size, False
        for owner in (THREAD, run):
            sites = instances.get(owner)
            if sites is None:
                continue
            retired = bool(self.retired) and owner in self.retired
            for key in keys:
                before = sites.get(key)
                flight = None if before is None else before.flight(run, call)
                if before is None or flight is None:
                    continue
                site = before.left(flight, targets)
                if site.instances is not before.instances and not retired:
                    size += len(site.instances) - len(before.instances)
                sites = sites.set(key, site) if site.instances else sites.delete(key)
            instances = instances.set(owner, sites) if sites else instances.delete(owner)
        order = replace(self, instances=instances, size=size, tick=self.tick + 1)
        return order._rested(run) if retired else order

    def retire(self, run: RunId) -> OrderState:
        """What a run leaves behind of its own can be looked at, and takes no room any more."""
        held = self.instances.get(run)
        if held is None:
            return self
        freed = sum(len(site.instances) for site in held.values())
        return replace(self, size=self.size - freed, retired=self.retired.set(run, True))._rested(run)

    def _rested(self, run: RunId) -> OrderState:
        """The instances of a retired run are packed, unless a call is in flight on one."""
        if any(site.flights for site in self.instances.get(run, NO_SITES).values()):
            return self
        past = self.past
        for machine, keys in self._live(run).items():
            past = past.set(slot_of(run, machine), _ENCODER.encode(keys))
        instances = self.instances.delete(run) if run in self.instances else self.instances
        return replace(self, instances=instances, retired=self.retired.delete(run), past=past)

    def _rest(self, slot: str) -> Mapping[str, Instance]:
        raw = self.past.get(slot)
        return {} if raw is None else _KEYS.decode(raw)

    def of(self, owner: str) -> dict[str, dict[str, Instance]]:
        """Machine to key to instance, sorted, of the thread or of a run, also of one that ended."""
        found = self._live(owner)
        for slot in self.past.keys() if owner else ():
            if slot.startswith(f"{owner}/"):
                found.setdefault(slot[len(owner) + 1 :], {}).update(self._rest(slot))
        return {machine: dict(sorted(found[machine].items())) for machine in sorted(found)}

    def _live(self, owner: str) -> dict[str, dict[str, Instance]]:
        found: dict[str, dict[str, Instance]] = {}
        for key, site in self.instances.get(owner, NO_SITES).items():
            for machine, instance in site.instances.items():
                found.setdefault(machine, {})[key] = instance
        return found

    def counted(self, name: str, machines: Collection[str]) -> OrderState:
        """One more in a counter of each of these machines."""
        by_machine = self.by_machine
        for machine in machines:
            by_machine = by_machine.set(machine, by_machine.get(machine, _NO_COUNTS).plus(name, 1))
        return replace(self, metrics=self.metrics.plus(name, len(machines)), by_machine=by_machine)

    def reminded(self, machine: str, key: str) -> OrderState:
        """A reminder went out now. At the cap the older half is forgotten: at worst one comes again too early."""
        issued = self.issued
        if len(issued) >= MAX_ISSUED:
            issued = Map(sorted(issued.items(), key=lambda item: (item[1], item[0]))[MAX_ISSUED // 2 :])
        return replace(self, issued=issued.set(_reminder_of(machine, key), self.tick))

    def reminded_at(self, machine: str, key: str) -> int | None:
        return self.issued.get(_reminder_of(machine, key))

    def reminded_of(self) -> dict[str, dict[str, int]]:
        """Machine to key to the tick of its reminder, sorted."""
        found: dict[str, dict[str, int]] = {}
        for (machine, key), tick in sorted((_reminded(name), tick) for name, tick in self.issued.items()):
            found.setdefault(machine, {})[key] = tick
        return found

    def noted(self, violation: Violation) -> OrderState:
        return replace(self, violations=(*self.violations[1 - MAX_VIOLATIONS :], violation))

    def totals(self) -> dict[str, int]:
        return asdict(self.metrics)

    def totals_of(self) -> dict[str, dict[str, int]]:
        """The counters of each machine that has counted something."""
        return {machine: asdict(self.by_machine[machine]) for machine in sorted(self.by_machine)}

    def view(self, run: RunId) -> dict[str, dict[str, str]]:
        """Machine to key to state, as the run sees them."""
        found: dict[str, dict[str, str]] = {}
        for owner in (THREAD, run):
            for machine, keys in self.of(owner).items():
                found.setdefault(machine, {}).update({key: instance.state for key, instance in keys.items()})
        return found


_NO_COUNTS: Final = Counts()
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_KEYS: Final = msgspec.json.Decoder(dict[str, Instance])


def _reminder_of(machine: str, key: str) -> str:
    """One name for each machine and key: the name of a machine may have slashes, as its keys may."""
    return f"/{len(machine)}/{machine}/{key}" if "/" in machine else f"{machine}/{key}"


def _reminded(name: str) -> tuple[str, str]:
    """The machine and the key of such a name."""
    if not name.startswith("/"):
        machine, _, key = name.partition("/")
        return machine, key
    size, _, rest = name[1:].partition("/")
    return rest[: int(size)], rest[int(size) + 1 :]


def slot_of(run: str, machine: str) -> str:
    """Where the instances of a run that ended are: run ids have no slash, so no run's slot is another's."""
    return f"{run}/{machine}"
