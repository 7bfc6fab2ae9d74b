"""What expressions may read of a run, and how little of it each is handed: a map of everything costs ten times as much.

INVARIANT: `run.counts` reads 0 for a tool that was never admitted wherever an expression names the tool, and for the tool of
the call itself, so that `run.counts.pay < 3` and `run.counts[tool] < 3` hold for a first call. Other tools are missing keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from immutables import Map
from msgspec import Struct

from gated.core.expressions import (
    BARRIER_NAMES,
    WHEN_NAMES,
    EvaluationError,
    Expression,
    ExpressionError,
    Handed,
    MismatchError,
    compile_expression,
    plain,
    taken,
)
from gated.events import Phase


class View(Struct, frozen=True):
    """A run without what is in flight. `recent` is (tool, status, digest), newest last; `at` in µs.

    For barriers all of it counts what is in flight, too; a barrier in Python is handed one.
    """

    agent: str
    phase: Phase
    step_count: int
    counts: Map[str, int]
    cost_microusd: int
    task: str | None
    labels: dict[str, str]
    failed: bool
    recent: tuple[tuple[str, str, str], ...]
    at: int

    @property
    def cost_usd(self) -> float:
        return self.cost_microusd / 1_000_000


Fields = tuple[str, ...] | None


def values(expression: Expression, view: View, tool: str | None = None, args: Mapping[str, Any] | None = None) -> Handed:
    """What the expression names, and nothing else. A view of no call has neither `tool` nor `args`. Raises `EvaluationError`."""
    found = Handed()
    for root, fields in expression.reads:
        if root == "args":
            found[root] = taken(args, fields)
        elif root == "tool":
            found[root] = tool
        elif root == "run":
            found[root] = _run(expression, fields, view, tool)
        elif root in _ROOTS:
            found[root] = _ROOTS[root](view)
    return found


def _run(expression: Expression, fields: Fields, view: View, tool: str | None) -> dict[str, Any]:
    run = {}
    for field in _RUN if fields is None else fields:
        run[field] = _counts(*expression.below("run", "counts"), view.counts, tool) if field == "counts" else _RUN[field](view)
    return run


def _recent(view: View) -> list[dict[str, str]]:
    return [{"tool": tool, "status": status, "args_sha256": digest} for tool, status, digest in view.recent]


_ROOTS: Final[Mapping[str, Callable[[View], Any]]] = {
    "agent": lambda view: view.agent,
    "at": lambda view: view.at,
    "recent": _recent,
}

_RUN: Final[Mapping[str, Callable[[View], Any]]] = {
    "phase": lambda view: str(view.phase),
    "step_count": lambda view: view.step_count,
    "counts": lambda view: view.counts,
    "cost_usd": lambda view: view.cost_usd,
    "task": lambda view: plain(view.task),
    "labels": lambda view: plain(view.labels),
    "failed": lambda view: view.failed,
}


def _counts(named: tuple[str, ...], whole: bool, counts: Map[str, int], tool: str | None) -> dict[str, int]:
    found = {name: counts.get(name, 0) for name in named}
    if whole:
        found.update(counts)
        if tool is not None:
            found.setdefault(tool, 0)
    return found


class When:
    """`when` of an approval rule: whether the rule speaks of a call."""

    __slots__ = ("expression",)

    def __init__(self, text: str) -> None:
        self.expression = compile_expression(text, WHEN_NAMES)

    def applies(self, view: View, tool: str, args: Mapping[str, Any]) -> bool | None:
        """What cannot be evaluated, or is no boolean, counts as true. None: it rests on values of types that do not compare."""
        try:
            return self.expression.test(values(self.expression, view, tool, args), either=True)
        except MismatchError:
            return None
        except EvaluationError:
            return True


def compile_when(text: str) -> When:
    """Raises `ExpressionError`."""
    return When(text)


class Height:
    """A barrier by expression: `value` gives h of a view."""

    __slots__ = ("_expression",)

    def __init__(self, text: str) -> None:
        self._expression = compile_expression(text, BARRIER_NAMES)
        if self._expression.returns not in _NUMBERS:
            raise ExpressionError(f"`{text}` gives {self._expression.returns}, and a barrier must be a number")

    def value(self, view: View) -> int | float:
        """A finite number. Raises `EvaluationError`. The view's `step_count` must include what is in flight."""
        return self._expression.number(values(self._expression, view))

    def reads(self, root: str) -> bool:
        return any(name == root for name, _ in self._expression.reads)


_NUMBERS: Final = frozenset({"int", "uint", "double", "dyn"})


def compile_barrier(text: str) -> Height:
    """Raises `ExpressionError`."""
    return Height(text)
