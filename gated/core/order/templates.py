"""Templates over the arguments: instance keys, and the texts of reasons and reminders; and the key normalizers.

A key with a placeholder that leads nowhere is no key; arguments of one digest have one. In a text such a placeholder stays as it
is written, and what the agent supplied is capped and its control, bidi and zero-width characters are shown escaped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import ada_url

from gated.core.order import fields

Path = tuple[str | int, ...]

MAX_RENDERED: Final = 200

# Control, bidi, zero-width and otherwise invisible characters. A fixed table: str.isprintable differs between Pythons.
UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_PIECE: Final = re.compile(r"\{(?P<name>[^{}]+)\}|(?P<literal>[^{}]+)|(?P<brace>[{}])", re.DOTALL)


class TemplateError(ValueError):
    """A template that has no meaning. `what` is wrong `at` a character of it, counted from 0."""

    def __init__(self, text: str, at: int, what: str) -> None:
        super().__init__(f"`{text}` at character {at}: {what}")
        self.at, self.what = at, what


class Template:
    """Literals and placeholders, alternating."""

    __slots__ = ("_literals", "_lone", "_paths", "fields", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._literals, self.fields, self._paths = _parse(text)
        path = self._paths[0] if self._literals == ("", "") else ()
        self._lone = path[0] if len(path) == 1 and isinstance(path[0], str) else None

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the placeholders lead."""
        return self._paths

    def render_key(self, args: Mapping[str, Any]) -> str | None:
        """The key, or None where a placeholder leads nowhere."""
        if self._lone is not None:  # one plain field, the usual case
            value = args.get(self._lone, fields.MISSING)
            return None if value is fields.MISSING else fields.key_text(value)
        if not self._paths:
            return self._literals[0]
        parts = [self._literals[0]]
        for path, literal in zip(self._paths, self._literals[1:], strict=True):
            value = fields.lookup(path, args)
            if value is fields.MISSING:
                return None
            parts += (fields.key_text(value), literal)
        return "".join(parts)

    def render_text(self, args: Mapping[str, Any]) -> str:
        """The text for people and models."""
        parts = [self._literals[0]]
        for name, path, literal in zip(self.fields, self._paths, self._literals[1:], strict=True):
            value = fields.lookup(path, args)
            parts.append(f"{{{name}}}" if value is fields.MISSING else escape_text(fields.render(value)))
            parts.append(literal)
        return "".join(parts)


def compile_template(text: str) -> Template:
    """Raises `TemplateError` for unbalanced or empty braces."""
    return Template(text)


def _parse(text: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[Path, ...]]:
    """The literals around the placeholders, the fields as written, their paths."""
    literals, names, paths = [""], list[str](), list[Path]()
    for piece in _PIECE.finditer(text):
        if piece["brace"]:
            raise TemplateError(text, piece.start(), _brace_fault(text, piece.start()))
        if piece["literal"]:
            literals[-1] += piece["literal"]
            continue
        paths.append(_path(text, piece["name"], piece.start("name")))
        names.append(piece["name"])
        literals.append("")
    return tuple(literals), tuple(names), tuple(paths)


def _brace_fault(text: str, at: int) -> str:
    if text[at] == "}":
        return "a `}` closes nothing"
    return "empty braces: write a field like `{file_path}`" if text.startswith("{}", at) else "a `{` is not closed"


def _path(text: str, name: str, at: int) -> Path:
    try:
        path = fields.compile_field(name)
    except fields.FieldError as error:
        raise TemplateError(text, at + error.at, error.what) from error
    single = tuple(step for step in path if not isinstance(step, fields.Every))
    if len(single) < len(path):
        raise TemplateError(text, at, f"`{name}` leads to many values: a template takes one, like `{{items[0].name}}`")
    return single


def escape_text(text: str, limit: int = MAX_RENDERED) -> str:
    """Agent-supplied text for people: at most `limit` characters, control, bidi and zero-width ones written out."""
    return UNSAFE.sub(lambda match: _escaped(match.group()), text[:limit])


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# --- normalizers -----------------------------------------------------------------------------------------------------


_NORMAL_PATH: Final = re.compile(r"/?\w[\w.-]*(?:/\w[\w.-]*)*")  # nothing in it to collapse


def normalize_path(text: str) -> str:
    """Lexically: backslashes to slashes, `.` and `..` collapsed, a leading `..` kept, empty is `.`."""
    if _NORMAL_PATH.fullmatch(text):
        return text
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
