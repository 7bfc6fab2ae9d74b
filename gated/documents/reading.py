"""Text as a document: YAML by the 1.2 core schema, or JSON where the name of the file ends in `.json`.

YAML is built from PyYAML's events, which carry lines and take no stand on types: `on`, `off`, `yes`, `no` and dates are
text, numbers are decimal (`010` is ten; what begins with `0x` or `0o` is text). Anchors, aliases, merge keys, tags and
directives are errors, and so are the line breaks that YAML 1.1 had beyond 1.2: what looks like a comment would not be one.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from gated import strict_json
from gated.documents.document import Document, DocumentError, Place

MAX_DEPTH: Final = 64

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FILE_LIMITS: Final = strict_json.Limits(payload=1 << 40, depth=MAX_DEPTH, values=1 << 40, key=1 << 40)

_OLD_BREAK: Final = re.compile("[\x85\u2028\u2029]")
_BREAK: Final = re.compile(r"\r\n|\r|\n")

_NUMBER: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def parse_document(text: str | bytes, *, file: str) -> Document:
    """Raises `DocumentError`; nothing else, whatever the text."""
    text = _unicode(text, file).removeprefix("\ufeff")
    return _read_json(text, file) if file.endswith(".json") else _read_yaml(text, file)


def _unicode(text: str | bytes, file: str) -> str:
    try:
        if isinstance(text, bytes):
            return text.decode()
        text.encode()
        return text
    except UnicodeDecodeError as error:
        raise DocumentError(file, error.object.count(b"\n", 0, error.start) + 1, "the file is not UTF-8") from error
    except UnicodeEncodeError as error:
        raise DocumentError(file, error.object.count("\n", 0, error.start) + 1, "a lone surrogate is no text") from error


# --- JSON ------------------------------------------------------------------------------------------------------------


def _read_json(text: str, file: str) -> Document:
    data = text.encode()
    try:
        value = strict_json.parse_value(data, _FILE_LIMITS)
    except strict_json.BadJson as error:
        line = data.count(b"\n", 0, error.position or 0) + 1
        raise DocumentError(file, line, str(error)) from error
    return Document(value, file, _json_places(data, file))


def _json_places(data: bytes, file: str) -> Place:
    root = Place(file, 1)
    line, last = 1, 0
    for token in strict_json.walk(data, MAX_DEPTH):
        line += data.count(b"\n", last, token.start)
        last = token.start
        place = root
        for step in token.path:
            place = place.inner.setdefault(step, Place(file, line))
    return root


# --- YAML ------------------------------------------------------------------------------------------------------------


def _read_yaml(text: str, file: str) -> Document:
    if odd := _OLD_BREAK.search(text):
        message = f"the character U+{ord(odd[0]):04X} breaks lines for some readers only: write it as an escape"
        raise DocumentError(file, _line_at(text, odd.start()), message)
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(text, file, error) from error
    except yaml.reader.ReaderError as error:
        said = f"the character U+{error.character:04X} is not allowed"
        line = _line_at(text, max(0, text.find(chr(error.character))))  # its own position counts bytes or characters
        raise DocumentError(file, line, said) from error
    return builder.document()


_BEGINNINGS: Final = ("while scanning for the next token", "while scanning an alias", "while scanning an anchor")


def _line_at(text: str, position: int) -> int:
    return len(_BREAK.findall(text, 0, position)) + 1


def _syntax_error(text: str, file: str, error: yaml.MarkedYAMLError) -> DocumentError:
    mark = error.problem_mark or error.context_mark
    lines = _BREAK.split(text)
    line = min(mark.line if mark is not None else 0, len(lines) - 1)
    shown = lines[line].strip()[:80]
    said = _usual(error, lines) or _unusual(error)
    return DocumentError(file, line + 1, f"{said}: `{shown}`" if shown else said)


def _usual(error: yaml.MarkedYAMLError, lines: list[str]) -> str | None:
    """The mistakes that people make most, in words for people; None: it is none of them."""
    if (error.problem or "").startswith("mapping values are not allowed"):
        return "mapping values are not allowed here: keys stand below one another, and a text with `: ` in it in quotes"
    mark = error.context_mark or error.problem_mark
    if mark is None or mark.line >= len(lines) or error.context not in _BEGINNINGS:
        return None
    first = lines[mark.line][mark.column : mark.column + 1]
    return "a tab: YAML is indented with spaces" if first == "\t" else f"a text that begins with `{first}` stands in quotes"


def _unusual(error: yaml.MarkedYAMLError) -> str:
    said = error.problem or "not YAML"
    if error.context:
        said += f" {error.context}"
        if error.context_mark is not None:
            said += f" that begins on line {error.context_mark.line + 1}"
    return said


class _Open:
    """A collection whose end has not come yet. `key` is the key that waits for its value."""

    def __init__(self, data: dict[str, Any] | list[Any], place: Place) -> None:
        self.data, self.place = data, place
        self.key: str | None = None


class _Builder:
    """Builds a document from events, without recursion."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._root: Any = None
        self._place: Place | None = None
        self._open: list[_Open] = []

    def document(self) -> Document:
        return Document(self._root, self._file, self._place or Place(self._file, 1))

    def take(self, event: Any) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self._check_start(event)
            case yaml.AliasEvent():
                raise self._bad(event, f"alias `*{event.anchor}`: aliases are not used here, write the value out")
            case yaml.CollectionEndEvent():
                self._open.pop()
            case yaml.NodeEvent():
                self._check_node(event)
                self._take_node(event)

    def _check_start(self, event: Any) -> None:
        if self._place is not None:
            raise self._bad(event, "a second document begins with `---`: a file holds one")
        if event.tags or event.version not in (None, (1, 2)):
            raise self._bad(event, "directives (`%…`) are not used here: files are YAML 1.2")

    def _check_node(self, event: Any) -> None:
        if event.anchor is not None:
            raise self._bad(event, f"anchor `&{event.anchor}`: anchors are not used here, write the value out")
        if event.tag is not None:
            raise self._bad(event, f"tag `{event.tag}`: tags are not used here")

    def _take_node(self, event: Any) -> None:
        top = self._open[-1] if self._open else None
        if top is not None and isinstance(top.data, dict) and top.key is None:
            self._take_key(top, event)
        elif isinstance(event, yaml.ScalarEvent):
            self._put(top, event, self._scalar(event))
        else:
            data: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
            opened = _Open(data, self._put(top, event, data))
            if len(self._open) == MAX_DEPTH:
                raise self._bad(event, f"nested deeper than {MAX_DEPTH}")
            self._open.append(opened)

    def _take_key(self, top: _Open, event: Any) -> None:
        if not isinstance(event, yaml.ScalarEvent):
            raise self._bad(event, "a key is text, not a list or a mapping")
        if event.value == "<<" and not event.style:
            raise self._bad(event, "merge key `<<`: merge keys are not used here, write the values out")
        key = self._scalar(event)
        if not isinstance(key, str):
            raise self._bad(event, f"the key `{event.value}` is not text: write it in quotes")
        if key in top.place.inner:
            raise self._bad(event, f"duplicate key `{key}`: it stands on line {top.place.inner[key].line} already")
        top.key = key
        top.place.inner[key] = self._place_of(event)

    def _put(self, top: _Open | None, event: Any, value: Any) -> Place:
        """Put a value where it belongs, and give its place: that of its key, if it has one."""
        if top is not None and isinstance(top.data, dict):
            assert top.key is not None
            key, top.key = top.key, None
            top.data[key] = value
            return top.place.inner[key]
        place = self._place_of(event)
        if top is not None:
            assert isinstance(top.data, list)
            top.place.inner[len(top.data)] = place
            top.data.append(value)
        else:
            self._root, self._place = value, place
        return place

    def _scalar(self, event: Any) -> Any:
        text = str(event.value)
        if event.style:  # quoted or a block: always text
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _NOT_FINITE.fullmatch(text):
            raise self._bad(event, f"`{text}` is not a number that can be used here")
        if not _NUMBER.fullmatch(text):
            return text
        if sum(map(str.isdigit, text)) > strict_json.MAX_DIGITS:
            raise self._bad(event, f"`{text[:40]}…` has more than {strict_json.MAX_DIGITS} digits")
        if text.lstrip("+-").isdigit():
            return int(text)
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise self._bad(event, f"`{text[:80]}` is too large for a number")
        return number

    def _bad(self, event: Any, message: str) -> DocumentError:
        return DocumentError(self._file, event.start_mark.line + 1, message)

    def _place_of(self, event: Any) -> Place:
        return Place(self._file, event.start_mark.line + 1)
