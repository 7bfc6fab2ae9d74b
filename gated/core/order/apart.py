"""The state of machines as it was written when every machine had its own instances: archives and old snapshots have it."""

from __future__ import annotations

from collections.abc import Callable

from immutables import Map
from msgspec import Struct

from gated.core.order.state import THREAD, Counts, Flight, Instance, Kind, OrderState, Site, Violation
from gated.core.packed import Packed
from gated.events import CallId, RunId


class FlightApart(Struct, frozen=True, array_like=True):
    run: RunId
    call: CallId
    kind: Kind


class InstanceApart(Struct, frozen=True, array_like=True):
    state: str
    moved: bool = False
    flights: tuple[FlightApart, ...] = ()


class OrderApart(Struct, frozen=True):
    """Instances by slot (a run and a machine, or a machine of the thread) and key."""

    instances: Map[str, Map[str, InstanceApart]] = Map()
    tick: int = 0
    issued: Map[str, int] = Map()
    metrics: Counts = Counts()
    by_machine: Map[str, Counts] = Map()
    violations: tuple[Violation, ...] = ()
    past: Packed = Packed()

    def joined(self, place: Callable[[RunId, CallId], tuple[int, int]], has_ended: Callable[[RunId], bool]) -> OrderState:
        """The same by key. `place` is where among the admitted a call that is in flight stands."""
        sites: dict[tuple[str, str], Site] = {}
        flights: dict[tuple[str, str], dict[tuple[RunId, CallId], dict[str, Kind]]] = {}
        for slot in sorted(self.instances):
            owner, _, machine = slot.partition("/")
            for key, instance in self.instances[slot].items():
                held = sites.setdefault((owner, key), Site({})).instances
                held[machine] = Instance(instance.state, instance.moved)
                for flight in instance.flights:
                    here = flights.setdefault((owner, key), {})
                    here.setdefault((flight.run, flight.call), {})[machine] = flight.kind
        for at, here in flights.items():
            for run, call in sorted(here, key=lambda flight: place(*flight)):
                sites[at] = sites[at].joined(Flight(run, call, here[run, call]), {})
        owners = sorted({owner for owner, _ in sites})
        order = OrderState(
            Map({owner: Map({key: site for (whose, key), site in sites.items() if whose == owner}) for owner in owners}),
            sum(len(site.instances) for site in sites.values()),
            tick=self.tick,
            issued=self.issued,
            metrics=self.metrics,
            by_machine=self.by_machine,
            violations=self.violations,
            past=self.past,
        )
        for owner in owners:
            if owner != THREAD and has_ended(RunId(owner)):
                order = order.retire(RunId(owner))
        return order
