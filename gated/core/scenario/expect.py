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
    TicketClosed,
    TicketId,
    TicketOpened,
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


COUNTS = frozenset({"allowed", "denied", "suspended"})


class BadExpectation(ValueError):
    """The expectation itself is wrong, whatever comes: an unknown key, or a value of the wrong form."""


def check(expected: object, *, several: bool) -> None:
    """Raises `BadExpectation` for what no step could be compared with; `several` where verdicts come, not one answer."""
    if isinstance(expected, list):
        _check_items(expected)
    elif not isinstance(expected, dict):
        raise BadExpectation(f"`expect` is a mapping or a list of mappings, not `{expected}`")
    elif not several:
        _check_keys(expected, KEYS)
    elif not expected.keys().isdisjoint({"any_order", "items"}):
        _check_keys(expected, frozenset({"any_order", "items"}))
        if not isinstance(expected.get("any_order", False), bool):
            raise BadExpectation(f"`any_order` is true or false, not `{expected['any_order']}`")
        _check_items(expected.get("items"))
    elif "count" in expected:
        _check_keys(expected, frozenset({"count"}))
        if type(expected["count"]) is not int:
            raise BadExpectation(f"`count` is a whole number, not `{expected['count']}`")
    else:
        _check_keys(expected, COUNTS | {"any_order", "items", "count"})


def _check_items(items: object) -> None:
    if not isinstance(items, list):
        raise BadExpectation(f"`items` is a list, not `{items}`")
    for item in items:
        if not isinstance(item, dict):
            raise BadExpectation(f"what is expected of one verdict is a mapping, not `{item}`")
        _check_keys(item, KEYS)


def _check_keys(expected: Mapping[str, object], known: frozenset[str]) -> None:
    for key in expected:
        if key not in known:
            raise BadExpectation(f"unknown key `{key}` in `expect`: it is one of {', '.join(sorted(known))}")


class Difference(ValueError):
    """What was expected did not come; `key` says of what."""

    def __init__(self, key: str, expected: object, got: object) -> None:
        super().__init__(key)
        self.key, self.expected, self.got = key, expected, got


def views(world: World, answers: list[Any]) -> list[dict[str, Any]]:
    """What the people and agents outside see of decisions and replies, as mappings: verdicts and refusals, in order."""
    tickets = _tickets(answers)
    return [view for answer in answers if (view := _view(world, answer, tickets)) is not None]


def _tickets(answers: list[Any]) -> dict[TicketId, str]:
    """The states of the tickets that the answers tell of, as they are after them."""
    states: dict[TicketId, str] = {}
    for answer in answers:
        match answer:
            case TicketOpened():
                states[answer.ticket] = "pending"
            case TicketAnswered() | TicketClosed():
                states[answer.ticket] = answer.state
    return states


def _view(world: World, answer: Any, tickets: Mapping[TicketId, str]) -> dict[str, Any] | None:
    match answer:
        case Repeat():
            return {**_verdict(world.verdict_of(answer)), "replayed": True}
        case CallDecided():
            view = _verdict(answer)
            return view if answer.ticket is None else {**view, "ticket": tickets.get(answer.ticket)}
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
    tickets = _tickets(answers)
    for answer in answers:
        match answer:
            case CallDecided() | CallRefused() | Repeat():
                view.update(_view(world, answer, tickets) or {})
            case CallSettled():
                view["reminders"] = [to_builtins(reminder) for reminder in answer.reminders]
            case UngatedExecution():
                view["ungated"] = True
            case RunEnded() | RunAnswered():
                view["status"] = answer.status
                view["message"] = getattr(answer, "message", None) or getattr(answer, "reason", "")
                view["ungrounded"], view["grounded_calls"] = answer.ungrounded, answer.grounded_calls
    answered = [answer.state for answer in answers if isinstance(answer, TicketAnswered)]
    if answered:
        view["ticket"] = answered[-1]
    run = world.run_state
    view["phase"] = None if run is None else str(run.phase)
    return view


def compare(expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """Raises `Difference` at the first key that differs."""
    for key, value in expected.items():
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
    elif "items" in expected:
        (_any_order if expected.get("any_order") else _in_order)(expected["items"], got)
    elif "count" in expected:
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
