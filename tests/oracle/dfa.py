"""Phases, steps and loops, by replaying the log. decisions.md §6."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oracle import tally
from oracle.findings import Finding, Question
from oracle.history import Entry, Family, Run, Thread

STAGE = "dfa"
EDGES = [
    ("IDLE", "PLANNING"),
    ("PLANNING", "ACTING"),
    ("PLANNING", "ANSWERING"),
    ("ACTING", "OBSERVING"),
    ("OBSERVING", "PLANNING"),
    ("OBSERVING", "ANSWERING"),
]
TERMINAL = ("ANSWERING", "REJECTED", "EXHAUSTED")
MAX_STEPS, MAX_LOOPS = 50, 3


@dataclass
class Phases:
    phase: str = "IDLE"
    loops: int = 0


def phases(thread: Thread, run: str) -> Phases:
    """Phases after an outcome, finish and abort are set, not checked; no outcome leaves a terminal phase."""
    now, flying = Phases(), set[str | None]()
    for entry in [e for e in thread.log if e.run == run]:
        if entry.kind == "admitted":
            _enter(now, entry, flying)
        elif entry.kind == "settled":
            flying.discard(entry.call)
            if not flying and now.phase not in TERMINAL:
                now.phase = "OBSERVING"
        elif entry.kind in ("finished", "aborted"):
            now.phase = "ANSWERING"
        elif entry.kind in ("failed", "exhausted"):
            now.phase = "EXHAUSTED"
    return now


def _enter(now: Phases, admitted: Entry, flying: set[str | None]) -> None:
    if admitted.data["nested"]:
        now.loops += 1
    elif not flying and "PLANNING" in admitted.data["path"]:
        now.loops = 0  # the run returned to PLANNING from a state with nothing in flight
    now.phase = "ACTING"
    flying.add(admitted.call)


def is_nested(question: Question) -> bool:
    flying = question.thread.in_flight(question.run.id)
    if question.call.parent in [e.call for e in flying]:
        return True
    insisted = (question.run.profile.get("dfa") or {}).get("nesting", "explicit") == "inferred"
    if question.call.nesting == "explicit" and not insisted:
        return False
    return any(e.data["message"] != question.call.message for e in flying)


def path_to_acting(question: Question) -> list[str] | None:
    """The shortest, ties by the order of the table, added edges last. A sibling starts where the first one would end."""
    phase = phases(question.thread, question.run.id).phase
    start = "OBSERVING" if phase == "ACTING" else phase
    rules = question.run.profile.get("dfa") or {}
    removed = [tuple(edge) for edge in rules.get("remove", [])]
    table = [edge for edge in EDGES if edge not in removed]
    table += [edge for edge in map(tuple, rules.get("add", [])) if edge not in table]
    waiting = [[start]]
    while waiting:
        path = waiting.pop(0)
        if path[-1] == "ACTING":
            return path[1:]
        if path[-1] not in TERMINAL:
            waiting += [[*path, b] for a, b in table if a == path[-1] and b not in path]
    return None


def check(question: Question) -> list[Finding]:
    findings = [*_steps(question), *_loops(question), *_path(question)]
    if question.run.policy.observed(question.run.agent, STAGE):
        return [replace(f, authoritative=False) for f in findings]
    return findings


def _deny(code: str, reason: str, holder: str = "") -> Finding:
    return Finding(STAGE, "deny", f"dfa.{code}", reason, source=(STAGE, holder))


def _steps(question: Question) -> list[Finding]:
    """In EXHAUSTED every call gets `dfa.step_budget`."""
    thread, run = question.thread, question.run
    gone = phases(thread, run.id).phase == "EXHAUSTED"
    findings = [_spent(thread, run)] if gone or _is_spent(thread, run) else []
    for ancestor in thread.ancestors(run):
        if ancestor.policy.enabled(ancestor.agent, STAGE) and _is_spent(thread, ancestor):
            observed = ancestor.policy.observed(ancestor.agent, STAGE)
            findings.append(replace(_spent(thread, ancestor), authoritative=not observed))
    return findings


def step_budget(thread: Thread, holder: Run) -> tuple[int, int]:
    """Steps used, in-flight ones included, and their limit."""
    budget = holder.policy.budget(holder.agent)
    runs = thread.all_runs() if budget.get("scope", "run") == "thread" else Family(holder.id)
    return tally.steps_and_in_flight(thread, runs), budget.get("max_steps", MAX_STEPS)


def _is_spent(thread: Thread, holder: Run) -> bool:
    used, limit = step_budget(thread, holder)
    return used >= limit


def _spent(thread: Thread, holder: Run) -> Finding:
    used, limit = step_budget(thread, holder)
    return _deny("step_budget", f"Step budget exhausted: {used}/{limit}", holder.id)


def _loops(question: Question) -> list[Finding]:
    if not is_nested(question):
        return []
    used = phases(question.thread, question.run.id).loops
    limit = question.run.policy.budget(question.run.agent).get("max_loops_per_phase", MAX_LOOPS)
    return [_deny("loop_budget", f"Loop budget exhausted: {used}/{limit}")] if used >= limit else []


def _path(question: Question) -> list[Finding]:
    if is_nested(question) or path_to_acting(question) is not None:
        return []
    return [_deny("unreachable", f"no way from {phases(question.thread, question.run.id).phase} to ACTING")]
