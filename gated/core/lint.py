"""What `gated policy check` finds beyond load errors: rules that can never work, and rules that do less than they seem to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from gated.core.order.machines import Machine
from gated.core.policy import Policy, Profile
from gated.core.stages.dfa import TERMINAL
from gated.events import Phase


class Warning_(Struct, frozen=True):
    """`about` names the part of the policy."""

    about: str
    message: str
    level: Literal["warning", "advice"] = "warning"


def lint(policy: Policy) -> list[Warning_]:
    """Every finding, in the order of the policy."""
    found: list[Warning_] = []
    if not policy.agents:
        found.append(Warning_("policy", "there are no agents: every call is denied"))
    for profile in policy.agents.values():
        found += _profile(policy, profile)
    machines = {m.name: m for profile in policy.agents.values() for m in profile.machines.machines}
    for machine in machines.values():
        found += _machine(machine)
        found += _keys(policy, machine)
    return found


def _profile(policy: Policy, profile: Profile) -> Iterator[Warning_]:
    about, entry = f"agents.{profile.name}", policy.entry.agents[profile.name]
    rules = profile.privilege
    stages = dict(profile.stages)
    if "privilege" in stages and not rules.allowed and not rules.allowed_patterns:
        yield Warning_(about, "`allowed_tools` is empty: every call is denied")
    if "privilege" in stages and rules.budget.max_calls is None:
        yield Warning_(about, "`resource_budget.max_calls` is absent: nothing bounds a lying agent's calls", "advice")
    if entry.data_scope == "any":
        yield Warning_(about, "`data_scope: any` switches the scope check off")
    if rules.approvals and policy.approvals.default.asks.anyone:
        yield Warning_(
            about,
            "`approval_required` without `approvals.default.approvers`: any approver but the agent and its owner may answer",
        )
    if "dfa" in stages and Phase.IDLE not in profile.dfa.paths:
        yield Warning_(about, "no path leads from IDLE to ACTING: every call is denied")
    for phase in Phase:
        if "dfa" in stages and phase not in profile.dfa.paths and phase not in TERMINAL and phase is not Phase.IDLE:
            yield Warning_(about, f"no path leads from {phase} to ACTING: calls are denied there")
    if "order" in stages:
        for machine in profile.machines.machines:
            yield from _first_tool(about, profile, machine)
            yield from _budget(about, profile, machine)


def _first_tool(about: str, profile: Profile, machine: Machine) -> Iterator[Warning_]:
    """A machine whose way out of its initial state goes through tools that the agent may not call."""
    leaving = [t for t in machine.transitions if t.lists(machine.initial) and t.to != machine.initial and t.on.exact_tool]
    if leaving and all(not _may_ever(profile, t.on.exact_tool or "") for t in leaving):
        tools = ", ".join(f"`{t.on.exact_tool}`" for t in leaving)
        yield Warning_(about, f"machine `{machine.name}` begins with {tools}, which the agent is not allowed to call")


def _may_ever(profile: Profile, tool: str) -> bool:
    rules = profile.privilege
    named = tool in rules.allowed or any(pattern.matches_name(tool) for pattern in rules.allowed_patterns)
    return named and tool.casefold() not in rules.forbidden


def _budget(about: str, profile: Profile, machine: Machine) -> Iterator[Warning_]:
    steps = _shortest_to_terminal(machine)
    limits = [n for n in (profile.dfa.max_steps, profile.privilege.budget.max_calls) if n is not None]
    if steps is not None and limits and steps > min(limits):
        yield Warning_(about, f"machine `{machine.name}` needs {steps} calls to end, the budget is {min(limits)}")


def _reachable(machine: Machine) -> dict[str, int]:
    """The states that can be reached, and in how many calls."""
    distance = {machine.initial: 0}
    queue = [machine.initial]
    for state in queue:
        targets = [t.to for t in machine.transitions if t.lists(state)]
        if targets and machine.entry.on_unmatched is not None:
            targets.append(machine.entry.on_unmatched)
        for target in targets:
            if target not in distance:
                distance[target] = distance[state] + 1
                queue.append(target)
    return distance


def _shortest_to_terminal(machine: Machine) -> int | None:
    distance = _reachable(machine)
    return min((distance[s] for s in machine.entry.terminal if s in distance), default=None)


def _machine(machine: Machine) -> Iterator[Warning_]:
    about = f"machines.{machine.name}"
    reached = _reachable(machine)
    named = {state for t in machine.transitions for state in t.sources or ()}.union(machine.states)
    for state in sorted(named - reached.keys()):
        yield Warning_(about, f"the state `{state}` is never reached")
    if machine.entry.terminal and _shortest_to_terminal(machine) is None:
        yield Warning_(about, "no terminal state can be reached")
    for index, transition in enumerate(machine.transitions):
        sources = reached.keys() if transition.sources is None else transition.sources & reached.keys()
        earlier = machine.transitions[:index]
        shadowed = all(any(_covers(machine, e, index, s) for e in earlier) for s in sources)
        if not sources or (earlier and shadowed):
            yield Warning_(about, f"transition {index + 1} (`{transition.on.text}`) can never fire")
        if transition.emit is not None and transition.emit.target == "system" and "{" in transition.emit.content:
            yield Warning_(about, f"transition {index + 1} puts what the agent supplies into a `system` reminder", "advice")


def _covers(machine: Machine, earlier: object, index: int, state: str) -> bool:
    """Whether an earlier transition of the same pattern always fires first from this state."""
    transition = machine.transitions[index]
    other = next(t for t in machine.transitions if t is earlier)
    same = other.on.text == transition.on.text and other.lists(state)
    always = other.content is None and other.facts is None and other.status in ("any", transition.status)
    return same and always


def _keys(policy: Policy, machine: Machine) -> Iterator[Warning_]:
    """Key fields that no declared schema of a watched tool has."""
    tools = {t.on.exact_tool for t in machine.transitions if t.on.exact_tool}
    for field in machine.key.fields:
        root = field.split(".")[0].split("[")[0]
        for tool in sorted(tools):
            entry = policy.entry.tools.get(tool)
            schema = entry.json_schema if entry is not None else None
            if (
                isinstance(schema, dict)
                and schema.get("additionalProperties") is False
                and root not in schema.get("properties", {})
            ):
                yield Warning_(f"machines.{machine.name}", f"the key takes `{field}`, which the schema of `{tool}` does not have")
