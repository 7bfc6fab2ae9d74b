"""A value that a JSON Schema may take: small, plain, and as near to the present one as can be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

EXAMPLE: Final = "example"
MOST_REPEATS: Final = 64
_CATEGORIES: Final[Mapping[Any, str]] = {codes.CATEGORY_DIGIT: "1", codes.CATEGORY_SPACE: " "}
_SIMPLE: Final[Mapping[Any, Any]] = {"integer": 1, "number": 1, "boolean": True, "null": None}


def samples(rule: Any, present: Any = None) -> Iterator[Any]:
    """Candidates, nearest first; whether one fits is for the validator to say."""
    if not isinstance(rule, dict):
        yield EXAMPLE
        return
    yield from rule.get("enum") or ()
    yield from (rule[key] for key in ("const", "minimum", "maximum", "default") if key in rule)
    kind = rule.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    for one in kinds:
        yield from _of(one, rule, present)


def _of(kind: Any, rule: Mapping[str, Any], present: Any) -> Iterator[Any]:
    if kind in ("integer", "number") and isinstance(present, str) and re.fullmatch(r"-?\d+", present):
        yield int(present)
    elif kind == "array":
        yield from _array(rule, present)
    elif kind == "object":
        inner = rule.get("properties") or {}
        yield {key: next(samples(inner.get(key)), None) for key in rule.get("required") or ()}
    elif kind == "string" or (kind is None and "pattern" in rule):
        yield from _texts(rule, present)
    elif kind in _SIMPLE:
        yield _SIMPLE[kind]


def _array(rule: Mapping[str, Any], present: Any) -> Iterator[Any]:
    if present is not None and not isinstance(present, list | dict):
        yield [present]
    if not rule.get("minItems"):
        yield []
    yield [next(samples(rule.get("items")), EXAMPLE)] * max(1, rule.get("minItems", 1))


def _texts(rule: Mapping[str, Any], present: Any) -> Iterator[str]:
    most = rule.get("maxLength")
    if isinstance(present, str) and isinstance(most, int) and len(present) > most:
        yield present[:most]
    elif present is not None and not isinstance(present, str | list | dict):
        yield str(present)
    pattern = rule.get("pattern")
    if isinstance(pattern, str):
        made = matching(pattern)
        if made is not None:
            yield made
    yield EXAMPLE.ljust(rule.get("minLength", 0), "x")


def matching(pattern: str) -> str | None:
    """A short text that the pattern matches; None where it is beyond this."""
    try:
        text = _text(parser.parse(pattern))
        return text if re.search(pattern, text) else None
    except (re.error, KeyError, OverflowError):
        return None


def _text(parsed: Any) -> str:
    return "".join(_item(operator, argument) for operator, argument in parsed)


def _item(operator: Any, argument: Any) -> str:
    if operator is codes.LITERAL:
        return chr(argument)
    if operator is codes.ANY:
        return "x"
    if operator is codes.IN:
        return _one_of(argument)
    if operator in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        least, most, inner = argument
        times: int = min(max(least, 1 if most else 0), MOST_REPEATS)
        return _text(inner) * times
    if operator is codes.SUBPATTERN:
        return _text(argument[3])
    if operator is codes.BRANCH:
        return _text(argument[1][0])
    if operator in (codes.AT, codes.ASSERT, codes.ASSERT_NOT):
        return ""
    raise KeyError(operator)


def _one_of(choices: Any) -> str:
    """A letter where the class has one, else its first member."""
    if choices and choices[0][0] is codes.NEGATE:
        return "x"
    found: list[str] = []
    for operator, value in choices:
        if operator is codes.CATEGORY:
            found.append(_CATEGORIES.get(value, "x"))
        else:
            found.append(chr(value if operator is codes.LITERAL else value[0]))
    return next((char for char in found if char.isalpha()), found[0])
