"""Tool patterns, exact and wide. order.md, Patterns; decisions.md §5 for the forbidden side."""

from __future__ import annotations

import re
from dataclasses import dataclass

import re2

from oracle.globs import check_glob, glob_matches
from oracle.values import (
    FIELD,
    Json,
    compact,
    parse_field,
    plain_number,
    plainly,
    resolve,
    scalars_in,
    strings_in,
    text_of,
)

NAME = re.compile(r"[A-Za-z0-9_.:/-]+")
GLOB_NAME = re.compile(r"[A-Za-z0-9_.:/*?\[\]{},!-]+")
CONDITION = re.compile(rf"\s*({FIELD})\s*(!=~|!~|=~|!=|~|=)\s*")
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*', re.DOTALL)


@dataclass(frozen=True)
class Condition:
    field: str
    operator: str
    operand: str


@dataclass(frozen=True)
class Pattern:
    kind: str
    """`exact`, `glob` or `regex`: how the name is written."""
    name: str
    positional: str | None = None
    conditions: tuple[Condition, ...] = ()


def parse(text: str) -> Pattern:
    kind, name, rest = _name(text)
    if not rest:
        return Pattern(kind, name)
    if not (rest.startswith("(") and rest.endswith(")")) or not rest[1:-1].strip():
        raise ValueError(f"bad pattern `{text}`")
    inside = rest[1:-1].strip()
    if inside == "*":
        return Pattern(kind, name)
    if CONDITION.match(inside):
        return Pattern(kind, name, conditions=conditions(inside))
    check_glob(inside)
    return Pattern(kind, name, positional=inside)


def _name(text: str) -> tuple[str, str, str]:
    if text.startswith("/"):
        closing = next((i for i in range(1, len(text)) if text[i] == "/" and text[i + 1 : i + 2] in ("", "(")), 0)
        if closing < 2:
            raise ValueError(f"bad pattern `{text}`")
        compile_regex(text[1:closing])
        return "regex", text[1:closing], text[closing + 1 :]
    name = text.split("(", 1)[0]
    rest = text[len(name) :]
    if any(c in name for c in "*?[") and GLOB_NAME.fullmatch(name):
        check_glob(name)
        return "glob", name, rest
    if not NAME.fullmatch(name):
        raise ValueError(f"bad pattern `{text}`")
    return "exact", name, rest


def conditions(text: str) -> tuple[Condition, ...]:
    """`f ~ "a", g = "b"`: all must hold."""
    found, position = [], 0
    while True:
        head = CONDITION.match(text, position)
        value = QUOTED.match(text, head.end()) if head else None
        if head is None or value is None:
            raise ValueError(f"bad condition in `{text}`")
        # `\"` and `\\` escape, any other backslash stays
        condition = Condition(head[1], head[2], re.sub(r'\\(["\\])', r"\1", value[1]))
        parse_field(condition.field)
        if condition.operator in ("~", "!~"):
            check_glob(condition.operand)
        if condition.operator in ("=~", "!=~"):
            compile_regex(condition.operand)
        found.append(condition)
        position = value.end()
        if position == len(text):
            return tuple(found)
        if text[position] != ",":
            raise ValueError(f"bad condition in `{text}`")
        position += 1


def compile_regex(text: str, *, fold: bool = False) -> re2._Regexp:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not fold
    options.dot_nl = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise ValueError(f"bad regex `{text}`") from error


def matches(text: str, tool: str, args: Json) -> bool:
    """The exact match: what an allow side, a transition and `remember` go by."""
    pattern = parse(text)
    return (
        _name_matches(pattern, tool, fold=False)
        and (pattern.positional is None or glob_matches(pattern.positional, primary(args)))
        and all(condition_holds(c, args) for c in pattern.conditions)
    )


def matches_one_key(text: str, tool: str, args: Json) -> bool:
    """decisions.md §5, the allowed side: a positional glob matches only one-key arguments."""
    return matches(text, tool, args) and (parse(text).positional is None or len(args) == 1)


def matches_wide(text: str, tool: str, args: Json) -> bool:
    """Where a pattern restricts: names and positive operators fold case, and a positional glob is tried on every string.

    A wide match only ever adds: what matches exactly matches widely.
    """
    pattern = parse(text)
    tried = [primary(args), *strings_in(args), *[plain for value in args.values() for plain in plainly(value)]]
    return matches(text, tool, args) or (
        _name_matches(pattern, tool, fold=True)
        and (pattern.positional is None or any(_folded_glob(pattern.positional, s) for s in tried))
        and all(condition_holds(c, args, fold=True) for c in pattern.conditions)
    )


def _folded_glob(glob: str, text: str) -> bool:
    return glob_matches(glob, text) or glob_matches(glob.casefold(), text.casefold())


def _name_matches(pattern: Pattern, tool: str, *, fold: bool) -> bool:
    if pattern.kind == "regex":
        return compile_regex(pattern.name, fold=fold).fullmatch(tool) is not None
    name, tool = (pattern.name.casefold(), tool.casefold()) if fold else (pattern.name, tool)
    return glob_matches(name, tool) if pattern.kind == "glob" else name == tool


def primary(args: Json) -> str:
    """The only value of a one-key object; else the compact JSON of all arguments."""
    return text_of(next(iter(args.values()))) if len(args) == 1 else compact(args)


def condition_holds(condition: Condition, values: Json, *, fold: bool = False) -> bool:
    """A field that does not resolve makes it false whatever the operator; of several values one is enough."""
    resolved = resolve(values, parse_field(condition.field))
    found = [text_of(v) for v in resolved]
    if condition.operator.startswith("!"):  # negative operators do not fold
        return any(not _operator(condition.operator[1:], condition.operand, text, fold=False) for text in found)
    if fold:  # pains.md: a list around a value slips by no rule that forbids, nor does `1.0` for `1`
        found += [text for value in resolved for text in [*plainly(value), *scalars_in(value)]]
    return any(_operator(condition.operator, condition.operand, text, fold=fold) for text in found)


def _operator(operator: str, operand: str, text: str, *, fold: bool) -> bool:
    if operator == "~":
        return _folded_glob(operand, text) if fold else glob_matches(operand, text)
    if operator == "=":
        return operand == text or (fold and text.casefold() in {operand.casefold(), plain_number(operand).casefold()})
    return compile_regex(operand, fold=fold).search(text) is not None
