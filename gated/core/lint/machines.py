"""Machines: what is wrong with them by themselves, and for the agents that have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gated.core.headroom import Headroom
from gated.core.lint.advice import Advice, Level, Subject, may_call, may_meet
from gated.core.order.lint import May, calls_to_terminal, distances, flaws
from gated.core.order.machines import Machine, Transition
from gated.core.policy import Profile
from gated.strict_json import Path
from gated.units import some


def machines(subject: Subject) -> Iterator[Advice]:
    seen = set[str]()
    for name, profile, stages in subject.profiles():
        for machine in profile.machines.machines:
            place = machine_place(subject, name, machine.name)
            if machine.name not in seen:
                yield from (Advice((*place, *path), f"machine `{machine.name}`: {message}") for path, message in flaws(machine))
                yield from _keys(subject, place, machine)
            seen.add(machine.name)
            if "order" in stages:
                yield from _agent(subject, name, profile, machine, stages)
        yield from _without_base(subject, name, profile)
    for position, entry in enumerate(subject.policy.entry.machines):
        if entry.name not in seen and subject.policy.agents:
            yield Advice(("machines", position), f"machine `{entry.name}` is dead: no agent has it")


def machine_place(subject: Subject, agent: str, name: str) -> Path:
    for position, entry in enumerate(subject.policy.entry.machines):
        if entry.name == name:
            return ("machines", position)
    place = subject.place(agent, "machines")
    for position, item in enumerate(subject.setting(agent, "machines") or ()):
        if isinstance(item, dict) and item.get("name") == name:
            return (*place, position)
    return place


def _agent(subject: Subject, name: str, profile: Profile, machine: Machine, stages: dict[str, bool]) -> Iterator[Advice]:
    where = ("agents", name)

    def may(transition: Transition) -> bool:
        tool = transition.on.exact_tool
        return may_meet(profile, transition.on) if tool is None else may_call(profile, tool)

    if not any(may(transition) for transition in machine.transitions):
        if machine.transitions and not machine.entry.strict:
            yield Advice(where, f"machine `{machine.name}` watches nothing that `{name}` may call", "advice")
        return
    yield from _unmet(where, machine, may)
    yield from _forbidden_first(where, profile, machine, may)
    yield from _resets(subject, name, machine)
    yield from _ends(subject, where, profile, machine, may, stages)


def _without_base(subject: Subject, name: str, profile: Profile) -> Iterator[Advice]:
    """A list of machines is all that an agent has: who writes only machines of its own may have meant to add them."""
    base = [entry.name for entry in subject.policy.entry.machines]
    listed = {machine.name for machine in profile.machines.machines}
    if base and listed and listed.isdisjoint(base):
        message = (
            f"`{name}` has machines of its own and none of the policy's ({', '.join(f'`{b}`' for b in base)}): list what it needs"
        )
        yield Advice(subject.place(name, "machines"), message, "advice")


def _forbidden_first(where: Path, profile: Profile, machine: Machine, may: May) -> Iterator[Advice]:
    """Calls that the machine lets begin only with a call that is forbidden for the same arguments, and are not forbidden."""
    if "privilege" not in dict(profile.stages):
        return
    roots = {path[0] for path in machine.key.paths}
    for index, transition in enumerate(machine.transitions):
        if transition.action == "warn" or transition.lists(machine.initial) or not may(transition):
            continue
        leading = [t for t in machine.transitions if transition.lists(t.to) and t.on.text != transition.on.text]
        barred = [_barring(profile, t, transition, roots) for t in leading]
        if barred and None not in barred:
            begins = f"transition {index + 1} (`{transition.on.text}`) begins with `{leading[0].on.text}`"
            message = f"machine `{machine.name}`: {begins}, and `{barred[0]}` is forbidden: for the same arguments forbid both"
            yield Advice(where, message, "advice")


def _barring(profile: Profile, first: Transition, then: Transition, roots: set[str | int]) -> str | None:
    """The forbidden pattern that takes some calls of `first`, by what the key is made of, where none takes those of `then`."""
    for pattern in profile.privilege.forbidden_patterns:
        tool, reads = first.on.exact_tool, pattern.reads
        if tool is None or not reads or not roots.issuperset(reads) or not pattern.matches_wide_name(tool):
            continue
        other = then.on.exact_tool
        also = [p for p in profile.privilege.forbidden_patterns if other is not None and p.matches_wide_name(other)]
        if not any(p.takes_arguments(pattern) for p in also):
            return pattern.text
    return None


def _unmet(where: Path, machine: Machine, may: May) -> Iterator[Advice]:
    """Tools that the machine always refuses, since only tools the agent may not call lead where it lets them go on."""
    whole, mine = distances(machine), distances(machine, may=may)
    for index, transition in enumerate(machine.transitions):
        if transition.action == "warn" or not may(transition) or _let_by_another(machine, transition, mine):
            continue
        wanted = [state for state in whole if transition.lists(state)]
        if wanted and not any(state in mine for state in wanted):
            barred = [t for t in machine.transitions if not may(t) and t.to not in mine]
            leading = sorted({f"`{t.on.text}`" for t in [t for t in barred if t.to in wanted] or barred})
            yield Advice(
                where,
                f"machine `{machine.name}`: transition {index + 1} (`{transition.on.text}`) begins with {', '.join(leading)}, "
                "which the agent is not allowed to call",
            )


def _resets(subject: Subject, name: str, machine: Machine) -> Iterator[Advice]:
    """An approved ask fires its transition: where that leads to a state from which nobody is asked, it is for good."""
    for index, transition in enumerate(machine.transitions):
        plain = transition.content is None and transition.facts is None
        if transition.action != "ask" or not plain or not transition.lists(transition.to):
            continue
        asked = [state for state in distances(machine) if not transition.lists(state)]
        if asked:
            states = ", ".join(f"`{state}`" for state in asked)
            message = (
                f"machine `{machine.name}`: approved from {states}, `{transition.on.text}` leads to `{transition.to}`, and is "
                "not asked for any more: give it a `when` that does not fit, if it should be"
            )
            yield Advice((*machine_place(subject, name, machine.name), "transitions", index), message, "advice")


def _let_by_another(machine: Machine, transition: Transition, mine: dict[str, int]) -> bool:
    same = [other for other in machine.transitions if other.on.text == transition.on.text]
    return any(other.lists(state) for other in same for state in mine)


def _ends(
    subject: Subject, where: Path, profile: Profile, machine: Machine, may: May, stages: dict[str, bool]
) -> Iterator[Advice]:
    """Budgets too small for the machine to reach a terminal state."""
    steps = calls_to_terminal(machine)
    if steps is None:
        return
    mine = distances(machine, may=may)
    if not machine.terminal & mine.keys():
        yield Advice(where, f"machine `{machine.name}` has no way to an end with the tools that the agent may call")
        return
    needs = f"machine `{machine.name}` needs {some(steps, 'call')} to end"
    for limit, what in _limits(profile, stages):
        if steps > limit:
            yield Advice(where, f"{needs}, {what} is {limit}")
    least = min(_cost(subject, profile, transition) for transition in machine.transitions)
    for money, what in _money(profile, stages):
        if steps * least > money:
            yield Advice(where, f"{needs}, {what} does not pay for them")


def _cost(subject: Subject, profile: Profile, transition: Transition) -> int:
    """The least that a call which fits a transition is reserved at, where nobody estimates it (µ$)."""
    costs, tool, plain = subject.policy.costs, transition.on.exact_tool, profile.dcbf.per_call_microusd
    return min((plain, *costs.values())) if tool is None else costs.get(tool, plain)


def _limits(profile: Profile, stages: dict[str, bool]) -> Iterator[tuple[int, str]]:
    if "dfa" in stages:
        yield profile.dfa.max_steps, "`max_steps`"
    if "privilege" in stages and profile.privilege.budget.max_calls is not None:
        yield profile.privilege.budget.max_calls, "`max_calls`"
    if profile.ceilings.max_hops is not None:
        yield profile.ceilings.max_hops, "`max_hops`"
    for barrier, room in _rooms(profile, stages):
        yield room.load, f"the step budget of the barrier `{barrier}`"


def _money(profile: Profile, stages: dict[str, bool]) -> Iterator[tuple[int, str]]:
    total = profile.privilege.budget.max_total
    if "privilege" in stages and total is not None:
        yield total, "`max_total_cost_usd`"
    for barrier, room in _rooms(profile, stages):
        yield room.cost, f"the limit of the barrier `{barrier}`"


def _rooms(profile: Profile, stages: dict[str, bool]) -> Iterator[tuple[str, Headroom]]:
    if "dcbf" in stages:
        yield from ((barrier.name, barrier.room) for barrier in profile.dcbf.barriers if barrier.room is not None)


def _keys(subject: Subject, place: Path, machine: Machine) -> Iterator[Advice]:
    """Key fields that the schema of a watched tool does not have."""
    tools = subject.policy.entry.tools
    watched = [tool for tool in tools if any(t.on.matches_name(tool) for t in machine.transitions)]
    for field, path in zip(machine.key.fields, machine.key.paths, strict=True):
        for tool in watched:
            level = _lacks(subject.schema(tool), path)
            if level is not None:
                message = f"machine `{machine.name}`: the key takes `{field}`, which the schema of `{tool}` does not have"
                yield Advice((*place, "key"), message, level)


def _lacks(schema: Any, path: Sequence[str | int]) -> Level | None:
    """Whether values of a schema lack what a path leads to: surely where it takes nothing else, else perhaps."""
    for step in path:
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(step, str) or not isinstance(schema, dict):
            return None
        if step not in (properties or {}):
            closed = schema.get("additionalProperties") is False
            return "warning" if closed else "advice" if properties else None
        schema = (properties or {})[step]
    return None
