"""The semantic stage: what the scores that were given say. decisions.md §10.

ambiguous, each read so: a threshold is inclusive; what a detector did not say, or what is no score, is `unavailable`; without
`tools` exfiltration and injection concern the outbound tools and the others every call; a result's instructions taint the whole
thread; a sensitive result without content was not reported, and what it held is unknown from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oracle import patterns
from oracle.findings import Finding, Question
from oracle.history import Entry, Run, Thread
from oracle.values import Json

STAGE = "semantic"
DETECTORS = ("secrets", "exfiltration", "injection", "drift", "judge")
OUTBOUND = ("send_email", "http_request")


def check(question: Question) -> list[Finding]:
    rules = question.run.policy.doc.get("semantic")
    if rules is None:
        return []
    return [
        finding
        for name in DETECTORS
        if name in rules and _concerns(question, name, rules[name])
        for score in _said(question, name)
        for finding in _judged(question, name, rules, score)
    ]


def _concerns(question: Question, name: str, rule: dict[str, Any]) -> bool:
    call, policy = question.call, question.run.policy
    wanted = rule.get("tools")
    if wanted is None and name not in ("exfiltration", "injection"):
        return True
    if wanted is None:
        wanted = [*OUTBOUND, *(tool for tool, said in policy.doc.get("tools", {}).items() if (said or {}).get("outbound"))]
    return any(patterns.matches_wide(pattern, call.tool, call.args) for pattern in wanted)


def _said(question: Question, name: str) -> list[Json]:
    """Scores; a text or nothing where there is none."""
    given = question.call.scores.get(name)
    if name == "injection":
        return list(_injections(question.thread))
    if name == "exfiltration":
        seen, unknown = _sensitive(question.thread)
        return ([given] if seen else []) + (["a result is not known"] if unknown else [])
    return [given]


def _injections(thread: Thread) -> Iterator[Json]:
    results = [entry for entry in _results(thread) if "injection" in entry.data["read"]]
    scores = [entry.data["scores"].get("injection") for entry in results if entry.data["content"] is not None]
    yield max([score for score in scores if _is_score(score)], default=0)
    if not all(map(_is_score, scores)):
        yield "a result was not looked at"


def _results(thread: Thread) -> list[Entry]:
    return [entry for entry in thread.log if entry.kind == "settled" and entry.data["by"] != "timer"]


def _sensitive(thread: Thread) -> tuple[bool, bool]:
    """Whether a sensitive result was seen, and whether one went unseen."""
    ended = [e for e in thread.log if e.kind == "settled" and "exfiltration" in e.data["read"]]
    seen = any(e.data["content"] is not None for e in ended if e.data["by"] != "timer")
    unseen = any(e.data["by"] == "timer" or (e.data["status"] == "success" and e.data["content"] is None) for e in ended)
    return seen, unseen


def reads(run: Run, tool: str) -> list[str]:
    """The detectors that look at a result when it comes: those of the policy that its run is bound to then.

    A run that is bound to another policy later has no results that were to be looked at and were not: what a detector says is
    recorded with the outcome, and what was not its business is not unknown to it (decisions.md §10, §1).
    """
    rules = run.policy.doc.get("semantic") or {}
    guarded = ["exfiltration"] if "exfiltration" in rules and run.policy.tool(tool).get("sensitive") else []
    return [*guarded, *(["injection"] if "injection" in rules else [])]


def _is_score(value: Json) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _judged(question: Question, name: str, rules: dict[str, Any], score: Json) -> list[Finding]:
    rule = rules[name]
    authoritative = not question.run.policy.observed(question.run.agent, STAGE)
    if not _is_score(score):
        outcome = rule.get("unavailable") or rules.get("unavailable", "ask")
        code, reason = "semantic.unavailable", f"`{name}` gave no score: {score}"
    else:
        said = {"ask": 0.6, "deny": 0.9, **(rule.get("thresholds") or rules.get("thresholds") or {})}
        passed = [outcome for outcome in ("deny", "ask") if said[outcome] != "never" and score >= said[outcome]]
        if not passed:
            return []
        outcome, code, reason = passed[0], f"semantic.{name}", f"`{name}` gives {score}"
    return [Finding(STAGE, outcome, code, reason, (STAGE, code, name), authoritative=authoritative, detector=name)]
