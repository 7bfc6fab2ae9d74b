"""The policy as it is written, with the questions the stages ask of it. policy.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oracle.values import Json

STAGES = ("privilege", "dfa", "order", "contracts", "dcbf", "semantic")
"""decisions.md §2: the stages that `checks` names, in their order."""


@dataclass(frozen=True, eq=False)
class Policy:
    doc: dict[str, Any]

    def __deepcopy__(self, memo: dict[int, Any]) -> Policy:
        return self

    def profile(self, agent: str) -> dict[str, Any] | None:
        """An agent's own value replaces the default's whole."""
        own = self.doc.get("agents", {}).get(agent)
        return None if own is None else {**self.doc.get("defaults", {}), **own}

    def profile_or_empty(self, agent: str) -> dict[str, Any]:
        return self.profile(agent) or {}

    def enabled(self, agent: str, stage: str) -> bool:
        """The default is all of them."""
        return stage in self.profile_or_empty(agent).get("checks", STAGES)

    def observed(self, agent: str, stage: str) -> bool:
        """decisions.md §2: `mode: observe` on the policy, the agent or the stage."""
        profile = self.profile_or_empty(agent)
        modes = (self.doc.get("mode"), profile.get("mode"), profile.get("modes", {}).get(stage))
        return "observe" in modes

    def share_a_thread(self, one: str, other: str) -> bool:
        groups = self.doc.get("threads", {}).get("shared_by", [])
        return any(one in group and other in group for group in groups)

    def tool(self, name: str) -> dict[str, Any]:
        return dict(self.doc.get("tools", {}).get(name) or {})

    def budget(self, agent: str) -> dict[str, Any]:
        return dict(self.profile_or_empty(agent).get("resource_budget") or {})

    def machines(self, agent: str) -> list[dict[str, Any]]:
        """Names of base machines or whole machines of its own; absent: all base machines."""
        if self.profile(agent) is None:
            return []
        base = self.doc.get("machines", [])
        wanted = self.profile_or_empty(agent).get("machines")
        if wanted is None:
            return list(base)
        return [next(m for m in base if m["name"] == w) if isinstance(w, str) else w for w in wanted]

    def call_timeout(self, agent: str, tool: str) -> Json:
        """decisions.md §3: default 15 min; may be given per tool."""
        return self.tool(tool).get("call_timeout") or self.profile_or_empty(agent).get("call_timeout") or "15m"
