"""Globs over whole strings: `*` and `**` match anything, `/` and line breaks included, and nothing.

`?` is one character other than `/`, `[a-z]` and `[!a-z]` one of a set, `{a,b}` either; `**/` also matches no folder at all.
A glob is a few alternatives, each of them segments of a fixed length with stars between. Head and tail are anchored, what
stands between is found leftmost: greedy is right, since a star matches anything. So matching never backtracks, whatever the
text: a segment of literals takes one string search, one with `?` or a set a regex without repetition.
A folding glob is for restrictions. It compares casefolded text (so that `ß` is `ss`), and where it counts characters or has
sets, also character by character ignoring case, and as written: it matches whatever the exact glob does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

MAX_ALTERNATIVES: Final = 256
MAX_NESTING: Final = 32
LONG: Final = 10_000  # characters

Matcher = Callable[[str], bool]

_RUN: Final = re.compile(r"[^{}\[,]+")
_TOKEN: Final = re.compile(
    r"(?P<folders>(?:(?<=/)|^)(?:\*\*/)+)|(?P<stars>\*+)|(?P<one>\?)|(?P<set>\[!?.[^\]]*\])|(?P<literal>[^*?\[]+)", re.DOTALL
)
_BACKWARDS: Final = "`{}` in its set runs backwards"
_CARET: Final = "`[^` is not how a set is negated: write `[!…]`, or the `^` later in the set"


class GlobError(ValueError):
    """A glob that has no meaning. `what` is wrong `at` a character of it, counted from 0."""

    def __init__(self, text: str, at: int, what: str) -> None:
        super().__init__(f"`{text}` at character {at}: {what}")
        self.at, self.what = at, what


class Glob:
    """A compiled glob; `matches` takes the whole text."""

    __slots__ = ("matches", "text")

    def __init__(self, text: str, *, fold: bool = False) -> None:
        self.text = text
        alternatives = [tokens for braceless in _expand(text) for tokens in _tokens(text, braceless)]
        self.matches: Matcher = _folding(alternatives) if fold else _any(list(map(_exact, alternatives)))


def compile_glob(text: str, *, fold: bool = False) -> Glob:
    """Raises `GlobError`."""
    return Glob(text, fold=fold)


def is_glob(text: str) -> bool:
    """Whether a name is a glob rather than itself."""
    return any(mark in text for mark in "*?[")


# --- parsing ---------------------------------------------------------------------------------------------------------

Token = tuple[str, str]  # kind and text


def _expand(text: str) -> list[str]:
    """The glob without braces: every choice of their alternatives."""
    return _sequence(text, 0, 0)[0]


def _sequence(text: str, position: int, depth: int) -> tuple[list[str], int]:
    """Every choice from here to the end, or to the `,` or `}` of the brace this stands in; and where that is."""
    found = [""]
    while position < len(text):
        char = text[position]
        if depth and char in ",}":
            break
        if char == "}":
            raise GlobError(text, position, "a `}` closes nothing: write `[}]` for the character itself")
        if char == "{":
            options, position = _brace(text, position, depth + 1)
        else:
            end = _set_end(text, position) if char == "[" else _run_end(text, position)
            options, position = [text[position:end]], end
        _limit(text, position, len(found) * len(options))
        found = [head + option for head in found for option in options]
    return found, position


def _brace(text: str, start: int, depth: int) -> tuple[list[str], int]:
    if depth > MAX_NESTING:
        raise GlobError(text, start, f"braces nest deeper than {MAX_NESTING}")
    options, position = list[str](), start
    while position < len(text):
        more, position = _sequence(text, position + 1, depth)
        options += more
        _limit(text, start, len(options))
        if text.startswith("}", position):
            return options, position + 1
    raise GlobError(text, start, "a `{` is not closed")


def _limit(text: str, at: int, size: int) -> None:
    if size > MAX_ALTERNATIVES:
        raise GlobError(text, at, f"more than {MAX_ALTERNATIVES} alternatives: write several rules")


def _run_end(text: str, start: int) -> int:
    run = _RUN.match(text, start)
    return run.end() if run else start + 1


def _set_end(text: str, start: int) -> int:
    """Behind the `]` of a set; one right after the opening belongs to the set."""
    first = start + 2 if text.startswith("!", start + 1) else start + 1
    end = text.find("]", first + 1)
    if end < 0:
        raise GlobError(text, start, "a `[` is not closed")
    if text.startswith("^", start + 1):
        raise GlobError(text, start, _CARET)
    for low, high in re.findall(r"(.)-(.)", text[first:end], re.DOTALL):
        if low > high:
            raise GlobError(text, start, _BACKWARDS.format(f"{low}-{high}"))
    return end + 1


def _tokens(text: str, braceless: str) -> list[list[Token]]:
    """The tokens of one alternative, with and without the folders of each `**/`."""
    found: list[list[Token]] = [[]]
    for match in _TOKEN.finditer(braceless):
        kind = str(match.lastgroup)
        if kind != "folders":
            for tokens in found:
                tokens.append((kind, match.group()))
        elif not braceless.startswith("*", match.end()):  # before a star they are part of what it matches
            found += [[*tokens, ("stars", "*"), ("literal", "/")] for tokens in found]
            _limit(text, 0, len(found))
    return found


# --- matching --------------------------------------------------------------------------------------------------------


def _any(matchers: list[Matcher]) -> Matcher:
    if len(matchers) == 1:
        return matchers[0]
    return lambda value: any(matches(value) for matches in matchers)


def _exact(tokens: list[Token]) -> Matcher:
    return _plain(_literals(tokens)) if _is_plain(tokens) else _regular(tokens, re.NOFLAG)


def fold(text: str) -> str:
    """Case folded: of ASCII that is lower case, and ten times faster. Many rules look at one long text, which is folded once."""
    if text.isascii():
        return text.lower()
    return text.casefold() if len(text) < LONG else _fold_long(text)


@lru_cache(maxsize=4)
def _fold_long(text: str) -> str:
    return text.casefold()


def _folding(alternatives: list[list[Token]]) -> Matcher:
    folded = [[(kind, fold(text) if kind == "literal" else text) for kind, text in tokens] for tokens in alternatives]
    on_folded = _any([_plain(_literals(tokens)) if _is_plain(tokens) else _regular(tokens, re.I) for tokens in folded])
    counting = [tokens for tokens in alternatives if not _is_plain(tokens)]
    if not counting:
        return lambda value: on_folded(fold(value))
    as_written = _any([_regular(tokens, flags) for tokens in counting for flags in (re.NOFLAG, re.I)])
    return lambda value: on_folded(fold(value)) or as_written(value)


def _is_plain(tokens: list[Token]) -> bool:
    return all(kind in ("literal", "stars") for kind, _ in tokens)


def _segments(tokens: list[Token]) -> list[list[Token]]:
    """What stands before, between and after the stars; at least one, and two where there is a star."""
    segments: list[list[Token]] = [[]]
    for token in tokens:
        if token[0] == "stars":
            segments.append([])
        else:
            segments[-1].append(token)
    return [segments[0], *(one for one in segments[1:-1] if one), *segments[1:][-1:]]


def _literals(tokens: list[Token]) -> list[str]:
    return ["".join(text for _, text in segment) for segment in _segments(tokens)]


def _plain(literals: list[str]) -> Matcher:
    """For globs that are only literals and stars."""
    if len(literals) == 1:
        return literals[0].__eq__
    head, *middle, tail = literals
    if not any(literals):
        return lambda value: True
    if not middle and not tail:
        return lambda value: value.startswith(head)
    if not middle and not head:
        return lambda value: value.endswith(tail)
    least = len(head) + len(tail)

    def matches(value: str) -> bool:
        if len(value) < least or not value.startswith(head) or not value.endswith(tail):
            return False
        position, end = len(head), len(value) - len(tail)
        for literal in middle:
            found = value.find(literal, position, end)
            if found < 0:
                return False
            position = found + len(literal)
        return True

    return matches


def _regular(tokens: list[Token], flags: re.RegexFlag) -> Matcher:
    """For globs with single-character tests: a regex of fixed length for each segment."""
    segments = _segments(tokens)
    regexes = [re.compile("".join(map(_regex, segment)), flags) for segment in segments]
    if len(regexes) == 1:
        return lambda value: regexes[0].fullmatch(value) is not None
    head, *middle, tail = regexes
    head_size, tail_size = _size(segments[0]), _size(segments[-1])

    def matches(value: str) -> bool:
        position, end = head_size, len(value) - tail_size
        if position > end or not head.match(value) or not tail.match(value, end):
            return False
        for segment in middle:
            found = segment.search(value, position, end)
            if found is None:
                return False
            position = found.end()
        return True

    return matches


def _size(segment: list[Token]) -> int:
    return sum(len(text) if kind == "literal" else 1 for kind, text in segment)


def _regex(token: Token) -> str:
    kind, text = token
    if kind == "literal":
        return re.escape(text)
    if kind == "one":
        return "[^/]"
    negated = text.startswith("[!")
    body = text[2 if negated else 1 : -1]
    items = re.sub(r"(.)-(.)|(.)", _item, body, flags=re.DOTALL)
    return f"[{'^' if negated else ''}{items}]"


def _item(match: re.Match[str]) -> str:
    low, high, single = match.groups()
    return re.escape(single) if single else f"{re.escape(low)}-{re.escape(high)}"
