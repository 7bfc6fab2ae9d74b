"""What differs between two policies, part by part: not by lines, and blind to order where order means nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from gated import canonical
from gated.core.policy import Policy
from gated.strict_json import Path, path_text

UNORDERED = frozenset({"allowed_tools", "forbidden_tools", "approval_required", "tools", "remove"})


class Differing(Struct, frozen=True):
    """One place: `old` and `new` are None where the place is missing on that side."""

    place: str
    what: Literal["added", "removed", "changed"]
    old: Any = None
    new: Any = None


def differences(old: Policy, new: Policy) -> tuple[Differing, ...]:
    """By place, as `agents.a.allowed_tools`; listed things that have a name are told apart by it."""
    return tuple(_between((), json.loads(old.text), json.loads(new.text)))


def _between(path: Path, old: Any, new: Any) -> Iterator[Differing]:
    if old == new and type(old) is type(new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _mappings(path, old, new)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _lists(path, old, new)
    else:
        yield Differing(path_text(path), "changed", old, new)


def _mappings(path: Path, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Differing]:
    for key in sorted({*old, *new}):
        where = (*path, key)
        if key not in new:
            yield Differing(path_text(where), "removed", old=old[key])
        elif key not in old:
            yield Differing(path_text(where), "added", new=new[key])
        else:
            yield from _between(where, old[key], new[key])


def _lists(path: Path, old: list[Any], new: list[Any]) -> Iterator[Differing]:
    if _named(old) and _named(new):
        yield from _mappings(path, {item["name"]: item for item in old}, {item["name"]: item for item in new})
        return
    if len(old) == len(new) and all(isinstance(item, dict) for item in (*old, *new)):
        for position, pair in enumerate(zip(old, new, strict=True)):
            yield from _between((*path, position), *pair)
        return
    before, after = [canonical.encode(item) for item in old], [canonical.encode(item) for item in new]
    gone = [item for item, key in zip(old, before, strict=True) if key not in after]
    come = [item for item, key in zip(new, after, strict=True) if key not in before]
    for item in gone:
        yield Differing(path_text(path), "removed", old=item)
    for item in come:
        yield Differing(path_text(path), "added", new=item)
    if not gone and not come and not (path and path[-1] in UNORDERED and sorted(before) == sorted(after)):
        yield Differing(path_text(path), "changed", old, new)


def _named(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items)
