"""The engine of tool-order machines: the gate before a call, the advance after it, the end of a run.

`gate`, `full`, `settle`, `override`, `incomplete`, `strangers` look and decide; `admit`, `advance`, `count` bring
the state forward from what was recorded. A call is allowed only if it is allowed from every state its instances may be in by
the time it runs.
Codes: `order.violation` `order.undeclared` `order.missing_key` `order.in_flight`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from immutables import Map
from msgspec import Struct
from msgspec.structs import replace

from gated.core.order.machines import STAGE, STRICTNESS, Action, EmitEntry, Machine, Transition, default_reason
from gated.core.order.possible import possible_states
from gated.core.order.state import Instance, Kind, OrderState, Violation, slot_of
from gated.core.order.templates import escape_text
from gated.core.order.touching import MAX_KEY_BYTES, Idle, MachineSet, Touched
from gated.events import CallId, Finding, Move, Reminder, RunId, Status, Touch

NO_INSTANCES: Final[Map[str, Instance]] = Map()

# --- before the call -------------------------------------------------------------------------------------------------


def gate(
    machines: MachineSet, order: OrderState, run: RunId, tool: str, touched: Touched, args: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """The findings of every machine that the call bears on, in the machines' order."""
    if touched.idle and _all_idle(order, touched.idle, touched.touches[0].key):
        return ()
    findings = list(touched.findings)
    for touch in touched.touches:
        machine = machines.by_name[touch.machine]
        finding = _examine(machine, _instance(order, machine, run, touch.key), run, tool, touch, args)
        if finding is not None:
            findings.append(finding)
    if touched.findings and len(findings) > 1:
        names = list(machines.by_name)
        findings.sort(key=lambda finding: names.index(finding.machine or ""))
    return tuple(findings)


def _all_idle(order: OrderState, touched: tuple[Idle, ...], key: str) -> bool:
    """The usual case, at its price: machines that share a key, each of which surely allows the call."""
    slots = order.instances
    for slot, fresh, sources in touched:
        if sources is None:
            continue
        keys = slots.get(slot)
        instance = None if keys is None else keys.get(key)
        if instance is None:
            if not fresh:
                return False
        elif instance.state not in sources or (instance.kinds and not possible_states(instance.state, instance.kinds) <= sources):
            return False
    return True


def _instance(order: OrderState, machine: Machine, run: RunId, key: str) -> Instance:
    return order.at(machine.slot or slot_of(machine.name, machine.scope, run), key) or machine.fresh


def _examine(
    machine: Machine, instance: Instance, run: RunId, tool: str, touch: Touch, args: Mapping[str, Any]
) -> Finding | None:
    if not touch.exact and not touch.wide:
        reason = f"Tool `{tool}` is not declared by state machine `{machine.name}`."
        return _finding(machine, touch, "deny", "order.undeclared", reason)
    permitted = _permitted(machine, instance, touch.exact)
    if permitted == "always":
        return None
    violated = machine.transitions[(touch.exact or touch.wide)[0]]
    action = max((violated.action, *(machine.transitions[i].action for i in touch.wide)), key=STRICTNESS.__getitem__)
    reason = _reason(machine, violated, instance, tool, args)
    if permitted == "never":
        return _finding(machine, touch, action, "order.violation", reason)
    waits = ", ".join(flight.call for flight in instance.flights if flight.run == run) or "calls of other runs"
    outcome: Action = "warn" if action == "warn" else "deny"
    return _finding(machine, touch, outcome, "order.in_flight", f"waits for {waits}: {reason}", retry=True)


def _permitted(machine: Machine, instance: Instance, exact: tuple[int, ...]) -> Literal["always", "sometimes", "never"]:
    """From which of the possible states some transition allows the call."""
    if not instance.kinds:
        return "always" if _listed(machine, exact, instance.state) else "never"
    allowed = {_listed(machine, exact, state) for state in possible_states(instance.state, instance.kinds)}
    return "sometimes" if len(allowed) > 1 else "always" if True in allowed else "never"


def _listed(machine: Machine, indices: tuple[int, ...], state: str) -> bool:
    transitions = machine.transitions
    for index in indices:  # a loop: this runs for every call, and a generator costs more than the work
        sources = transitions[index].sources
        if sources is None or state in sources:
            return True
    return False


def _reason(machine: Machine, violated: Transition, instance: Instance, tool: str, args: Mapping[str, Any]) -> str:
    if violated.reason is not None:
        return violated.reason.render_text(args)
    return default_reason(tool, machine, instance.state)


def _finding(machine: Machine, touch: Touch, outcome: Action, code: str, reason: str, *, retry: bool = False) -> Finding:
    return Finding(
        STAGE,
        outcome,
        code,
        reason,
        authoritative=not machine.observed,
        machine=machine.name,
        key=escape_text(touch.key),
        retry=retry,
    )


def override(touched: Touched, asked: Collection[tuple[str | None, str | None]]) -> tuple[Touch, ...]:
    """The touches, with the transitions that approved asks let fire as if their state had been listed.

    That is the violated one: the first that matched exactly. What matched only widely never advances, approved or not.
    """
    return tuple(
        replace(touch, overrides=touch.exact[:1]) if (touch.machine, escape_text(touch.key)) in asked else touch
        for touch in touched.touches
    )


def full(machines: MachineSet, order: OrderState, run: RunId, touched: Touched, limit: int) -> str | None:
    """Why a call cannot be admitted: it would make more instances than a thread may have, or one with too long a key."""
    touches = touched.touches
    if touched.oversize is not None:
        return f"the key of an instance of state machine `{touched.oversize}` is longer than {MAX_KEY_BYTES} bytes"
    if order.size + len(touches) <= limit:
        return None
    fresh = sum(_instance(order, machines.by_name[t.machine], run, t.key) is machines.by_name[t.machine].fresh for t in touches)
    return None if order.size + fresh <= limit else f"the thread has {order.size} machine instances, {limit} may be"


# --- after the call --------------------------------------------------------------------------------------------------


class Settlement(Struct, frozen=True, gc=False):
    moves: tuple[Move, ...] = ()
    reminders: tuple[Reminder, ...] = ()


NOTHING_SETTLED: Final = Settlement()


def settle(
    machines: MachineSet,
    order: OrderState,
    run: RunId,
    touches: tuple[Touch, ...],
    status: Status,
    content: Any,
    facts: Mapping[str, Any],
) -> Settlement:
    """What the outcome does to the instances, and what the model is to be told.

    `machines` are to be those that admitted the call: a touch speaks of transitions by number. A machine that has changed
    since then so that the call is of another kind does not move by it.
    """
    if status == "not_run":
        return NOTHING_SETTLED
    moves: list[Move] = []
    reminders: list[Reminder] = []
    for touch in touches:
        machine = machines.by_name.get(touch.machine)
        if machine is not None and machine.declares(touch):
            instance = _instance(order, machine, run, touch.key)
            if not touch.exact or _in_flight(instance, run, machine.kind(touch)):
                _conclude(machine, order, touch, instance.state, (status, content, facts), moves, reminders)
    return Settlement(tuple(moves), tuple(reminders)) if moves or reminders else NOTHING_SETTLED


def _in_flight(instance: Instance, run: RunId, kind: Kind) -> bool:
    for flight in instance.flights:
        if flight.kind == kind and flight.run == run:
            return True
    return False


def _conclude(
    machine: Machine,
    order: OrderState,
    touch: Touch,
    current: str,
    outcome: tuple[Status, Any, Mapping[str, Any]],
    moves: list[Move],
    reminders: list[Reminder],
) -> None:
    listed, target, reminder = False, machine.entry.on_unmatched, None
    for index in touch.exact:
        transition = machine.transitions[index]
        if transition.lists(current) or index in touch.overrides:
            listed = True
            if transition.fits(*outcome):
                target = transition.to
                reminder = None if transition.emit is None else _emitted(machine, order, touch, transition.emit, index)
                break
    if not listed:
        target, reminder = None, _warned(machine, touch, current)
    if target is not None and target != current:
        moves.append(Move(machine.name, touch.key, target))
    if reminder is not None:
        reminders.append(reminder)


def _emitted(machine: Machine, order: OrderState, touch: Touch, emit: EmitEntry, fired: int) -> Reminder | None:
    """The reminder of a transition; an observed machine moves and says nothing."""
    if machine.observed:
        return None
    last = order.reminded_at(machine.name, touch.key)
    if last is not None and order.tick + 1 - last < emit.cooldown_turns:
        return None
    text = touch.emits[touch.exact.index(fired)]
    return Reminder(emit.target, emit.role, text, machine.name, escape_text(touch.key), "transition")


def _warned(machine: Machine, touch: Touch, current: str) -> Reminder | None:
    """The reminder of a warning."""
    text = touch.warning
    if text is None or machine.observed:
        return None
    if machine.transitions[(touch.exact or touch.wide)[0]].reason is None:
        text = current.join(text.rsplit("{}", 1))
    return Reminder("suffix_system", "user", text, machine.name, escape_text(touch.key), "warning")


# --- the end of a run ------------------------------------------------------------------------------------------------


def incomplete(machines: MachineSet, order: OrderState, run: RunId) -> tuple[str, ...]:
    """`machine[key]=state` of every instance that has moved and is not in a terminal state, sorted; observed ones never."""
    found: list[str] = []
    for machine in machines.machines:
        if machine.terminal and not machine.observed:
            slot = machine.slot or slot_of(machine.name, machine.scope, run)
            keys: Map[str, Instance] = order.instances.get(slot, NO_INSTANCES)
            found += [
                _shown(machine, key, instance)
                for key, instance in keys.items()
                if instance.moved and instance.state not in machine.terminal
            ]
    return tuple(sorted(found))


def strangers(machines: MachineSet, order: OrderState, run: RunId) -> tuple[str, ...]:
    """`machine[key]=state` of the run's and the thread's instances in a state that their machine does not have (any more)."""
    found = [
        _shown(machine, key, instance)
        for machine in machines.machines
        for key, instance in order.keys(slot_of(machine.name, machine.scope, run)).items()
        if instance.state not in machine.states
    ]
    return tuple(sorted(found))


def _shown(machine: Machine, key: str, instance: Instance) -> str:
    return f"{machine.name}[{escape_text(key)}]={instance.state}"


def own_slots(machines: MachineSet, run: RunId) -> list[str]:
    """Where the instances are that end with the run."""
    return [slot_of(machine.name, "run", run) for machine in machines.machines if machine.scope == "run"]


# --- the fold --------------------------------------------------------------------------------------------------------


def admit(order: OrderState, machines: MachineSet, run: RunId, call: CallId, touches: tuple[Touch, ...]) -> OrderState:
    """The call is in flight on the instances that it may move; what matches only widely moves nothing."""
    instances, size, by_name = order.instances.mutate(), order.size, machines.by_name
    for touch in touches:
        exact = touch.exact
        if not exact:
            continue
        key, machine = touch.key, by_name[touch.machine]
        slot = machine.slot or slot_of(machine.name, machine.scope, run)
        keys: Map[str, Instance] = instances.get(slot, NO_INSTANCES)
        instance = keys.get(key)
        if instance is None:
            size, instance = size + 1, machine.fresh
        kind = machine.kind(touch) if touch.overrides else machine.kinds.get(exact) or machine.kind(touch)
        instances[slot] = keys.set(key, instance.joined(run, call, kind))
    return replace(order, instances=instances.finish(), size=size)


def advance(
    order: OrderState,
    machines: MachineSet,
    run: RunId,
    call: CallId,
    touches: tuple[Touch, ...],
    moves: tuple[Move, ...],
    reminders: tuple[Reminder, ...],
) -> OrderState:
    """The call is over: its flights end, its moves happen, the thread's tick grows by one."""
    order = replace(order, tick=order.tick + 1)
    if not touches:
        return order
    targets = {move.machine: move.to for move in moves}  # a call touches a machine at one key
    landed: list[tuple[str, str, Instance]] = []
    moved: list[str] = []
    for touch in touches:
        found = _landed(order, run, call, touch, targets.get(touch.machine)) if touch.exact else None
        if found is not None:
            landed.append(found)
            if touch.machine in targets:
                moved.append(touch.machine)
    order = order.put(landed)
    for machine in moved:
        order = order.counted(machine, "transitioned")
    emitted = {reminder.machine for reminder in reminders if reminder.reason == "transition"}
    for touch in touches if emitted else ():
        if touch.machine in emitted:
            order = _throttled(order, machines, touch).counted(touch.machine, "emitted")
    return order


def _landed(order: OrderState, run: RunId, call: CallId, touch: Touch, target: str | None) -> tuple[str, str, Instance] | None:
    """Its instance without the call, wherever that is: the run's policy, and with it the machine's scope, may have changed."""
    for scope in ("thread", "run"):
        slot = slot_of(touch.machine, scope, run)
        instance = order.at(slot, touch.key)
        left = None if instance is None else instance.left(run, call)
        if left is not None:
            return slot, touch.key, left if target is None else Instance(target, True, left.flights, left.kinds)
    return None


def _throttled(order: OrderState, machines: MachineSet, touch: Touch) -> OrderState:
    """Remember the reminder where a cooldown will ask for it; one turn is no cooldown."""
    machine = machines.by_name.get(touch.machine)
    emits = () if machine is None else [t.emit for t in machine.transitions]
    if any(emit is not None and emit.cooldown_turns > 1 for emit in emits):
        return order.reminded(touch.machine, touch.key)
    return order


def count(order: OrderState, findings: tuple[Finding, ...], stage: str | None, decision: str, tool: str) -> OrderState:
    """Asks and denials count once, where they decide the call; warnings where the call is allowed."""
    mine = [f for f in findings if f.machine is not None and f.stage == STAGE and f.authoritative]
    if not mine:
        return order
    if decision == "allow":
        for finding in mine:
            if finding.outcome == "warn":
                order = _noted(order, finding, "warned", tool)
    elif stage == STAGE:
        outcome, name = ("deny", "denied") if decision == "deny" else ("ask", "asked")
        decider = next((f for f in mine if f.outcome == outcome), None)
        if decider is not None:
            order = _noted(order, decider, name, tool)
    return order


def _noted(order: OrderState, finding: Finding, name: str, tool: str) -> OrderState:
    machine = finding.machine or ""
    violation = Violation(machine, finding.key or "", tool, finding.outcome, finding.reason)
    return order.noted(violation).counted(machine, name)
