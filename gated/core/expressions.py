"""Expressions of the Common Expression Language: compiled once, checked for names, evaluated strictly.

The library is `cel-expr-python` (docs/decisions/cel.md says why, and what its three guards here are for): text with a NUL is
refused, since the library would cut it there; an error, which it hands back as a value, is raised; and what macros may cost
on these values is bounded before they run, since its own budget depends on the order of a map's keys, which is random.
INVARIANT: length and nesting are capped before the parser sees the text, and only what an expression names is handed to it.
What is plain is answered without the library (quick.py), and what is true only because types differ is an error (comparing.py).
Known edges: `||` and `&&` absorb errors of one side; integers beyond 2^63 become doubles.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from cel_expr_python import cel
from immutables import Map

from gated.core.comparing import strictly
from gated.core.quick import shortcut
from gated.core.tokens import TokenError, Tokens, read_tokens
from gated.core.typed import DOUBTS

MAX_ITERATIONS: Final = 10_000  # of all macros of one evaluation; the library's own budget is the same
MAX_WORK: Final = 1 << 28  # iterations times bytes of text: well under a second
MAX_STRICT_WORK: Final = 1 << 20  # the same where comparisons are made in Python
MAX_VALUE_DEPTH: Final = 100

Names = Mapping[str, "frozenset[str] | None"]
Reads = tuple[tuple[str, "tuple[str, ...] | None"], ...]

RUN_FIELDS: Final = frozenset({"phase", "step_count", "counts", "cost_usd", "task", "labels", "failed"})
RESULT_FIELDS: Final = frozenset({"status", "content", "facts"})

CALL_NAMES: Final[Names] = {"tool": None, "args": None, "agent": None, "run": RUN_FIELDS, "recent": None, "at": None}
ENSURE_NAMES: Final[Names] = {**CALL_NAMES, "result": RESULT_FIELDS}
BARRIER_NAMES: Final[Names] = {"agent": None, "run": RUN_FIELDS, "recent": None, "at": None}
WHEN_NAMES: Final[Names] = {"tool": None, "args": None, "agent": None, "run": RUN_FIELDS}

_PLAIN: Final = frozenset({bool, int, float})
_FAILURES: Final = (cel.Type.ERROR, cel.Type.UNKNOWN)
_UNDECLARED: Final = re.compile(r"undeclared reference to '([^']*)'")


class ExpressionError(ValueError):
    """An expression that has no meaning, or names what does not exist."""


class EvaluationError(ValueError):
    """An expression that cannot be evaluated on these values, or gives something else than was wanted."""


class MismatchError(EvaluationError):
    """A result that rests on a comparison of what an agent wrote with a value of another type."""


class Expression:
    """`reads` are the roots it needs, each with the fields it needs of it (None: the whole root).

    `doubt` says why it can never hold where that is certain without values (`"900" > 100`); evaluating it says so too.
    `returns` is the type of its result as far as that is known without values (`dyn` where it is not).
    """

    __slots__ = ("_below", "_program", "_quick", "_strict", "_tokens", "doubt", "reads", "returns", "text")

    def __init__(self, text: str, names: Names) -> None:
        self.text = text
        try:
            self._tokens = read_tokens(text)
        except TokenError as error:
            raise ExpressionError(str(error)) from error
        self.reads = _reads(text, self._tokens, names)
        self._below = _narrowed(self._tokens.paths)
        self._program, self.doubt = _compile(text, names)
        tree = self._program.serialize()
        self._quick, self._strict = shortcut(tree), strictly(tree, tuple(sorted(names)))
        self.returns = str(self._program.return_type().name()).lower()

    @property
    def uses(self) -> tuple[str, ...]:
        """What it reads, as `root` or `root.field`, sorted."""
        return tuple(use for root, fields in self.reads for use in _uses(root, fields))

    def below(self, root: str, field: str) -> tuple[tuple[str, ...], bool]:
        """The names it reads of `root.field`, and whether it may read others too."""
        return self._below.get((root, field), ((), True))

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The result, as plain data. Raises `EvaluationError`."""
        handed = self._taken(values)
        if self._quick is not None:
            try:
                return self._quick(handed)
            except DOUBTS:
                pass
        return self._asked(self._program, handed)

    def test(self, values: Mapping[str, Any], *, either: bool = False) -> bool:
        """Raises `EvaluationError` unless the result is a boolean, and `MismatchError` where it is true only since types differ.

        `either`: also where it is false only since they do.
        """
        handed = self._taken(values)
        if self._quick is not None:
            try:
                return _boolean(self._quick(handed))  # what it gives is the same in both readings
            except DOUBTS:
                pass
        result = _boolean(self._asked(self._program, handed))
        if self._strict is not None and (result or either):
            self._prove(self._strict, handed)
        return result

    def _taken(self, values: Mapping[str, Any]) -> Handed:
        handed = values if values.__class__ is Handed else _handed(self.reads, values)
        if self._tokens.macros:
            _bound(self._tokens, handed, MAX_WORK)
        return handed

    def _asked(self, program: cel.Expression, handed: Handed) -> Any:
        try:
            found = program.eval(data=handed)
        except (RuntimeError, TypeError, ValueError) as error:
            raise EvaluationError(self._said(str(error))) from error
        value = found.value()
        if value.__class__ in _PLAIN:  # no error is one; asking for the type costs more than the rest
            return value
        if found.type() in _FAILURES:
            raise EvaluationError(self._said(str(value)))
        return found.plain_value()

    def _prove(self, strict: cel.Expression, handed: Handed) -> None:
        try:
            if self._tokens.macros:
                _bound(self._tokens, handed, MAX_STRICT_WORK)
            self._asked(strict, handed)
        except EvaluationError as error:
            raise MismatchError(str(error)) from error

    def number(self, values: Mapping[str, Any]) -> int | float:
        """Raises `EvaluationError` unless the result is a finite number."""
        result = self.evaluate(values)
        if isinstance(result, bool) or not isinstance(result, int | float) or not math.isfinite(result):
            raise EvaluationError(f"it gives {_kind(result)}, not a finite number")
        return result

    def _said(self, message: str) -> str:
        """Which element of a map fails first is random: only an expression without macros repeats what the library says."""
        if self._tokens.macros:
            return "a value is missing or has the wrong type"
        return _brief(message).encode("unicode_escape").decode()


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise EvaluationError(f"it gives {_kind(value)}, not true or false")
    return value


def compile_expression(text: str, names: Names) -> Expression:
    """`names` are the roots that exist and the fields that each has (None: any). Raises `ExpressionError`."""
    return Expression(text, names)


def _narrowed(paths: frozenset[tuple[str, ...]]) -> dict[tuple[str, str], tuple[tuple[str, ...], bool]]:
    """For each `root.field` of which a field is named: those fields, and whether it is also read as a whole."""
    found: dict[tuple[str, str], set[str]] = {}
    for root, field, name in (path[:3] for path in paths if len(path) > 2):
        found.setdefault((root, field), set()).add(name)
    return {pair: (tuple(sorted(names)), (pair[0],) in paths or pair in paths) for pair, names in sorted(found.items())}


def _uses(root: str, fields: tuple[str, ...] | None) -> list[str]:
    return [root] if fields is None else [f"{root}.{field}" for field in fields]


# --- compiling -------------------------------------------------------------------------------------------------------


def _reads(text: str, tokens: Tokens, names: Names) -> Reads:
    found: list[tuple[str, tuple[str, ...] | None]] = []
    for root in sorted({path[0] for path in tokens.paths} & set(names)):
        paths = [path for path in tokens.paths if path[0] == root]
        fields = tuple(sorted({path[1] for path in paths if len(path) > 1}))
        known = names[root]
        for field in fields:
            if known is not None and field not in known:
                raise ExpressionError(f"`{text}` names `{root}.{field}`, which does not exist{_near(field, known)}")
        found.append((root, None if (root,) in paths else fields))
    return tuple(found)


def _compile(text: str, names: Names) -> tuple[cel.Expression, str | None]:
    """The program, and why it can never hold. What only has the wrong types is a program still: one that denies."""
    env = _environment(tuple(sorted(names)))
    try:
        program = env.compile(text)
    except RuntimeError as error:
        missing = _UNDECLARED.search(str(error))
        if missing:
            name = missing[1]
            raise ExpressionError(f"`{text}` names `{name}`, which does not exist{_near(name.split('.')[0], names)}") from error
        return _unchecked(env, text), _brief(str(error))
    kind = program.return_type()
    fits = kind in (cel.Type.BOOL, cel.Type.DYN)
    return program, None if fits else f"it gives {kind.name()}, not true or false"


@cache
def _environment(names: tuple[str, ...]) -> cel.Env:
    """One for each set of names: making it costs ten times a compilation."""
    return cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN))


def _unchecked(env: cel.Env, text: str) -> cel.Expression:
    try:
        return env.compile(text, disable_check=True)
    except RuntimeError as error:
        raise ExpressionError(f"`{text}`: {_brief(str(error))}") from error


def _brief(message: str) -> str:
    """The first line of what the library says, without its status words."""
    line = message.split("\n", 1)[0].split(" [", 1)[0]
    return re.sub(r"^[A-Z_]+: (?:ERROR: <input>:\S+ )?", "", line)[:160]


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else f": there are {', '.join(f'`{k}`' for k in sorted(known))}"


# --- values ----------------------------------------------------------------------------------------------------------


class Handed(dict[str, Any]):
    """Values as the library takes them, of nothing but what an expression names."""

    __slots__ = ()


def _handed(reads: Reads, values: Mapping[str, Any]) -> Handed:
    return Handed((root, taken(values[root], fields)) for root, fields in reads)


def taken(value: Any, fields: tuple[str, ...] | None) -> Any:
    """As the library takes it; of a map no more than `fields`, unless they are None. Raises `EvaluationError`."""
    if fields is None or not isinstance(value, dict):
        return plain(value)
    found = {}
    for field in fields:  # a loop, no comprehension: this runs for every call
        if field in value:
            found[field] = plain(value[field])
    return found


def plain(value: Any, depth: int = 0) -> Any:
    """The value as the library takes it. Raises `EvaluationError` for what it would take for something else."""
    kind = value.__class__
    if kind is str:
        if "\0" in value:
            raise EvaluationError("a text holds a NUL character")
        if not value.isascii():
            _encodable(value)
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else _double(value)
    if kind is bool or value is None:
        return value
    if kind is float:
        return _double(value)
    if depth > MAX_VALUE_DEPTH:
        raise EvaluationError(f"a value is nested deeper than {MAX_VALUE_DEPTH}")
    if kind is dict or kind is Map:
        return {_key(key): plain(item, depth + 1) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item, depth + 1) for item in value]
    raise EvaluationError(f"a value is {kind.__name__}, which is not JSON")


def _encodable(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise EvaluationError("a text holds half a character") from error


def _key(key: Any) -> str:
    if key.__class__ is not str:
        raise EvaluationError("a key is no text")
    return str(plain(key))


def _double(value: float) -> float:
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise EvaluationError("a number is not finite as a double")
    return found


def _bound(tokens: Tokens, handed: Mapping[str, Any], most: int) -> None:
    """Refuse values on which macros could run too long. Every list that can arise is counted by its longest ancestor."""
    size, longest = _weigh(handed)
    longest = max(longest, tokens.literal) * tokens.sums
    iterations = tokens.macros * longest**tokens.macro_depth
    if iterations > MAX_ITERATIONS or iterations * size > most:
        raise EvaluationError(f"a list of {longest} is too long for macros {tokens.macro_depth} deep over {size} bytes")


def _weigh(value: Any) -> tuple[int, int]:
    """Bytes of text (a character counts as one), and the length of the longest list or map."""
    if isinstance(value, str):
        return len(value), 0
    if not isinstance(value, dict | list):
        return 1, 0
    size, longest = 0, len(value)
    for item in value.values() if isinstance(value, dict) else value:
        more, long = _weigh(item)
        size, longest = size + more, max(longest, long)
    return size + (sum(map(len, value)) if isinstance(value, dict) else 0), longest


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a double", str: "a text", list: "a list", dict: "a map"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
