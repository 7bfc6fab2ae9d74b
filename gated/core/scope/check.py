"""The data-scope check: whether every resource that a call names lies inside the agent's scope.

Of each resource: a forbidden pattern denies; an endpoint, a table or a path that holds it allows; else it is denied.
INVARIANT: pure. Where links lead is a fact about a disk: the caller asks `paths_to_resolve`, looks, records what it saw
with the call and hands that record to `check`; what is not in the record is denied. Under `resolve: true` the allowed
paths must be real paths: were links in them followed too, whoever may write beside a root could swap it for a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from gated.core.scope.addresses import host_forms, is_bare, normal_host
from gated.core.scope.effort import TEXT, Effort, TooMuch
from gated.core.scope.forbidden import Forbidden, Hit
from gated.core.scope.paths import Paths, Refusal, normal
from gated.core.scope.resources import (
    Item,
    Selector,
    compile_selectors,
    items,
    joined,
    look_of,
    place,
    spares,
)
from gated.core.scope.rules import DataScope, Kind, Resources
from gated.core.scope.spelling import shown
from gated.core.scope.tables import Tables
from gated.core.scope.urls import Endpoints, is_url_like, normal_url


class ScopeFinding(NamedTuple):
    """`denied` is the reason, None for an allow; `resource` is what it is about, in its normal form.

    `lexical`: the allow rests on a path whose links nobody followed.
    """

    denied: str | None
    resource: str | None = None
    lexical: bool = False


ALLOWED: Final = ScopeFinding(None)
ALLOWED_BY_NAME: Final = ScopeFinding(None, lexical=True)
TOO_MUCH: Final = "the call names, or may name, more paths, hosts and escaped texts than are looked at: split it into several"
_WITH_PARTS: Final = (dict, list, tuple)
NOTHING_DECLARED: Final[Mapping[str, Kind]] = {}
KEPT: Final = 16_384  # paths of which is kept whether they are plainly inside, of all scopes together
MEMORABLE: Final = 256  # characters of the longest that is kept


class Scope:
    """A compiled scope, made once by `compile_scope` and used for every call."""

    def __init__(self, rules: DataScope | None, selectors: Mapping[str, Selector]) -> None:
        limits = rules or DataScope(forbidden_patterns=[])
        self._off = rules is None
        self._selectors = selectors
        self._forbidden = Forbidden(limits.forbidden_patterns)
        self._endpoints = Endpoints(limits.allowed_api_endpoints)
        self._tables = Tables(limits)
        self._paths = Paths(limits.allowed_paths, limits.base_path)
        self.follows_links = limits.resolve  # where the paths of a call lead must have been looked at
        self._shallow = {tool: self._shallow_kinds(root) for tool, root in selectors.items()}

    def _shallow_kinds(self, root: Selector) -> Mapping[str, Kind] | None:
        """The kinds of a tool that declares nothing but arguments by plain names; else None."""
        if root.kind or root.other or root.each or root.indexes:
            return None
        for name, node in root.names.items():
            if node.names or node.other or node.each or node.indexes or not self._forbidden.allows_plain(name):
                return None
        return {name: node.kind for name, node in root.names.items() if node.kind is not None}

    @property
    def is_off(self) -> bool:
        """`data_scope: any`: nothing is checked."""
        return self._off

    def spares(self, tool: str, name: str) -> bool:
        """Whether an argument is declared `none`, with all below it: nobody looks at it."""
        return spares(self._selectors.get(tool), name)

    def check(self, tool: str, args: Mapping[str, Any], resolved: Mapping[str, str] | None = None) -> ScopeFinding:
        """Never raises for JSON. `resolved`: what was recorded of `paths_to_resolve`, path -> where it leads."""
        if self._off:
            return ALLOWED
        kinds = self._shallow.get(tool, NOTHING_DECLARED)
        if not kinds and kinds is not None and self._forbidden.allows_plain_lines(args):
            return ALLOWED
        plainly = self._allow_plainly(kinds, args)
        if plainly is not None:
            return plainly
        lexical, effort = False, Effort()
        try:
            for item in self._items(tool, args):
                refusal, by_path = self._judge(item, resolved or {}, effort)
                if refusal is not None:
                    resource = shown(refusal.shown)
                    where = shown(place(item.where))
                    return ScopeFinding(f"`{resource}` (argument `{where}`) {refusal.why}", resource)
                lexical |= by_path
        except TooMuch:
            return ScopeFinding(TOO_MUCH)
        return ALLOWED_BY_NAME if lexical and not self.follows_links else ALLOWED

    def _allow_plainly(self, kinds: Mapping[str, Kind] | None, args: Mapping[str, Any]) -> ScopeFinding | None:
        """The common call, spared the walk: flat arguments, none of which could name a resource but one plain path inside.

        None where that is not certain. INVARIANT: what this allows, the walk allows too.
        """
        if kinds is None:
            return None
        passes, by_path = self._forbidden.allows_plain, False
        for name, value in args.items():
            kind = kinds.get(name)
            if kind is None:
                if isinstance(value, str):
                    if not passes(value):
                        return None
                elif isinstance(value, _WITH_PARTS):
                    return None
                if not passes(name):
                    return None
            elif kind == "path":
                if by_path or self.follows_links or not isinstance(value, str):
                    return None
                if not (_is_kept_plainly_inside(self, value) if len(value) <= MEMORABLE else self.is_plainly_inside(value)):
                    return None
                by_path = True
            elif kind != "none":
                return None
        return ALLOWED_BY_NAME if by_path else ALLOWED

    def is_plainly_inside(self, path: str) -> bool:
        """Whether a path needs no reading, is inside, and no pattern stands in it. A no is not certain."""
        folder = self._paths.plainly_inside(path)
        return folder is not None and self._forbidden.spares(folder)

    def paths_to_resolve(self, tool: str, args: Mapping[str, Any]) -> tuple[str, ...]:
        """The paths whose links `check` must know; none unless the scope says `resolve: true`."""
        if not self.follows_links:
            return ()
        wanted: dict[str, None] = {}
        effort = Effort()
        try:
            for item in self._items(tool, args):
                effort.spend(TEXT)
                if _may_be_path(item, effort) and self._paths.refuse(item.text) is None:
                    wanted.update(dict.fromkeys(self._paths.locations(item.text)))
        except TooMuch:
            return ()
        return tuple(wanted)

    def _items(self, tool: str, args: Mapping[str, Any]) -> Iterator[Item]:
        declared: list[Item] = []
        for item in items(self._selectors.get(tool), args, self._forbidden.allows_plain):
            if item.kind == "path":
                declared.append(item)
            yield item
        yield from joined(declared)

    def _judge(self, item: Item, resolved: Mapping[str, str], effort: Effort) -> tuple[Refusal | None, bool]:
        """Why the item is refused, if it is; and whether an allow rests on a path."""
        if not self.follows_links and self._plainly_inside(item):
            effort.read_plain(item.text)
            return None, True
        effort.spend(TEXT)
        if item.kind is not None:
            effort.read(item.text)
        forbidden = self._forbidden.find(item.text, effort)
        if forbidden is not None:
            return _forbidden(item.text, forbidden), False
        match item.kind:
            case "path":
                return self._refuse_path(item.text, resolved), True
            case "url":
                return self._refuse_url(item.text), False
            case "host":
                return self._refuse_host(item.text), False
            case "table":
                return self._refuse_table(item.text), False
            case _:
                return self._judge_undeclared(item.text, resolved, effort)

    def _plainly_inside(self, item: Item) -> bool:
        """Of a path that needs no reading: inside, and free of patterns."""
        if item.kind != "path" and (item.kind is not None or not item.text.startswith("/")):
            return False
        folder = self._paths.plainly_inside(item.text)
        return folder is not None and self._forbidden.spares(folder)

    def _judge_undeclared(self, text: str, resolved: Mapping[str, str], effort: Effort) -> tuple[Refusal | None, bool]:
        looks = look_of(text, effort)
        if looks is None:
            return None, False
        effort.read(text)
        refusal = self._refuse_name(text)
        if refusal is None or looks == "name" or is_url_like(text):
            return refusal, False
        return self._refuse_path(text, resolved), True

    def _refuse_name(self, text: str) -> Refusal | None:
        """Of an undeclared value: why it is no allowed URL, host or table."""
        if is_url_like(text):
            return self._refuse_url(text)
        if is_bare(text.strip(" ")) and self._endpoints.refuse_host(text) is None:
            return None
        return None if self._tables.hold(text) else Refusal(text, "looks like a resource and is in no allowed scope")

    def _refuse_url(self, text: str) -> Refusal | None:
        why = self._endpoints.refuse_url(text)
        return None if why is None else Refusal(normal_url(text), why)

    def _refuse_host(self, text: str) -> Refusal | None:
        # Here even a bare `0` is certainly an address.
        forbidden = self._forbidden.find_in(host_forms(text.strip()))
        if forbidden is not None:
            return _forbidden(text, forbidden)
        why = self._endpoints.refuse_host(text)
        return None if why is None else Refusal(normal_host(text), why)

    def _refuse_table(self, text: str) -> Refusal | None:
        return None if self._tables.hold(text) else Refusal(text, "is not an allowed `database.table`")

    def _refuse_path(self, text: str, resolved: Mapping[str, str]) -> Refusal | None:
        located = self._paths.locations(text)
        refusal = self._forbid_paths(located) or self._paths.refuse(text)
        if refusal is not None or not self.follows_links:
            return refusal
        return self._paths.refuse_links(located, resolved) or self._forbid_paths([resolved[path] for path in located])

    def _forbid_paths(self, located: Iterable[str]) -> Refusal | None:
        """A slash at the end lets a pattern that ends with one match the folder itself."""
        forbidden = self._forbidden.find_in(f"{normal(path)}/" for path in located)
        return None if forbidden is None else _forbidden(forbidden.form, forbidden)


@lru_cache(KEPT)
def _is_kept_plainly_inside(scope: Scope, path: str) -> bool:
    return scope.is_plainly_inside(path)


def _forbidden(text: str, hit: Hit) -> Refusal:
    return Refusal(normal_url(text) if is_url_like(text) else hit.form, f"holds the forbidden `{hit.pattern}`")


def _may_be_path(item: Item, effort: Effort) -> bool:
    if item.kind == "path" or (item.kind is None and look_of(item.text, effort) == "path"):
        effort.read(item.text)
        return True
    return False


def compile_scope(scope: DataScope | Literal["any"] | None, resources: Mapping[str, Resources]) -> Scope:
    """`scope` None is the empty scope, which denies whatever looks like a resource; "any" checks nothing.

    Raises ScopeError for an entry, a pattern or a selector that could never do what it says.
    """
    selectors = {tool: compile_selectors(tool, entry.args) for tool, entry in resources.items() if entry.args}
    return Scope(None if scope == "any" else scope or DataScope(), selectors)
