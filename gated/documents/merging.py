"""The files of a folder as one document.

Mappings of the same name are joined, lists of the same name follow one another; whatever else is said twice (a scalar, one
agent, two listed things of one `name`) is an error that names both places. Only `version` may be repeated, if it agrees.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gated.documents.document import Document, DocumentError, Place


def merge_documents(documents: Iterable[Document], file: str) -> Document:
    """`file` names the whole; lines and files of its parts stay those of the parts. Raises `DocumentError`."""
    data: dict[str, Any] = {}
    root = Place(file, 1)
    for document in documents:
        if not isinstance(document.data, dict):
            raise document.error((), "a file of a policy folder is a mapping")
        for key, value in document.data.items():
            place = document.place.inner[key]
            if key not in data:
                data[key] = dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
                root.inner[key] = Place(place.file, place.line, dict(place.inner))
            elif isinstance(value, dict) and isinstance(data[key], dict):
                _join(key, data[key], root.inner[key], value, place)
            elif isinstance(value, list) and isinstance(data[key], list):
                _append(key, data[key], root.inner[key], value, place)
            elif key != "version" or data[key] != value:
                raise _twice(place, root.inner[key], f"`{key}`")
    return Document(data, file, root)


def _join(key: str, have: dict[str, Any], at: Place, more: dict[str, Any], more_at: Place) -> None:
    for name, value in more.items():
        if name in have:
            raise _twice(more_at.inner[name], at.inner[name], f"`{name}` in `{key}`")
        have[name] = value
        at.inner[name] = more_at.inner[name]


def _append(key: str, have: list[Any], at: Place, more: list[Any], more_at: Place) -> None:
    names = {_name(item): position for position, item in enumerate(have)}
    for position, item in enumerate(more):
        name = _name(item)
        if name is not None and name in names:
            raise _twice(more_at.inner[position], at.inner[names[name]], f"`{name}` in `{key}`")
        at.inner[len(have)] = more_at.inner[position]
        have.append(item)


def _name(item: Any) -> str | None:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else None


def _twice(place: Place, first: Place, what: str) -> DocumentError:
    message = f"{what} stands in {first.file}:{first.line} already: take one of them out"
    return DocumentError(place.file, place.line, message)
