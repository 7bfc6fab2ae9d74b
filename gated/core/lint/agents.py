"""Agents: what they may do at all, their budgets, their phases, their scope."""

from __future__ import annotations

from collections.abc import Iterator

from gated.core.lint.advice import Advice, Subject
from gated.core.policy import Profile
from gated.core.policy_file import ToolEntry
from gated.core.scope import undeclared
from gated.core.stages.dfa import EDGES, TERMINAL
from gated.events import Phase

SWITCHED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("privilege", ("allowed_tools", "forbidden_tools", "approval_required", "data_scope")),
    ("dfa", ("dfa",)),
    ("order", ("machines",)),
    ("dcbf", ("dcbf",)),
)


def agents(subject: Subject) -> Iterator[Advice]:
    if not subject.policy.agents:
        yield Advice((), "there are no agents: every call is denied")
    if subject.policy.entry.mode == "observe":
        yield Advice(("mode",), "the whole policy is only observed: nothing is denied or asked")
    for name, profile, stages in subject.profiles():
        yield from _privilege(subject, name, profile, stages)
        yield from _scope(subject, name, profile, stages)
        yield from _budgets(subject, name, profile, stages)
        if "dfa" in stages:
            yield from _phases(subject, name, profile)
        yield from _switched_off(subject, name, stages)


def _privilege(subject: Subject, name: str, profile: Profile, stages: dict[str, bool]) -> Iterator[Advice]:
    rules = profile.privilege
    if "privilege" not in stages:
        yield Advice(subject.place(name, "checks"), "the stage privilege is off: every tool is allowed")
    elif not rules.allowed and not rules.allowed_patterns:
        why = ": a policy that only forbids allows nothing" if rules.forbidden or rules.forbidden_patterns else ""
        yield Advice(subject.place(name, "allowed_tools"), f"`allowed_tools` is empty, so every call is denied{why}")


def _scope(subject: Subject, name: str, profile: Profile, stages: dict[str, bool]) -> Iterator[Advice]:
    if "privilege" not in stages:
        return
    if subject.setting(name, "data_scope") == "any":
        yield Advice(subject.place(name, "data_scope"), "`data_scope: any` switches the scope check off")
        return
    if subject.setting(name, "data_scope"):
        for tool in sorted(profile.privilege.allowed):
            flaw = _undeclared(subject, tool)
            if flaw is not None:
                yield Advice(("tools", tool) if tool in subject.policy.known_tools else ("agents", name), flaw)


def _undeclared(subject: Subject, tool: str) -> str | None:
    entry = subject.policy.entry.tools.get(tool, ToolEntry())
    return undeclared(tool, entry.resources, entry.json_schema)


def _budgets(subject: Subject, name: str, profile: Profile, stages: dict[str, bool]) -> Iterator[Advice]:
    budget = profile.privilege.budget
    place = subject.place(name, "resource_budget")
    if "privilege" in stages and budget.max_calls is None:
        yield Advice(
            place, "`resource_budget.max_calls` is absent: nothing bounds the calls of an agent that lies about outcomes"
        )
    if budget.max_calls == 0 or profile.dfa.max_steps == 0:
        yield Advice(place, "a budget of 0 calls or steps: every call is denied")
    if profile.ceilings.max_hops == 0:
        yield Advice(subject.place(name, "ceilings"), "`max_hops: 0`: the first call is denied, and the run fails")
    if profile.call_timeout == 0:
        yield Advice(subject.place(name, "call_timeout"), "`call_timeout` is 0: every call lapses before its outcome")
    if budget.max_call is not None and budget.max_total is not None and budget.max_call > budget.max_total:
        yield Advice(place, "`max_cost_usd` of one call is more than `max_total_cost_usd` of all: it never decides", "advice")
    if "privilege" in stages and budget.max_calls is not None and "dfa" in stages and budget.max_calls < profile.dfa.max_steps:
        written = subject.setting(name, "resource_budget")
        if isinstance(written, dict) and "max_steps" in written:
            message = f"`max_steps: {profile.dfa.max_steps}` never decides: `max_calls: {budget.max_calls}` comes first"
            yield Advice(place, message, "advice")


def _phases(subject: Subject, name: str, profile: Profile) -> Iterator[Advice]:
    place = subject.place(name, "dfa")
    if Phase.IDLE not in profile.dfa.paths:
        yield Advice(place, "no path leads from IDLE to ACTING: every call is denied")
    for phase in Phase:
        if phase not in profile.dfa.paths and phase not in TERMINAL and phase not in (Phase.IDLE, Phase.ACTING):
            yield Advice(place, f"no path leads from {phase} to ACTING: calls are denied there")
    written = subject.setting(name, "dfa")
    if not isinstance(written, dict):
        return
    edges = [[str(a), str(b)] for a, b in EDGES]
    for position, edge in enumerate(written.get("remove") or ()):
        if edge not in edges:
            yield Advice((*place, "remove", position), f"there is no edge {edge[0]} -> {edge[1]} to remove")
    for position, edge in enumerate(written.get("add") or ()):
        if edge in edges and edge not in (written.get("remove") or ()):
            yield Advice((*place, "add", position), f"the edge {edge[0]} -> {edge[1]} is there already", "advice")
        if Phase(edge[0]) in TERMINAL:
            yield Advice((*place, "add", position), f"a run in {edge[0]} has ended: the edge is never taken")
    yield from _unreached(place, written)


def _unreached(place: tuple[str | int, ...], written: dict[str, list[list[str]]]) -> Iterator[Advice]:
    """Phases that no run comes to: OBSERVING and ANSWERING are also set, when a call and a run end."""
    edges = [(str(a), str(b)) for a, b in EDGES if [str(a), str(b)] not in (written.get("remove") or [])]
    edges += [(a, b) for a, b in written.get("add") or []]
    reached = {"IDLE", "OBSERVING", "ANSWERING", "EXHAUSTED", "REJECTED"}
    while more := {b for a, b in edges if a in reached} - reached:
        reached |= more
    for phase in Phase:
        if str(phase) not in reached:
            yield Advice(place, f"no run comes to {phase}")


def _switched_off(subject: Subject, name: str, stages: dict[str, bool]) -> Iterator[Advice]:
    """Rules of a stage that is not among the agent's checks."""
    own = subject.own(name)
    for stage, keys in SWITCHED:
        for key in keys:
            if stage not in stages and key in own:
                yield Advice(("agents", name, key), f"`{key}` does nothing: the stage {stage} is not among the `checks`")
    for stage in own.get("modes") or {}:
        on = bool(subject.setting(name, "ceilings")) if stage == "ceilings" else stage in stages
        if not on:
            yield Advice(("agents", name, "modes", stage), f"the stage {stage} is not on: there is nothing to observe")
    for stage, watched in stages.items():
        if watched and subject.policy.entry.mode == "enforce":
            yield Advice(subject.place(name, "modes"), f"the stage {stage} is only observed", "advice")
