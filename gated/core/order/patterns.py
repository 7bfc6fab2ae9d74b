r"""Tool-call patterns: `Bash`, `Bash(npm *)`, `Edit(file_path ~ "src/**")`, `mcp__github__*`, `/mcp__(gh|gl)__.*/`.

Three ways to match. *Exact* is what is written. *Wide* is for restrictions: names and positive operators fold case, and a
positional glob is tried on every string of the arguments too, so that neither a capital nor a junk argument shakes it off.
*Allowed* is for grants: exact, and a positional glob only ever matches one-key arguments.
Regexes are RE2's: linear time on attacker text; what RE2 does not take is a `PatternError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import re2

from gated.core.order import fields
from gated.core.order.globs import Glob, GlobError, compile_glob, is_glob

Args = Mapping[str, Any]

_EXACT: Final = re.compile(r"[A-Za-z0-9_.:/-]+")
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/*?\[\]{},!-]+")
_CONDITION: Final = re.compile(r"\s*(?P<field>[A-Za-z0-9_$@.*\[\]-]+)\s*(?P<op>!=~|=~|!~|!=|~|=)(?!~)\s*")
_BEGINS: Final = re.compile(r"\s*[A-Za-z0-9_$@.*\[\]-]+\s*(?:!=~|=~|!~|!=|~|=)")
_VALUE: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SHARP: Final = {"=": 3, "!=": 3, "~": 2, "!~": 2, "=~": 1, "!=~": 1}


class PatternError(ValueError):
    """A pattern that has no meaning: what is wrong, and where."""


class Condition:
    """`field OP "value"`: holds where one of the field's values does. A field that leads nowhere never holds."""

    __slots__ = ("_holds", "_key", "_negative", "_steps", "_wide", "op", "text")

    def __init__(self, field: str, op: str, value: str) -> None:
        try:
            self._steps = fields.compile_field(field)
        except fields.FieldError as error:
            raise PatternError(str(error)) from error
        first = self._steps[0]
        self._key = first if len(self._steps) == 1 and isinstance(first, str) else None
        self.op, self.text = op, f'{field} {op} "{value}"'
        self._negative = op.startswith("!")
        self._holds = _test(op, value, fold=False)
        self._wide = self._holds if self._negative else _test(op, value, fold=True)

    def holds(self, args: Args) -> bool:
        if self._key is not None:  # one plain field, the usual case
            return self._key in args and self._holds(fields.render(args[self._key]))
        return any(self._holds(fields.render(value)) for value in fields.resolve(self._steps, args))

    def holds_wide(self, args: Args) -> bool:
        for value in fields.resolve(self._steps, args):
            text = fields.render(value)
            if self._holds(text) or (not self._negative and self._wide(text)):
                return True
        return False


def _test(op: str, value: str, *, fold: bool) -> Callable[[str], bool]:
    test = _positive(op, value, fold)
    return (lambda text: not test(text)) if op.startswith("!") else test


def _positive(op: str, value: str, fold: bool) -> Callable[[str], bool]:
    """The test of an operator without its negation."""
    if op.endswith("=~"):
        search = _regex(value, fold=fold).search
        return lambda text: search(text) is not None
    value = value.casefold() if fold else value
    if op.endswith("="):
        return (lambda text: text.casefold() == value) if fold else value.__eq__
    glob = _glob(value)
    return (lambda text: glob.matches(text.casefold())) if fold else glob.matches


def _glob(text: str) -> Glob:
    try:
        return compile_glob(text)
    except GlobError as error:
        raise PatternError(str(error)) from error


def _regex(text: str, *, fold: bool = False) -> Any:
    options: Any = re2.Options()
    options.log_errors = False
    options.case_sensitive = not fold
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise PatternError(f"`{text}` is not a regular expression of RE2: {_said(error)}") from error


def _said(error: Exception) -> str:
    said = error.args[0] if error.args else error
    return said.decode() if isinstance(said, bytes) else str(said)


class Pattern:
    """A compiled pattern. `specificity` orders rules: larger is more specific."""

    __slots__ = (
        "_any",
        "_conditions",
        "_fold",
        "_glob",
        "_glob_wide",
        "_name",
        "exact_tool",
        "needs_args",
        "specificity",
        "text",
    )

    def __init__(self, text: str) -> None:
        self.text = text
        name, inside = _split(text)
        self.exact_tool: str | None = None
        self._name, self._fold, rank = _name_test(text, name)
        if rank == 3:
            self.exact_tool = name
        self._conditions: tuple[Condition, ...] = ()
        self._glob: Glob | None = None
        self._glob_wide: Glob | None = None
        self._any = inside is None or inside.strip() == "*"
        if inside is not None and not self._any:
            self._arguments(text, inside)
        self.needs_args = not self._any
        self.specificity = (rank, int(self.needs_args), len(self._conditions), *self._sharpness())

    def _sharpness(self) -> list[int]:
        return sorted((_SHARP[condition.op] for condition in self._conditions), reverse=True)

    def _arguments(self, text: str, inside: str) -> None:
        if not inside.strip():
            raise PatternError(f"`{text}` has empty parentheses: leave them out, or write `(*)` for any arguments")
        if _BEGINS.match(inside):
            self._conditions = _conditions(text, inside)
        else:
            self._glob = _glob(inside)
            self._glob_wide = _glob(inside.casefold())

    def matches_name(self, tool: str) -> bool:
        return self._name(tool)

    def matches(self, tool: str, args: Args) -> bool:
        """Exactly as written."""
        if not self._name(tool):
            return False
        if self._any:
            return True
        if self._glob is not None:
            return self._glob.matches(primary(args))
        return all(condition.holds(args) for condition in self._conditions)

    def matches_wide(self, tool: str, args: Args) -> bool:
        """As a restriction: whatever matches exactly matches widely too."""
        if not (self._name(tool) or self._fold(tool)):
            return False
        if self._any:
            return True
        if self._glob is not None and self._glob_wide is not None:
            glob, wide = self._glob, self._glob_wide
            return any(
                glob.matches(text) or wide.matches(text.casefold())
                for text in (primary(args), fields.compact(args), *fields.strings(args))
            )
        return all(condition.holds_wide(args) for condition in self._conditions)

    def matches_allowed(self, tool: str, args: Args) -> bool:
        """As a grant: a positional glob matches one-key arguments only."""
        if self._glob is not None and len(args) != 1:
            return False
        return self.matches(tool, args)

    def explain(self, tool: str, args: Args) -> list[str]:
        """Lines for people: which part matched and which did not."""
        lines = [f"name: `{tool}` {_does(self._name(tool))}"]
        if self._any:
            lines.append("arguments: any match")
        elif self._glob is not None:
            lines.append(f"arguments: the primary argument `{primary(args)[:200]}` {_does(self._glob.matches(primary(args)))}")
        for condition in self._conditions:
            lines.append(f"{condition.text}: {_does(condition.holds(args))}")
        return lines


def _does(matched: bool) -> str:
    return "matches" if matched else "does not match"


def primary(args: Args) -> str:
    """The only value of one-key arguments, else all of them as compact JSON."""
    if len(args) == 1:
        return fields.render(next(iter(args.values())))
    return fields.compact(args)


def compile_pattern(text: str) -> Pattern:
    """Raises `PatternError`."""
    return Pattern(text)


class Conditions:
    """Conditions without a tool, over facts."""

    __slots__ = ("_all", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._all = _conditions(text, text)

    def holds(self, value: Args) -> bool:
        return all(condition.holds(value) for condition in self._all)


def compile_conditions(text: str) -> Conditions:
    """Raises `PatternError`."""
    return Conditions(text)


# --- parsing ---------------------------------------------------------------------------------------------------------


def _split(text: str) -> tuple[str, str | None]:
    """The name, and what stands inside the parentheses."""
    if not text:
        raise PatternError("a pattern is empty")
    if text.startswith("/"):
        end = _regex_end(text)
        name, rest = text[:end], text[end:]
    else:
        opening = text.find("(")
        name, rest = (text, "") if opening < 0 else (text[:opening], text[opening:])
    if not rest:
        return name, None
    if not rest.startswith("(") or not rest.endswith(")"):
        raise PatternError(f"`{text}` does not end with the `)` of its arguments")
    return name, rest[1:-1]


def _regex_end(text: str) -> int:
    """Behind the closing slash of a regex name: the last one, or the one before the arguments."""
    end = text.find("/(", 1)
    while end > 0 and not text.endswith(")"):
        end = text.find("/(", end + 1)
    if end < 0:
        end = len(text) - 1 if text.endswith("/") else 0
    if end <= 1:
        raise PatternError(f"`{text}` is not a regex name: write it like `/read_.*/`")
    return end + 1


def _name_test(text: str, name: str) -> tuple[Callable[[str], bool], Callable[[str], bool], int]:
    """Exact test, folded test and rank of a name."""
    if name.startswith("/"):
        sharp, wide = _regex(name[1:-1]).fullmatch, _regex(name[1:-1], fold=True).fullmatch
        return (lambda tool: sharp(tool) is not None), (lambda tool: wide(tool) is not None), 1
    if not name or _NAME.fullmatch(name) is None:
        raise PatternError(f"`{text}` does not begin with a tool name, a glob or a `/regex/`")
    folded_name = name.casefold()
    if is_glob(name):
        glob, folded = _glob(name), _glob(folded_name)
        return glob.matches, (lambda tool: folded.matches(tool.casefold())), 2
    if _EXACT.fullmatch(name) is None:
        raise PatternError(f"`{text}`: `{name}` is no tool's name; alternatives are written as a regex, like `/(a|b)/`")
    return name.__eq__, (lambda tool: tool.casefold() == folded_name), 3


def _conditions(text: str, inside: str) -> tuple[Condition, ...]:
    found: list[Condition] = []
    position = 0
    while True:
        head = _CONDITION.match(inside, position)
        value = _VALUE.match(inside, head.end()) if head else None
        if head is None or value is None:
            raise PatternError(f'`{text}` is broken at character {position}: a condition is `field OP "value"`')
        found.append(Condition(head["field"], head["op"], re.sub(r'\\(["\\])', r"\1", value[1])))
        rest = inside[value.end() :].lstrip()
        if not rest:
            return tuple(found)
        if not rest.startswith(","):
            raise PatternError(f"`{text}` wants a comma between conditions, before `{rest[:20]}`")
        position = len(inside) - len(rest) + 1
