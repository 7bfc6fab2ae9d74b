"""A document as a struct, and every mistake on the way with its exact place and words that people understand.

msgspec decides what is valid. It stops at the first mistake, and where a mapping's value is wrong it does not say under
which key; so what it refuses is taken apart along the type until the parts that it refuses are found.
INVARIANT: no document is taken or refused here that msgspec would not take or refuse.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from gated.documents.document import Document, DocumentError
from gated.strict_json import Path, path_text

T = TypeVar("T")

_SHOWN: Final = 60  # characters of a value that a message shows
_PLACE: Final = re.compile(r" - at `[^`]*`$")
_WRONG_TYPE: Final = re.compile(r"Expected `([^`]*)`(.*?)(?:, got .*)?", re.DOTALL)
_SEQUENCES: Final = (list, tuple, set, frozenset)
_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}


def decode(document: Document, kind: type[T]) -> T:
    """Raises `DocumentError` for the first mistake; its `others` are the rest."""
    try:
        return msgspec.convert(document.data, kind)
    except msgspec.ValidationError as error:
        raise _first(document, kind) from error


def _first(document: Document, kind: type) -> DocumentError:
    first, *others = (document.error(path, message) for path, message in _mistakes(document.data, kind, ()))
    return DocumentError(first.file, first.line, first.message, tuple(others))


Mistakes = Iterator[tuple[Path, str]]


def _mistakes(value: Any, kind: Any, path: Path) -> Mistakes:
    """At least one, where msgspec refuses the value."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        inside = list(_inside(value, kind, path))
        yield from inside or [(path, _explain(value, kind, path, _PLACE.sub("", str(error))))]


def _inside(value: Any, kind: Any, path: Path) -> Mistakes:
    """The mistakes in the parts of a value, where the type has parts of that form."""
    form = _container(value, kind)
    if form is None:
        return
    origin, args = get_origin(form) or form, get_args(form)
    if issubclass(origin, Struct):
        yield from _in_struct(value, origin, path)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _mistakes(key, args[0], (*path, key))
            yield from _mistakes(item, args[1], (*path, key))
    elif origin is not tuple or args[1:] == (...,):
        for position, item in enumerate(value):
            yield from _mistakes(item, args[0], (*path, position))
    elif len(args) == len(value):
        for position, (item, part) in enumerate(zip(value, args, strict=True)):
            yield from _mistakes(item, part, (*path, position))


def _in_struct(value: dict[str, Any], kind: type[Struct], path: Path) -> Mistakes:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    config = kind.__struct_config__
    for key, item in value.items():
        if key in fields:
            yield from _mistakes(item, fields[key].type, (*path, key))
        elif config.forbid_unknown_fields and key != config.tag_field:
            where = f" in `{path_text(path)}`" if path else ""
            yield (*path, key), f"unknown key `{key[:_SHOWN]}`{where}{did_you_mean(key, fields)}"
    for name, field in fields.items():
        if field.required and name not in value:
            where = f" in `{path_text(path)}`" if path else ""
            yield path, f"the key `{name}` is missing{where}"


def _alternatives(kind: Any) -> list[Any]:
    """What a type may be, with names and annotations taken off."""
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return [part for arg in get_args(kind) for part in _alternatives(arg)]
    return [kind]


def _container(value: Any, kind: Any) -> Any:
    """The one alternative that has the form of a mapping or list value; None where there is none, or no telling which."""
    wanted = (Struct, Mapping) if isinstance(value, dict) else _SEQUENCES if isinstance(value, list) else ()
    forms = []
    for form in _alternatives(kind):
        origin = get_origin(form) or form
        if not isinstance(origin, type) or not issubclass(origin, wanted):
            continue
        if _is_tagged_so(value, origin) if issubclass(origin, Struct) else get_args(form):
            forms.append(form)
    return forms[0] if len(forms) == 1 else None


def _is_tagged_so(value: Any, kind: type[Struct]) -> bool:
    config = kind.__struct_config__
    return config.tag is None or bool(value.get(config.tag_field) == config.tag)


# --- words -----------------------------------------------------------------------------------------------------------


def _explain(value: Any, kind: Any, path: Path, said: str) -> str:
    """msgspec's words of one value in those of the file's reader."""
    subject = f"`{path_text(path)}`" if path else "the document"
    shown = _show(value)
    choices = [choice for form in _alternatives(kind) if get_origin(form) is Literal for choice in get_args(form)]
    only_choices = len(choices) > 0 and all(get_origin(f) is Literal or f is type(None) for f in _alternatives(kind))
    if choices and (only_choices or said.startswith("Invalid enum value")):
        wanted = " or ".join(f"`{choice}`" for choice in choices)
        return f"{subject} wants {wanted}, not `{shown}`{did_you_mean(value, (c for c in choices if isinstance(c, str)))}"
    if "matching regex" in said and (words := _words(kind)) is not None:
        return f"{subject} wants {words}; not `{shown}`"
    if match := _WRONG_TYPE.fullmatch(said):
        return f"{subject} wants {_wanted(match[1])}{match[2]}, not `{shown}`"
    return f"{subject}: {said[:1].lower()}{said[1:]} (found `{shown}`)"


def _words(kind: Any) -> str | None:
    """What a type that takes a pattern calls itself, also where it is one of several."""
    if get_origin(kind) in (Union, types.UnionType):
        return next((words for part in get_args(kind) if (words := _words(part)) is not None), None)
    found = [meta.description for meta in get_args(kind)[1:] if isinstance(meta, Meta)] if get_origin(kind) is Annotated else []
    return next(iter(found), None)


def _wanted(names: str) -> str:
    found = [name.strip() for name in names.split("|")]
    if "float" in found:
        found = [name for name in found if name != "int"]
    return " or ".join(_TYPES.get(name, f"`{name}`") for name in found)


def _show(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of a sentence on a word that is not known: the known one that is nearest to it, where one is near."""
    near = difflib.get_close_matches(word[:_SHOWN], list(known), n=1, cutoff=0.7) if isinstance(word, str) else []
    return f"; did you mean `{near[0]}`?" if near else ""
