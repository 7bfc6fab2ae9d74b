"""A first policy and its scenarios, out of a few answers: text with comments that loads, with nothing for the linter to find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from gated.core.order.patterns import compile_pattern
from gated.documents import write_flow

HEAD: Final = "# yaml-language-server: $schema=policy.schema.json\n"


class Answers(Struct, frozen=True):
    """`resources` says of each tool which arguments name a path, url, host or table."""

    agent: str
    tools: tuple[str, ...]
    owner: str | None = None
    asked: tuple[str, ...] = ()
    approvers: tuple[str, ...] = ()
    resources: Mapping[str, Mapping[str, str]] = {}
    folder: str | None = None
    hosts: tuple[str, ...] = ()
    databases: tuple[str, ...] = ()
    max_calls: int = 100
    max_cost_usd: float | None = None


def first_policy(answers: Answers) -> str:
    return HEAD + "".join(_policy(answers))


def _policy(answers: Answers) -> Iterator[str]:
    yield f"# What `{answers.agent}` may do: whatever is not allowed here is denied.\n"
    yield "version: 1\nagents:\n"
    yield f"  {write_flow(answers.agent)}:\n"
    if answers.owner:
        yield f"    owner: {write_flow(answers.owner)}                # runs the agent, so cannot approve its calls\n"
    yield f"    allowed_tools: {write_flow(answers.tools)}\n"
    if answers.asked:
        yield f"    approval_required: {write_flow(answers.asked)}    # a person sees these before they happen\n"
    scope = _scope(answers)
    if scope:
        yield "    data_scope:                                 # what arguments may name; everything else is denied\n"
        yield from (f"      {key}: {write_flow(value)}\n" for key, value in scope.items())
    yield "    # max_calls holds whatever the agent says of its outcomes\n"
    yield f"    resource_budget: {write_flow(_budget(answers))}\n"
    yield "tools:\n"
    for tool in answers.tools:
        if compile_pattern(tool).exact_tool == tool:
            kinds = dict(answers.resources.get(tool) or {"*": "none"})
            yield f"  {write_flow(tool)}: {{resources: {{args: {write_flow(kinds)}}}}}\n"
    if answers.asked:
        people = [f"user:{person}" for person in answers.approvers]
        yield f"approvals:\n  default: {{approvers: {write_flow(people)}, timeout: 1h}}\n"


def _scope(answers: Answers) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    if answers.folder:
        scope |= {"allowed_paths": [answers.folder], "base_path": answers.folder}
    if answers.hosts:
        scope["allowed_api_endpoints"] = list(answers.hosts)
    if answers.databases:
        scope["allowed_databases"] = list(answers.databases)
    return scope


def _budget(answers: Answers) -> dict[str, Any]:
    budget: dict[str, Any] = {"max_calls": answers.max_calls}
    return budget if answers.max_cost_usd is None else {**budget, "max_total_cost_usd": answers.max_cost_usd}


def first_scenarios(answers: Answers) -> str:
    """What passes, what is asked, what is denied, of the policy beside it."""
    exact = [tool for tool in answers.tools if compile_pattern(tool).exact_tool == tool]
    scenarios = [
        _scenario(f"{t} {'waits for a person' if t in answers.asked else 'passes'}", [_first(t, answers)]) for t in exact
    ]
    scenarios.append(_scenario("everything else is denied", [_intent("no_such_tool", "deny"), *_outside(answers, exact)]))
    text = "policy: policy.yaml\nscenarios:\n"
    for scenario in scenarios:
        text += f"  - name: {write_flow(scenario['name'])}\n    steps:\n"
        text += "".join(f"      - {write_flow(step)}\n" for step in scenario["steps"])
    return text


def _first(tool: str, answers: Answers) -> dict[str, Any]:
    return _intent(tool, "suspend" if tool in answers.asked else "allow")


def _scenario(name: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "steps": steps}


def _intent(tool: str, decision: str, args: Mapping[str, Any] | None = None) -> dict[str, Any]:
    wanted = {"tool": tool, "nesting": "explicit", "args": dict(args or {})}
    return {"intent": wanted, "expect": {"decision": decision}}


OUTSIDE: Final = {"path": "/etc/passwd", "url": "https://evil.test/", "host": "evil.test", "table": "secrets.keys"}


def _outside(answers: Answers, exact: Sequence[str]) -> list[dict[str, Any]]:
    """For each declared argument, a call that names something outside."""
    return [
        _intent(tool, "deny", {name: OUTSIDE[kind]})
        for tool in exact
        for name, kind in answers.resources.get(tool, {}).items()
        if kind in OUTSIDE and not set(name) & set("*[.")
    ]
