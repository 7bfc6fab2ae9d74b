"""Barriers, by scanning the history of admitted calls. decisions.md §9."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from oracle import tally
from oracle.expressions import evaluate, names_after, names_now
from oracle.findings import Finding, Question
from oracle.history import Call, Family, Run, Thread
from oracle.values import exact, microusd

STAGE = "dcbf"
PAIRS = [["sql_query", "http_request"], ["file_read", "send_email"], ["database_query", "webhook_post"]]
OUTBOUND = ["send_email", "http_request"]


@dataclass(frozen=True)
class Sight:
    """What a barrier sees: the admitted tools, the cost and the steps; in-flight calls count."""

    tools: list[str]
    cost: int
    steps: int
    names: dict[str, Any]


Barrier = Callable[[dict[str, Any], Run, Sight], Fraction]


def safety(rules: dict[str, Any], run: Run, sight: Sight) -> Fraction:
    """1 while no dangerous pair is inside the window, else 0; the margin is subtracted below."""
    window = sight.tools[-int(rules.get("window", 5)) :]
    return Fraction(0 if any(set(pair) <= set(window) for pair in rules.get("pairs", PAIRS)) else 1)


def privacy(rules: dict[str, Any], run: Run, sight: Sight) -> Fraction:
    marked = [name for name, tool in run.policy.doc.get("tools", {}).items() if (tool or {}).get("outbound")]
    outbound = rules.get("tools", OUTBOUND + marked)
    count = sum(tool in outbound for tool in sight.tools)
    return exact(rules.get("budget", "0.5")) - exact(rules.get("per_call", "0.2")) * count


def resource(rules: dict[str, Any], run: Run, sight: Sight) -> Fraction:
    return Fraction(microusd(rules.get("limit_usd", "10.0")) - sight.cost, 1_000_000)


def scope(rules: dict[str, Any], run: Run, sight: Sight) -> Fraction:
    """Inert: nothing here has embeddings."""
    return exact(rules.get("max_drift", "0.8"))


def stability(rules: dict[str, Any], run: Run, sight: Sight) -> Fraction:
    return Fraction(rules.get("step_budget", 50) - sight.steps)


def counter(rules: dict[str, Any], run: Run, sight: Sight) -> Fraction:
    count = sum(tool in rules["counter"]["tools"] for tool in sight.tools)
    return exact(rules["counter"]["budget"]) - exact(rules["counter"]["per_call"]) * count


def expression(rules: dict[str, Any], run: Run, sight: Sight) -> Fraction:
    value = evaluate(rules["expr"], sight.names)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"`{rules['expr']}` is not a finite number")
    return Fraction(math.floor(exact(value) * 10**9), 10**9)


BUILT_IN: dict[str, Barrier] = {
    "safety": safety,
    "privacy": privacy,
    "resource": resource,
    "scope": scope,
    "stability": stability,
}


def barriers_of(run: Run) -> dict[str, tuple[Barrier, dict[str, Any]]]:
    """Built-in ones, without those removed, with those that replace or add."""
    rules = run.profile.get("dcbf") or {}
    found = {name: (barrier, dict(rules.get(name) or {})) for name, barrier in BUILT_IN.items()}
    found["safety"][1].setdefault("margin", "0.1")
    for name in rules.get("remove", []):
        found.pop(name, None)
    for name, own in (rules.get("barriers") or {}).items():
        found[name] = (counter if "counter" in own else expression, dict(own))
    return found


def values(thread: Thread, run: Run, question: Question | None = None) -> dict[str, Fraction]:
    """h of every barrier of a run now, or, given a question, with its call appended."""
    return {
        name: _value(barrier, rules, run, _sight(thread, run, rules, question))
        for name, (barrier, rules) in barriers_of(run).items()
    }


def _value(barrier: Barrier, rules: dict[str, Any], run: Run, sight: Sight) -> Fraction:
    """A barrier that raises, or is not a finite number, is -1. The monitor subtracts the margin."""
    try:
        return barrier(rules, run, sight) - exact(rules.get("margin", 0))
    except Exception:
        return Fraction(-1)


def _sight(thread: Thread, run: Run, rules: dict[str, Any], question: Question | None) -> Sight:
    of_thread = rules.get("scope", (rules.get("counter") or {}).get("scope", "run")) == "thread"
    runs = thread.all_runs() if of_thread else Family(run.id)
    tools, cost = tally.history(thread, runs), tally.cost(thread, runs)
    steps = tally.steps_and_in_flight(thread, runs)
    if question is None:
        return Sight(tools, cost, steps, _names(thread, run, question, rules))
    call = question.call
    cost += tally.reservation(question.run, call.tool, call.cost_usd)
    return Sight([*tools, call.tool], cost, steps + 1, _names(thread, run, question, rules))


def _names(thread: Thread, run: Run, question: Question | None, rules: dict[str, Any]) -> dict[str, Any]:
    """Only for expressions. The tool and arguments are no part of what a barrier may name."""
    if "expr" not in rules:
        return {}
    runs = thread.all_runs() if rules.get("scope") == "thread" else Family(run.id)
    at = question.at if question else thread.last_at()
    call = question.call if question else Call("", "", {}, {}, None, -1, "explicit", None)
    asked = Question(thread, run, call, at)
    names = names_now(asked, runs) if question is None else names_after(asked, runs, question.run)
    return {name: names[name] for name in ("run", "agent", "recent", "at")}


def check(question: Question) -> list[Finding]:
    """(1) every h is >= 0 now; (2) h(next) >= h(now) - alpha(h(now)) for every barrier."""
    thread, run = question.thread, question.run
    breached = _breached(thread, run, question)
    authoritative = not run.policy.observed(run.agent, STAGE)
    findings = [_finding(breached, authoritative=authoritative)] if breached else []
    for ancestor in thread.ancestors(run):
        breached = _breached(thread, ancestor, question)
        if breached and ancestor.policy.enabled(ancestor.agent, STAGE):
            observed = ancestor.policy.observed(ancestor.agent, STAGE)
            findings.append(_finding(breached, authoritative=authoritative and not observed))
    return findings


def _finding(breached: list[str], *, authoritative: bool) -> Finding:
    reason = f"leaves the safe set: {', '.join(breached)}"
    return Finding(STAGE, "deny", "dcbf.barrier", reason, authoritative=authoritative, barriers=tuple(breached))


def _breached(thread: Thread, run: Run, question: Question) -> list[str]:
    """ambiguous: which are listed when one is below 0 now. Every one that breaks (1) or (2)."""
    rules = run.profile.get("dcbf") or {}
    kappa, power = exact(rules.get("kappa", 1)), int(rules.get("power", 1))
    now, after = values(thread, run), values(thread, run, question)
    found = []
    for name, h in now.items():
        invariant = not rules.get("verification", True) or after[name] >= h - kappa * h**power
        if h < 0 or not invariant:
            found.append(name)
    return found
