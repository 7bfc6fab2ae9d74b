"""The words of a CEL expression: enough to know what it reads and how much it may cost, before a parser sees it.

It is no parser. INVARIANT: it may find more names than the parser would, never fewer without the evaluation failing: a name
that is missed here is not handed over, and an expression that lacks a name denies.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

MAX_LENGTH: Final = 4096
MAX_NESTING: Final = 32
MAX_MACRO_DEPTH: Final = 3  # macros inside one another cost the product of their lists

_TOKEN: Final = re.compile(
    r"""
      (?P<skip> \s+ | //[^\n]* )
    | (?P<string> (?:[rR][bB]?|[bB][rR]) (?: \"\"\".*?\"\"\" | '''.*?''' | "[^"\n]*" | '[^'\n]*' )
                | [bB]? (?: \"\"\"(?:[^\\]|\\.)*?\"\"\" | '''(?:[^\\]|\\.)*?''' | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' ) )
    | (?P<quoted> `[^`\n]*` )
    | (?P<number> \d[\w.]* )
    | (?P<name> [A-Za-z_]\w* )
    | (?P<sign> . )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_MACROS: Final = frozenset({"all", "exists", "exists_one", "map", "filter"})


class TokenError(ValueError):
    """A text that is too long or too deep to be handed to a parser."""


class Tokens(Struct, frozen=True):
    """`paths` are chains such as `run.counts["pay"]`. `literal` bounds the longest list in the text, `sums` its additions."""

    paths: frozenset[tuple[str, ...]]
    macros: int
    macro_depth: int
    literal: int
    sums: int


Word = tuple[str, str]  # kind and text


def read_tokens(text: str) -> Tokens:
    """Raises `TokenError`."""
    if len(text) > MAX_LENGTH:
        raise TokenError(f"an expression of {len(text)} characters: at most {MAX_LENGTH} are taken")
    words = [(match.lastgroup or "", match[0]) for match in _TOKEN.finditer(text) if match.lastgroup != "skip"]
    macros, depth = _nesting(text, words)
    paths = {_path(words, at) for at, (kind, _) in enumerate(words) if kind == "name" and _sign(words, at - 1) != "."}
    commas = sum(word == ("sign", ",") for word in words)
    sums = sum(word == ("sign", "+") for word in words)
    return Tokens(frozenset(paths), macros, depth, commas + 1, sums + 1)


def _nesting(text: str, words: list[Word]) -> tuple[int, int]:
    """How many macros there are, and how many are inside one another."""
    open_macros: list[bool] = []
    macros = deepest = choices = 0
    for at, (kind, word) in enumerate(words):
        if kind != "sign":
            continue
        choices += word == "?"
        if word in "([{":
            macro = _is_macro(words, at)
            macros += macro
            open_macros.append(macro)
            deepest = max(deepest, sum(open_macros))
        elif word in ")]}" and open_macros:
            open_macros.pop()
        if len(open_macros) > MAX_NESTING or choices > MAX_NESTING:
            raise TokenError(f"`{text[:60]}…` is nested deeper than {MAX_NESTING}")
    if deepest > MAX_MACRO_DEPTH:
        raise TokenError(f"`{text[:60]}…` has macros {deepest} deep: at most {MAX_MACRO_DEPTH} are taken")
    return macros, deepest


def _is_macro(words: list[Word], at: int) -> bool:
    return words[at][1] == "(" and at >= 2 and words[at - 1][1] in _MACROS and _sign(words, at - 2) == "."


def _path(words: list[Word], at: int) -> tuple[str, ...]:
    """The name at `at` and the fields after it, as far as they are plain. A last one that is called is no field."""
    path = [words[at][1]]
    while True:
        step = _step(words, at + 1)
        if step is None:
            return tuple(path)
        field, width = step
        path.append(field)
        at += width


def _step(words: list[Word], at: int) -> tuple[str, int] | None:
    """`.name` or `["name"]`, and how many words it is."""
    if at + 1 >= len(words):
        return None
    (kind, word), sign = words[at + 1], _sign(words, at)
    if sign == "." and kind in ("name", "quoted") and _sign(words, at + 2) != "(":
        return word.strip("`"), 2
    if sign == "[" and kind == "string" and _sign(words, at + 2) == "]" and word[0] in "\"'" and "\\" not in word:
        return word.strip(word[0]), 3
    return None


def _sign(words: list[Word], at: int) -> str:
    return words[at][1] if 0 <= at < len(words) and words[at][0] == "sign" else ""
