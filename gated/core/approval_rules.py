"""`approvals:` of the policy file, compiled: which rules hold for a call, and who is meant by their names.

The first rule that matches exactly holds, and every rule that matches only widely must be satisfied too; what a rule leaves out
comes from `default`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from gated.core.order.patterns import Pattern, compile_pattern
from gated.core.runview import View, When, compile_when
from gated.events import (
    AnswerRule,
)
from gated.ingress import is_id
from gated.units import parse_duration

Duration = str | int


Groups = Mapping[str, frozenset[str]]


class EscalateEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    after: Duration
    to: tuple[str, ...]


class RuleDefaults(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`approvals.default:` what a rule leaves out."""

    approvers: tuple[str, ...] | None = None
    quorum: Annotated[int, Meta(ge=1)] | None = None
    stages: tuple[tuple[str, ...], ...] | None = None
    timeout: Duration | None = None
    on_timeout: Literal["deny"] = "deny"
    self_approval: bool | None = None
    may_answer: bool | None = None
    escalate: EscalateEntry | None = None


class RuleEntry(RuleDefaults, frozen=True, forbid_unknown_fields=True, kw_only=True):
    on: str
    when: str | None = None


class ApprovalsEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`approvals:` of the policy file."""

    default: RuleDefaults = RuleDefaults()
    rules: tuple[RuleEntry, ...] = ()


class Rule(Struct, frozen=True):
    """Holds where `on` matches and `when`, if there is one, applies."""

    on: Pattern | None
    when: When | None
    asks: AnswerRule
    timeout: int


class Approvals(Struct, frozen=True):
    """Compiled: the rules in order, the rule that holds where none matches, and who is in which group."""

    rules: tuple[Rule, ...]
    default: Rule
    groups: Mapping[str, frozenset[str]]


def compile_approvals(entry: ApprovalsEntry, groups: Mapping[str, Sequence[str]]) -> Approvals:
    """Raises `ValueError` where a group does not exist or a name is neither `user:x` nor `group:x`."""
    people = {name: frozenset(members) for name, members in groups.items()}
    default = _rule(None, None, entry.default, entry.default, people)
    rules = tuple(
        _rule(compile_pattern(r.on), None if r.when is None else compile_when(r.when), r, entry.default, people)
        for r in entry.rules
    )
    return Approvals(rules=rules, default=default, groups=people)


def _rule(on: Pattern | None, when: When | None, rule: RuleDefaults, default: RuleDefaults, groups: Mapping[str, object]) -> Rule:
    _contradictions(rule)
    staged = rule.stages if rule.stages is not None or rule.approvers is not None else default.stages
    approvers = rule.approvers if rule.approvers is not None else default.approvers
    escalate = rule.escalate or default.escalate
    named = [*(approvers or ()), *(n for stage in staged or () for n in stage), *(escalate.to if escalate else ())]
    for name in named:
        kind, _, who = name.partition(":")
        if kind not in ("user", "group") or not who:
            raise ValueError(f"`{name}` is neither `user:name` nor `group:name`")
        if kind == "user" and not is_id(who):
            raise ValueError(f"nobody can be `{who}`: people's names are 1 to 128 of the characters A-Z a-z 0-9 _ -")
        if kind == "group" and who not in groups:
            raise ValueError(f"group `{who}` does not exist: declare it under `groups`")
    asks = AnswerRule(
        approvers=() if staged else tuple(approvers or ()),
        stages=staged or (),
        quorum=rule.quorum or default.quorum or 1,
        self_approval=_first(rule.self_approval, default.self_approval, False),
        may_answer=_first(rule.may_answer, default.may_answer, False),
        escalate_to=escalate.to if escalate else (),
        escalate_after=parse_duration(escalate.after) if escalate else 0,
        anyone=not staged and not approvers,
    )
    timeout = rule.timeout if rule.timeout is not None else default.timeout
    return Rule(on=on, when=when, asks=asks, timeout=parse_duration("15m" if timeout is None else timeout))


def _contradictions(rule: RuleDefaults) -> None:
    """An empty list is no way to say `anyone`, and one way of answering excludes the other."""
    if rule.approvers == ():
        raise ValueError("`approvers` is empty: name people or groups, or leave it out")
    if rule.stages is not None and (not rule.stages or not all(rule.stages)):
        raise ValueError("`stages` is empty, or one of them is: each stage names people or groups")
    if rule.escalate is not None and not rule.escalate.to:
        raise ValueError("`escalate.to` is empty: name people or groups, or leave `escalate` out")
    if rule.stages is not None and (rule.approvers is not None or rule.quorum is not None):
        raise ValueError("`stages` stand instead of `approvers` and `quorum`: a rule has one or the other")


def people_of(approvals: Approvals) -> frozenset[str]:
    """Everyone whom a rule or a group names."""
    rules = [rule.asks for rule in (*approvals.rules, approvals.default)]
    named = [name for r in rules for name in (*r.approvers, *r.escalate_to, *(n for stage in r.stages for n in stage))]
    return people_named(named, approvals.groups).union(*approvals.groups.values())


def people_named(names: Sequence[str], groups: Groups) -> frozenset[str]:
    """Who is meant by `user:x` and `group:y`."""
    users = frozenset(name.removeprefix("user:") for name in names if name.startswith("user:"))
    return users.union(*(groups.get(name.removeprefix("group:"), ()) for name in names if name.startswith("group:")))


def _first(*values: bool | None) -> bool:
    return next(value for value in values if value is not None)


def rules_for(
    approvals: Approvals, view: View, tool: str, args: Mapping[str, Any], excluded: Sequence[str]
) -> tuple[tuple[AnswerRule, ...], int]:
    """The rules that must all be satisfied, and the µs they give: the first exact match and every merely wide one.

    A rule whose `when` compares types that do not compare is one that must be satisfied, too, and never the one that holds:
    neither writing an argument otherwise nor the answer to it chooses who decides.
    """
    held: Rule | None = None
    wide: list[Rule] = []
    for rule in approvals.rules:
        assert rule.on is not None
        applies = True if rule.when is None else rule.when.applies(view, tool, args)
        if applies is False:
            continue
        if applies and rule.on.matches(tool, args):
            held = held or rule
        elif rule.on.matches_wide(tool, args):
            wide.append(rule)
    rules = [held or approvals.default, *wide]
    asks = tuple(replace(rule.asks, excluded=tuple(excluded)) for rule in rules)
    return asks, min(rule.timeout for rule in rules)
