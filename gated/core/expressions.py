"""Expressions of the Common Expression Language in a policy: compiled once, checked for names, evaluated strictly.

The library is `common-expression-language`: it never coerces between types (`"900" > 100` is an error, `1 == true` is false)
and matches regexes in linear time. Known edges: `||` absorbs errors of one side; integers beyond 2^63 become doubles.
INVARIANT: only what an expression names is handed to it, and length and nesting are capped before the parser sees it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

MAX_LENGTH: Final = 4096
MAX_NESTING: Final = 32
MAX_MACROS: Final = 3  # macros inside one another cost the product of their lists

RUN_FIELDS: Final = frozenset({"phase", "step_count", "counts", "cost_usd", "task", "labels", "failed"})
RESULT_FIELDS: Final = frozenset({"status", "content", "facts"})

Names = Mapping[str, "frozenset[str] | None"]

CALL_NAMES: Final[Names] = {"tool": None, "args": None, "agent": None, "run": RUN_FIELDS, "recent": None, "at": None}
ENSURE_NAMES: Final[Names] = {**CALL_NAMES, "result": RESULT_FIELDS}

_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')
_MACRO: Final = re.compile(r"\.(?:all|exists|exists_one|map|filter)\s*\(\s*([A-Za-z_]\w*)\s*,")
_COUNTS: Final = re.compile(r"\brun\.counts(?:\.([A-Za-z_]\w*)|\[\s*[\"']([^\"']+)[\"']\s*\])")


class ExpressionError(ValueError):
    """An expression that has no meaning, or names what does not exist."""


class EvaluationError(ValueError):
    """An expression that cannot be evaluated on these values, or gives something else than was wanted."""


class Expression:
    """`uses` are the roots it reads, `counted` the tools whose counts it names (they read as 0 before the first call)."""

    __slots__ = ("_program", "counted", "text", "uses")

    def __init__(self, text: str, names: Names) -> None:
        self.text = text
        bare = _STRING.sub('""', text)
        _check_size(text, bare)
        import cel  # here, since it brings a terminal toolkit along that costs every command a tenth of a second

        try:
            self._program = cel.compile(text)
        except ValueError as error:
            raise ExpressionError(f"`{text}`: {str(error).splitlines()[0]}") from error
        bound = set(_MACRO.findall(bare))
        self.uses = tuple(sorted(set(self._program.variables()) - bound))
        _check_names(text, bare, self.uses, names)
        self.counted = tuple(sorted({a or b for a, b in _COUNTS.findall(text)}))

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Raises `EvaluationError`."""
        try:
            return self._program.execute({name: values[name] for name in self.uses})
        except (ValueError, TypeError, KeyError, RuntimeError, ArithmeticError, LookupError) as error:
            raise EvaluationError(f"{type(error).__name__}: {str(error)[:200]}") from error

    def test(self, values: Mapping[str, Any]) -> bool:
        """Raises `EvaluationError` unless the result is a boolean."""
        result = self.evaluate(values)
        if not isinstance(result, bool):
            raise EvaluationError(f"gives {type(result).__name__}, not true or false")
        return result


def compile_expression(text: str, names: Names) -> Expression:
    """Raises `ExpressionError`."""
    return Expression(text, names)


def _check_size(text: str, bare: str) -> None:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"an expression of {len(text)} characters: at most {MAX_LENGTH} are taken")
    depth = deepest = 0
    for char in bare:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING or bare.count("!!") > MAX_NESTING or bare.count("?") > MAX_NESTING:
        raise ExpressionError(f"`{text[:60]}…` is nested deeper than {MAX_NESTING}")
    if len(_MACRO.findall(bare)) > MAX_MACROS:
        raise ExpressionError(f"`{text[:60]}…` has more than {MAX_MACROS} macros")


def _check_names(text: str, bare: str, uses: tuple[str, ...], names: Names) -> None:
    for root in uses:
        if root not in names:
            raise ExpressionError(f"`{text}` names `{root}`, which does not exist{_near(root, names)}")
        known = names[root]
        if known is None:
            continue
        for field in re.findall(rf"(?<![\w.]){root}\.([A-Za-z_]\w*)", bare):
            if field not in known:
                raise ExpressionError(f"`{text}` names `{root}.{field}`, which does not exist{_near(field, known)}")


def _near(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else f": there are {', '.join(f'`{k}`' for k in sorted(known))}"
