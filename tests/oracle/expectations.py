"""Compares what came with what a scenario expects; only the keys it names. scenarios.md."""

from __future__ import annotations

from typing import Any

Failures = list[str]
KEYS = frozenset(
    "call decision stage code reason reason_contains would machine detector barrier replayed ungated ticket phase reminders "
    "status message ungrounded refused allowed denied suspended".split()
)
REMINDER = ("target", "role", "content", "machine", "key", "reason")
STATE = frozenset("phase step_count hop_count cost_usd failed history barriers machines metrics loop_count".split())


def compare(expected: Any, got: Any) -> Failures:
    if isinstance(expected, list):
        return _in_order(expected, got, compare)
    if "any_order" in expected:
        return _any_order(expected["items"], got)
    if set(expected) == {"count"}:
        return [] if len(got) == expected["count"] else [f"expected {expected['count']}, got {got}"]
    unknown = set(expected) - KEYS
    if unknown:
        raise ValueError(f"unknown keys in `expect`: {sorted(unknown)}")
    return [f"{key}: expected {want!r}, got {got}" for key, want in expected.items() if not _holds(key, want, got)]


def _in_order(expected: list[Any], got: Any, each: Any) -> Failures:
    if not isinstance(got, list) or len(expected) != len(got):
        return [f"expected {len(expected)} of them, got {got}"]
    return [failure for want, have in zip(expected, got, strict=True) for failure in each(want, have)]


def _any_order(items: list[Any], got: list[Any]) -> Failures:
    left = list(got)
    for item in items:
        fitting = next((have for have in left if not compare(item, have)), None)
        if fitting is None:
            return [f"nothing fits {item!r} in {left}"]
        left.remove(fitting)
    return [f"left over: {left}"] if left else []


def _holds(key: str, want: Any, got: dict[str, Any]) -> bool:
    if key == "reason_contains":
        return want in (got.get("reason") or "")
    if key == "barrier":
        return want in got.get("barriers", [])
    if key == "reminders":
        return not _in_order(want, got.get("reminders"), _reminder)
    if key in ("replayed", "ungated", "ungrounded"):
        return bool(got.get(key, False)) is want
    return same(want, got.get(key))


def _reminder(want: dict[str, Any], have: dict[str, Any]) -> Failures:
    if set(want) - set(REMINDER):
        raise ValueError(f"unknown keys in a reminder: {sorted(want)}")
    return [f"{key}: expected {value!r}, got {have}" for key, value in want.items() if have.get(key) != value]


def same(want: Any, got: Any) -> bool:
    """Numbers compare within 1e-9; of mappings only what is named."""
    if isinstance(want, dict):
        return isinstance(got, dict) and all(same(value, got.get(key)) for key, value in want.items())
    if isinstance(want, bool) or isinstance(got, bool) or not isinstance(want, int | float):
        return bool(want == got)
    return isinstance(got, int | float) and abs(want - got) <= 1e-9


def compare_state(expected: dict[str, Any], got: dict[str, Any]) -> Failures:
    unknown = set(expected) - STATE
    if unknown:
        raise ValueError(f"unknown keys in `state`: {sorted(unknown)}")
    return [f"{key}: expected {want!r}, got {got.get(key)!r}" for key, want in expected.items() if not same(want, got.get(key))]
