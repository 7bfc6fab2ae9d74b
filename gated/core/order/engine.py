"""The engine of tool-order machines: the gate before a call, the advance after it, the end of a run.

`gate`, `settle`, `override`, `incomplete` look and decide; `admit`, `advance`, `count` bring the state forward from what was
recorded. A call is allowed only if it is allowed from every state its instances may be in by then.
Codes: `order.violation` `order.undeclared` `order.missing_key` `order.in_flight`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from immutables import Map
from msgspec import Struct
from msgspec.structs import replace

from gated.core.order.machines import STAGE, STRICTNESS, Action, Machine, MachineSet, Touched, Transition
from gated.core.order.possible import possible_states
from gated.core.order.state import MAX_VIOLATIONS, Counts, Flight, Instance, Kind, OrderState, Violation, slot_of
from gated.core.order.templates import escape_text
from gated.events import CallId, Finding, Move, Reminder, RunId, Status, Touch

# --- before the call -------------------------------------------------------------------------------------------------


def gate(
    machines: MachineSet, order: OrderState, run: RunId, tool: str, touched: Touched, args: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """The findings of every machine that the call bears on."""
    findings = list(touched.findings)
    for touch in touched.touches:
        machine = machines.by_name[touch.machine]
        finding = _examine(machine, _instance(order, machine, run, touch.key), run, tool, touch, args)
        if finding is not None:
            findings.append(finding)
    return tuple(findings)


def _instance(order: OrderState, machine: Machine, run: RunId, key: str) -> Instance:
    return order.at(slot_of(machine.name, machine.entry.scope, run), key) or Instance(machine.initial)


def _examine(
    machine: Machine, instance: Instance, run: RunId, tool: str, touch: Touch, args: Mapping[str, Any]
) -> Finding | None:
    exact = [machine.transitions[index] for index in touch.exact]
    wide = [machine.transitions[index] for index in touch.wide]
    if not exact and not wide:
        reason = f"Tool `{tool}` is not declared by state machine `{machine.name}`."
        return _finding(machine, touch, "deny", "order.undeclared", reason)
    states = possible_states(instance)
    allowed = sum(any(transition.lists(state) for transition in exact) for state in states)
    if allowed == len(states):
        return None
    violated = (exact or wide)[0]
    action = max((violated.action, *(t.action for t in wide)), key=STRICTNESS.__getitem__)
    reason = _reason(machine, violated, instance, tool, args)
    if not allowed:
        return _finding(machine, touch, action, "order.violation", reason)
    waits = ", ".join(flight.call for flight in instance.flights if flight.run == run) or "calls of other runs"
    outcome: Action = "warn" if action == "warn" else "deny"
    return _finding(machine, touch, outcome, "order.in_flight", f"waits for {waits}: {reason}", retry=True)


def _reason(machine: Machine, violated: Transition, instance: Instance, tool: str, args: Mapping[str, Any]) -> str:
    if violated.reason is not None:
        return violated.reason.render_text(args)
    return f"Tool `{tool}` is not permitted by state machine `{machine.name}` from state `{instance.state}`."


def _finding(machine: Machine, touch: Touch, outcome: Action, code: str, reason: str, *, retry: bool = False) -> Finding:
    return Finding(
        STAGE,
        outcome,
        code,
        reason,
        authoritative=machine.entry.mode == "enforce",
        machine=machine.name,
        key=escape_text(touch.key),
        retry=retry,
    )


def override(touched: Touched, asked: Collection[tuple[str | None, str | None]]) -> tuple[Touch, ...]:
    """The touches, with the transitions that approved asks let fire as if their state had been listed."""
    return tuple(
        replace(touch, overrides=(touch.exact or touch.wide)[:1]) if (touch.machine, escape_text(touch.key)) in asked else touch
        for touch in touched.touches
    )


def full(machines: MachineSet, order: OrderState, run: RunId, touches: tuple[Touch, ...], limit: int) -> str | None:
    """Why a call cannot be admitted: it would make more instances than a thread may have."""
    if order.size + len(touches) <= limit:
        return None
    fresh = sum(_stored(machines, order, run, touch) is None for touch in touches)
    return None if order.size + fresh <= limit else f"the thread has {order.size} machine instances, {limit} may be"


def _stored(machines: MachineSet, order: OrderState, run: RunId, touch: Touch) -> Instance | None:
    machine = machines.by_name[touch.machine]
    return order.at(slot_of(machine.name, machine.entry.scope, run), touch.key)


# --- after the call --------------------------------------------------------------------------------------------------


class Settlement(Struct, frozen=True):
    moves: tuple[Move, ...] = ()
    reminders: tuple[Reminder, ...] = ()


def settle(
    machines: MachineSet,
    order: OrderState,
    run: RunId,
    touches: tuple[Touch, ...],
    status: Status,
    content: Any,
    facts: Mapping[str, Any],
) -> Settlement:
    """What the outcome does to the instances, and what the model is to be told."""
    if status == "not_run" or not touches:
        return Settlement()
    moves: list[Move] = []
    reminders: list[Reminder] = []
    for touch in touches:
        machine = machines.by_name.get(touch.machine)
        if machine is not None:
            current = _instance(order, machine, run, touch.key).state
            _fire(machine, order, touch, current, (status, content, facts), moves, reminders)
    return Settlement(tuple(moves), tuple(reminders))


def _fire(
    machine: Machine,
    order: OrderState,
    touch: Touch,
    current: str,
    outcome: tuple[Status, Any, Mapping[str, Any]],
    moves: list[Move],
    reminders: list[Reminder],
) -> None:
    indices = (*touch.exact, *(i for i in touch.overrides if i not in touch.exact))
    listed = [i for i in indices if i in touch.overrides or machine.transitions[i].lists(current)]
    fired = next((i for i in listed if machine.transitions[i].fits(*outcome)), None)
    if fired is not None:
        transition = machine.transitions[fired]
        if transition.to != current:
            moves.append(Move(machine.name, touch.key, transition.to))
        reminder = _emit(machine, order, touch, fired)
        if reminder is not None:
            reminders.append(reminder)
    elif listed:
        target = machine.entry.on_unmatched
        if target is not None and target != current:
            moves.append(Move(machine.name, touch.key, target))
    elif touch.warning is not None:
        key = escape_text(touch.key)
        reminders.append(Reminder("suffix_system", "user", touch.warning, machine.name, key, "warning"))


def _emit(machine: Machine, order: OrderState, touch: Touch, fired: int) -> Reminder | None:
    emit = machine.transitions[fired].emit
    if emit is None or fired not in touch.exact:
        return None
    last = order.issued.get(_issue(machine.name, touch.key))
    if last is not None and order.tick + 1 - last < emit.cooldown_turns:
        return None
    text = touch.emits[touch.exact.index(fired)]
    return Reminder(emit.target, emit.role, text, machine.name, touch.key, "transition")


def _issue(machine: str, key: str) -> str:
    return f"{machine}/{key}"


# --- the end of a run ------------------------------------------------------------------------------------------------


def incomplete(machines: MachineSet, order: OrderState, run: RunId) -> tuple[str, ...]:
    """`machine[key]=state` of every instance that has moved and is not in a terminal state, sorted."""
    found: list[str] = []
    for machine in machines.machines:
        terminal = machine.entry.terminal
        if terminal:
            keys: Map[str, Instance] = order.instances.get(slot_of(machine.name, machine.entry.scope, run), Map())
            found += [
                f"{machine.name}[{escape_text(key)}]={instance.state}"
                for key, instance in keys.items()
                if instance.moved and instance.state not in terminal
            ]
    return tuple(sorted(found))


def strangers(machines: MachineSet, order: OrderState) -> tuple[str, ...]:
    """`machine[key]=state` of the instances that are in a state their machine does not have (any more)."""
    found = [
        f"{machine.name}[{escape_text(key)}]={instance.state}"
        for slot, keys in order.instances.items()
        if (machine := machines.by_name.get(slot.partition("/")[2])) is not None
        for key, instance in keys.items()
        if instance.state not in machine.states
    ]
    return tuple(sorted(found))


# --- the fold --------------------------------------------------------------------------------------------------------


def admit(order: OrderState, machines: MachineSet, run: RunId, call: CallId, touches: tuple[Touch, ...]) -> OrderState:
    """The call is in flight on its instances."""
    for touch in touches:
        machine = machines.by_name.get(touch.machine)
        kind = None if machine is None else _kind(machine, touch)
        if machine is not None and kind:
            instance = _instance(order, machine, run, touch.key)
            flights = (*instance.flights, Flight(run, call, kind))
            order = _put(order, machine, run, touch.key, replace(instance, flights=flights))
    return order


def _kind(machine: Machine, touch: Touch) -> Kind:
    """Every way in which the call may move an instance, whatever its outcome."""
    moves: set[tuple[str | None, str]] = set()
    for index in (*touch.exact, *touch.overrides):
        transition = machine.transitions[index]
        anywhere = transition.sources is None or index in touch.overrides
        sources = (None,) if anywhere or transition.sources is None else tuple(transition.sources)
        moves.update((source, transition.to) for source in sources)
        if machine.entry.on_unmatched is not None:
            moves.update((source, machine.entry.on_unmatched) for source in sources)
    return tuple(sorted(moves, key=lambda move: (move[0] or "", move[1])))


def _put(order: OrderState, machine: Machine, run: RunId, key: str, instance: Instance) -> OrderState:
    """Store an instance; one that never moved and has nothing in flight is as good as none."""
    slot = slot_of(machine.name, machine.entry.scope, run)
    keys: Map[str, Instance] = order.instances.get(slot, Map())
    size = order.size
    if instance.moved or instance.flights:
        size += key not in keys
        keys = keys.set(key, instance)
    elif key in keys:
        size -= 1
        keys = keys.delete(key)
    return replace(order, instances=order.instances.set(slot, keys), size=size)


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
    tick = order.tick + 1
    order = replace(order, tick=tick)
    for touch in touches:
        machine = machines.by_name.get(touch.machine)
        if machine is None:
            continue
        instance = _instance(order, machine, run, touch.key)
        move = next((m for m in moves if m.machine == touch.machine and m.key == touch.key), None)
        flights = tuple(f for f in instance.flights if not (f.call == call and f.run == run))
        state, moved = (instance.state, instance.moved) if move is None else (move.to, True)
        order = _put(order, machine, run, touch.key, Instance(state, moved, flights))
        if move is not None:
            order = _counted(order, machine.name, "transitioned")
    for reminder in reminders:
        if reminder.reason == "transition":
            issued = order.issued.set(_issue(reminder.machine, reminder.key), tick)
            order = _counted(replace(order, issued=issued), reminder.machine, "emitted")
    return order


def _counted(order: OrderState, machine: str, name: str) -> OrderState:
    counts = order.by_machine.get(machine, Counts()).plus(name)
    return replace(order, metrics=order.metrics.plus(name), by_machine=order.by_machine.set(machine, counts))


def count(order: OrderState, findings: tuple[Finding, ...], stage: str | None, decision: str, tool: str) -> OrderState:
    """Asks and denials count once, where they decide the call; warnings where the call is allowed."""
    mine = [f for f in findings if f.stage == STAGE and f.authoritative and f.machine is not None]
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
    order = replace(order, violations=(*order.violations[1 - MAX_VIOLATIONS :], violation))
    return _counted(order, machine, name)
