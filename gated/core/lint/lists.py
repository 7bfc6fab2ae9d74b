"""Dead entries: in lists of tools, of scopes, and among the tools that are described."""

from __future__ import annotations

from collections.abc import Iterator

from gated.core.lint.advice import Advice, Subject, forbidden_whole, may_call, may_meet
from gated.core.order.patterns import compile_pattern
from gated.core.policy import Profile


def lists(subject: Subject) -> Iterator[Advice]:
    for name, profile, stages in subject.profiles():
        if "privilege" in stages:
            yield from _allowed(subject, name, profile)
            yield from _restricting(subject, name, profile, "forbidden_tools", "forbid")
            yield from _restricting(subject, name, profile, "approval_required", "ask for")
            yield from _scope(subject, name)
    yield from _tools(subject)


def _allowed(subject: Subject, name: str, profile: Profile) -> Iterator[Advice]:
    place, seen, entry = subject.place(name, "allowed_tools"), set[str](), subject.policy.entry
    entries = subject.setting(name, "allowed_tools") or ()
    for position, text in enumerate(entries):
        pattern, where = compile_pattern(text), (*place, position)
        if text in seen:
            yield Advice(where, f"`{text}` is listed twice", "advice")
        seen.add(text)
        if pattern.exact_tool is not None and forbidden_whole(profile, pattern.exact_tool):
            yield Advice(where, f"`{text}` is dead: the tool is forbidden, and forbidden wins")
        elif entry.unknown_tools == "deny" and not any(map(pattern.matches_name, entry.tools)):
            yield Advice(where, f"`{text}` is dead: `unknown_tools: deny`, and nothing under `tools` has that name")
        elif pattern.needs_args and pattern.exact_tool is not None and pattern.exact_tool in entries:
            yield Advice(where, f"`{text}` is dead: `{pattern.exact_tool}` is allowed with any arguments", "advice")


def _restricting(subject: Subject, name: str, profile: Profile, key: str, verb: str) -> Iterator[Advice]:
    place, seen = subject.place(name, key), set[str]()
    for position, text in enumerate(subject.setting(name, key) or ()):
        pattern, where = compile_pattern(text), (*place, position)
        if text in seen:
            yield Advice(where, f"`{text}` is listed twice", "advice")
        seen.add(text)
        if not may_meet(profile, pattern):
            yield Advice(
                where, f"`{text}` is dead: there is nothing allowed to {verb}", "advice" if verb == "forbid" else "warning"
            )


def _scope(subject: Subject, name: str) -> Iterator[Advice]:
    place, scope = subject.place(name, "data_scope"), subject.setting(name, "data_scope")
    paths = (scope.get("allowed_paths") or []) if isinstance(scope, dict) else []
    for position, path in enumerate(paths):
        for other in paths:
            if path != other and path.startswith(f"{other.rstrip('/')}/"):
                yield Advice((*place, "allowed_paths", position), f"`{path}` is dead: `{other}` holds it", "advice")
                break
    if "/" in paths:
        yield Advice((*place, "allowed_paths"), "the whole disk is in scope")


def _tools(subject: Subject) -> Iterator[Advice]:
    profiles = list(subject.policy.agents.values())
    for tool in subject.policy.entry.tools:
        if profiles and not any(may_call(profile, tool) for profile in profiles):
            yield Advice(("tools", tool), f"no agent may call `{tool}`", "advice")
