"""Which recorded arguments named resources, of what kind, and where those lie."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from gated.core.scope import Kind
from gated.core.scope.effort import Effort
from gated.core.scope.paths import is_relative, normal
from gated.core.scope.resources import look_of
from gated.core.scope.urls import is_url_like, normal_url
from gated.core.suggest.watching import Ran

MOST_FOLDERS: Final = 8
_TABLE: Final = re.compile(r"([A-Za-z0-9_$-]+)\.([A-Za-z0-9_$-]+)")
_URL: Final = re.compile(r"([a-z][a-z0-9+.-]*://[^/?#]+)")
_NAMED: Final[Mapping[Kind, re.Pattern[str]]] = {
    "path": re.compile(r"path|file|dir|folder", re.IGNORECASE),
    "table": re.compile(r"table", re.IGNORECASE),
    "host": re.compile(r"host|domain", re.IGNORECASE),
}


class Found(Struct):
    """Where an agent's calls went. `relative`: some path was, so there must be a base."""

    folders: set[str]
    endpoints: set[str]
    tables: dict[str, set[str]]
    relative: bool = False


def kinds_of(calls: Iterable[Mapping[str, Any]]) -> dict[str, Kind]:
    """The kind of each top-level argument whose values looked like resources, where they are of one kind.

    What looks like one and says no kind is left undeclared, which denies it: whoever reads the suggestion decides.
    """
    votes: dict[str, Counter[Kind | None]] = {}
    for args in calls:
        for name, value in args.items():
            if isinstance(value, str) and look_of(value, Effort(sys.maxsize)) is not None:
                votes.setdefault(name, Counter())[_kind(name, value)] += 1
    return {name: kind for name, found in votes.items() if len(found) == 1 and (kind := next(iter(found))) is not None}


def _kind(name: str, value: str) -> Kind | None:
    if is_url_like(value):
        return "url"
    if look_of(value, Effort(sys.maxsize)) == "path":
        return "path"
    return next((kind for kind, words in _NAMED.items() if words.search(name)), None)


def places_of(calls: Iterable[Ran], tools: Mapping[str, Any], base: str) -> Found:
    """Where the declared arguments pointed: folders, endpoints, tables."""
    paths: set[str] = set()
    found = Found(set(), set(), {})
    for call in calls:
        kinds = ((tools.get(call.tool) or {}).get("resources") or {}).get("args", {})
        for kind, value in _values(kinds, call.args):
            if kind == "path":
                found.relative |= is_relative(value)
                paths.add(normal(f"{base}/{value}" if is_relative(value) else value))
            elif kind == "url" and (url := _URL.match(normal_url(value))):
                found.endpoints.add(url[1])
            elif kind == "host":
                found.endpoints.add(value)
            elif kind == "table" and (table := _TABLE.fullmatch(value)):
                found.tables.setdefault(table[1], set()).add(table[2])
    found.folders = _folders(paths)
    return found


def _values(kinds: Mapping[str, Kind], args: Mapping[str, Any]) -> Iterator[tuple[Kind, str]]:
    for name, kind in kinds.items():
        if isinstance(args.get(name), str):
            yield kind, args[name]


def _folders(paths: Iterable[str]) -> set[str]:
    """The folders that hold the paths: as few as say what was used, and never the root."""
    folders = {path.rsplit("/", 1)[0] or path for path in paths}
    while len(folders) > MOST_FOLDERS or _nested(folders):
        deepest = max(folders, key=lambda folder: (folder.count("/"), folder))
        outer = {other for other in folders if deepest.startswith(f"{other}/")}
        folders.discard(deepest)
        if not outer:
            if deepest.count("/") < 2:
                folders.add(deepest)
                break
            folders.add(deepest.rsplit("/", 1)[0])
    return folders


def _nested(folders: set[str]) -> bool:
    return any(a != b and a.startswith(f"{b}/") for a in folders for b in folders)
