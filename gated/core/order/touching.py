"""Which machines a call bears on, and on which of their instances.

Machines are found by the name of the tool, so those that do not watch it cost a call nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from gated.core.order.machines import STAGE, Machine, default_reason
from gated.core.order.patterns import Pattern
from gated.core.order.state import Instance, Kind
from gated.core.order.templates import Template
from gated.events import Finding, Touch


class Join(NamedTuple):
    """What a call touches at one key, of the thread or (`own`) of its run, all machines at once.

    `limits` are the machines that do not allow the call in any state: those in which they do, and their first. `free`: all of
    them allow it in their first. It moves machines of these `kinds`; `fresh` are their instances where there are none.
    """

    own: bool
    key: str
    limits: tuple[tuple[str, frozenset[str], str], ...]
    free: bool
    kinds: dict[str, Kind]
    fresh: dict[str, Instance]


class Touches(tuple[Touch, ...]):
    """The touches of a call, with their joins, and the keys at which it is in flight."""

    joins: tuple[Join, ...]
    keys: tuple[str, ...]


class Touched(Struct, frozen=True, gc=False):
    """What a call bears on, and what is wrong with its keys.

    `keys` are all of its keys, each once. `oversize`: a machine whose key is too long.
    """

    touches: tuple[Touch, ...] = ()
    findings: tuple[Finding, ...] = ()
    keys: tuple[str, ...] = ()
    oversize: str | None = None


NOTHING_TOUCHED: Final = Touched()
KEPT: Final = 1024  # keys whose touches a tool's machines keep made
MEMORABLE: Final = 256  # characters of the longest key that is kept
MAX_KEY_BYTES: Final = 1024


def _is_oversize(key: str) -> bool:
    return len(key) * 4 > MAX_KEY_BYTES and len(key.encode(errors="surrogatepass")) > MAX_KEY_BYTES


class _Watch(Struct, frozen=True, gc=False):
    """A machine, and those of its transitions that a tool may match; `certain`: all of them do, whatever the arguments."""

    machine: Machine
    transitions: tuple[tuple[int, Pattern], ...]
    certain: tuple[int, ...] | None
    made_from: tuple[str, str]  # the key's template and normalizer


class _Seen(Struct):
    """What is known of one call: how it matches patterns, by their text, and its keys, by template and normalizer."""

    matches: dict[str, Literal["exact", "wide", "not"]]
    keys: dict[tuple[str, str], str | None]


class MachineSet:
    """The machines of one agent, found by tool name (folded: a restriction is not shaken off by a capital)."""

    __slots__ = ("_alike", "_by_folded_name", "_by_name", "_elsewhere", "by_name", "machines")

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = tuple(machines)
        self.by_name: Mapping[str, Machine] = {machine.name: machine for machine in machines}
        names = {t.on.exact_tool for m in machines for t in m.transitions if t.on.exact_tool is not None}
        self._by_name = {name: self._watches(name) for name in names}
        self._alike = {name: alike for name, watches in self._by_name.items() if (alike := _alike(watches)) is not None}
        self._by_folded_name = {name.casefold(): self._watches(name, as_written=False) for name in names}
        self._elsewhere = self._watches(None)

    def _watches(self, tool: str | None, *, as_written: bool = True) -> tuple[_Watch, ...]:
        """What watches a tool that some transition names, as written or in other capitals, or (None) any other."""
        found = (_watch(machine, tool, as_written) for machine in self.machines)
        return tuple(watch for watch in found if watch.transitions or watch.machine.entry.strict)

    def touches(self, tool: str, args: Mapping[str, Any]) -> Touched:
        """The instances that the call bears on, in the machines' order."""
        alike = self._alike.get(tool)
        if alike is not None and (text := alike.key.render_key(args)) is not None and len(text) <= MEMORABLE:
            return alike.touched(text)
        watches = self._by_name.get(tool)
        if watches is None:
            watches = self._by_folded_name.get(tool.casefold(), self._elsewhere)
        if not watches:
            return NOTHING_TOUCHED
        touches: list[Touch] = []
        findings: list[Finding] = []
        seen = _Seen({}, {})
        for watch in watches:
            found = _touch(watch, tool, args, seen)
            if isinstance(found, Touch):
                touches.append(found)
            elif found is not None:
                findings.append(found)
        if not touches and not findings:
            return NOTHING_TOUCHED
        oversize = next((touch.machine for touch in touches if _is_oversize(touch.key)), None)
        keys = tuple(dict.fromkeys(touch.key for touch in touches))
        return Touched(tuple(touches), tuple(findings), keys, oversize)

    def joins(self, touches: tuple[Touch, ...]) -> tuple[Join, ...]:
        """What the touches, of these machines, come to."""
        if isinstance(touches, Touches):
            return touches.joins
        return _joins(touches, self.by_name)


def keys_of(touches: tuple[Touch, ...]) -> tuple[str, ...]:
    """The keys at which a call is in flight."""
    if isinstance(touches, Touches):
        return touches.keys
    return tuple(dict.fromkeys(touch.key for touch in touches if touch.exact))


def _joins(touches: Iterable[Touch], by_name: Mapping[str, Machine]) -> tuple[Join, ...]:
    at: dict[tuple[bool, str], list[tuple[Machine, Touch]]] = {}
    for touch in touches:
        machine = by_name[touch.machine]
        at.setdefault((machine.own, touch.key), []).append((machine, touch))
    return tuple([_join(own, key, found) for (own, key), found in at.items()])


def _join(own: bool, key: str, found: list[tuple[Machine, Touch]]) -> Join:
    limits = [(m.name, sources, m.initial) for m, touch in found if (sources := m.sources(touch.exact)) is not None]
    kinds = {machine.name: kind for machine, touch in found if touch.exact and (kind := machine.kind(touch)) is not None}
    return Join(
        own,
        key,
        tuple(limits),
        all(initial in sources for _, sources, initial in limits),
        kinds,
        {machine.name: machine.fresh for machine, _ in found if machine.name in kinds},
    )


class _Alike(NamedTuple):
    """A tool's machines where all that they make of a call is its key: what each key touches is made once and kept."""

    key: Template
    touched: Callable[[str], Touched]


def _alike(watches: tuple[_Watch, ...]) -> _Alike | None:
    if len({watch.made_from for watch in watches}) != 1 or any(w.certain is None or w.machine.speaks for w in watches):
        return None
    first = watches[0].machine
    normalize, plain = first.normalize, [Touch(watch.machine.name, "", watch.certain or ()) for watch in watches]
    joins = _joins(plain, {watch.machine.name: watch.machine for watch in watches})

    @lru_cache(maxsize=KEPT)
    def touched(text: str) -> Touched:
        key = normalize(text)
        touches = Touches([Touch(touch.machine, key, touch.exact) for touch in plain])
        touches.joins, touches.keys = tuple([join._replace(key=key) for join in joins]), (key,)
        return Touched(touches, (), (key,), touches[0].machine if _is_oversize(key) else None)

    return _Alike(first.key, touched)


def _watch(machine: Machine, tool: str | None, as_written: bool) -> _Watch:
    folded = None if tool is None else tool.casefold()
    patterns = [(index, transition.on) for index, transition in enumerate(machine.transitions)]
    mine = tuple((i, on) for i, on in patterns if on.exact_tool is None or on.exact_tool.casefold() == folded)
    certain = as_written and bool(mine) and all(tool == on.exact_tool is not None and not on.needs_args for _, on in mine)
    made_from = (machine.key.text, machine.entry.key_normalizer)
    return _Watch(machine, mine, tuple(index for index, _ in mine) if certain else None, made_from)


def _touch(watch: _Watch, tool: str, args: Mapping[str, Any], seen: _Seen) -> Touch | Finding | None:
    exact: list[int] = []
    wide: list[int] = []
    for index, on in watch.transitions:
        how = seen.matches.get(on.text)
        if how is None:
            how = "exact" if on.matches(tool, args) else "wide" if on.matches_wide(tool, args) else "not"
            seen.matches[on.text] = how
        if how == "exact":
            exact.append(index)
        elif how == "wide":
            wide.append(index)
    machine = watch.machine
    if not exact and not wide and not machine.entry.strict:
        return None
    key = _key(watch, args, seen)
    if key is None:
        return _missing_key(machine, tool)
    if not machine.speaks:
        return Touch(machine.name, key, tuple(exact), tuple(wide))
    emits, warning = _emits(machine, exact, args), _warning(machine, exact or wide, tool, args)
    return Touch(machine.name, key, tuple(exact), tuple(wide), emits=emits, warning=warning)


def _key(watch: _Watch, args: Mapping[str, Any], seen: _Seen) -> str | None:
    keys, made_from = seen.keys, watch.made_from
    if made_from in keys:
        return keys[made_from]
    machine = watch.machine
    key = machine.key.render_key(args)
    keys[made_from] = key = None if key is None else machine.normalize(key)
    return key


def _emits(machine: Machine, exact: list[int], args: Mapping[str, Any]) -> tuple[str, ...]:
    texts = [machine.transitions[index].emit_text for index in exact]
    if not any(text is not None for text in texts):
        return ()
    return tuple("" if text is None else text.render_text(args) for text in texts)


def _warning(machine: Machine, matched: list[int], tool: str, args: Mapping[str, Any]) -> str | None:
    """The text of a warning; where the machine gives none, the default's, its state (not known yet) left open as `{}`."""
    if not matched or machine.transitions[matched[0]].action != "warn":
        return None
    reason = machine.transitions[matched[0]].reason
    return default_reason(tool, machine, "{}") if reason is None else reason.render_text(args)


def _missing_key(machine: Machine, tool: str) -> Finding | None:
    action = machine.entry.on_missing_key
    if action == "ignore":
        return None
    reason = f"`{tool}` lacks what state machine `{machine.name}` takes its key from: `{machine.entry.key}`"
    return Finding(STAGE, action, "order.missing_key", reason, authoritative=not machine.observed, machine=machine.name)
