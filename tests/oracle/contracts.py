"""Pre- and postconditions, the minimum. decisions.md §8."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oracle import patterns
from oracle.expressions import evaluate, names_of
from oracle.findings import Finding, Question
from oracle.history import Call, Run

STAGE = "contracts"
OUTCOMES = {"deny": "deny", "ask": "ask", "warn": "warn"}


def check(question: Question) -> list[Finding]:
    run, call = question.run, question.call
    observed = run.policy.observed(run.agent, STAGE)
    findings = []
    for contract in _contracts(run, call):
        finding = _require(contract, question) if "require" in contract else None
        if finding is not None:
            authoritative = not observed and contract.get("mode") != "observe"
            findings.append(replace(finding, authoritative=authoritative))
    return findings


def _contracts(run: Run, call: Call) -> list[dict[str, Any]]:
    """order.md, Patterns: `contracts.on` matches widely."""
    contracts = run.policy.doc.get("contracts", [])
    return [c for c in contracts if patterns.matches_wide(c.get("on", "*"), call.tool, call.args)]


def _require(contract: dict[str, Any], question: Question) -> Finding | None:
    """Not true is a breach; what cannot be evaluated, or is not a boolean, denies."""
    try:
        holds = evaluate(contract["require"], names_of(question))
    except Exception as error:
        return Finding(STAGE, "deny", "contracts.error", f"contract `{contract['name']}`: {error}")
    if not isinstance(holds, bool):
        return Finding(STAGE, "deny", "contracts.error", f"contract `{contract['name']}` is not a boolean")
    if holds:
        return None
    outcome = OUTCOMES[contract.get("otherwise", "deny")]
    reason = contract.get("reason") or f"contract `{contract['name']}` does not hold"
    return Finding(STAGE, outcome, "contracts.require", reason, source=(STAGE, contract["name"]))


def breached(run: Run, call: Call, status: str, content: Any, facts: Any) -> list[str]:
    """The contracts that an outcome breaches and that then fail the run."""
    names = {"result": {"status": status, "content": content, "facts": facts or {}}, "tool": call.tool, "args": call.args}
    found = []
    for contract in _contracts(run, call):
        if "ensure" not in contract or contract.get("mode") == "observe" or run.policy.observed(run.agent, STAGE):
            continue
        try:
            holds = evaluate(contract["ensure"], names)
        except Exception:
            holds = False
        if holds is not True and contract.get("on_breach") == "fail":
            found.append(contract["name"])
    return found
