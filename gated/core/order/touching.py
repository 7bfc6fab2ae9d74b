"""Which machines a call bears on, and on which of their instances.

Machines are found by the name of the tool, so those that do not watch it cost a call nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from gated.core.order.machines import STAGE, Machine, default_reason
from gated.core.order.patterns import Pattern
from gated.core.order.templates import Template
from gated.events import Finding, Touch


class Idle(NamedTuple):
    """When a touched instance surely allows the call: it is not there and `fresh`, or all of its possible states are among
    `sources` (None: any)."""

    slot: str
    fresh: bool
    sources: frozenset[str] | None


class Touched(Struct, frozen=True, gc=False):
    """What a call bears on, and what is wrong with its keys.

    `keys` are all of its keys, each once. `idle`, where it was worked out, is when all of it surely allows the call. `oversize`:
    a machine whose key is too long.
    """

    touches: tuple[Touch, ...] = ()
    findings: tuple[Finding, ...] = ()
    keys: tuple[str, ...] = ()
    idle: tuple[Idle, ...] = ()
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
        return Touched(tuple(touches), tuple(findings), keys, oversize=oversize)


class _Alike(NamedTuple):
    """A tool's machines where all that they make of a call is its key: what each key touches is made once and kept."""

    key: Template
    touched: Callable[[str], Touched]


def _alike(watches: tuple[_Watch, ...]) -> _Alike | None:
    if len({watch.made_from for watch in watches}) != 1 or any(w.certain is None or w.machine.speaks for w in watches):
        return None
    normalize = watches[0].machine.normalize
    certain = [(watch.machine.name, watch.certain) for watch in watches if watch.certain is not None]
    idle = tuple(_idle(watch.machine, watch.certain[0]) for watch in watches if watch.certain is not None)
    simple = all(watch.machine.slot and watch.certain is not None and len(watch.certain) == 1 for watch in watches)

    @lru_cache(maxsize=KEPT)
    def touched(text: str) -> Touched:
        key = normalize(text)
        touches = tuple([Touch(name, key, exact) for name, exact in certain])
        return Touched(touches, (), (key,), idle if simple else (), touches[0].machine if _is_oversize(key) else None)

    return _Alike(watches[0].machine.key, touched)


def _idle(machine: Machine, index: int) -> Idle:
    transition = machine.transitions[index]
    return Idle(machine.slot, transition.lists(machine.initial), transition.sources)


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
