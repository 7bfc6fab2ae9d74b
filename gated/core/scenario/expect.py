"""Comparing what came with what was expected. Only the keys that an expectation names are compared; others are errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

from gated.core.scenario.world import World
from gated.core.turn import Repeat
from gated.events import (
    CallDecided,
    CallRefused,
    CallSettled,
    Finding,
    RunAnswered,
    RunEnded,
    TicketAnswered,
    UngatedExecution,
)

KEYS = frozenset(
    {
        "call",
        "decision",
        "stage",
        "code",
        "reason",
        "reason_contains",
        "would",
        "machine",
        "contract",
        "barrier",
        "detector",
        "replayed",
        "ungated",
        "ticket",
        "phase",
        "reminders",
        "status",
        "message",
        "ungrounded",
        "grounded_calls",
        "refused",
        "edited",
        "execute",
        "result",
        "args",
        "error",
        "retry",
        "allowed",
        "denied",
        "suspended",
    }
)


class BadExpectation(ValueError):
    """The expectation itself is wrong: an unknown key, or a list where one answer comes."""


class Difference(ValueError):
    """What was expected did not come; `key` says of what."""

    def __init__(self, key: str, expected: object, got: object) -> None:
        super().__init__(key)
        self.key, self.expected, self.got = key, expected, got


def views(world: World, answers: list[Any]) -> list[dict[str, Any]]:
    """What the people and agents outside see of decisions and replies, as mappings: verdicts and refusals, in order."""
    return [view for answer in answers if (view := _view(world, answer)) is not None]


def _view(world: World, answer: Any) -> dict[str, Any] | None:
    match answer:
        case Repeat():
            return {**_verdict(world.verdict_of(answer)), "replayed": True}
        case CallDecided():
            return _verdict(answer)
        case CallRefused():
            return {"refused": answer.code, "code": answer.code, "reason": answer.reason, "call": answer.call}
    return None


def _verdict(decided: CallDecided) -> dict[str, Any]:
    return {
        "call": decided.call,
        "decision": decided.decision,
        "stage": decided.stage,
        "code": decided.code,
        "reason": decided.reason,
        "would": decided.would,
        "machine": _deciding(decided, "machine"),
        "contract": _deciding(decided, "contract"),
        "detector": _deciding(decided, "detector"),
        "error": _deciding(decided, "error"),
        "retry": bool(_deciding(decided, "retry")),
        "barrier": [breach.barrier for finding in decided.findings for breach in finding.breaches],
        "replayed": False,
        "edited": decided.edited,
        "execute": decided.execute,
        "result": decided.result,
        "args": decided.args,
        "findings": list(decided.findings),
    }


def _deciding(decided: CallDecided, field: str) -> Any:
    """A field of the finding that decided, or where none did of the first that has it."""
    if decided.decision != "allow":
        return next((getattr(finding, field) for finding in decided.findings if _decides(decided, finding)), None)
    return next((value for finding in decided.findings if (value := getattr(finding, field)) is not None), None)


def _decides(decided: CallDecided, finding: Finding) -> bool:
    outcome = "deny" if decided.decision == "deny" else "ask"
    said = (finding.stage, finding.code, finding.reason, finding.outcome, finding.authoritative)
    return said == (decided.stage, decided.code, decided.reason, outcome, True)


def summary(world: World, answers: list[Any]) -> dict[str, Any]:
    """One mapping of everything that a single step led to: for outcomes, answers of people, ends of runs."""
    view: dict[str, Any] = {"ungated": False, "reminders": [], "replayed": False}
    for answer in answers:
        match answer:
            case CallDecided() | CallRefused() | Repeat():
                view.update(_view(world, answer) or {})
            case CallSettled():
                view["reminders"] = [to_builtins(reminder) for reminder in answer.reminders]
            case UngatedExecution():
                view["ungated"] = True
            case RunEnded() | RunAnswered():
                view["status"] = answer.status
                view["message"] = getattr(answer, "message", None) or getattr(answer, "reason", "")
                view["ungrounded"], view["grounded_calls"] = answer.ungrounded, answer.grounded_calls
            case TicketAnswered():
                view["ticket"] = answer.state
    run = world.run_state
    view["phase"] = None if run is None else str(run.phase)
    return view


def compare(expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Raises `Difference` at the first key that differs, `BadExpectation` for a key that does not exist."""
    for key, value in expected.items():
        if key not in KEYS:
            raise BadExpectation(f"unknown key `{key}` in `expect`: it is one of {', '.join(sorted(KEYS))}")
        if key == "reason_contains":
            if str(value) not in (got.get("reason") or ""):
                raise Difference(key, value, got.get("reason"))
        elif key == "barrier":
            if value not in got.get("barrier", ()):
                raise Difference(key, value, got.get("barrier"))
        elif key == "refused" and value is False:
            if got.get("refused") is not None:
                raise Difference(key, None, got.get("refused"))
        elif not matches(value, got.get(key)):
            raise Difference(key, value, got.get(key))


def matches(expected: Any, got: Any) -> bool:
    """Equality in which mappings compare only the keys that are named, and numbers within 1e-9."""
    if isinstance(expected, dict) and isinstance(got, Mapping):
        return all(key in got and matches(value, got[key]) for key, value in expected.items())
    if isinstance(expected, list) and isinstance(got, list | tuple):
        return len(expected) == len(got) and all(matches(e, g) for e, g in zip(expected, got, strict=True))
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=0, abs_tol=1e-9)
    return bool(expected == got)


def compare_list(expected: Any, got: list[dict[str, Any]]) -> None:
    """A list in order, `{any_order: true, items: [...]}`, `{count: N}`, or counts of verdicts."""
    if isinstance(expected, list):
        _in_order(expected, got)
    elif not isinstance(expected, dict):
        raise BadExpectation("`expect` of several verdicts is a list or a mapping")
    elif set(expected) <= {"any_order", "items"} and "items" in expected:
        _any_order(expected["items"], got)
    elif set(expected) == {"count"}:
        if len(got) != expected["count"]:
            raise Difference("count", expected["count"], len(got))
    else:
        compare(expected, counts(got))


def _in_order(expected: list[Any], got: list[dict[str, Any]]) -> None:
    if len(expected) != len(got):
        raise Difference("count", len(expected), len(got))
    for want, have in zip(expected, got, strict=True):
        compare(want, have)


def _any_order(expected: list[Any], got: list[dict[str, Any]]) -> None:
    left = list(got)
    if len(expected) != len(got):
        raise Difference("count", len(expected), len(got))
    for want in expected:
        fits = next((have for have in left if _fits(want, have)), None)
        if fits is None:
            raise Difference("items", want, left)
        left.remove(fits)


def _fits(want: Mapping[str, Any], have: Mapping[str, Any]) -> bool:
    try:
        compare(want, have)
    except Difference:
        return False
    return True


def counts(got: list[dict[str, Any]]) -> dict[str, int]:
    """Verdicts by decision; a replayed verdict is none of its own."""
    fresh = [view.get("decision") for view in got if not view.get("replayed")]
    return {"allowed": fresh.count("allow"), "denied": fresh.count("deny"), "suspended": fresh.count("suspend")}


def findings_of(views_: list[dict[str, Any]]) -> tuple[Finding, ...]:
    return tuple(finding for view in views_ for finding in view.get("findings", ()))
