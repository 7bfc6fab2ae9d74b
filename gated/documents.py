"""Reading the files that people write (policies, scenarios): strictly, and with the place of every mistake.

YAML is read by the 1.2 core schema from PyYAML's node graph: `on`, `off`, `yes`, `no` and dates are text, numbers are
decimal; anchors, aliases, merge keys and tags are errors. JSON is read by the same parser of the same strictness.
INVARIANT: nothing is skipped: unknown keys, duplicate keys, wrong types raise `DocumentError` with file, line and text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
import yaml
from msgspec import Struct

from gated import strict_json

Path = tuple[str | int, ...]
T = TypeVar("T")

MAX_DEPTH: Final = 64

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


class DocumentError(ValueError):
    """A mistake in a file: `str()` is `file:line: message`."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}")
        self.file, self.line, self.message = file, line, message


class Document(Struct, frozen=True):
    """Plain data, and where each part of it stands: `places` maps a path to (file, line)."""

    data: Any
    file: str
    places: dict[Path, tuple[str, int]]

    def line(self, path: Path) -> int:
        """The line of a path, or of its nearest ancestor that stands in the file."""
        return self._place(path)[1]

    def file_of(self, path: Path) -> str:
        return self._place(path)[0]

    def _place(self, path: Path) -> tuple[str, int]:
        while path not in self.places and path:
            path = path[:-1]
        return self.places.get(path, (self.file, 1))

    def error(self, path: Path, message: str) -> DocumentError:
        return DocumentError(*self._place(path), message)


# --- parsing ---------------------------------------------------------------------------------------------------------


def parse_document(source: str | bytes, *, file: str) -> Document:
    """Read YAML, or JSON where the name ends in `.json`. Raises `DocumentError`."""
    text = source if isinstance(source, str) else _text(source, file)
    if file.endswith(".json"):
        _check_json(text, file)
    reader = _Reader(file)
    return Document(reader.read(text), file, reader.places)


def _text(source: bytes, file: str) -> str:
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(file, source[: error.start].count(b"\n") + 1, "the file is not UTF-8") from error


def _check_json(text: str, file: str) -> None:
    """JSON is a part of YAML 1.2, so the one reader serves; but what only YAML allows is no JSON."""
    try:
        strict_json.parse(text.encode("utf-8", "surrogatepass"), strict_json.UNLIMITED)
    except strict_json.BadJson as error:
        raise DocumentError(file, error.line_in(text), str(error)) from error


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.places: dict[Path, tuple[str, int]] = {}

    def read(self, text: str) -> Any:
        try:
            self._check_events(text)
            loader = _Loader(text)
            try:
                node = loader.get_single_node()
            finally:
                loader.dispose()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            said = " ".join(part for part in (error.context, error.problem) if part)
            raise DocumentError(self.file, mark.line + 1 if mark else 1, said) from error
        except yaml.YAMLError as error:
            raise DocumentError(self.file, 1, str(error).replace("\n", " ")) from error
        return None if node is None else self._value(node, ())

    def _check_events(self, text: str) -> None:
        """Refuse what the core schema of a plain file does not have, before nodes are built recursively."""
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent):
                raise self._bad(event, f"alias `*{event.anchor}`: anchors and aliases are not used here, write it out")
            anchor = getattr(event, "anchor", None)
            if anchor is not None:
                raise self._bad(event, f"anchor `&{anchor}`: anchors and aliases are not used here, write it out")
            tag = getattr(event, "tag", None)
            if tag is not None:
                raise self._bad(event, f"tag `{tag}`: tags are not used here")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise self._bad(event, f"nested deeper than {MAX_DEPTH}")

    def _bad(self, at: Any, message: str) -> DocumentError:
        return DocumentError(self.file, at.start_mark.line + 1, message)

    def _value(self, node: Any, path: Path) -> Any:
        self.places.setdefault(path, (self.file, node.start_mark.line + 1))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, found, path)
            self.places[(*path, key)] = (self.file, key_node.start_mark.line + 1)
            found[key] = self._value(value_node, (*path, key))
        return found

    def _key(self, node: Any, found: Mapping[str, Any], path: Path) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self._bad(node, "a key must be text")
        key = str(node.value)
        if key == "<<" and not node.style:
            raise self._bad(node, "merge key `<<`: merge keys are not used here, write it out")
        if key in found:
            first = self.places[(*path, key)][1]
            raise self._bad(node, f"duplicate key `{key}`: it stands on line {first} already")
        return key

    def _scalar(self, node: Any) -> Any:
        text = str(node.value)
        if node.style:  # quoted or a block: always text
            return text
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if _INT.fullmatch(text):
            if len(text) > 400:
                raise self._bad(node, f"number with {len(text)} digits")
            return int(text)
        if _FLOAT.fullmatch(text):
            return self._finite(node, float(text))
        if _NOT_FINITE.fullmatch(text):
            raise self._bad(node, f"`{text}` is not a number here")
        return text

    def _finite(self, node: Any, value: float) -> float:
        if value in (float("inf"), float("-inf")):
            raise self._bad(node, f"`{node.value}` is too large for a number")
        return value


# --- merging ---------------------------------------------------------------------------------------------------------


def merge_documents(documents: Iterable[Document], file: str) -> Document:
    """The files of a folder as one document. The same name twice is an error that names both places."""
    data: dict[str, Any] = {}
    places: dict[Path, tuple[str, int]] = {}
    for document in documents:
        if not isinstance(document.data, dict):
            raise document.error((), "a policy file is a mapping")
        for key, value in document.data.items():
            _merge_key(data, places, document, key, value)
    return Document(data, file, places)


def _merge_key(data: dict[str, Any], places: dict[Path, tuple[str, int]], document: Document, key: str, value: Any) -> None:
    have = data.get(key)
    if key not in data or (key == "version" and have == value):
        data[key] = dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
        _copy_places(places, document, (key,), (key,))
    elif isinstance(have, dict) and isinstance(value, dict):
        for name, item in value.items():
            if name in have:
                _twice(places, document, (key, name), f"`{key}.{name}`")
            have[name] = item
            _copy_places(places, document, (key, name), (key, name))
    elif isinstance(have, list) and isinstance(value, list):
        for position, item in enumerate(value):
            _copy_places(places, document, (key, position), (key, len(have)))
            have.append(item)
    else:
        _twice(places, document, (key,), f"`{key}`")


def _twice(places: Mapping[Path, tuple[str, int]], document: Document, path: Path, what: str) -> None:
    file, line = places[path]
    raise document.error(path, f"{what} is set twice: it stands in {file}:{line} already")


def _copy_places(places: dict[Path, tuple[str, int]], document: Document, source: Path, target: Path) -> None:
    size = len(source)
    for path, place in document.places.items():
        if path[:size] == source:
            places[(*target, *path[size:])] = place


# --- decoding --------------------------------------------------------------------------------------------------------

_AT: Final = re.compile(r" - at `(key in )?\$(.*)`$")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")
_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}


def decode(document: Document, kind: type[T]) -> T:
    """The document as a struct. Raises `DocumentError` with the exact place of the first mistake."""
    try:
        return msgspec.convert(document.data, kind)
    except msgspec.ValidationError as error:
        raise _place(document, kind, error) from error


def _place(document: Document, kind: type, error: msgspec.ValidationError) -> DocumentError:
    said = str(error)
    at = _AT.search(said)
    message = said[: at.start()] if at else said
    path = _resolve(document.data, at.group(2) if at else "", kind, said)
    unknown = _UNKNOWN.fullmatch(message)
    if unknown:
        return document.error((*path, unknown.group(1)), _unknown_key(document, kind, path, unknown.group(1)))
    return document.error(path, f"{_dotted(path)}{_plainly(message)}{_found(document.data, path)}")


def _resolve(data: Any, text: str, kind: type, said: str) -> Path:
    """The path that msgspec speaks of. It writes `[...]` for the values of a mapping: then the value that fails is found."""
    path: list[str | int] = []
    here = data
    for match in _STEP.finditer(text):
        name, index, anything = match.groups()
        if anything:
            step: str | int | None = _failing_key(data, tuple(path), here, kind, said)
            if step is None:
                return tuple(path)
        else:
            step = int(index) if index is not None else name
        path.append(step)
        try:
            here = here[step]
        except (KeyError, IndexError, TypeError):
            return tuple(path)
    return tuple(path)


def _failing_key(data: Any, path: Path, here: Any, kind: type, said: str) -> str | None:
    """Which key of a mapping holds the mistake: the one without which another mistake, or none, is left."""
    if not isinstance(here, dict):
        return None
    for key in here:
        rest = {k: v for k, v in here.items() if k == key}
        try:
            msgspec.convert(_replaced(data, path, rest), kind)
        except msgspec.ValidationError as error:
            if str(error) == said:
                return str(key)
    return None


def _replaced(data: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    twin: Any = dict(data) if isinstance(data, dict) else list(data)
    twin[path[0]] = _replaced(data[path[0]], path[1:], value)
    return twin


def _dotted(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return f"`{text}`: " if text else ""


def _plainly(message: str) -> str:
    match = re.fullmatch(r"Expected `(.*)`, got `(.*)`", message)
    if match is None:
        return message[:1].lower() + message[1:]
    wanted = [_TYPES.get(part.strip(), f"`{part.strip()}`") for part in match.group(1).split("|")]
    return f"wants {' or '.join(wanted)}, got {_TYPES.get(match.group(2), match.group(2))}"


def _found(data: Any, path: Path) -> str:
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return ""
    if isinstance(data, dict | list):
        return ""
    return f" (found `{str(data)[:80]}`)"


def _unknown_key(document: Document, kind: type, path: Path, key: str) -> str:
    where = _dotted(path).rstrip(": ")
    message = f"unknown key `{key}`" + (f" in {where}" if where else "")
    near = difflib.get_close_matches(key, _all_keys(kind), n=1, cutoff=0.75)
    return f"{message}; did you mean `{near[0]}`?" if near else message


def _all_keys(kind: type) -> list[str]:
    """Every key that any part of the file's form knows."""
    _, parts = msgspec.json.schema_components([kind])
    return sorted({name for part in parts.values() for name in part.get("properties", ())})
