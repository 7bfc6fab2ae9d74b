"""A finding with its place, and what the parts of the linter ask of a policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from gated.core.order.patterns import Pattern
from gated.core.policy import Policy, Profile
from gated.core.policy_file import AgentEntry
from gated.strict_json import Path, path_text

Level = Literal["warning", "advice"]


class Advice(Struct, frozen=True):
    """`path` leads to the part of the policy that it is about."""

    path: Path
    message: str
    level: Level = "warning"

    @property
    def about(self) -> str:
        return path_text(self.path) if self.path else "policy"


class Subject:
    """A policy with its document."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.data: dict[str, Any] = json.loads(policy.text)

    def own(self, agent: str) -> dict[str, Any]:
        return (self.data.get("agents") or {}).get(agent) or {}

    def setting(self, agent: str, key: str) -> Any:
        """An agent's setting as it is written: its own, else the default's, else None."""
        own, defaults = self.own(agent), self.data.get("defaults") or {}
        return own[key] if key in own else defaults.get(key)

    def place(self, agent: str, key: str) -> Path:
        """Where that setting stands; where nobody wrote it, the agent."""
        if key in self.own(agent):
            return ("agents", agent, key)
        return ("defaults", key) if key in (self.data.get("defaults") or {}) else ("agents", agent)

    def profiles(self) -> Iterator[tuple[str, Profile, dict[str, bool]]]:
        """Every agent with its profile and its enabled stages."""
        for name, profile in self.policy.agents.items():
            yield str(name), profile, dict(profile.stages)

    def entry(self, agent: str) -> AgentEntry:
        return self.policy.entry.agents[agent]

    def schema(self, tool: str) -> dict[str, Any] | None:
        entry = self.policy.entry.tools.get(tool)
        return entry.json_schema if entry is not None and isinstance(entry.json_schema, dict) else None


def may_call(profile: Profile, tool: str) -> bool:
    """Whether an agent may call a tool, whatever the arguments; a wide restriction counts only where it takes every call."""
    rules = profile.privilege
    if "privilege" not in dict(profile.stages):
        return True
    named = tool in rules.allowed or any(pattern.matches_name(tool) for pattern in rules.allowed_patterns)
    return named and not forbidden_whole(profile, tool)


def forbidden_whole(profile: Profile, tool: str) -> bool:
    rules = profile.privilege
    return tool.casefold() in rules.forbidden or any(
        not p.needs_args and p.matches_wide(tool, {}) for p in rules.forbidden_patterns
    )


def may_meet(profile: Profile, pattern: Pattern) -> bool:
    """Whether some call that the agent may make can match a restricting pattern, as far as names tell."""
    rules = profile.privilege
    if "privilege" not in dict(profile.stages):
        return True
    globs = [allowed for allowed in rules.allowed_patterns if allowed.exact_tool is None]
    if globs and (pattern.exact_tool is None or any(allowed.matches_name(pattern.exact_tool) for allowed in globs)):
        return True
    names = rules.allowed.union(allowed.exact_tool for allowed in rules.allowed_patterns if allowed.exact_tool is not None)
    return any(pattern.matches_wide_name(name) for name in names)
