"""A text in the forms in which a detector must look at it: as it is, without percent-escapes, with plain characters.

INVARIANT: what this costs grows with the length of the text and with nothing else. To compose characters means to sort the marks
of each, in time that is the square of their number: so no character keeps more marks than any language gives it.
"""

from __future__ import annotations

from typing import Final
from unicodedata import normalize
from urllib.parse import unquote

import re2

_INVISIBLE: Final = dict.fromkeys([0x00AD, 0x180E, *range(0x200B, 0x2010), *range(0x202A, 0x202F), 0x2060, 0xFEFF])
_LONG: Final = {0xFDFA: "\u0635", 0xFDFB: "\u062c"}  # whole phrases of letters: one will do
_MARKS: Final = 30  # on one character, as in the Stream-Safe Text Format of Unicode
_TOO_MANY: Final = re2.compile(rf"(\pM{{{_MARKS}}})\pM+")


def forms(text: str) -> list[str]:
    """A text as it is and, where that differs, without percent-escapes, and with compatibility characters made plain."""
    if text.isascii():
        return [text, unquote(text)] if "%" in text else [text]
    whole = text.encode(errors="replace").decode()
    escaped = [unquote(whole)] if "%" in whole else []
    return [whole, *escaped, compatible(whole.translate(_INVISIBLE))]


def compatible(text: str) -> str:
    """Compatibility characters made plain (NFKC), whatever stands in the text."""
    text = text.translate(_LONG)
    return normalize("NFKC", text if len(text) <= 2 * _MARKS else _TOO_MANY.sub(r"\1", text))
