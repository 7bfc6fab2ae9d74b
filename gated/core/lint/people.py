"""Approvals: asks that nobody in particular answers, rules that hold for nothing, people that can never be enough."""

from __future__ import annotations

from collections.abc import Iterator

from gated.core.approval_rules import Rule, people_named
from gated.core.lint.advice import Advice, Subject, may_meet
from gated.core.policy import Profile
from gated.strict_json import Path

DEFAULT: Path = ("approvals", "default")


def people(subject: Subject) -> Iterator[Advice]:
    asking = [name for name, profile, stages in subject.profiles() if asks(profile, stages)]
    yield from _nobody_named(subject, asking)
    yield from _rules(subject, asking)
    for place, rule in _places(subject):
        yield from _enough(subject, place, rule)
    yield from _groups(subject)


def asks(profile: Profile, stages: dict[str, bool]) -> bool:
    """Whether something may suspend a call of the agent."""
    rules = profile.privilege
    machines = profile.machines.machines if "order" in stages else ()
    return (
        ("privilege" in stages and (bool(rules.approvals) or rules.budget.outcome == "ask"))
        or any(t.action == "ask" for machine in machines for t in machine.transitions)
        or any(machine.entry.on_missing_key == "ask" for machine in machines)
        or ("contracts" in stages and any(c.entry.otherwise == "ask" for c in profile.contracts.all))
        or "semantic" in stages
    )


def _places(subject: Subject) -> Iterator[tuple[Path, Rule]]:
    approvals = subject.policy.approvals
    yield DEFAULT, approvals.default
    for position, rule in enumerate(approvals.rules):
        yield ("approvals", "rules", position), rule


def _nobody_named(subject: Subject, asking: list[str]) -> Iterator[Advice]:
    if asking and subject.policy.approvals.default.asks.anyone:
        who = ", ".join(f"`{name}`" for name in asking)
        message = f"calls of {who} may wait for an approval, and no `approvers` are named by default: any approver but the agent "
        yield Advice(DEFAULT if "approvals" in subject.data else (), message + "and its owner may answer")


def _rules(subject: Subject, asking: list[str]) -> Iterator[Advice]:
    approvals, profiles = subject.policy.approvals, list(subject.policy.agents.values())
    taken: dict[str, int] = {}
    for position, rule in enumerate(approvals.rules):
        place: Path = ("approvals", "rules", position)
        assert rule.on is not None
        if rule.asks.anyone:
            yield Advice(place, f"the rule on `{rule.on.text}` names no `approvers`: any approver may answer")
        if profiles and not any(may_meet(profile, rule.on) for profile in profiles):
            yield Advice((*place, "on"), f"the rule is dead: no agent may call what `{rule.on.text}` matches")
        elif rule.on.text in taken:
            yield Advice((*place, "on"), f"the rule is dead: rule {taken[rule.on.text] + 1} comes first for the same calls")
        if rule.when is None:
            taken.setdefault(rule.on.text, position)
        elif rule.when.expression.doubt:
            yield Advice((*place, "when"), f"`when` can never be evaluated, which counts as true: {rule.when.expression.doubt}")
    if approvals.rules and not asking and profiles:
        yield Advice(("approvals",), "nothing in the policy asks for an approval: the rules do nothing")


def _enough(subject: Subject, place: Path, rule: Rule) -> Iterator[Advice]:
    asks, groups = rule.asks, subject.policy.approvals.groups
    if rule.timeout == 0:
        yield Advice((*place, "timeout"), "`timeout` is 0: a ticket expires before anybody can answer")
    if asks.self_approval:
        yield Advice(
            (*place, "self_approval"), "`self_approval: true`: the asking agent and its owner may approve the call themselves"
        )
    if asks.anyone:
        return
    owners = {profile.owner for profile in subject.policy.agents.values() if profile.owner}
    for stage in asks.stages or (asks.approvers,):
        named = people_named((*stage, *asks.escalate_to), groups)
        wanted = 1 if asks.stages else asks.quorum
        if len(named) < wanted:
            yield Advice(place, f"the rule can never be satisfied: {_people(len(named))} named, {wanted} must answer")
        elif not asks.self_approval and len(named - owners) < wanted and owners:
            yield Advice(place, f"without owners of agents, {_people(len(named - owners))} left, and {wanted} must answer")


def _people(number: int) -> str:
    return "1 person is" if number == 1 else f"{number} people are"


def _groups(subject: Subject) -> Iterator[Advice]:
    used = {name for _, rule in _places(subject) for name in (*rule.asks.approvers, *rule.asks.escalate_to)}
    used |= {name for _, rule in _places(subject) for stage in rule.asks.stages for name in stage}
    for group, members in subject.policy.approvals.groups.items():
        if f"group:{group}" not in used:
            yield Advice(("groups", group), f"no rule names the group `{group}`", "advice")
        elif not members:
            yield Advice(("groups", group), f"the group `{group}` is empty")
