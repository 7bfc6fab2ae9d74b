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
from gated.core.scope.paths import fault, is_relative, normal
from gated.core.scope.resources import compile_selectors, is_name, items, look_of
from gated.core.scope.rules import ScopeError
from gated.core.scope.spelling import ESCAPE
from gated.core.scope.urls import is_url_like, normal_url, read_endpoint
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
    """The kind of each place in the arguments whose values looked like resources, where they are of one kind.

    What looks like one and says no kind is left undeclared, which denies it: whoever reads the suggestion decides.
    """
    votes: dict[str, Counter[Kind | None]] = {}
    for args in calls:
        for selector, name, value in _texts("", "", args):
            if look_of(value, Effort(sys.maxsize)) is not None:
                votes.setdefault(selector, Counter())[_kind(name, value)] += 1
    return {place: kind for place, found in votes.items() if len(found) == 1 and (kind := next(iter(found))) is not None}


def _texts(selector: str, name: str, value: Any) -> Iterator[tuple[str, str, str]]:
    """Every string that a selector leads to: the selector, the last name in it, and the string."""
    if isinstance(value, str):
        yield selector, name, value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(f"{selector}[*]", name, item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if is_name(key):
                yield from _texts(f"{selector}.{key}" if selector else key, key, item)


def _kind(name: str, value: str) -> Kind | None:
    if is_url_like(value):
        return "url"
    if look_of(value, Effort(sys.maxsize)) == "path":
        return "path"
    return next((kind for kind, words in _NAMED.items() if words.search(name)), None)


def places_of(calls: Iterable[Ran], tools: Mapping[str, Any], base: str) -> Found:
    """Where the declared arguments pointed: folders, endpoints, tables. What no scope can hold is in none of them."""
    paths: set[str] = set()
    found = Found(set(), set(), {})
    for call in calls:
        declared = compile_selectors(call.tool, ((tools.get(call.tool) or {}).get("resources") or {}).get("args", {}))
        for item in items(declared, call.args, lambda text: True):
            value = item.text
            if item.kind == "path" and not fault(value) and not ESCAPE.search(value):
                found.relative |= is_relative(value)
                paths.add(normal(f"{base}/{value}" if is_relative(value) else value))
            elif item.kind == "url" and (url := _URL.match(normal_url(value))) and _is_endpoint(url[1]):
                found.endpoints.add(url[1])
            elif item.kind == "host" and _is_endpoint(value):
                found.endpoints.add(value)
            elif item.kind == "table" and (table := _TABLE.fullmatch(value)):
                found.tables.setdefault(table[1], set()).add(table[2])
    found.folders = _folders(paths)
    return found


def _is_endpoint(text: str) -> bool:
    try:
        read_endpoint(text)
    except ScopeError:
        return False
    return True


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
