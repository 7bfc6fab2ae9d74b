"""Globs over whole strings: `*` and `**` match anything, `/` and line breaks included, and nothing.

`?` is one character other than `/`, `[a-z]` and `[!a-z]` one of a set, `{a,b}` either; `**/` also matches no folder at all.
A glob is a sequence of literal runs and single-character tests between stars; matching is the classic greedy scan, at worst
length times pattern, never exponential. Plain shapes (`*`, a literal, `literal*`, `*literal`) take one string operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_ALTERNATIVES: Final = 64

Test = Callable[[str], bool]
Part = list["str | Test"]  # one segment between stars: characters and tests, each for one character


class GlobError(ValueError):
    """A glob that has no meaning: what is wrong, and where."""


class Glob:
    """A compiled glob."""

    __slots__ = ("_match", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        matchers = [_compile(one) for one in _alternatives(text)]
        self._match = matchers[0] if len(matchers) == 1 else lambda value: any(m(value) for m in matchers)

    def matches(self, value: str) -> bool:
        return self._match(value)


def compile_glob(text: str) -> Glob:
    """Raises `GlobError`."""
    return Glob(text)


def is_glob(text: str) -> bool:
    """Whether a name is a glob rather than itself."""
    return any(mark in text for mark in "*?[")


def _alternatives(text: str) -> list[str]:
    """Every expansion of the braces, and of `**/`, which may also be nothing."""
    found = [""]
    position = 0
    while position < len(text):
        options, position = _next_options(text, position)
        found = [head + option for head in found for option in options]
        if len(found) > MAX_ALTERNATIVES:
            raise GlobError(f"`{text}` has more than {MAX_ALTERNATIVES} alternatives")
    return found


def _next_options(text: str, position: int) -> tuple[list[str], int]:
    char = text[position]
    if char == "{":
        return _brace(text, position)
    if char == "[":
        end = _set_end(text, position)
        return [text[position:end]], end
    if text.startswith("/**/", position):
        return ["/", "/**/"], position + 4
    if position == 0 and text.startswith("**/"):
        return ["", "**/"], position + 3
    return [char], position + 1


def _brace(text: str, start: int) -> tuple[list[str], int]:
    depth, begin, parts = 0, start + 1, list[str]()
    for position in range(start, len(text)):
        char = text[position]
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                parts.append(text[begin:position])
                return [one for part in parts for one in _alternatives(part)], position + 1
        elif char == "," and depth == 1:
            parts.append(text[begin:position])
            begin = position + 1
    raise GlobError(f"`{text}` has an unclosed `{{` at character {start}")


def _set_end(text: str, start: int) -> int:
    """The end of `[…]`, behind its bracket; a `]` right after the opening belongs to the set."""
    first = start + 2 if text.startswith("!", start + 1) else start + 1
    end = text.find("]", first + 1)
    if end < 0:
        raise GlobError(f"`{text}` has an unclosed `[` at character {start}")
    return end + 1


def _compile(text: str) -> Callable[[str], bool]:
    parts = _parts(text)
    if all(isinstance(item, str) for part in parts for item in part):
        return _plain(["".join(str(item) for item in part) for part in parts])
    return lambda value: _scan(parts, value)


def _plain(literals: list[str]) -> Callable[[str], bool]:
    """Matchers for globs that are only literals and stars."""
    if len(literals) == 1:
        whole = literals[0]
        return lambda value: value == whole
    head, *middle, tail = literals
    if not any(literals):
        return lambda value: True
    if not any(middle):
        size = len(head) + len(tail)
        return lambda value: len(value) >= size and value.startswith(head) and value.endswith(tail)

    def match(value: str) -> bool:
        if not value.startswith(head) or not value.endswith(tail):
            return False
        position, end = len(head), len(value) - len(tail)
        for literal in middle:
            found = value.find(literal, position, end)
            if found < 0:
                return False
            position = found + len(literal)
        return position <= end

    return match


def _parts(text: str) -> list[Part]:
    parts: list[Part] = [[]]
    position = 0
    while position < len(text):
        char = text[position]
        if char == "*":
            if parts[-1] or len(parts) == 1:
                parts.append([])
            position += 1
        elif char == "[":
            end = _set_end(text, position)
            parts[-1].append(_one_of(text[position + 1 : end - 1]))
            position = end
        else:
            parts[-1].append(_not_slash if char == "?" else char)
            position += 1
    return parts


def _not_slash(char: str) -> bool:
    return char != "/"


def _one_of(body: str) -> Test:
    negated = body.startswith("!")
    body = body[1:] if negated else body
    singles, ranges = set[str](), list[tuple[str, str]]()
    position = 0
    while position < len(body):
        if position + 2 < len(body) and body[position + 1] == "-":
            ranges.append((body[position], body[position + 2]))
            position += 3
        else:
            singles.add(body[position])
            position += 1
    return lambda char: (char in singles or any(low <= char <= high for low, high in ranges)) is not negated


def _scan(parts: list[Part], value: str) -> bool:
    """Head and tail are anchored, what stands between is found leftmost: greedy is right, since stars match anything."""
    head, tail = parts[0], parts[-1]
    if len(parts) == 1:
        return len(value) == len(head) and _fits(head, value, 0)
    if len(value) < len(head) + len(tail) or not _fits(head, value, 0) or not _fits(tail, value, len(value) - len(tail)):
        return False
    position, end = len(head), len(value) - len(tail)
    for part in parts[1:-1]:
        while position + len(part) <= end and not _fits(part, value, position):
            position += 1
        position += len(part)
        if position > end:
            return False
    return True


def _fits(part: Part, value: str, at: int) -> bool:
    for offset, item in enumerate(part):
        char = value[at + offset]
        if item != char if isinstance(item, str) else not item(char):
            return False
    return True
