"""What of two gates' answers must be equal, and a smaller history in which they still are not.

Left out is what the pages leave to the writer: most reasons, and fields that only people read.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from oracle.dice import Doc
from oracle.strategies import apply
from oracle.values import compact

EXACT_REASONS = frozenset(
    {
        "ceilings.hops",
        "dfa.step_budget",
        "dfa.loop_budget",
        "lifecycle.run_completed",
        "lifecycle.run_failed",
        "order.violation",
        "order.in_flight",
    }
)
"""Codes whose reason the pages give word for word (as long as no rule of the policy says another)."""
VERDICT = ("call", "decision", "stage", "code", "would", "replayed", "checks_failed", "checks_skipped")
OUTCOME = ("phase", "reminders", "ungated")
STATE = (
    "phase step_count hop_count retry_count call_count cost_usd failed summary in_flight history barriers machines metrics "
    "loop_count"
).split()


def answers(gate: Any, operation: Doc) -> Any:
    """What a gate answers to an operation, and says of other calls because of it, cut to what must be equal."""
    said = comparable(operation, apply(gate, operation))
    also = gate.also if operation["op"] in ("intents", "outcome") else []
    return {"said": said, "also": sorted(map(verdict, also), key=compact)}  # a message names some of them, in its own order


def comparable(operation: Doc, said: Any) -> Any:
    """An answer of `apply(gate, operation)`, cut to what must be equal. Answers to one id come in any order."""
    if operation["op"] == "advance":  # timers of several runs that run late have no order among them
        return sorted((verdict(one) for one in said), key=compact)
    if isinstance(said, list):
        return _by_id([verdict(one) for one in said])
    if "refused" in said:
        return {"refused": said["refused"]}
    kind = operation["op"]
    if kind == "outcome":
        return {key: said[key] for key in OUTCOME}
    if kind == "resolve":
        return {"ticket": said["ticket"], "verdicts": [verdict(one) for one in said["verdicts"]]}
    if kind == "finish":
        ending = {"status": said["status"], "message": said.get("message") if said["status"] == "steer" else None}
        return {**ending, "ungrounded": bool(said.get("ungrounded")), "verdicts": [verdict(one) for one in said["verdicts"]]}
    return {"verdicts": [verdict(one) for one in said.get("verdicts", [])]}


def _by_id(verdicts: list[Doc]) -> list[Doc]:
    """Where a message asks one id twice nobody can tell whose answer comes first."""
    ids = [said["call"] for said in verdicts]
    return sorted(verdicts, key=lambda said: (ids.index(said["call"]), compact(said)))


def verdict(said: Doc) -> Doc:
    if "refused" in said:
        return {"call": said["call"], "refused": said["refused"]}
    kept = {key: said.get(key) for key in VERDICT} | {"ticket": said.get("ticket") is not None}
    code = str(said.get("code"))
    if code.startswith("order."):
        kept["machine"] = said["machine"]
    if code == "dcbf.barrier":
        kept["barriers"] = sorted(said["barriers"])
    return kept | ({"reason": said["reason"]} if code in EXACT_REASONS else {})


def comparable_state(state: Doc) -> Doc:
    """Instances that stand in their initial state may be listed or not: what never moved is left out by the oracle."""
    kept = {key: state[key] for key in STATE if key in state}
    kept["in_flight"] = sorted(state["in_flight"])
    kept["tickets"] = sorted(state["tickets"].values())
    kept["cost_usd"] = round(state["cost_usd"], 6)
    kept["barriers"] = {name: round(value, 9) for name, value in sorted(state["barriers"].items())}
    return kept


def shrunk(policy: Doc, operations: list[Doc], differs: Callable[[Doc, list[Doc]], bool]) -> tuple[Doc, list[Doc]]:
    """Drops operations, calls and keys as long as `differs` holds."""
    smaller = True
    while smaller:
        smaller = False
        for place in list(_places(operations)):
            tried = _without(operations, place)
            if tried is not None and differs(policy, tried):
                operations, smaller = tried, True
        for place in list(_places(policy)):
            cut = _without(policy, place)
            if cut is not None and differs(cut, operations):
                policy, smaller = cut, True
    return policy, operations


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and index, the whole before its parts, the last of a list first."""
    inner = list(value) if isinstance(value, dict) else range(len(value) - 1, -1, -1) if isinstance(value, list) else ()
    for key in inner:
        yield (*place, key)
        yield from _places(value[key], (*place, key))


def _without(whole: Any, place: tuple[Any, ...]) -> Any:
    """A copy without what stands at a place; None where that is gone already."""
    made = copy.deepcopy(whole)
    holder = made
    try:
        for step in place[:-1]:
            holder = holder[step]
        del holder[place[-1]]
    except (KeyError, IndexError, TypeError):
        return None
    return made
