"""A document: plain data, and where each part of it stands."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from gated.errors import GatedError
from gated.strict_json import Path


class DocumentError(GatedError, ValueError):
    """A mistake in a file: `str()` is `file:line: message`, and of line 0, the file as such, `file: message`.

    `others` are those found with it, in the order of the file.
    """

    def __init__(self, file: str, line: int, message: str, others: tuple[DocumentError, ...] = ()) -> None:
        super().__init__(f"{file}:{line}: {message}" if line else f"{file}: {message}")
        self.file, self.line, self.message, self.others = file, line, message, others


class Place(Struct):
    """Where a value begins (a member of a mapping: where its key stands), and the places inside it."""

    file: str
    line: int
    inner: dict[str | int, Place] = {}


class Document(Struct, frozen=True):
    """`data` is plain JSON-like data; `file` names the whole in messages."""

    data: Any
    file: str
    place: Place

    def line(self, path: Path) -> int:
        """The line of a path, or of its nearest ancestor that stands in the file."""
        return self._nearest(path).line

    def file_of(self, path: Path) -> str:
        """The file of a path: a merged document has many."""
        return self._nearest(path).file

    def error(self, path: Path, message: str) -> DocumentError:
        place = self._nearest(path)
        return DocumentError(place.file, place.line, message)

    def _nearest(self, path: Path) -> Place:
        place = self.place
        for step in path:
            if step not in place.inner:
                break
            place = place.inner[step]
        return place
