"""What expressions may read of a run, and how little of it each is handed: a map of everything costs ten times as much.

INVARIANT: `run.counts` reads 0 for a tool that was never admitted wherever an expression names the tool, and for the tool of
the call itself, so that `run.counts.pay < 3` and `run.counts[tool] < 3` hold for a first call. Other tools are missing keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
Args = Mapping[str, Any]
Take = Callable[[View, "str | None", "Args | None"], Any]


class Reading:
    """An expression over a run, and how what it names is taken from one: worked out once, since every call asks for it."""

    __slots__ = ("_takes", "expression")

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        takes = ((root, _take(root, fields, expression)) for root, fields in expression.reads)
        self._takes = tuple((root, take) for root, take in takes if take is not None)

    def values(self, view: View, tool: str | None = None, args: Args | None = None) -> Handed:
        """What it names, and nothing else. A view of no call has neither `tool` nor `args`. Raises `EvaluationError`."""
        found = Handed()
        for root, take in self._takes:
            found[root] = take(view, tool, args)
        return found

    def test(self, view: View, tool: str, args: Args, *, either: bool = False) -> bool:
        """As `Expression.test`."""
        return self.expression.test(self.values(view, tool, args), either=either)


def _take(root: str, fields: Fields, expression: Expression) -> Take | None:
    if root == "args":
        return lambda view, tool, args: taken(args, fields)
    if root == "tool":
        return lambda view, tool, args: tool
    if root == "run":
        return _take_run(_RUN if fields is None else fields, *expression.below("run", "counts"))
    if root in _ROOTS:
        of = _ROOTS[root]
        return lambda view, tool, args: of(view)
    return None


def _take_run(fields: Iterable[str], named: tuple[str, ...], whole: bool) -> Take:
    counted = "counts" in fields
    others = tuple((field, _RUN[field]) for field in fields if field != "counts")

    def take(view: View, tool: str | None, args: Args | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field, of in others:
            found[field] = of(view)
        if counted:
            found["counts"] = _counts(named, whole, view.counts, tool)
        return found

    return take


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
    "counts": lambda view: dict(view.counts),
    "cost_usd": lambda view: view.cost_usd,
    "task": lambda view: plain(view.task),
    "labels": lambda view: plain(view.labels),
    "failed": lambda view: view.failed,
}


def _counts(named: tuple[str, ...], whole: bool, counts: Map[str, int], tool: str | None) -> dict[str, int]:
    found = dict(counts) if whole else {}
    for name in named if tool is None or not whole else (*named, tool):
        found[name] = counts.get(name, 0)
    return found


class When:
    """`when` of an approval rule: whether the rule speaks of a call."""

    __slots__ = ("_reading", "expression")

    def __init__(self, text: str) -> None:
        self.expression = compile_expression(text, WHEN_NAMES)
        self._reading = Reading(self.expression)

    def applies(self, view: View, tool: str, args: Args) -> bool | None:
        """What cannot be evaluated, or is no boolean, counts as true. None: it rests on values of types that do not compare."""
        try:
            return self._reading.test(view, tool, args, either=True)
        except MismatchError:
            return None
        except EvaluationError:
            return True


def compile_when(text: str) -> When:
    """Raises `ExpressionError`."""
    return When(text)


class Height:
    """A barrier by expression: `value` gives h of a view."""

    __slots__ = ("_expression", "_reading")

    def __init__(self, text: str) -> None:
        self._expression = compile_expression(text, BARRIER_NAMES)
        if self._expression.returns not in _NUMBERS:
            raise ExpressionError(f"`{text}` gives {self._expression.returns}, and a barrier must be a number")
        self._reading = Reading(self._expression)

    def value(self, view: View) -> int | float:
        """A finite number. Raises `EvaluationError`. The view's `step_count` must include what is in flight."""
        return self._expression.number(self._reading.values(view))

    def reads(self, root: str) -> bool:
        return any(name == root for name, _ in self._expression.reads)


_NUMBERS: Final = frozenset({"int", "uint", "double", "dyn"})


def compile_barrier(text: str) -> Height:
    """Raises `ExpressionError`."""
    return Height(text)
