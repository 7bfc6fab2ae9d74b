"""Ways to an allow that leave the policy alone: to wait, other arguments, another call first, an approval, a new run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from gated import canonical
from gated.core import calls, outcomes
from gated.core.call import Call
from gated.core.explain.case import Case, Change, Draft, get_at
from gated.core.explain.places import agent_path
from gated.core.explain.policy_edits import state_of
from gated.core.explain.samples import EXAMPLE, samples
from gated.core.explain.stages import findings_of
from gated.core.fold import apply
from gated.core.order.machines import Machine, Transition
from gated.core.pipeline import source_of
from gated.core.turn import Turn
from gated.events import CallId, Finding, RunId, RunOpened, Wanted
from gated.units import format_duration

Drafts = Iterator[Draft | None]

LONGEST: Final = 3  # calls that are tried before the explained one


def other_ways(case: Case, draft: Draft, finding: Finding) -> Drafts:
    """Candidates against one finding."""
    if finding.code in ("order.in_flight", "dfa.loop_budget", "lifecycle.in_flight_limit", "order.violation"):
        yield _waited(case, draft)
    if finding.code == "breaker.open":
        yield _cooled(case, draft)
    if finding.outcome == "ask":
        yield _approved(case, draft)
    if finding.code in ("lifecycle.run_completed", "lifecycle.run_failed"):
        yield _new_run(case, draft)
    if finding.code in ("order.violation", "order.undeclared"):
        yield from _earlier(case, draft, finding)
    if finding.code == "order.missing_key":
        yield from _keyed(case, draft, finding)
    if finding.code == "ingress.schema":
        yield from _fitting(draft, finding)
    if finding.code == "privilege.data_scope":
        yield from _inside(case, draft, finding)
    if finding.code in ("contracts.require", "contracts.error"):
        yield from _constants(draft, finding)
        yield from _called(case, draft, finding)


# --- time and people -------------------------------------------------------------------------------------------------


def _waited(case: Case, draft: Draft) -> Draft | None:
    """Every call in flight of the thread has ended well."""
    state, waited = draft.state, []
    for run_id, run in sorted(draft.state.runs.items()):
        for call in sorted(run.in_flight):
            turn = Turn(case.registry(draft), state, run_id, case.at)
            outcomes.settle(turn, call, "success", "", {}, run.in_flight[call].reserved_microusd, 0)
            state = turn.state
            waited.append(f"`{call}`")
    if not waited:
        return None
    shown = ", ".join(waited[:5]) + (f" and {len(waited) - 5} more" if len(waited) > 5 else "")
    change = Change("wait", f"wait until {shown} {'has' if len(waited) == 1 else 'have'} ended well", 1)
    return draft.changed(change, lambda other: _waited(case, other), state=state, plea=replace(draft.plea, others=0))


def _cooled(case: Case, draft: Draft) -> Draft | None:
    """The circuit of the tool has had its rest."""
    rule = draft.policy.profile(case.agent).breaker.rule(draft.plea.tool)
    if rule is None or draft.later:
        return None
    change = Change("wait", f"wait until the breaker's {format_duration(rule.cooldown)} have passed", 1)
    return draft.changed(change, lambda other: _cooled(case, other), later=rule.cooldown)


def _approved(case: Case, draft: Draft) -> Draft | None:
    """People answer every ask that is left."""
    asks = [finding for finding in findings_of(case, draft) if finding.outcome == "ask"]
    if not asks:
        return None
    change = Change("approval", "an approval: " + "; ".join(dict.fromkeys(finding.reason for finding in asks)), 1)
    return draft.changed(change, lambda other: _approved(case, other), lifted=draft.lifted.union(map(source_of, asks)))


def _new_run(case: Case, draft: Draft) -> Draft | None:
    """The same call in a run that has not ended. It keeps the run's id here: only the state counts."""
    policies = case.registry(draft).known
    ended = draft.state.runs[case.run_id]
    bare = replace(draft.state, runs=draft.state.runs.delete(case.run_id))
    opened = RunOpened(agent=ended.agent, policy=ended.policy, task=ended.task, labels=ended.labels, tools=ended.tools)
    state = apply(policies, bare, RunId(case.run_id), bare.seq + 1, case.at, opened)
    change = Change("call", "ask in a new run: this one has ended", 2)
    return draft.changed(change, lambda other: _new_run(case, other), state=state)


# --- arguments -------------------------------------------------------------------------------------------------------


def _with_args(draft: Draft, given: Mapping[str, Any], dropped: Sequence[str], text: str) -> Draft | None:
    """The draft with arguments given and dropped; each is changed once."""
    names = (*given, *dropped)
    if any(change.kind == "arguments" and set(change.path) & set(names) for change in draft.changes):
        return None
    args = {key: value for key, value in {**draft.plea.args, **given}.items() if key not in dropped}
    plea = replace(draft.plea, args=args, args_sha256=canonical.args_digest(draft.plea.tool, args))
    return draft.changed(
        Change("arguments", text, 1.5, names, args), lambda other: _with_args(other, given, dropped, text), plea=plea
    )


def _set(draft: Draft, key: str, value: Any) -> Draft | None:
    return _with_args(draft, {key: value}, (), f"set the argument `{key}` to {canonical.encode(value).decode()}")


def _keyed(case: Case, draft: Draft, finding: Finding) -> Drafts:
    machine = draft.policy.profile(case.agent).machines.by_name.get(finding.machine or "")
    for field in () if machine is None else machine.key.fields:
        if re.fullmatch(r"[\w-]+", field) and field not in draft.plea.args:
            yield _with_args(draft, {field: EXAMPLE}, (), f"give the argument `{field}`")


def _fitting(draft: Draft, finding: Finding) -> Drafts:
    """Arguments that the schema takes: without what it does not know, with what it misses."""
    schema = get_at(draft.data, ("tools", draft.plea.tool, "schema"))
    if not isinstance(schema, dict):
        return
    properties, args = schema.get("properties") or {}, draft.plea.args
    known = {key: value for key, value in args.items() if key in properties}
    if properties and len(known) < len(args):
        dropped = sorted(args.keys() - known.keys())
        shown = ", ".join(f"`{key}`" for key in dropped)
        yield _with_args(draft, {}, dropped, f"leave out the argument {shown}")
    for key, value in _proposed(schema, args):
        yield _set(draft, key, value)


def _proposed(schema: dict[str, Any], args: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, rule in (schema.get("properties") or {}).items():
        if isinstance(rule, dict) and (key in args or key in (schema.get("required") or ())):
            for value in samples(rule, args.get(key)):
                if key not in args or args[key] != value or type(args[key]) is not type(value):
                    yield key, value


def _inside(case: Case, draft: Draft, finding: Finding) -> Drafts:
    """A path of the same name inside what is allowed."""
    scope = get_at(draft.data, agent_path(draft, case.agent, "data_scope"))
    folders = scope.get("allowed_paths") or () if isinstance(scope, dict) else ()
    for key, value in sorted(draft.plea.args.items()):
        if not isinstance(value, str) or not re.search(r"[/\\]", value):
            continue
        name = re.split(r"[/\\]", value.rstrip("/\\"))[-1] or EXAMPLE
        for folder in folders:
            inside = f"{folder.rstrip('/')}/{name}"
            text = f"give `{key}` inside `{folder}`, such as `{inside}`"
            yield _with_args(draft, {key: inside}, (), text)


_NUMBER: Final = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
_TEXT: Final = re.compile(r"""["']([^"'\\]*)["']""")


def _expression(draft: Draft, finding: Finding) -> str:
    entries = draft.data.get("contracts") or []
    return next((entry.get("require") or "" for entry in entries if entry.get("name") == finding.contract), "")


def _constants(draft: Draft, finding: Finding) -> Drafts:
    """An argument set to what the contract compares it with, next to it, or to what it does not name."""
    text, args = _expression(draft, finding), draft.plea.args
    numbers = [float(n) if "." in n else int(n) for n in _NUMBER.findall(text)]
    texts = _TEXT.findall(text)
    for key in sorted(set(re.findall(r"args\.(\w+)", text))):
        near: list[Any] = [near for n in numbers for near in (n, n - 1, n + 1)]
        for value in dict.fromkeys([*near, *texts]):
            if args.get(key) != value or isinstance(args.get(key), bool):
                yield _set(draft, key, value)
        if texts and args.get(key) != EXAMPLE:
            yield _with_args(draft, {key: EXAMPLE}, (), f'set the argument `{key}` to another text, such as "{EXAMPLE}"')


# --- another call first ----------------------------------------------------------------------------------------------


def _called(case: Case, draft: Draft, finding: Finding) -> Drafts:
    """A tool that the contract names, run before."""
    for tool in dict.fromkeys(
        [*_TEXT.findall(_expression(draft, finding)), *re.findall(r"counts\.(\w+)", _expression(draft, finding))]
    ):
        for args in ({}, draft.plea.args):
            yield _after(case, draft, tool, args, "", {})


def _earlier(case: Case, draft: Draft, finding: Finding) -> Drafts:
    """The shortest ways of the machine from where it is to a state that allows the call."""
    machine = draft.policy.profile(case.agent).machines.by_name.get(finding.machine or "")
    if machine is None:
        return
    here = state_of(case, draft, machine.name, finding.key or "") or machine.initial
    allowing = [t for t in machine.transitions if t.on.matches(draft.plea.tool, draft.plea.args)]
    ways: list[tuple[str, tuple[Transition, ...]]] = [(here, ())]
    seen = {here}
    while ways:
        state, way = ways.pop(0)
        if way and any(t.lists(state) for t in allowing):
            yield _along(case, draft, machine, way)
        if len(way) < LONGEST:
            for transition in machine.transitions:
                if (
                    transition.lists(state)
                    and transition.to not in seen
                    and transition.on.exact_tool
                    and transition.status != "error"
                ):
                    seen.add(transition.to)
                    ways.append((transition.to, (*way, transition)))


def _along(case: Case, draft: Draft, machine: Machine, way: tuple[Transition, ...]) -> Draft | None:
    """The call after each of these has been done."""
    roots = {re.split(r"[.\[]", field)[0] for field in machine.key.fields}
    keyed = {name: value for name, value in draft.plea.args.items() if name in roots}
    made: Draft | None = draft
    for transition in way:
        if made is None:
            return None
        tool = transition.on.exact_tool or ""
        wanted: dict[str, Any] = next(samples({"type": "object", **(get_at(draft.data, ("tools", tool, "schema")) or {})}), {})
        given = (keyed, draft.plea.args, {**keyed, **_fields(transition.on.text)}, {**wanted, **keyed})
        content = "" if transition.content is None else transition.content.text.replace("*", "")
        facts = {} if transition.facts is None else _fields(transition.facts.text)
        tries = (_after(case, made, tool, args, content, facts) for args in given if transition.on.matches(tool, args))
        made = next((found for found in tries if found is not None), None)
    return made


def _fields(text: str) -> dict[str, Any]:
    """The values that plain conditions ask for."""
    return dict(re.findall(r'(\w+)\s*(?:=|~)\s*"([^"]*)"', text))


def _after(case: Case, draft: Draft, tool: str, args: dict[str, Any], content: str, facts: dict[str, Any]) -> Draft | None:
    """The draft after another call has run well; None where that call itself is not allowed."""
    number = len(draft.changes)
    wanted = Wanted(CallId(f"before-{number}"), tool, args)
    plea: Call = calls.call_of(wanted, "explicit", 0)
    turn = Turn(case.registry(draft), draft.state, case.run_id, case.at)
    calls.each(turn, plea)
    if plea.id not in turn.run.in_flight:
        return None
    outcomes.settle(turn, plea.id, "success", content, facts, turn.run.in_flight[plea.id].reserved_microusd, 0)
    shown = canonical.encode(args).decode()
    told = "".join([f" that answers `{content}`" if content else "", f" and says `{facts}`" if facts else ""])
    change = Change("call", f"call `{tool}` with {shown} first{told}", 1.8, (tool,), {"tool": tool, "args": args})
    return draft.changed(change, lambda other: _after(case, other, tool, args, content, facts), state=turn.state)
