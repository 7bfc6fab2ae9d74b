"""Templates over the arguments: instance keys, and the texts of reasons and reminders; and the key normalizers.

A key with a placeholder that leads nowhere is no key. In a text such a placeholder stays as it is written, and what the agent
supplied is capped and its control, bidi and zero-width characters are shown escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import ada_url

from gated.core.order import fields

MAX_RENDERED: Final = 200

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


class TemplateError(ValueError):
    """A template that has no meaning."""


class Template:
    """Literals and placeholders, alternating."""

    __slots__ = ("_literals", "_paths", "fields", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        literals, names = _parse(text)
        self._literals = literals
        self.fields = tuple(names)
        try:
            self._paths = tuple(fields.compile_field(name) for name in names)
        except fields.FieldError as error:
            raise TemplateError(f"`{text}`: {error}") from error

    def render_key(self, args: Mapping[str, Any]) -> str | None:
        """The key, or None where a placeholder leads nowhere."""
        if not self._paths:
            return self._literals[0]
        parts = [self._literals[0]]
        for path, literal in zip(self._paths, self._literals[1:], strict=True):
            value = next(fields.resolve(path, args), _MISSING)
            if value is _MISSING:
                return None
            parts += (fields.render(value), literal)
        return "".join(parts)

    def render_text(self, args: Mapping[str, Any]) -> str:
        """The text for people and models."""
        parts = [self._literals[0]]
        for name, path, literal in zip(self.fields, self._paths, self._literals[1:], strict=True):
            value = next(fields.resolve(path, args), _MISSING)
            parts.append(f"{{{name}}}" if value is _MISSING else escape_text(fields.render(value)))
            parts.append(literal)
        return "".join(parts)


_MISSING: Final = object()


def compile_template(text: str) -> Template:
    """Raises `TemplateError` for unbalanced or empty braces."""
    return Template(text)


def _parse(text: str) -> tuple[tuple[str, ...], list[str]]:
    literals, names = [""], list[str]()
    position = 0
    while position < len(text):
        char = text[position]
        if char == "}":
            raise TemplateError(f"`{text}` has a `}}` without a `{{` at character {position}")
        if char != "{":
            literals[-1] += char
            position += 1
            continue
        end = text.find("}", position)
        name = text[position + 1 : end]
        if end < 0 or "{" in name or not name:
            what = "an empty" if not name and end >= 0 else "an unclosed"
            raise TemplateError(f"`{text}` has {what} `{{` at character {position}")
        names.append(name)
        literals.append("")
        position = end + 1
    return tuple(literals), names


def escape_text(text: str, limit: int = MAX_RENDERED) -> str:
    """Agent-supplied text for people: at most `limit` characters, control, bidi and zero-width ones written out."""
    return _UNSAFE.sub(lambda match: _escaped(match.group()), text[:limit])


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# --- normalizers -----------------------------------------------------------------------------------------------------


def normalize_path(text: str) -> str:
    """Lexically: backslashes to slashes, `.` and `..` collapsed, a leading `..` kept, empty is `.`."""
    text = text.replace("\\", "/")
    root = text.startswith("/")
    parts: list[str] = []
    for part in text.split("/"):
        if part in ("", "."):
            continue
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part != ".." or not root:
            parts.append(part)
    return ("/" if root else "") + "/".join(parts) or "."


def normalize_url(text: str) -> str:
    """Trimmed, by the WHATWG rules, without its fragment; what is no URL stays as trimmed."""
    text = text.strip()
    try:
        url = ada_url.URL(text)
    except ValueError:
        return text
    url.hash = ""
    return str(url.href)


NORMALIZERS: Final[Mapping[str, Callable[[str], str]]] = {
    "none": lambda text: text,
    "trim": str.strip,
    "lowercase": str.lower,
    "path": normalize_path,
    "url": normalize_url,
}
