"""Barriers: those that are outside from the start, and settings of `dcbf` that decide nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gated.core.lint.advice import Advice, Subject, may_call
from gated.core.policy import Profile
from gated.core.stages.dcbf import unsafe_at_start
from gated.strict_json import Path


def barriers(subject: Subject) -> Iterator[Advice]:
    for name, profile, stages in subject.profiles():
        if "dcbf" not in stages:
            continue
        written, place = subject.setting(name, "dcbf"), subject.place(name, "dcbf")
        rules: dict[str, Any] = written if isinstance(written, dict) else {}
        yield from _outside(profile, rules, place)
        yield from _removed(rules, place)
        yield from _idle(profile, rules, place)
        if rules.get("verification") is False:
            message = "`verification: false`: a call that leaves the safe set is let in, and the run is stuck from then on"
            yield Advice((*place, "verification"), message)


def _outside(profile: Profile, rules: dict[str, Any], place: Path) -> Iterator[Advice]:
    own = rules.get("barriers") or {}
    for barrier in unsafe_at_start(profile.dcbf, profile.name):
        where = (*place, "barriers", barrier) if barrier in own else (*place, barrier) if barrier in rules else place
        message = f"barrier `{barrier}` is below 0, or cannot be computed, on a run that has done nothing: every call is denied"
        yield Advice(where, message)


def _removed(rules: dict[str, Any], place: Path) -> Iterator[Advice]:
    for barrier in rules.get("remove") or ():
        if barrier in rules:
            yield Advice((*place, barrier), f"`{barrier}` is set, and removed by `remove`")


def _idle(profile: Profile, rules: dict[str, Any], place: Path) -> Iterator[Advice]:
    """Tools that are counted or paired and that the agent may not call."""
    for name, barrier in (rules.get("barriers") or {}).items():
        tools = ((barrier or {}).get("counter") or {}).get("tools")
        if tools is not None and not _any_called(profile, tools):
            where = (*place, "barriers", name, "counter", "tools")
            yield Advice(where, f"barrier `{name}` counts only tools that the agent may not call")
    for position, pair in enumerate((rules.get("safety") or {}).get("pairs") or ()):
        if not all(may_call(profile, tool) for tool in pair):
            named = " and ".join(f"`{tool}`" for tool in pair)
            message = f"the pair {named} is dead: the agent may not call both"
            yield Advice((*place, "safety", "pairs", position), message, "advice")


def _any_called(profile: Profile, tools: Iterable[str]) -> bool:
    return any(may_call(profile, tool) for tool in tools)
