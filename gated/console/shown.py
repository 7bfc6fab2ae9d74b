"""Arguments as people read them: JSON with every character to be seen, exactly, and what is left out counted.

INVARIANT: what comes out is HTML in which no text of an agent is markup, and no character is invisible or turns others around:
control, bidi and zero-width characters are written as escapes. What is not the full view says how many bytes it hides.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from markupsafe import Markup, escape

from gated import canonical
from gated.core.order.templates import UNSAFE
from gated.units import some

LONG: Final = 300  # characters of a string that the short view shows
SMALL: Final = 76  # characters of a container that is shown on one line
LINES: Final = 80  # lines that the short view shows
DIFF_LINES: Final = 3000
WORD: Final = 16  # characters by which a marked change is widened to a whole word
AROUND: Final = 160  # characters that a diff shows around a change in a long line


class Shown(NamedTuple):
    """Lines of HTML; `hidden` bytes of the `total` are not in them."""

    lines: list[Markup]
    hidden: int
    total: int


class _Token(NamedTuple):
    kind: str  # class of its span: k(ey), s(tring), n(umber), l(iteral), p(unctuation)
    text: str


def show(value: Any, *, full: bool) -> Shown:
    """The value line by line. In the short view long strings and many lines are cut."""
    total = len(canonical.encode(value))
    lines: list[Markup] = []
    told = clipped = 0
    for depth, tokens in _lines(value, 0, ""):
        if not full and len(lines) == LINES:
            break
        parts = [Markup("  " * depth)]
        for token in tokens:
            told += _size(token.text) - (token.text in (": ", ", "))  # the spaces are ours
            text = token.text if full or token.kind not in "sk" else token.text[:LONG]
            parts.append(_span(token.kind, text))
            if len(text) < len(token.text):
                left = _size(token.text[LONG:])
                clipped += left
                parts.append(Markup('<span class="more">… {} hidden</span>').format(some(left, "byte")))
        lines.append(Markup("").join(parts))
    else:
        told = total
    return Shown(lines, clipped + max(0, total - told), total)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _lines(value: Any, depth: int, comma: str, key: str | None = None) -> Iterator[tuple[int, list[_Token]]]:
    head = [] if key is None else [_Token("k", json.dumps(key, ensure_ascii=False)), _Token("p", ": ")]
    if depth and (flat := _flat(value)):
        yield depth, [*head, *flat, *([_Token("p", comma)] if comma else [])]
        return
    if isinstance(value, dict | list) and value:
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        yield depth, [*head, _Token("p", opening)]
        items = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
        for number, (name, item) in enumerate(items, 1):
            yield from _lines(item, depth + 1, "," if number < len(items) else "", name)
        yield depth, [_Token("p", closing + comma)]
        return
    yield depth, [*head, _scalar(value), *([_Token("p", comma)] if comma else [])]


def _flat(value: Any) -> list[_Token]:
    """A small container of plain values on one line; nothing where it is none."""
    if not isinstance(value, dict | list) or not 0 < len(value) <= SMALL // 4:
        return []
    keys = value if isinstance(value, dict) else [None] * len(value)
    items = value.values() if isinstance(value, dict) else value
    tokens = [_Token("p", "{" if isinstance(value, dict) else "[")]
    for number, (key, item) in enumerate(zip(keys, items, strict=True)):
        if isinstance(item, dict | list):
            return []
        tokens += [_Token("p", ", ")] if number else []
        tokens += [] if key is None else [_Token("k", json.dumps(key, ensure_ascii=False)), _Token("p", ": ")]
        tokens.append(_scalar(item))
    tokens.append(_Token("p", "}" if isinstance(value, dict) else "]"))
    return tokens if sum(len(token.text) for token in tokens) <= SMALL else []


def _scalar(value: Any) -> _Token:
    if isinstance(value, str):
        return _Token("s", json.dumps(value, ensure_ascii=False))
    if isinstance(value, bool) or value is None:
        return _Token("l", json.dumps(value))
    if isinstance(value, float):
        return _Token("n", canonical.number(value))
    return _Token("n", json.dumps(value))


def _span(kind: str, text: str) -> Markup:
    if kind == "p":
        return escape(text)
    # each text is isolated, so that one that runs from right to left moves nothing beside it
    return Markup('<bdi class="{}">{}</bdi>').format(kind, marked(text))


def marked(text: str) -> Markup:
    """Text with what cannot be seen written out and marked; line breaks of JSON break the line too."""
    parts: list[Markup] = []
    at = 0
    for match in UNSAFE.finditer(text):
        parts += [_broken(text[at : match.start()]), Markup('<span class="esc">{}</span>').format(code_of(match.group()))]
        at = match.end()
    parts.append(_broken(text[at:]))
    return Markup("").join(parts)


def _broken(text: str) -> Markup:
    """`\\n` inside of a JSON string, followed by a break that is only to be seen and by a mark: this is no line of ours."""
    pieces = _unescaped_breaks(text)
    return Markup('<span class="nl">\\n</span>\n<span class="cont"></span>').join(escape(piece) for piece in pieces)


def _unescaped_breaks(text: str) -> list[str]:
    pieces, start, at = list[str](), 0, 0
    while (at := text.find("\\", at)) >= 0:
        if text[at + 1 : at + 2] == "n":
            pieces.append(text[start:at])
            start = at + 2
        at += 2
    return [*pieces, text[start:]]


def code_of(char: str) -> str:
    """A character as JSON writes it in ASCII."""
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"


def plain(text: str) -> Markup:
    """A text of a person or an agent, as it is, with what cannot be seen written out; its line breaks kept.

    What stands in backticks, as in the gate's own reasons, is set as code.
    """
    pieces = text.replace("\r\n", "\n").split("`")
    closed = len(pieces) - 1 if len(pieces) % 2 == 0 else len(pieces)
    whole = pieces[:closed] + (["`" + pieces[closed]] if closed < len(pieces) else [])
    return Markup("").join(
        Markup("<code>{}</code>").format(_plain(piece)) if number % 2 and number < closed else _plain(piece)
        for number, piece in enumerate(whole)
    )


def _plain(text: str) -> Markup:
    return Markup("\n").join(Markup("").join(map(_visible, _parts(line))) for line in text.split("\n"))


def _visible(part: str) -> Markup:
    return Markup('<span class="esc">{}</span>').format(code_of(part)) if UNSAFE.fullmatch(part) else escape(part)


def _parts(line: str) -> Iterator[str]:
    """A line cut where characters cannot be seen, those by themselves."""
    at = 0
    for match in UNSAFE.finditer(line):
        yield from (piece for piece in (line[at : match.start()], match.group()) if piece)
        at = match.end()
    yield line[at:]


def editable(value: Any) -> str:
    """JSON to be edited: what cannot be seen stands there as an escape, so that it means the same when it is read back."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return UNSAFE.sub(lambda match: match.group() if match.group() == "\n" else code_of(match.group()), text)


# --- differences ---------------------------------------------------------------------------------------------------------


class DiffLine(NamedTuple):
    """`sign` is `+`, `-`, a space, or `…` for lines that are the same and left out."""

    sign: str
    text: Markup


def diff(old: Any, new: Any) -> list[DiffLine]:
    """What changes from one value to another, line by line, with three lines around each change."""
    before, after = _text_lines(old), _text_lines(new)
    if max(len(before), len(after)) > DIFF_LINES:
        return [DiffLine("…", Markup("the values have too many lines to be compared here: open the full view"))]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    found: list[DiffLine] = []
    for number, group in enumerate(matcher.get_grouped_opcodes(3)):
        if number or group[0][1] > 0:
            found.append(DiffLine("…", Markup("")))
        for tag, a1, a2, b1, b2 in group:
            found += _hunk(tag, before[a1:a2], after[b1:b2])
    return found


def _text_lines(value: Any) -> list[str]:
    return ["  " * depth + "".join(token.text for token in tokens) for depth, tokens in _lines(value, 0, "")]


def _hunk(tag: str, before: list[str], after: list[str]) -> list[DiffLine]:
    if tag == "equal":
        return [DiffLine(" ", marked(_clip(line, 0, 0)[0])) for line in before]
    pairs = list(zip(before, after, strict=False)) if len(before) == len(after) else []
    if pairs:
        return [DiffLine("-", _changed(a, b)) for a, b in pairs] + [DiffLine("+", _changed(b, a)) for a, b in pairs]
    return [DiffLine("-", marked(line)) for line in before] + [DiffLine("+", marked(line)) for line in after]


def _changed(line: str, other: str) -> Markup:
    """A line, with what differs from its other version marked."""
    start = next((n for n, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), min(len(line), len(other)))
    same = 0
    while same < min(len(line), len(other)) - start and line[-1 - same] == other[-1 - same]:
        same += 1
    end = len(line) - same
    start, end = _whole_word(line, start, end)
    text, start, end = _clip(line, start, end)
    return Markup("{}<mark>{}</mark>{}").format(marked(text[:start]), marked(text[start:end]), marked(text[end:]))


def _whole_word(line: str, start: int, end: int) -> tuple[int, int]:
    """The change widened to the words and numbers that it is in, where they are short."""
    first, last = start, end
    while first > 0 and line[first - 1].isalnum() and start - first < WORD:
        first -= 1
    while last < len(line) and line[last].isalnum() and last - end < WORD:
        last += 1
    return first, last


def _clip(line: str, start: int, end: int) -> tuple[str, int, int]:
    """A long line cut down around what changes in it; the change itself is always whole."""
    first, last = max(0, start - AROUND), min(len(line), end + AROUND)
    head, tail = ("…" if first else ""), ("…" if last < len(line) else "")
    return head + line[first:last] + tail, start - first + len(head), end - first + len(head)
