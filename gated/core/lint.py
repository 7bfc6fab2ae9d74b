"""What `gated policy check` finds beyond load errors: rules that can never work, and rules that do less than they seem to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from gated.core import tickets
from gated.core.order import lint as order
from gated.core.order.machines import Machine
from gated.core.policy import Policy, Profile
from gated.core.stages import dcbf
from gated.core.stages.dfa import TERMINAL
from gated.events import Phase


class Advice(Struct, frozen=True):
    """`about` names the part of the policy."""

    about: str
    message: str
    level: Literal["warning", "advice"] = "warning"


def lint(policy: Policy) -> list[Advice]:
    """Every finding, in the order of the policy."""
    found: list[Advice] = []
    if not policy.agents:
        found.append(Advice("policy", "there are no agents: every call is denied"))
    for profile in policy.agents.values():
        found += _profile(policy, profile)
    found += _approvals(policy)
    machines = {m.name: m for profile in policy.agents.values() for m in profile.machines.machines}
    found += [Advice(f"machines.{name}", message) for name, message in order.lint(list(machines.values()))]
    for machine in machines.values():
        found += _keys(policy, machine)
    return found


def _approvals(policy: Policy) -> Iterator[Advice]:
    """Rules that no people can satisfy: their tickets can only expire."""
    approvals = policy.approvals
    named = [("approvals.default", approvals.default), *((f"approvals.rules[{n}]", r) for n, r in enumerate(approvals.rules))]
    for about, rule in named:
        if rule.asks.anyone:
            continue
        for number, names in enumerate(rule.asks.stages, 1):
            if not tickets.people_named(names, approvals.groups):
                yield Advice(about, f"nobody can answer stage {number}: what it asks can only expire")
        people = tickets.people_named((*rule.asks.approvers, *rule.asks.escalate_to), approvals.groups)
        if not rule.asks.stages and len(people) < rule.asks.quorum:
            yield Advice(about, f"{len(people)} may answer and {rule.asks.quorum} must: what it asks can only expire")


def _profile(policy: Policy, profile: Profile) -> Iterator[Advice]:
    about, entry = f"agents.{profile.name}", policy.entry.agents[profile.name]
    rules = profile.privilege
    stages = dict(profile.stages)
    if "privilege" in stages and not rules.allowed and not rules.allowed_patterns:
        yield Advice(about, "`allowed_tools` is empty: every call is denied")
    if "privilege" in stages and rules.budget.max_calls is None:
        yield Advice(about, "`resource_budget.max_calls` is absent: nothing bounds a lying agent's calls", "advice")
    if entry.data_scope == "any":
        yield Advice(about, "`data_scope: any` switches the scope check off")
    if rules.approvals and policy.approvals.default.asks.anyone:
        yield Advice(
            about,
            "`approval_required` without `approvals.default.approvers`: any approver but the agent and its owner may answer",
        )
    if "dfa" in stages and Phase.IDLE not in profile.dfa.paths:
        yield Advice(about, "no path leads from IDLE to ACTING: every call is denied")
    for phase in Phase:
        if "dfa" in stages and phase not in profile.dfa.paths and phase not in TERMINAL and phase is not Phase.IDLE:
            yield Advice(about, f"no path leads from {phase} to ACTING: calls are denied there")
    if "dcbf" in stages:
        for barrier in dcbf.unsafe_at_start(profile.dcbf, profile.name):
            yield Advice(
                about, f"barrier `{barrier}` is below 0, or raises, on a run that has done nothing: every call is denied"
            )
    if "order" in stages:
        for machine in profile.machines.machines:
            yield from _first_tool(about, profile, machine)
            yield from _budget(about, profile, machine)


def _first_tool(about: str, profile: Profile, machine: Machine) -> Iterator[Advice]:
    """A machine whose way out of its initial state goes through tools that the agent may not call."""
    leaving = [t for t in machine.transitions if t.lists(machine.initial) and t.to != machine.initial and t.on.exact_tool]
    if leaving and all(not _may_ever(profile, t.on.exact_tool or "") for t in leaving):
        tools = ", ".join(f"`{t.on.exact_tool}`" for t in leaving)
        yield Advice(about, f"machine `{machine.name}` begins with {tools}, which the agent is not allowed to call")


def _may_ever(profile: Profile, tool: str) -> bool:
    rules = profile.privilege
    named = tool in rules.allowed or any(pattern.matches_name(tool) for pattern in rules.allowed_patterns)
    return named and tool.casefold() not in rules.forbidden


def _budget(about: str, profile: Profile, machine: Machine) -> Iterator[Advice]:
    steps = order.calls_to_terminal(machine)
    limits = [n for n in (profile.dfa.max_steps, profile.privilege.budget.max_calls) if n is not None]
    if steps is not None and limits and steps > min(limits):
        yield Advice(about, f"machine `{machine.name}` needs {steps} calls to end, the budget is {min(limits)}")


def _keys(policy: Policy, machine: Machine) -> Iterator[Advice]:
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
                yield Advice(f"machines.{machine.name}", f"the key takes `{field}`, which the schema of `{tool}` does not have")
