"""Edits of a policy that may answer one finding. Each is only a candidate: `search` keeps what the core then allows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gated.core.barriers.entries import DEFAULT_NAMES, DEFAULT_PAIRS
from gated.core.explain.case import Case, Draft, get_at
from gated.core.explain.places import MICRO, agent_path, append_at, change_at, is_clear, least, machine_path, said, without
from gated.core.order.patterns import compile_pattern
from gated.events import AgentId, Breach, Finding

Drafts = Iterator[Draft | None]


def policy_edits(case: Case, draft: Draft, finding: Finding) -> Drafts:
    """Candidates against one finding; a limit of an ancestor's is changed where the ancestor's agent has it."""
    agent = case.agent if finding.run is None else draft.state.runs[finding.run].agent
    make = _semantic if finding.stage == "semantic" else _BY_CODE.get(finding.code)
    if make is not None:
        yield from make(case, draft, agent, finding)


# --- before the pipeline ---------------------------------------------------------------------------------------------


def _in_flight(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    yield least(case, draft, ("limits", "max_in_flight"), draft.policy.limits.max_in_flight, finding.code)


def _limit(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    limits = draft.policy.limits
    for name in ("max_calls", "max_instances"):
        yield least(case, draft, ("limits", name), getattr(limits, name), finding.code)


def _owner(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    yield append_at(draft, ("threads", "shared_by"), [str(draft.state.owner), str(agent)], 4)


def _opened_by(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    path = agent_path(draft, agent, "runs")
    yield change_at(draft, (*path, "opened_by"), "agent", f"`{said((*path, 'opened_by'))}: agent`", 4)


def _hops(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    limit = draft.policy.profile(agent).ceilings.max_hops
    if limit is not None:
        yield least(case, draft, (*agent_path(draft, agent, "ceilings"), "max_hops"), limit, finding.code)


def _schema(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    tool = draft.plea.tool
    if tool not in draft.policy.known_tools:
        entry = {"resources": {"args": {"*": "none"}}} if draft.data.get("strict_resources") else {}
        yield change_at(draft, ("tools", tool), entry, f"declare `tools.{tool}`", 2)
    elif get_at(draft.data, ("tools", tool, "schema")) is not None:
        kept = {key: value for key, value in draft.data["tools"][tool].items() if key != "schema"}
        yield change_at(draft, ("tools", tool), kept, f"take the schema out of `tools.{tool}`", 5)


def _breaker(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    path = (*agent_path(draft, agent, "modes"), "breaker")
    yield change_at(draft, path, "observe", f"`{said(path)}: observe`", 6)


# --- privilege -------------------------------------------------------------------------------------------------------


def _no_profile(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    profile = {"allowed_tools": [draft.plea.tool]}
    yield change_at(draft, ("agents", str(agent)), profile, f"add the agent `{agent}` with `{draft.plea.tool}` allowed", 4)


def _not_allowed(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    yield append_at(draft, agent_path(draft, agent, "allowed_tools"), draft.plea.tool)


def _listed(key: str) -> Callable[[Case, Draft, AgentId, Finding], Drafts]:
    def make(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
        path = agent_path(draft, agent, key)
        entries = get_at(draft.data, path) or []
        matching = [text for text in entries if compile_pattern(text).matches_wide(draft.plea.tool, draft.plea.args)]
        if matching:
            yield without(draft, path, matching)

    return make


_ARGUMENT: Final = re.compile(r"\(argument `([^`]*)`\)")
_FORBIDS: Final = re.compile(r"holds the forbidden `(.*)`\Z")
_TABLE: Final = re.compile(r"([\w$-]+)\.([\w$-]+)")


def _data_scope(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    path, resource = agent_path(draft, agent, "data_scope"), finding.resource or ""
    scope = get_at(draft.data, path)
    forbids = _FORBIDS.search(finding.reason)
    if forbids:
        listed = (scope or {}).get("forbidden_patterns", ["169.254.169.254"])
        kept = [text for text in listed if text != forbids[1]]
        where = (*path, "forbidden_patterns")
        yield change_at(draft, where, kept, f"take `{forbids[1]}` out of `{said(where)}`", 4)
    elif scope != "any":
        yield from _widened(draft, path, resource)
    argument = _ARGUMENT.search(finding.reason)
    if argument and "key of" not in argument[1]:
        yield _not_a_resource(draft, argument[1])
    yield change_at(draft, path, "any", f"`{said(path)}: any`", 8)


def _widened(draft: Draft, path: tuple[str | int, ...], resource: str) -> Drafts:
    url = re.match(r"([a-z][a-z0-9+.-]*://[^/?#]+)", resource)
    if url:
        yield append_at(draft, (*path, "allowed_api_endpoints"), url[1])
        return
    if resource.startswith("/"):
        folder = resource.rsplit("/", 1)[0] or "/"
        yield append_at(draft, (*path, "allowed_paths"), resource)
        yield append_at(draft, (*path, "allowed_paths"), folder, 2.2)
        return
    table = _TABLE.fullmatch(resource)
    if table:
        known = get_at(draft.data, (*path, "allowed_databases")) or []
        first = draft if table[1] in known else append_at(draft, (*path, "allowed_databases"), table[1])
        yield first
        if first is not None and get_at(first.data, (*path, "allowed_tables", table[1])):
            yield append_at(first, (*path, "allowed_tables", table[1]), table[2])
    yield append_at(draft, (*path, "allowed_api_endpoints"), resource, 2.5)


def _not_a_resource(draft: Draft, argument: str) -> Draft | None:
    path = ("tools", draft.plea.tool, "resources", "args", argument)
    return change_at(draft, path, "none", f"declare that `{argument}` names no resource: `{said(path)}: none`", 3)


def _budget(key: str, unit: int = 1) -> Callable[[Case, Draft, AgentId, Finding], Drafts]:
    def make(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
        path = (*agent_path(draft, agent, "resource_budget"), key)
        present = get_at(draft.data, path)
        start = float(present) if present is not None else _SILENT.get(key, 0)
        yield least(case, draft, path, start, finding.code, unit)

    return make


_SILENT: Final = {"max_steps": 50.0, "max_loops_per_phase": 3.0}


# --- dfa -------------------------------------------------------------------------------------------------------------


def _unreachable(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    path, phase = agent_path(draft, agent, "dfa"), str(draft.state.runs[case.run_id].phase)
    removed = get_at(draft.data, (*path, "remove")) or []
    for edge in removed:
        yield without(draft, (*path, "remove"), [edge])
    yield append_at(draft, (*path, "add"), [phase, "ACTING"], 4)


# --- order -----------------------------------------------------------------------------------------------------------


def _order(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    name = finding.machine or ""
    path, machine = machine_path(draft, agent, name), draft.policy.profile(agent).machines.by_name.get(name)
    if path is None or machine is None:
        return
    if finding.code == "order.undeclared":
        yield change_at(draft, (*path, "strict"), False, f"machine `{name}`: `strict: false`", 4)
    if finding.code == "order.missing_key":
        yield change_at(draft, (*path, "on_missing_key"), "ignore", f"machine `{name}`: `on_missing_key: ignore`", 4)
    state = state_of(case, draft, name, finding.key or "") or machine.initial
    for index, transition in enumerate(machine.transitions):
        if not transition.on.matches_wide(draft.plea.tool, draft.plea.args):
            continue
        where, on = (*path, "transitions", index), transition.on.text
        if transition.on.matches(draft.plea.tool, draft.plea.args) and not transition.lists(state):
            listed = get_at(draft.data, (*where, "from"))
            sources = [*([listed] if isinstance(listed, str) else listed), state]
            yield change_at(draft, (*where, "from"), sources, f"machine `{name}`: let `{on}` also come from `{state}`", 3)
        yield change_at(draft, (*where, "on_violation"), "warn", f"machine `{name}`: let `{on}` only warn", 4)
    yield change_at(draft, (*path, "mode"), "observe", f"machine `{name}`: `mode: observe`", 6)


def state_of(case: Case, draft: Draft, machine: str, key: str) -> str | None:
    """The state of one instance; None where nothing has touched it."""
    return draft.state.order.view(case.run_id).get(machine, {}).get(key)


# --- contracts -------------------------------------------------------------------------------------------------------

_LITERAL: Final = re.compile(r"(?<![\w.\"'])(\d+(?:\.\d+)?)(?![\w.\"'])")


def _contract(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    entries = draft.data.get("contracts") or []
    position = next((i for i, entry in enumerate(entries) if entry.get("name") == finding.contract), None)
    if position is None:
        return
    yield from _constants(draft, position, entries[position], finding)
    if finding.code == "contracts.require":
        path = ("contracts", position, "otherwise")
        yield change_at(draft, path, "warn", f"contract `{finding.contract}`: `otherwise: warn`", 4)
    yield change_at(draft, ("contracts", position, "mode"), "observe", f"contract `{finding.contract}`: `mode: observe`", 6)


def _constants(draft: Draft, position: int, entry: Mapping[str, Any], finding: Finding) -> Drafts:
    """Another number in the expression: one of the call's own, or the next few."""
    text = entry.get("require") or ""
    own = [n for n in draft.plea.args.values() if isinstance(n, int | float) and not isinstance(n, bool)]
    for literal in _LITERAL.finditer(text):
        number = float(literal[1]) if "." in literal[1] else int(literal[1])
        for candidate in dict.fromkeys((*own, number + 1, number - 1)):
            if candidate == number or candidate < 0:
                continue
            shown = str(float(candidate)) if isinstance(number, float) else str(candidate)
            changed = text[: literal.start()] + shown + text[literal.end() :]
            words = f"contract `{finding.contract}`: `{changed}` instead of `{text}`"
            yield change_at(draft, ("contracts", position, "require"), changed, words, 2.5)


# --- semantic --------------------------------------------------------------------------------------------------------


def _semantic(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    name = finding.detector or ""
    if get_at(draft.data, ("semantic", name)) is not None and finding.code != "semantic.unavailable":
        limits = ("semantic", name, "thresholds")
        yield change_at(draft, limits, {"ask": "never", "deny": "never"}, f"`{said(limits)}`: never", 5)
    path = (*agent_path(draft, agent, "modes"), "semantic")
    yield change_at(draft, path, "observe", f"`{said(path)}: observe`", 6)


# --- dcbf ------------------------------------------------------------------------------------------------------------

_NUMBERS: Final[Mapping[str, tuple[tuple[str, ...], float, int]]] = {
    "privacy": (("privacy", "budget"), 0.5, MICRO),
    "resource": (("resource", "limit_usd"), 10.0, MICRO),
    "stability": (("stability", "step_budget"), 50, 1),
    "scope": (("scope", "max_drift"), 0.8, MICRO),
}


def _barrier(case: Case, draft: Draft, agent: AgentId, finding: Finding) -> Drafts:
    """One barrier at a time; where several are breached, the search answers one after another."""
    for breach in finding.breaches:
        yield from _one_barrier(case, draft, agent, breach)


def _one_barrier(case: Case, draft: Draft, agent: AgentId, breach: Breach) -> Drafts:
    path, name = agent_path(draft, agent, "dcbf"), breach.barrier
    own = get_at(draft.data, (*path, "barriers", name))
    if own is not None:
        if "counter" in own:
            yield _raised_barrier(
                case, draft, (*path, "barriers", name, "counter", "budget"), own["counter"]["budget"], MICRO, breach
            )
        kept = {key: value for key, value in get_at(draft.data, path)["barriers"].items() if key != name}
        yield change_at(draft, (*path, "barriers"), kept, f"take the barrier `{name}` out of `{said(path)}`", 6)
        return
    if name in _NUMBERS:
        where, silent, unit = _NUMBERS[name]
        present = get_at(draft.data, (*path, *where))
        yield _raised_barrier(case, draft, (*path, *where), silent if present is None else float(present), unit, breach)
    if name == "safety":
        yield _unpaired(draft, path)
    if name in DEFAULT_NAMES:
        yield append_at(draft, (*path, "remove"), name, 6)
    if name == "neural":
        yield change_at(draft, (*path, "neural"), None, f"take `neural` out of `{said(path)}`", 6)


def _raised_barrier(
    case: Case, draft: Draft, path: tuple[str | int, ...], start: float, unit: int, breach: Breach
) -> Draft | None:
    """By what the barrier is short of its bound; where its condition is not linear, by the least that will do."""
    short = breach.bound - breach.next if breach.now >= 0 else -min(breach.now, breach.next)
    value: Any = round(start + short, 6) if unit > 1 else round(start + short)
    made = change_at(draft, path, value, f"raise `{said(path)}` to {value:g}", 2)
    if made is not None and is_clear(case, made, "dcbf.barrier", breach.barrier):
        return made
    return least(case, draft, path, start, "dcbf.barrier", unit, about=breach.barrier)


def _unpaired(draft: Draft, path: tuple[str | int, ...]) -> Draft | None:
    """Without the dangerous pairs that the call's tool is part of."""
    where = (*path, "safety", "pairs")
    pairs = [list(pair) for pair in get_at(draft.data, where) or DEFAULT_PAIRS]
    mine = [pair for pair in pairs if draft.plea.tool in pair]
    if not mine:
        return None
    shown = ", ".join(f"[{a}, {b}]" for a, b in mine)
    kept = [pair for pair in pairs if pair not in mine]
    return change_at(draft, where, kept, f"take {shown} out of `{said(where)}`", 4)


_BY_CODE: Final[Mapping[str, Callable[[Case, Draft, AgentId, Finding], Drafts]]] = {
    "lifecycle.in_flight_limit": _in_flight,
    "lifecycle.limit": _limit,
    "lifecycle.not_thread_owner": _owner,
    "lifecycle.run_not_open": _opened_by,
    "ceilings.hops": _hops,
    "ingress.schema": _schema,
    "breaker.open": _breaker,
    "privilege.no_profile": _no_profile,
    "privilege.forbidden": _listed("forbidden_tools"),
    "privilege.not_allowed": _not_allowed,
    "privilege.approval_required": _listed("approval_required"),
    "privilege.data_scope": _data_scope,
    "privilege.call_cost": _budget("max_cost_usd", MICRO),
    "privilege.total_cost": _budget("max_total_cost_usd", MICRO),
    "privilege.calls": _budget("max_calls"),
    "privilege.tokens": _budget("max_tokens"),
    "privilege.time": _budget("max_execution_time_seconds", MICRO),
    "dfa.step_budget": _budget("max_steps"),
    "dfa.loop_budget": _budget("max_loops_per_phase"),
    "dfa.unreachable": _unreachable,
    "order.violation": _order,
    "order.undeclared": _order,
    "order.missing_key": _order,
    "contracts.require": _contract,
    "contracts.error": _contract,
    "dcbf.barrier": _barrier,
}
