"""The engine of tool-order machines: the gate before a call, the advance after it, the end of a run.

`gate`, `full`, `settle`, `override`, `incomplete`, `strangers` look and decide; `admit`, `advance`, `count` bring
the state forward from what was recorded. A call is allowed only if it is allowed from every state its instances may be in by
the time it runs.
Codes: `order.violation` `order.undeclared` `order.missing_key` `order.in_flight`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from gated.core.order.machines import STAGE, STRICTNESS, Action, EmitEntry, Machine, Transition, default_reason
from gated.core.order.possible import possible_states
from gated.core.order.state import NO_SITES, THREAD, Flight, Instance, OrderState, Site, Violation
from gated.core.order.templates import escape_text
from gated.core.order.touching import MAX_KEY_BYTES, Join, MachineSet, Touched, keys_of
from gated.events import CallId, Finding, Move, Reminder, RunId, Status, Touch

NOTHING_THERE: Final = Site({})

# --- before the call -------------------------------------------------------------------------------------------------


def gate(
    machines: MachineSet, order: OrderState, run: RunId, tool: str, touched: Touched, args: Mapping[str, Any]
) -> tuple[Finding, ...]:
    """The findings of every machine that the call bears on, in the machines' order."""
    touches = touched.touches
    if not touched.findings and _allowed(order, run, machines.joins(touches)):
        return ()
    findings = list(touched.findings)
    for touch in touches:
        finding = _examine(machines.by_name[touch.machine], order, run, tool, touch, args)
        if finding is not None:
            findings.append(finding)
    if touched.findings and len(findings) > 1:
        names = list(machines.by_name)
        findings.sort(key=lambda finding: names.index(finding.machine or ""))
    return tuple(findings)


def _allowed(order: OrderState, run: RunId, joins: tuple[Join, ...]) -> bool:
    """Whether all machines allow the call from every possible state of their instances: the usual case, at its price."""
    for own, key, limits, free, _, _ in joins:
        site = order.site(run if own else THREAD, key) if limits else None
        if site is None:
            if not free:
                return False
            continue
        for name, sources, initial in limits:
            instance = site.instances.get(name)
            state = initial if instance is None else instance.state
            if state not in sources or (site.kinds and not possible_states(state, site.kinds_of(name)) <= sources):
                return False
    return True


def _examine(machine: Machine, order: OrderState, run: RunId, tool: str, touch: Touch, args: Mapping[str, Any]) -> Finding | None:
    if not touch.exact and not touch.wide:
        reason = f"Tool `{tool}` is not declared by state machine `{machine.name}`."
        return _finding(machine, touch, "deny", "order.undeclared", reason)
    owner = run if machine.own else THREAD
    site, state = order.site(owner, touch.key) or NOTHING_THERE, _state(order, machine, run, touch.key)
    sources, possible = machine.sources(touch.exact), possible_states(state, site.kinds_of(machine.name))
    if sources is None or possible <= sources:
        return None
    violated = machine.transitions[(touch.exact or touch.wide)[0]]
    action = max((violated.action, *(machine.transitions[i].action for i in touch.wide)), key=STRICTNESS.__getitem__)
    reason = _reason(machine, violated, state, tool, args)
    if possible.isdisjoint(sources):
        return _finding(machine, touch, action, "order.violation", reason)
    flights = [flight for flight in site.flights if flight.run == run and machine.name in flight.kinds]
    waits = ", ".join(flight.call for flight in flights) or "calls of other runs"
    outcome: Action = "warn" if action == "warn" else "deny"
    return _finding(machine, touch, outcome, "order.in_flight", f"waits for {waits}: {reason}", retry=True)


def _state(order: OrderState, machine: Machine, run: RunId, key: str) -> str:
    instance = order.at(run if machine.own else THREAD, key, machine.name)
    return machine.initial if instance is None else instance.state


def _reason(machine: Machine, violated: Transition, state: str, tool: str, args: Mapping[str, Any]) -> str:
    if violated.reason is not None:
        return violated.reason.render_text(args)
    return default_reason(tool, machine, state)


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
    fresh = 0
    for touch in touches:
        owner = run if machines.by_name[touch.machine].own else THREAD
        fresh += order.at(owner, touch.key, touch.machine) is None
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
    call: CallId,
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
    here: tuple[str, str] | None = None
    for touch in touches:
        machine = machines.by_name.get(touch.machine)
        if machine is None:
            continue
        if touch.exact:
            there = (run if machine.own else THREAD, touch.key)
            if there != here:
                here, site = there, order.site(*there) or NOTHING_THERE
                flight = site.flight(run, call)
            kind = machine.kind(touch.exact, touch.overrides)
            if kind is None or flight is None or flight.kinds.get(machine.name) != kind:
                continue
            state = site.instances[machine.name].state
        elif machine.declares(touch):
            state = _state(order, machine, run, touch.key)
        else:
            continue
        _conclude(machine, order, touch, state, (status, content, facts), moves, reminders)
    return Settlement(tuple(moves), tuple(reminders)) if moves or reminders else NOTHING_SETTLED


def _conclude(
    machine: Machine,
    order: OrderState,
    touch: Touch,
    current: str,
    outcome: tuple[Status, Any, Mapping[str, Any]],
    moves: list[Move],
    reminders: list[Reminder],
) -> None:
    listed, target, reminder = False, None, None
    for index in touch.exact:
        transition = machine.transitions[index]
        sources = transition.sources
        if sources is None or current in sources or index in touch.overrides:
            listed = True
            if transition.fits(*outcome):
                target = transition.to
                reminder = None if transition.emit is None else _emitted(machine, order, touch, transition.emit, index)
                break
    else:
        if listed:
            target = machine.entry.on_unmatched
        else:
            reminder = _warned(machine, touch, current)
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
    ending = [machine for machine in machines.machines if machine.terminal and not machine.observed]
    found: list[str] = []
    for owner in (THREAD, run):
        mine = {machine.name: machine for machine in ending if machine.own is (owner == run)}
        for key, site in order.instances.get(owner, NO_SITES).items() if mine else ():
            for name, instance in site.instances.items():
                if instance.moved and name in mine and instance.state not in mine[name].terminal:
                    found.append(_shown(name, key, instance))
    return tuple(sorted(found))


def strangers(machines: MachineSet, order: OrderState, run: RunId) -> tuple[str, ...]:
    """`machine[key]=state` of the run's and the thread's instances in a state that their machine does not have (any more)."""
    return tuple(sorted(shown for _, shown in stray(machines, order, run)))


def stray(machines: MachineSet, order: OrderState, run: RunId | None) -> Iterator[tuple[str, str]]:
    """The same with the machine's name; without a run, of the thread's instances alone."""
    held = {False: order.of(THREAD), True: {} if run is None else order.of(run)}
    for machine in machines.machines:
        for key, instance in held[machine.own].get(machine.name, {}).items():
            if instance.state not in machine.states:
                yield machine.name, _shown(machine.name, key, instance)


def _shown(machine: str, key: str, instance: Instance) -> str:
    return f"{machine}[{escape_text(key)}]={instance.state}"


# --- the fold --------------------------------------------------------------------------------------------------------


def admit(order: OrderState, machines: MachineSet, run: RunId, call: CallId, touches: tuple[Touch, ...]) -> OrderState:
    """The call is in flight on the instances that it may move; what matches only widely moves nothing."""
    for own, key, _, _, kinds, fresh in machines.joins(touches):
        if kinds:
            order = order.joined(run if own else THREAD, key, Flight(run, call, kinds), fresh)
    return order


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
    if not touches:
        return replace(order, tick=order.tick + 1)
    targets = {move.machine: move.to for move in moves}  # a call touches a machine at one key
    order = order.left(run, call, keys_of(touches), targets)
    if targets:
        order = order.counted("transitioned", targets)
    emitted = {reminder.machine for reminder in reminders if reminder.reason == "transition"} if reminders else ()
    for touch in touches if emitted else ():
        if touch.machine in emitted:
            order = _throttled(order, machines, touch).counted("emitted", (touch.machine,))
    return order


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
    return order.noted(violation).counted(name, (machine,))
