"""Safe and unsafe states out of recorded runs.

Safe is every state that an admitted call of a run that was not unsafe itself led from and to. Unsafe is the state that a
denied call would have led to, and the one in which an unsafe run ended. What led there is neither: nobody knows which of its
steps was the one too many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gated.core.barriers.barrier import BarrierState, successor
from gated.core.barriers.network import COUNT, MAX_FEATURES, PLAIN, RECENT, feature
from gated.core.curves import Asked

DENYING: Final = frozenset({"privilege", "order", "contracts", "dcbf", "semantic", "approvals"})
PLAIN_FEATURES: Final = ("steps", "in_flight", "cost_usd", "errors")

RunKey = tuple[str, str]  # thread and run


class Signs(Struct, frozen=True):
    """What makes a state unsafe: denied calls; runs that ended failed or aborted; runs with a label."""

    denied: bool = True
    endings: frozenset[str] = frozenset({"failed"})
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, words: Sequence[str]) -> Signs:
        """`denied`, `failed`, `aborted`, `label:KEY=VALUE`. Raises `ValueError`."""
        endings, labels = set[str](), []
        for word in words:
            if word in ("failed", "aborted"):
                endings.add(word)
            elif word.startswith("label:") and "=" in word:
                key, _, value = word.removeprefix("label:").partition("=")
                labels.append((key, value))
            elif word != "denied":
                raise ValueError(f"`{word}` is no sign of an unsafe state: there are denied, failed, aborted, label:KEY=VALUE")
        return cls("denied" in words, frozenset(endings), tuple(labels))


class Example(Struct, frozen=True):
    """A recorded call: the state it was asked in and the one it leads, or would lead, to; `safe` is the latter's."""

    asked: Asked
    after: BarrierState
    safe: bool

    @property
    def run(self) -> RunKey:
        return self.asked.thread, self.asked.run


def examples(asked: Iterable[Asked], endings: Mapping[RunKey, str], signs: Signs) -> list[Example]:
    """In the order of the log."""
    by_run: dict[RunKey, list[Asked]] = {}
    for one in asked:
        by_run.setdefault((one.thread, one.run), []).append(one)
    return [example for key, calls in by_run.items() for example in _of_run(calls, endings.get(key, ""), signs)]


def _of_run(calls: Sequence[Asked], ending: str, signs: Signs) -> Iterable[Example]:
    admitted = [one for one in calls if one.decision == "allow"]
    unsafe = bool(admitted) and (ending in signs.endings or _labelled(admitted[-1], signs))
    for one in calls:
        if one.decision == "allow":
            if not unsafe:
                yield _example(one, safe=True)
            elif one is admitted[-1]:
                yield _example(one, safe=False)
        elif one.decision == "deny" and signs.denied and one.stage in DENYING:
            yield _example(one, safe=False)


def _labelled(one: Asked, signs: Signs) -> bool:
    view = one.state.view
    return view is not None and any(view.labels.get(key) == value for key, value in signs.labels)


def _example(one: Asked, *, safe: bool) -> Example:
    return Example(one, successor(one.state, one.action, one.rules.window), safe)


def features_of(found: Sequence[Example], named: Sequence[str]) -> tuple[str, ...]:
    """Those that were named, or plain ones and the counts of the tools that the examples speak of. Raises `ValueError`."""
    for name in named:
        feature(name)
    if named:
        return tuple(dict.fromkeys(named))
    tools: dict[str, int] = {}
    for example in found:
        tools[example.asked.action.tool] = tools.get(example.asked.action.tool, 0) + 1
    often = sorted(tools, key=lambda tool: (-tools[tool], tool))[: (MAX_FEATURES - len(PLAIN)) // 2]
    return (*PLAIN_FEATURES, *(f"{COUNT}{tool}" for tool in often), *(f"{RECENT}{tool}" for tool in often))


def split(found: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Examples to learn from and examples of other runs to check by; runs with unsafe ones are shared out alike."""
    unsafe = {example.run for example in found if not example.safe}
    held: set[RunKey] = set()
    for group in (unsafe, {example.run for example in found} - unsafe):
        ordered = sorted(group, key=lambda key: hashlib.sha256("/".join(key).encode()).digest())
        held.update(ordered[: max(1, round(share * len(ordered)))] if len(ordered) > 1 else [])
    return [e for e in found if e.run not in held], [e for e in found if e.run in held]
