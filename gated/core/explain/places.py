"""Where things stand in a policy's document, and making numbers in it just large enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gated.core.explain.case import Case, Change, Draft, edited, get_at, set_at
from gated.core.explain.stages import findings_of
from gated.events import AgentId
from gated.strict_json import Path, path_text

FARTHEST = 1 << 50
MICRO = 1_000_000


def agent_path(draft: Draft, agent: AgentId, key: str) -> Path:
    """Where an agent's setting stands: its own, else the default's, else where its own would."""
    if key not in (get_at(draft.data, ("agents", str(agent))) or {}) and key in (draft.data.get("defaults") or {}):
        return ("defaults", key)
    return ("agents", str(agent), key)


def machine_path(draft: Draft, agent: AgentId, name: str) -> Path | None:
    """Where a machine is declared: among the base machines or by the agent."""
    for path in (("machines",), agent_path(draft, agent, "machines")):
        for position, entry in enumerate(get_at(draft.data, path) or ()):
            if isinstance(entry, dict) and entry.get("name") == name:
                return (*path, position)
    return None


def said(path: Path) -> str:
    return path_text(path)


def change_at(draft: Draft, path: Path, value: Any, text: str, size: float) -> Draft | None:
    """The draft with something else at a place of its policy; None where that does not load."""
    change = Change("policy", text, size, path, value)
    return edited(draft, set_at(draft.data, path, value), change, lambda other: change_at(other, path, value, text, size))


def _listed(draft: Draft, path: Path, make: Callable[[list[Any]], list[Any]], text: str, size: float) -> Draft | None:
    """The draft with another list; made anew from what another draft has there."""
    value = make(list(get_at(draft.data, path) or []))
    change = Change("policy", text, size, path, value)
    return edited(draft, set_at(draft.data, path, value), change, lambda other: _listed(other, path, make, text, size))


def append_at(draft: Draft, path: Path, entry: Any, size: float = 2) -> Draft | None:
    shown = entry if isinstance(entry, str) else str(entry).replace("'", "")
    return _listed(draft, path, lambda listed: [*listed, entry], f"add `{shown}` to `{said(path)}`", size)


def without(draft: Draft, path: Path, entries: list[Any], size: float = 3) -> Draft | None:
    """The draft without some entries of a list."""
    shown = ", ".join(f"`{entry}`" for entry in entries)
    text = f"take {shown} out of `{said(path)}`"
    return _listed(draft, path, lambda listed: [entry for entry in listed if entry not in entries], text, size)


def least(case: Case, draft: Draft, path: Path, start: float, code: str, unit: int = 1, about: str | None = None) -> Draft | None:
    """The draft with the least number at `path`, in units of 1/`unit`, with which nothing of `code` is found any more."""
    best: Draft | None = None

    def holds(number: int) -> bool:
        nonlocal best
        value: Any = number if unit == 1 else number / unit
        made = change_at(draft, path, value, f"raise `{said(path)}` to {_number(value)}", 2)
        if made is None or not is_clear(case, made, code, about):
            return False
        best = made
        return True

    _bisect(max(0, round(start * unit)), holds)
    return best


def is_clear(case: Case, draft: Draft, code: str, about: str | None = None) -> bool:
    """Whether nothing of `code` is found, or no breach of the barrier `about`."""
    found = [finding for finding in findings_of(case, draft) if finding.code == code]
    if about is None:
        return not found
    return all(breach.barrier != about for finding in found for breach in finding.breaches)


def _bisect(low: int, holds: Callable[[int], bool]) -> None:
    """Call `holds` last, of those that hold, with the least number above `low`."""
    step = 1
    while not holds(low + step):
        step *= 2
        if step > FARTHEST:
            return
    fails, works = low + step // 2, low + step
    while works - fails > 1:
        middle = (fails + works) // 2
        if holds(middle):
            works = middle
        else:
            fails = middle


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}".rstrip("0").rstrip(".")
