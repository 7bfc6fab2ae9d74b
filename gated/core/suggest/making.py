"""The policy: allow-lists and scopes of what ran, budgets of the most that one run took."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from gated.core.barriers.entries import DEFAULT_PAIRS, PER_CALL_USD
from gated.core.policy import Policy
from gated.core.reading import is_redacted
from gated.core.suggest.resources import Found, kinds_of, places_of
from gated.core.suggest.watching import Admitted, Ran, RunSeen, Watch
from gated.events import AgentId, CallId, RunId, ThreadId
from gated.units import parse_usd

MICRO: Final = 1_000_000
ROOM: Final = 1.5  # budgets are the most that was seen, and half as much again
STEPS: Final = 50  # what a run may take where nothing is said
LOOPS: Final = 3  # and how many nested calls
OUTBOUND: Final = ("send_email", "http_request")
KEPT: Final = ("resources", "outbound", "sensitive", "schema", "cost_usd", "call_timeout")
PRIVACY: Final = (0.5, 0.2)


def suggest(watch: Watch, known: Mapping[str, Policy], agents: Sequence[str] = ()) -> dict[str, Any]:
    """The document of a policy that loads. `known` are the log's policies; `agents` limits it to these."""
    chosen = {a: calls for a, calls in sorted(watch.calls.items()) if not agents or a in agents}
    tools = _tools([call for calls in chosen.values() for call in calls], known)
    groups = _sharing(watch, chosen)
    chosen = {agent: chosen.get(agent, []) for agent in sorted({*chosen, *(agent for group in groups for agent in group)})}
    profiles = {str(agent): _profile(watch, agent, calls, tools, known) for agent, calls in chosen.items()}
    data: dict[str, Any] = {"version": 1, "agents": profiles}
    if groups:
        data["threads"] = {"shared_by": groups}
    return {**data, "tools": tools} if tools else data


def _sharing(watch: Watch, agents: Collection[AgentId]) -> list[list[AgentId]]:
    """The agents whose calls ran on one thread, and the one that opened it, for each thread that has several."""
    threads: dict[ThreadId, set[AgentId]] = {}
    for (thread, _), run in watch.runs.items():
        if run.ran and run.agent in agents:
            threads.setdefault(thread, {watch.owners[thread]}).add(run.agent)
    return [list(group) for group in sorted({tuple(sorted(found)) for found in threads.values() if len(found) > 1})]


def _tools(calls: Iterable[Ran], known: Mapping[str, Policy]) -> dict[str, dict[str, Any]]:
    """What the recorded policies say of the tools, and which of their arguments named resources."""
    by_tool: dict[str, list[dict[str, Any]]] = {}
    for call in calls:
        by_tool.setdefault(call.tool, []).append(call.args)
    tools: dict[str, dict[str, Any]] = {}
    for tool, args in sorted(by_tool.items()):
        declared = _declared(tool, args, known)
        kinds = {**kinds_of(args), **(declared.get("resources") or {}).get("args", {})}
        entry = {**({"resources": {"args": dict(sorted(kinds.items()))}} if kinds else {}), **declared}
        if kinds:
            entry["resources"] = {"args": dict(sorted(kinds.items()))}
        if entry:
            tools[tool] = entry
    return tools


def _declared(tool: str, args: Sequence[Mapping[str, Any]], known: Mapping[str, Policy]) -> dict[str, Any]:
    """What one policy says of a tool; a schema only where all that ran fits it."""
    found: dict[str, Any] = {}
    for policy in known.values():
        entry = json.loads(policy.text).get("tools", {}).get(tool)
        if entry:
            kept = {key: entry[key] for key in KEPT if key in entry}
            schema = policy.schemas.get(tool)
            if schema is None or all(is_redacted(given) or schema.misfit(given) is None for given in args):
                return kept
            found = found or {key: value for key, value in kept.items() if key != "schema"}
    return found


def _profile(
    watch: Watch, agent: AgentId, calls: list[Ran], tools: Mapping[str, Any], known: Mapping[str, Policy]
) -> dict[str, Any]:
    runs = [run for run in watch.runs.values() if run.agent == agent]
    before = _before(agent, runs, known)
    profile: dict[str, Any] = {key: before[key] for key in ("role", "owner") if key in before}
    profile["allowed_tools"] = sorted({call.tool for call in calls})
    scope = _scope(places_of(calls, tools, _base(before)), _base(before))
    if scope:
        profile["data_scope"] = scope
    cost = max((_cost(run, tools) for run in runs), default=0)
    profile["resource_budget"] = _budget(runs, cost)
    barriers = _barriers(runs, tools, cost)
    return {**profile, "dcbf": barriers} if barriers else profile


def _before(agent: AgentId, runs: list[RunSeen], known: Mapping[str, Policy]) -> dict[str, Any]:
    """The profile that the agent last ran under."""
    for run in reversed(runs):
        if run.policy in known:
            data = json.loads(known[run.policy].text)
            return {**(data.get("defaults") or {}), **((data.get("agents") or {}).get(str(agent)) or {})}
    return {}


def _base(before: Mapping[str, Any]) -> str:
    scope = before.get("data_scope")
    base = scope.get("base_path") if isinstance(scope, dict) else None
    return str(base or "/workspace")


def _scope(found: Found, base: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    if found.tables:
        scope["allowed_databases"] = sorted(found.tables)
        scope["allowed_tables"] = {database: sorted(names) for database, names in sorted(found.tables.items())}
    if found.endpoints:
        scope["allowed_api_endpoints"] = sorted(found.endpoints)
    if found.folders:
        scope["allowed_paths"] = sorted(found.folders)
    if found.relative:
        scope["base_path"] = base
    return scope


def _cost(run: RunSeen, tools: Mapping[str, Any]) -> int:
    """The most that was settled and reserved at once (µ$), where what the tools are said to cost is the least."""
    held: dict[tuple[RunId, CallId], tuple[int, int]] = {}
    spent = most = 0
    for event in run.spent:
        if isinstance(event, Admitted):
            floor = parse_usd((tools.get(event.tool) or {}).get("cost_usd", 0))
            asked = event.estimate_microusd if event.estimate_microusd is not None else floor or round(PER_CALL_USD * MICRO)
            held[event.call] = max(event.reserved_microusd, asked, floor), floor
            spent += held[event.call][0]
        elif event.call in held:
            reserved, floor = held.pop(event.call)
            spent += max(event.cost_microusd, floor) - reserved
        most = max(most, spent)
    return most


def _budget(runs: list[RunSeen], cost: int) -> dict[str, Any]:
    calls = _most(runs, lambda run: sum(run.tools.values()))
    budget: dict[str, Any] = {"max_calls": _round(calls * ROOM)}
    if cost > calls * PER_CALL_USD * MICRO:
        budget["max_total_cost_usd"] = _round(cost * ROOM / MICRO * 100) / 100
    tokens = _most(runs, lambda run: run.tokens)
    if tokens:
        budget["max_tokens"] = _round(tokens * ROOM)
    if calls > STEPS:
        budget["max_steps"] = _round(calls * ROOM)
    nested = _most(runs, lambda run: run.nested)
    if nested > LOOPS:
        budget["max_loops_per_phase"] = _round(nested * ROOM)
    return budget


def _barriers(runs: list[RunSeen], tools: Mapping[str, Any], cost: int) -> dict[str, Any]:
    """Barriers that one run came beyond, moved just so far."""
    outbound = {*OUTBOUND, *(name for name, entry in tools.items() if entry.get("outbound"))}
    budget, per_call = PRIVACY
    sent = _most(runs, lambda run: sum(number for tool, number in run.tools.items() if tool in outbound))
    found: dict[str, Any] = {}
    together = set[frozenset[str]]().union(*(run.together for run in runs))
    if any(frozenset(pair) in together for pair in DEFAULT_PAIRS):
        found["safety"] = {"pairs": [list(pair) for pair in DEFAULT_PAIRS if frozenset(pair) not in together]}
    if sent * per_call > budget:
        found["privacy"] = {"budget": round(sent * per_call, 6), "per_call": per_call}
    calls = _most(runs, lambda run: sum(run.tools.values()))
    if calls > STEPS:
        found["stability"] = {"step_budget": _round(calls * ROOM)}
    if cost > 10 * MICRO:
        found["resource"] = {"limit_usd": _round(cost * ROOM / MICRO)}
    return found


def _most(runs: list[RunSeen], number: Callable[[RunSeen], int]) -> int:
    return max(map(number, runs), default=0)


def _round(number: float) -> int:
    """Up, to two digits: nobody means 37."""
    whole, unit = -int(-number // 1), 1
    while whole > 100 * unit:
        unit *= 10
    return -(-whole // unit) * unit
