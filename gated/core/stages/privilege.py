"""privilege: may this agent call this tool, on this data, at this cost. The cheapest stage, and the first.

Names and patterns on the forbidden and approval sides match widely, on the allowed side exactly (a junk argument or a
capital must neither hide what is forbidden nor supply what is allowed). Limits are inclusive.
Codes: `privilege.no_profile` `forbidden` `not_allowed` `approval_required` `data_scope` `call_cost` `total_cost` `calls`
`tokens` `time`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from gated.core.call import Call
from gated.core.headroom import UNBOUNDED, Headroom, Rooms, room_of
from gated.core.history import Tally
from gated.core.order.patterns import Pattern, compile_pattern
from gated.core.scope import Scope
from gated.events import Finding
from gated.units import format_usd, parse_usd

STAGE: Final = "privilege"

MICRO: Final = 1_000_000

LEXICAL: Final = Finding(STAGE, "warn", "privilege.data_scope", "the path was compared lexically")

Whole = Annotated[int, Meta(ge=0)]


class BudgetEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`resource_budget:` of an agent. USD, whole numbers and seconds; what is absent is not limited."""

    max_cost_usd: float | int | str | None = None
    max_total_cost_usd: float | int | str | None = None
    max_steps: Whole = 50
    max_loops_per_phase: Whole = 3
    max_calls: Whole | None = None
    max_tokens: Whole | None = None
    max_execution_time_seconds: Annotated[float, Meta(ge=0)] | Whole | None = None
    over: Literal["deny", "ask"] = "deny"
    scope: Literal["run", "thread"] = "run"
    trust_costs: bool = False


class Budget(Struct, frozen=True):
    """Compiled limits: micro-dollars, counts, microseconds."""

    max_call: int | None
    max_total: int | None
    max_calls: int | None
    max_tokens: int | None
    max_time: int | None
    outcome: Literal["deny", "ask"]
    thread: bool
    trust_costs: bool


class PrivilegeRules:
    """Compiled once a policy: exact names in sets, patterns after them."""

    __slots__ = (
        "allowed",
        "allowed_patterns",
        "approvals",
        "budget",
        "forbidden",
        "forbidden_patterns",
        "plainly_allowed",
        "scope",
    )

    def __init__(
        self,
        allowed: Iterable[str],
        forbidden: Iterable[str],
        approvals: Iterable[str],
        scope: Scope,
        budget: Budget,
    ) -> None:
        allowed_patterns = [compile_pattern(text) for text in allowed]
        forbidden_patterns = [compile_pattern(text) for text in forbidden]
        self.allowed: frozenset[str] = frozenset(p.text for p in allowed_patterns if p.exact_tool == p.text)
        self.allowed_patterns = tuple(p for p in allowed_patterns if p.exact_tool != p.text)
        self.forbidden: frozenset[str] = frozenset(p.text.casefold() for p in forbidden_patterns if p.exact_tool == p.text)
        self.forbidden_patterns = tuple(p for p in forbidden_patterns if p.exact_tool != p.text)
        self.approvals: tuple[Pattern, ...] = tuple(compile_pattern(text) for text in approvals)
        self.plainly_allowed = frozenset(filter(self._is_plainly_allowed, self.allowed))  # whatever the arguments
        self.scope = scope
        self.budget = budget

    def _is_plainly_allowed(self, tool: str) -> bool:
        restricting = (*self.forbidden_patterns, *self.approvals)
        return tool.casefold() not in self.forbidden and not any(p.matches_wide_name(tool) for p in restricting)

    def allows(self, tool: str, args: Mapping[str, Any]) -> bool:
        if tool in self.allowed:
            return True
        return any(p.matches_allowed(tool, args) for p in self.allowed_patterns)

    def forbids(self, tool: str, args: Mapping[str, Any]) -> bool:
        if self.forbidden and tool.casefold() in self.forbidden:
            return True
        return any(p.matches_wide(tool, args) for p in self.forbidden_patterns)


def compile_budget(entry: BudgetEntry) -> Budget:
    seconds = entry.max_execution_time_seconds
    return Budget(
        max_call=None if entry.max_cost_usd is None else parse_usd(entry.max_cost_usd),
        max_total=None if entry.max_total_cost_usd is None else parse_usd(entry.max_total_cost_usd),
        max_calls=entry.max_calls,
        max_tokens=entry.max_tokens,
        max_time=None if seconds is None else round(seconds * MICRO),
        outcome=entry.over,
        thread=entry.scope == "thread",
        trust_costs=entry.trust_costs,
    )


def room(budget: Budget) -> Rooms:
    """Where the cumulative limits say nothing."""
    cost, calls, tokens, time = map(_most, (budget.max_total, budget.max_calls, budget.max_tokens, budget.max_time))
    return room_of(budget.thread, Headroom(cost=cost, calls=calls, tokens=tokens, time=time))


def _most(limit: int | None) -> int:
    return UNBOUNDED if limit is None else limit


def check(rules: PrivilegeRules, call: Call, costs: Mapping[str, int]) -> tuple[Finding, ...]:
    """Findings about the call alone, in the order of the codes, up to and including the first denial.

    `costs` is what calls of tools cost at least (µ$).
    """
    tool, args, budget = call.tool, call.args, rules.budget
    found: list[Finding] = []
    if tool not in rules.plainly_allowed:
        if rules.forbids(tool, args):
            return (_deny("forbidden", f"`{tool}` is forbidden with these arguments"),)
        if not rules.allows(tool, args):
            return (_deny("not_allowed", f"`{tool}` is not among the allowed tools"),)
        found += _approvals(rules.approvals, call)
    scope = rules.scope.check(tool, args, call.links)
    if scope.denied is not None:
        return (*found, Finding(STAGE, "deny", "privilege.data_scope", scope.denied, resource=scope.resource))
    if scope.lexical:
        found.append(LEXICAL)
    if budget.max_call is not None:
        _call_cost(budget, budget.max_call, call.estimate_microusd, costs.get(tool), found)
    return to_first_denial(tuple(found)) if found else ()


def check_budget(budget: Budget, tally: Tally, at: int, reserved: int) -> list[Finding]:
    """The cumulative limits, of the run and of every ancestor whose budget the call counts in. It takes `reserved` (µ$)."""
    found: list[Finding] = []
    if budget.max_total is not None and tally.cost_microusd + reserved > budget.max_total:
        would = tally.cost_microusd + reserved
        text = f"total cost would be ${format_usd(would)} of ${format_usd(budget.max_total)}"
        found.append(_over(budget, "total_cost", text))
    if budget.max_calls is not None and tally.calls >= budget.max_calls:
        found.append(_over(budget, "calls", f"Call budget exhausted: {tally.calls}/{budget.max_calls}"))
    if budget.max_tokens is not None and tally.tokens > budget.max_tokens:
        found.append(_over(budget, "tokens", f"Token budget exhausted: {tally.tokens}/{budget.max_tokens}"))
    if budget.max_time is not None and at - tally.opened_at > budget.max_time:
        passed = (at - tally.opened_at) / MICRO
        found.append(_over(budget, "time", f"Time budget exhausted: {passed:g}s/{budget.max_time / MICRO:g}s"))
    return found


def _call_cost(budget: Budget, limit: int, estimate: int | None, floor: int | None, found: list[Finding]) -> None:
    if estimate is None and floor is None:
        return
    cost = max(estimate or 0, floor or 0)
    if cost > limit:
        text = f"the call would cost ${format_usd(cost)}, the limit is ${format_usd(limit)}"
        found.append(_over(budget, "call_cost", text))


def _approvals(patterns: Iterable[Pattern], call: Call) -> Iterator[Finding]:
    for pattern in patterns:
        if pattern.matches_wide(call.tool, call.args):
            reason = f"`{pattern.text}` needs an approval"
            yield Finding(STAGE, "ask", "privilege.approval_required", reason, pattern=pattern.text)


def to_first_denial(found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    for position, finding in enumerate(found):
        if finding.outcome == "deny":
            return found[: position + 1]
    return found


def _over(budget: Budget, reason_code: str, reason: str) -> Finding:
    return Finding(STAGE, budget.outcome, f"privilege.{reason_code}", reason)


def _deny(reason_code: str, reason: str) -> Finding:
    return Finding(STAGE, "deny", f"privilege.{reason_code}", reason)
