"""The circuit breaker, by scanning what became of a tool's calls in the thread. decisions.md §11.

ambiguous, each read so: a circuit is a tool's in a thread; a tool's own rule goes before its agent's, that before the
policy's; an outcome counts by the rule that its run was bound to when it came; a lapse is an error; `not_run` says nothing
of the tool; while a circuit is open only its trial can change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oracle.findings import Finding, Question
from oracle.history import Run, Thread
from oracle.values import micros

STAGE = "breaker"


@dataclass
class Circuit:
    errors: tuple[int, ...] = ()
    open_until: int | None = None
    trial: tuple[str, str | None] | None = None


def rule(run: Run, tool: str) -> dict[str, Any] | None:
    own, agents, everybodys = run.policy.tool(tool), run.profile, run.policy.doc
    said = next((place["breaker"] for place in (own, agents, everybodys) if place.get("breaker") is not None), None)
    return None if said is None or said == "off" else {"failures": 5, "window": "60s", "cooldown": "30s", **said}


def configured(run: Run) -> bool:
    """Whether the stage is on for the run's agent: some tool of it has a rule."""
    named = run.policy.doc.get("tools", {})
    return rule(run, "") is not None or any(rule(run, tool) is not None for tool in named)


def circuit(thread: Thread, tool: str) -> Circuit:
    now = Circuit()
    tools = {(e.run, e.call): e.data["tool"] for e in thread.log if e.kind == "admitted"}
    for entry in thread.log:
        call = (entry.run, entry.call)
        if tools.get(call) != tool:
            continue
        if entry.kind == "admitted" and entry.data["trial"]:
            now.trial = call
        elif entry.kind == "settled":
            now = _after(now, entry.data["breaker"], call, entry.data["status"], entry.at)
    return now


def _after(now: Circuit, said: dict[str, Any] | None, call: tuple[str, str | None], status: str, at: int) -> Circuit:
    if now.trial == call:
        if status == "success" or said is None:
            return Circuit()
        return Circuit(now.errors, now.open_until if status == "not_run" else at + micros(said["cooldown"]))
    if said is None or status != "error" or now.open_until is not None:
        return now
    recent = [time for time in now.errors if at - time < micros(said["window"])] + [at]
    full = len(recent) >= said["failures"]
    return Circuit(tuple(recent), at + micros(said["cooldown"]) if full else None)


def check(question: Question) -> list[Finding]:
    run, call = question.run, question.call
    now = circuit(question.thread, call.tool)
    if rule(run, call.tool) is None or now.open_until is None:
        return []
    if question.at >= now.open_until and now.trial is None:
        return []
    authoritative = not run.policy.observed(run.agent, STAGE)
    return [Finding(STAGE, "deny", "breaker.open", f"`{call.tool}` kept failing", authoritative=authoritative)]


def tries(question: Question) -> bool:
    """Whether the call, if it is admitted now, is the trial."""
    now = circuit(question.thread, question.call.tool)
    if rule(question.run, question.call.tool) is None or now.open_until is None:
        return False
    return question.at >= now.open_until and now.trial is None
