"""Barriers: those that are outside from the start, and settings of `dcbf` that decide nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gated.core.lint.advice import Advice, Subject, may_call
from gated.core.policy import Profile
from gated.core.stages.dcbf import left_at_once, unsafe_at_start
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
        yield from _never_left(profile, rules, place)
        yield from _left_at_once(profile, rules, place)
        if rules.get("verification") is False:
            message = "`verification: false`: a call that leaves the safe set is let in, and the run is stuck from then on"
            yield Advice((*place, "verification"), message)


def _outside(profile: Profile, rules: dict[str, Any], place: Path) -> Iterator[Advice]:
    for barrier in unsafe_at_start(profile.dcbf, profile.name):
        message = f"barrier `{barrier}` is below 0, or cannot be computed, on a run that has done nothing: every call is denied"
        yield Advice(_of(barrier, rules, place), message)


def _of(barrier: str, rules: dict[str, Any], place: Path) -> Path:
    """Where a barrier is set; where it is not, the whole of `dcbf`."""
    if barrier in (rules.get("barriers") or {}):
        return (*place, "barriers", barrier)
    return (*place, barrier) if barrier in rules else place


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


def _never_left(profile: Profile, rules: dict[str, Any], place: Path) -> Iterator[Advice]:
    """Barriers that no run can leave, whatever it does."""
    kept = {barrier.name for barrier in profile.dcbf.barriers}
    margin = (rules.get("safety") or {}).get("margin", 0.1)
    if margin <= 0 and "safety" in kept:
        yield Advice((*place, "safety", "margin"), f"`margin: {margin}`: the barrier is never below 0, so no pair is ever denied")
    if (rules.get("privacy") or {}).get("per_call") == 0 and "privacy" in kept:
        yield Advice((*place, "privacy", "per_call"), "`per_call: 0`: no number of calls brings the barrier below 0")
    for name, barrier in (rules.get("barriers") or {}).items():
        if ((barrier or {}).get("counter") or {}).get("per_call") == 0:
            where = (*place, "barriers", name, "counter", "per_call")
            yield Advice(where, "`per_call: 0`: no number of calls brings the barrier below 0")


def _left_at_once(profile: Profile, rules: dict[str, Any], place: Path) -> Iterator[Advice]:
    """Barriers that hold on a run that has done nothing, and that any first call leaves."""
    for barrier in left_at_once(profile.dcbf, profile.name):
        yield Advice(_of(barrier, rules, place), f"any first call leaves barrier `{barrier}`: every call is denied")


def _any_called(profile: Profile, tools: Iterable[str]) -> bool:
    return any(may_call(profile, tool) for tool in tools)
