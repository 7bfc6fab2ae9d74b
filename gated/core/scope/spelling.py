"""One string in the spellings that different readers make of it: trimmed, unescaped, full-width folded.

Everything here is linear in the text. The character sets are spelled out, not asked of `unicodedata`, so that a verdict
does not depend on the Unicode version of the interpreter.
"""

from __future__ import annotations

import re
from typing import Final

from gated.core.scope.effort import Effort

SHOWN_LENGTH: Final = 200

CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
ESCAPE: Final = re.compile(r"%(?:[0-9a-fA-F]{2}|[uU][0-9a-fA-F]{4})")
_ESCAPES: Final = re.compile(r"(?:%[0-9a-fA-F]{2})+")

# Control, format and default-ignorable characters that are not white space: what IDNA, terminals and people drop.
_INVISIBLE: Final = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160"
    "\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_UNPRINTED: Final = re.compile(f"[{_INVISIBLE}\t-\r\x1c-\x1f\x85\u2028\u2029\ud800-\udfff`]")

# What readers that normalise Unicode take for ASCII: the full-width forms, except the tilde, the colon and the dollar
# sign, which open ordinary Asian text; the ideographic full stops, dots to IDNA; other dots and slashes.
_WIDE: Final[dict[int, str]] = {
    **{wide: chr(wide - 0xFEE0) for wide in range(0xFF01, 0xFF5E) if wide not in (0xFF04, 0xFF1A)},
    **dict.fromkeys((0x3002, 0xFF61, 0x2024, 0xFE52), "."),
    0x2025: "..",
    **dict.fromkeys((0x2044, 0x2215, 0x29F8), "/"),
    **dict.fromkeys((0x2216, 0x29F5, 0xFE68), "\\"),
}

# As a table: a character class of so many ranges costs many times more on a long text.
_DROPPED: Final = {
    code: None
    for first, last in re.findall(r"(.)(?:-(.))?", _INVISIBLE, re.DOTALL)
    for code in range(ord(first), ord(last or first) + 1)
}
_TIDIED: Final = {**_WIDE, **_DROPPED}
_UNTIDY: Final = frozenset(map(chr, _TIDIED))

# INVARIANT: a plain string looks like no resource and has no spelling but itself: ASCII without control characters and
# `$ % . / : \ ~`, and not a number that may be a host.
_PLAIN_CHARACTERS: Final = re.compile(r"[ !-#&-\-0-9;-\[\]-}]*")
_LINE: Final = r"(?! *(?:0[xX]|[0-9]{8}))[ !-#&-\-0-9;-\[\]-}]*+"
_PLAIN: Final = re.compile(rf"{_LINE}\Z")
_PLAIN_LINES: Final = re.compile(rf"(?:{_LINE}\n)*+{_LINE}\Z")


def is_plain(text: str) -> bool:
    # An argument name is nearly always an identifier, and an identifier does not begin with a digit.
    return (text.isidentifier() and text.isascii()) or _PLAIN.match(text) is not None


def are_plain(lines: str, count: int) -> bool:
    """Whether these are `count` plain strings, a line each."""
    return _PLAIN_LINES.match(lines) is not None and lines.count("\n") == count - 1


def may_be_plain(pattern: str) -> bool:
    """Whether a plain string could hold this text."""
    return _PLAIN_CHARACTERS.fullmatch(pattern) is not None


def tidy(text: str) -> str:
    """Without invisible characters and outer white space, full-width characters as ASCII."""
    if text.isascii():
        return (text if text.isprintable() else text.translate(_DROPPED)).strip()
    return (text if _UNTIDY.isdisjoint(text) else text.translate(_TIDIED)).strip()


def unbroken(text: str) -> str:
    """Without tabs and line breaks (and what else splits lines), as URL parsers read it."""
    return text if text.isprintable() else "".join(text.splitlines()).replace("\t", "").replace("\x1f", "")


def unescape(text: str) -> str:
    """Percent-escapes decoded once. Escapes that are no UTF-8 become U+FFFD."""
    return _ESCAPES.sub(_unescaped, text) if "%" in text else text


def _unescaped(run: re.Match[str]) -> str:
    return bytes.fromhex(run[0].replace("%", "")).decode(errors="replace")


def badly_escaped(text: str, unescaped: str) -> bool:
    """Whether escapes were no UTF-8 (overlong dots and slashes are the known trick)."""
    return unescaped.count("\ufffd") > text.count("\ufffd")


def readings(text: str, depth: int, effort: Effort) -> list[str]:
    """The tidied text, and what it says after unescaping once, twice … up to `depth` times."""
    found = [tidy(text)]
    while len(found) <= depth and "%" in found[-1]:
        effort.spend(_runs(found[-1]))
        deeper = tidy(unescape(found[-1]))
        if deeper == found[-1]:
            break
        found.append(deeper)
    return found


def _runs(text: str) -> int:
    """How many runs of escapes there are to decode."""
    return 0 if text.count("%") < 100 else sum(1 for _ in _ESCAPES.finditer(text))


def shown(text: str) -> str:
    """Agent text for a reason: at most 200 characters, with nothing in it that a terminal or a quote would act on."""
    cut = text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 1] + "…"
    return _UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", cut)
