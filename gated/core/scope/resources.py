"""Which arguments of a call name resources: by the selectors of the tool, else by their looks.

A selector covers everything below it, object keys included; the longest selector wins, and of two of one length the one
that has a name where the other has `*`, from the left. Knows nothing of what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from gated.core.scope.addresses import is_spelled_address
from gated.core.scope.effort import Effort
from gated.core.scope.paths import is_relative
from gated.core.scope.rules import Kind, ScopeError
from gated.core.scope.spelling import badly_escaped, readings, unbroken
from gated.core.scope.urls import SPECIAL

HUGE_BITS: Final = 4096
SEPARATORS: Final = "/\\"

_STEP: Final = re.compile(r"(?:\A|(?<=.)\.)([^.\[\]]+)|\[(\*|[0-9]+)\]")

_BEGINS_AS_PATH: Final = re.compile(r"[/\\~$]|\.\.?[/\\]|[A-Za-z]:(?!\s)")
_CLIMBS: Final = re.compile(r"(?:\A|[/\\])\s*\.\.\s*(?:[/\\]|\Z)")
_IS_TEXT: Final = re.compile(r"[\s@]")


class SelectorError(ScopeError):
    """A selector that cannot be read; `path` leads to it in the policy."""

    def __init__(self, tool: str, text: str) -> None:
        super().__init__(
            f"`{text}` is no selector; write names joined by dots, `[*]` or `[0]` for elements of a list, `*` for any key"
        )
        self.path = ("tools", tool, "resources", "args", text)


class Selector:
    """A node of the tree of a tool's selectors; `kind` is what the selector that ends here declares."""

    __slots__ = ("each", "indexes", "kind", "names", "other")

    def __init__(self) -> None:
        self.kind: Kind | None = None
        self.names: dict[str, Selector] = {}
        self.other: Selector | None = None
        self.indexes: dict[int, Selector] = {}
        self.each: Selector | None = None

    def grow(self, step: re.Match[str]) -> Selector:
        name, index = step.groups()
        if name == "*":
            self.other = self.other or Selector()
            return self.other
        if index == "*":
            self.each = self.each or Selector()
            return self.each
        if index is not None:
            return self.indexes.setdefault(int(index), Selector())
        return self.names.setdefault(name, Selector())


def compile_selectors(tool: str, args: Mapping[str, Kind]) -> Selector:
    root = Selector()
    for text, kind in args.items():
        node = root
        end = 0
        for step in _STEP.finditer(text):
            if step.start() != end:
                break
            node, end = node.grow(step), step.end()
        if end != len(text) or node is root:
            raise SelectorError(tool, text)
        node.kind = kind
    return root


def is_name(key: str) -> bool:
    """Whether a selector can name this key, and no other."""
    step = _STEP.fullmatch(key)
    return step is not None and step[1] == key != "*"


Nodes: TypeAlias = tuple[Selector, ...]


def _into_key(nodes: Nodes, key: str) -> Nodes:
    found = (child for node in nodes for child in (node.names.get(key), node.other))
    return tuple(child for child in found if child is not None)


def _into_index(nodes: Nodes, index: int) -> Nodes:
    found = (child for node in nodes for child in (node.indexes.get(index), node.each))
    return tuple(child for child in found if child is not None)


def _cover(nodes: Nodes, inherited: Selector | None) -> Selector | None:
    for node in nodes:
        if node.kind is not None:
            return node
    return inherited


def spares(root: Selector | None, name: str) -> bool:
    """Whether an argument, whatever it holds, is left out by `items`."""
    nodes = () if root is None else _into_key((root,), name)
    cover = _cover(nodes, None)
    deeper = any(node.names or node.other or node.indexes or node.each for node in nodes)
    return cover is not None and cover.kind == "none" and not deeper


# The way to a value, innermost step first: the steps before it, and a key or an index; KEYS is "a key of".
Where: TypeAlias = "tuple[Where, str | int] | None"
KEYS: Final = -1


class Item(NamedTuple):
    """A text that may name a resource; `cover` None: nobody declared it."""

    text: str
    cover: Selector | None
    where: Where

    @property
    def kind(self) -> Kind | None:
        return self.cover.kind if self.cover else None


def items(root: Selector | None, args: Mapping[str, Any], passes: Callable[[str], bool]) -> Iterator[Item]:
    """Every declared scalar and key, and every undeclared string and key that does not pass.

    By sorted keys, so that the first denial does not depend on how the arguments were written down. Null names nothing,
    and what is declared `none` is left out with all below it.
    """
    stack: list[tuple[Any, Nodes, Selector | None, Where]] = [(args, (root,) if root else (), None, None)]
    while stack:
        value, nodes, cover, where = stack.pop()
        if cover is not None and cover.kind == "none" and not nodes:
            continue
        if isinstance(value, dict):
            keys = sorted(value)
            for key in reversed(keys):
                child, below = value[key], _into_key(nodes, key) if nodes else ()
                if below or cover or not (isinstance(child, str) and passes(child)):
                    stack.append((child, below, _cover(below, cover), (where, key)))
            found = [key for key in keys if cover or not passes(key)]
            where = (where, KEYS)
        elif isinstance(value, list | tuple):
            for index in range(len(value) - 1, -1, -1):
                below = _into_index(nodes, index) if nodes else ()
                stack.append((value[index], below, _cover(below, cover), (where, index)))
            continue
        else:
            found = _texts(value, cover, passes)
        if found and (cover is None or cover.kind != "none"):
            for text in found:
                yield Item(text, cover, where)


def _texts(value: Any, cover: Selector | None, passes: Callable[[str], bool]) -> list[str]:
    if isinstance(value, str):
        return [value] if cover or not passes(value) else []
    if value is None or cover is None:
        return []
    if isinstance(value, bool):
        return ["true" if value else "false"]
    # Python refuses to print a huge integer in decimal; in hex it names nothing that is allowed.
    huge = isinstance(value, int) and value.bit_length() > HUGE_BITS
    return [hex(value) if huge else str(value)]


def look_of(text: str, effort: Effort) -> Literal["path", "name"] | None:
    """What an undeclared string looks like: a path, something else that may be a resource, or just text. Raises `TooMuch`."""
    seen = readings(text, 1, effort)
    if any(map(_is_path, seen)) or badly_escaped(text, seen[-1]):
        return "path"
    return "name" if any(map(_is_name, (text, *seen))) else None


def _is_path(form: str) -> bool:
    return _BEGINS_AS_PATH.match(form) is not None or (".." in form and _CLIMBS.search(form) is not None)


def _is_name(form: str) -> bool:
    if "." in form and not _IS_TEXT.search(form):
        return True
    whole = unbroken(form)
    return "://" in whole or SPECIAL.match(whole) is not None or is_spelled_address(whole)


def joined(declared: list[Item]) -> Iterator[Item]:
    """Each relative path behind each path of another selector: tools join a `pattern` to a `path`."""
    groups: dict[int, list[Item]] = {}
    for item in declared:
        groups.setdefault(id(item.cover), []).append(item)
    for group in groups.values():
        others = [folder for folders in groups.values() if folders is not group for folder in folders]
        for item in group if others else ():
            if is_relative(item.text):
                for folder in others:
                    yield item._replace(text=f"{folder.text.rstrip(SEPARATORS)}/{item.text}")


def place(where: Where) -> str:
    """`operations[0].path`, for a reason."""
    steps: list[str] = []
    while where is not None:
        where, step = where
        if step == KEYS:
            steps.append(".<key>")
        else:
            steps.append(f"[{step}]" if isinstance(step, int) else f".{step}")
    return "".join(reversed(steps)).removeprefix(".")
