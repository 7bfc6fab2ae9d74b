r"""Tool-call patterns: `Bash`, `Bash(npm *)`, `Edit(file_path ~ "src/**")`, `mcp__github__*`, `/mcp__(gh|gl)__.*/`.

Three ways to match. *Exact* is what is written. *Wide* is for restrictions: names and positive operators fold case, a
positional glob is tried on every argument and every string in them too, and a positive operator on whatever is inside the
field's value and on numbers in the one spelling that the digest of arguments knows, so that neither a capital nor a junk
argument nor a list around a value nor `1.0` for `1` shakes it off. *Allowed* is for grants: exact, and a positional glob only
ever matches one-key arguments.
INVARIANT: allowed implies exact, and exact implies wide.
Regexes are RE2's: linear time on attacker text; what RE2 does not take is a `PatternError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import re2

from gated.core.order import fields
from gated.core.order.globs import GlobError, compile_glob, fold, is_glob
from gated.core.order.templates import escape_text

Args = Mapping[str, Any]
Test = Callable[[str], bool]

_EXACT: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_GLOB: Final = re.compile(r"[A-Za-z0-9_.:/*?\[\]{},!-]+")
_CONDITION: Final = re.compile(r"\s*(?P<field>[A-Za-z0-9_$@.*\[\]-]+)(?<!\[)\s*(?P<op>!=~|=~|!~|!=|~|=)\s*")
_VALUE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"\s*', re.DOTALL)
_SHARP: Final = {"=": 3, "!=": 3, "~": 2, "!~": 2, "=~": 1, "!=~": 1}

_POSITIVE: Final = frozenset({"=", "~", "=~"})

_NO_CONDITION: Final = 'a condition is `field OP "value"` (as a glob, write `[=]` and `[~]` for the characters)'
_TWO_READINGS: Final = "`/(` stands here twice: write `[/](` in the regex of the name, or `/[(]` in the glob"


class PatternError(ValueError):
    """A pattern that has no meaning. `what` is wrong `at` a character of it, counted from 0."""

    def __init__(self, text: str, at: int, what: str) -> None:
        super().__init__(f"`{text}` at character {at}: {what}" if text else "a pattern or its conditions are empty")
        self.at, self.what = at, what


class Condition:
    """`field OP "value"`: holds where one of the field's values does. A field that leads nowhere never holds."""

    __slots__ = ("_any", "_holds", "_key", "_wide", "op", "steps", "text", "wants_number")

    def __init__(self, steps: tuple[fields.Step, ...], op: str, operand: str, text: str, holds: Test, wide: Test) -> None:
        self.steps, self.op, self.text, self._holds, self._wide = steps, op, text, holds, wide
        self._any = op == "~" and bool(operand) and not operand.strip("*")
        self.wants_number = op == "=" and fields.is_number(operand)
        self._key = steps[0] if len(steps) == 1 and isinstance(steps[0], str) else None

    @property
    def root(self) -> str | None:
        """The argument that its field lies in; None: any."""
        return self.steps[0] if isinstance(self.steps[0], str) and not isinstance(self.steps[0], fields.Every) else None

    def holds(self, args: Args) -> bool:
        if self._key is not None:  # one plain field, the usual case
            return self._key in args and self._holds(fields.render(args[self._key]))
        return any(map(self._holds, self.values(args)))

    def holds_wide(self, args: Args) -> bool:
        if any(map(self._wide, self.values(args))):
            return True
        return self.op in _POSITIVE and any(any(map(self._wide, fields.inside(value))) for value in self._found(args))

    def values(self, args: Args) -> Iterable[str]:
        """What is compared."""
        return map(fields.render, self._found(args))

    def shown(self, args: Args) -> str | None:
        """The value that says most of whether it holds: one of which it does, else the first; None: there is none."""
        values = list(self.values(args))
        return next((value for test in (self._holds, self._wide) for value in values if test(value)), next(iter(values), None))

    def follows_from(self, other: Condition) -> bool:
        """Whether it holds wherever the other does, as far as that can be seen."""
        return self.text == other.text or (self._any and self.steps == other.steps)

    def _found(self, args: Args) -> Iterable[Any]:
        if self._key is not None:
            return (args[self._key],) if self._key in args else ()
        return fields.resolve(self.steps, args)


class Pattern:
    """A compiled pattern. `specificity` orders rules: larger is more specific."""

    __slots__ = (
        "_conditions",
        "_glob",
        "_glob_wide",
        "_inside",
        "_name",
        "_name_text",
        "_name_wide",
        "exact_tool",
        "needs_args",
        "specificity",
        "text",
    )

    def __init__(self, text: str) -> None:
        self.text = text
        name, inside, offset = _split(text)
        self._name_text, self._inside = name, inside
        self._name, self._name_wide, rank = _name_tests(text, name)
        self.exact_tool: str | None = name if rank == 3 else None
        self._conditions: tuple[Condition, ...] = ()
        self._glob: Test | None = None
        self._glob_wide: Test | None = None
        self.needs_args = inside not in (None, "*")
        if inside is not None and self.needs_args:
            self._arguments(text, inside, offset)
        self.specificity = (rank, int(self.needs_args), len(self._conditions), *self._sharpness())

    def _sharpness(self) -> list[int]:
        return sorted((_SHARP[condition.op] for condition in self._conditions), reverse=True)

    def _arguments(self, text: str, inside: str, offset: int) -> None:
        if _CONDITION.match(inside):
            self._conditions = _conditions(text, inside, offset)
            return
        if text.startswith("/") and "/(" in inside:
            raise PatternError(text, offset + inside.index("/("), _TWO_READINGS)
        self._glob, self._glob_wide = _part(text, offset, _globs, inside)

    @property
    def reads(self) -> frozenset[str] | None:
        """The arguments that its parentheses read, by the names at the top; None: all of them."""
        if not self.needs_args:
            return frozenset()
        roots = [condition.root for condition in self._conditions]
        return None if self._glob is not None or None in roots else frozenset(root for root in roots if root)

    @property
    def numbers(self) -> list[Condition]:
        """The conditions that compare an argument with a text that writes a number."""
        return [condition for condition in self._conditions if condition.wants_number]

    @property
    def positional(self) -> bool:
        """Whether its parentheses hold a glob over the primary argument."""
        return self._glob is not None

    def matches_name(self, tool: str) -> bool:
        return self._name(tool)

    def matches_wide_name(self, tool: str) -> bool:
        return self._name_wide(tool)

    def matches(self, tool: str, args: Args) -> bool:
        """Exactly as written."""
        if not self._name(tool):
            return False
        if not self.needs_args:
            return True
        if self._glob is not None:
            return self._glob(primary(args))
        return _all(self._conditions, args)

    def matches_wide(self, tool: str, args: Args) -> bool:
        """As a restriction: whatever matches exactly matches widely too."""
        if not self._name_wide(tool):
            return False
        if not self.needs_args:
            return True
        if self._glob_wide is not None:
            return any(map(self._glob_wide, _everything(args)))
        return all(condition.holds_wide(args) for condition in self._conditions)

    def matches_allowed(self, tool: str, args: Args) -> bool:
        """As a grant: a positional glob matches one-key arguments only."""
        if self._glob is not None and len(args) != 1:
            return False
        return self.matches(tool, args)

    def takes_all(self, other: Pattern) -> bool:
        """Whether it matches exactly whatever the other does, as far as that can be seen."""
        names = other.exact_tool is not None and self.matches_name(other.exact_tool)
        if not names and self._name_text.strip("*") and self._name_text != other._name_text:
            return False
        return not self.needs_args or self.takes_arguments(other)

    def takes_arguments(self, other: Pattern) -> bool:
        """The same of what stands in the parentheses alone."""
        if self._inside == other._inside:
            return True
        mine, theirs = self._conditions, other._conditions
        return bool(mine) and all(any(condition.follows_from(given) for given in theirs) for condition in mine)

    def explain(self, tool: str, args: Args) -> list[str]:
        """Lines for people: which part matched and which did not."""
        lines = [f"name: `{escape_text(tool)}` {_does(self._name(tool), self._name_wide(tool))}"]
        if not self.needs_args:
            lines.append("arguments: any match")
        elif self._glob is not None and self._glob_wide is not None:
            verb = _does(self._glob(primary(args)), any(map(self._glob_wide, _everything(args))))
            lines.append(f"arguments: the primary argument `{escape_text(primary(args))}` {verb}")
        return lines + [_explain(condition, args) for condition in self._conditions]


def _all(conditions: tuple[Condition, ...], args: Args) -> bool:
    for condition in conditions:  # half the price of all() over a generator
        if not condition.holds(args):
            return False
    return True


def _explain(condition: Condition, args: Args) -> str:
    value = condition.shown(args)
    if value is None:
        return f"{condition.text}: does not match, for the arguments have no such field"
    return f"{condition.text}: `{escape_text(value)}` {_does(condition.holds(args), condition.holds_wide(args))}"


def _does(exact: bool, wide: bool) -> str:
    return "matches" if exact else "matches only widely" if wide else "does not match"


def primary(args: Args) -> str:
    """The only value of one-key arguments, else all of them as compact JSON."""
    if len(args) == 1:
        return fields.render(next(iter(args.values())))
    return fields.compact(args)


def _everything(args: Args) -> Iterator[str]:
    """What a wide positional glob is tried on: each argument as if it were the only one, every string, all as JSON."""
    yield from fields.strings(args)
    for value in args.values():
        if not isinstance(value, str):
            yield fields.render(value)
            yield from fields.digested(value)
    yield fields.compact(args)


def compile_pattern(text: str) -> Pattern:
    """Raises `PatternError`."""
    return Pattern(text)


class Conditions:
    """Conditions without a tool, over facts."""

    __slots__ = ("_all", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._all = _conditions(text, text, 0)

    def holds(self, value: Args) -> bool:
        return _all(self._all, value)


def compile_conditions(text: str) -> Conditions:
    """Raises `PatternError`."""
    return Conditions(text)


# --- parsing ---------------------------------------------------------------------------------------------------------


def _split(text: str) -> tuple[str, str | None, int]:
    """The name; what stands inside the parentheses, without white space around it; and where that begins."""
    end = _regex_end(text) if text.startswith("/") else text.find("(")
    name, rest = (text, "") if end < 0 else (text[:end], text[end:])
    if not rest:
        return name, None, end
    if not rest.startswith("(") or not rest.endswith(")"):
        raise PatternError(text, len(text), "it does not end with the `)` of its arguments")
    inside = rest[1:-1].strip()
    if not inside:
        raise PatternError(text, end, "empty parentheses: leave them out, or write `(*)` for any arguments")
    return name, inside, end + rest.index(inside)


def _regex_end(text: str) -> int:
    """Behind the closing slash of a regex name: the last character, or the slash before the arguments."""
    end = text.find("/(", 1) if text.endswith(")") else len(text) - 1 if text.endswith("/") else 0
    if end <= 1:
        raise PatternError(text, 0, "a regex name is written like `/read_.*/`")
    return end + 1


def _name_tests(text: str, name: str) -> tuple[Test, Test, int]:
    """Exact test, wide test and rank of a name."""
    if name.startswith("/"):
        return *_part(text, 1, lambda regex: _regexes(regex, "fullmatch"), name[1:-1]), 1
    if is_glob(name) and _GLOB.fullmatch(name):
        return *_part(text, 0, _globs, name), 2
    if not text or _EXACT.fullmatch(name) is None:
        raise PatternError(text, 0, f"`{name}` is neither a tool's name, nor a glob with `*`, `?` or `[`, nor a `/regex/`")
    return *_equals(name), 3


def _conditions(text: str, inside: str, offset: int) -> tuple[Condition, ...]:
    found: list[Condition] = []
    position = 0
    while True:
        head = _CONDITION.match(inside, position)
        if head is None:
            raise PatternError(text, offset + position, _NO_CONDITION)
        value = _VALUE.match(inside, head.end())
        if value is None:
            raise PatternError(text, offset + head.end(), f"a double-quoted value is missing or not closed; {_NO_CONDITION}")
        found.append(_condition(text, head, value, offset))
        position = value.end()
        if position == len(inside):
            return tuple(found)
        if inside[position] != ",":
            raise PatternError(text, offset + position, "a comma is missing between two conditions")
        position += 1


def _condition(text: str, head: re.Match[str], value: re.Match[str], offset: int) -> Condition:
    field, op = head["field"], head["op"]
    steps = _part(text, offset + head.start("field"), fields.compile_field, field)
    operand = re.sub(r'\\(["\\])', r"\1", value[1])
    holds, wide = _part(text, offset + value.start(1), _OPERATORS[op.removeprefix("!")], operand)
    if op.startswith("!"):  # these do not fold: ignoring case, they would hold of less
        holds = wide = _negated(holds)
    return Condition(steps, op, operand, f'{field} {op} "{value[1]}"', holds, wide)


# --- tests: the exact one and the wide one ----------------------------------------------------------------------------

_T = TypeVar("_T")


class _RegexError(ValueError):
    at: Final = 0

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def _part(text: str, at: int, compile: Callable[[str], _T], part: str) -> _T:
    """Compiles a part of a pattern; its errors say where in the whole they are."""
    try:
        return compile(part)
    except (GlobError, fields.FieldError, _RegexError) as error:
        raise PatternError(text, at + error.at, error.what) from error


def _globs(text: str) -> tuple[Test, Test]:
    return compile_glob(text).matches, compile_glob(text, fold=True).matches


def _negated(test: Test) -> Test:
    return lambda value: not test(value)


def _values(text: str) -> tuple[Test, Test]:
    """`=`: `1.0` is 1 to a restriction, as in the digest of arguments."""
    folded = {fold(text), fold(fields.number_of(text))}
    return text.__eq__, lambda value: fold(value) in folded


def _equals(text: str) -> tuple[Test, Test]:
    folded = fold(text)
    return text.__eq__, lambda value: fold(value) == folded


def _regexes(text: str, how: str = "search") -> tuple[Test, Test]:
    exact, folded = getattr(_regex(text), how), getattr(_regex(text, fold=True), how)
    # Either, for `[^a-z]` excludes more when case is ignored.
    return (lambda value: exact(value) is not None), (lambda value: exact(value) is not None or folded(value) is not None)


def _regex(text: str, *, fold: bool = False) -> Any:
    options: Any = re2.Options()
    options.log_errors = False
    options.case_sensitive = not fold
    try:
        return re2.compile(text, options)
    except re2.error as error:
        said = error.args[0] if error.args else error
        raise _RegexError(f"`{text}` is no regex of RE2: {said.decode() if isinstance(said, bytes) else said}") from error


_OPERATORS: Final[Mapping[str, Callable[[str], tuple[Test, Test]]]] = {"=": _values, "~": _globs, "=~": _regexes}
