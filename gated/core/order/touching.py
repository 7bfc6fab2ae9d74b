"""Which machines a call bears on, and on which of their instances.

Machines are found by the name of the tool, so those that do not watch it cost a call nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from gated.core.order.fields import MISSING, render
from gated.core.order.machines import STAGE, Machine, default_reason
from gated.core.order.patterns import Pattern
from gated.core.order.state import Instance, Kind
from gated.events import Finding, Touch

SCALARS: Final = frozenset({str, int, bool, type(None)})  # whose one text is all that anything reads; 1.0 has two

Part = tuple[str, tuple[int, ...], tuple[int, ...]]  # of a join: a machine, the transitions that match, those that are overridden
Joint = tuple[tuple[tuple[str, frozenset[str], str], ...], bool, dict[str, Kind], dict[str, Instance]]


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
KEPT: Final = 16_384  # calls whose touches are kept made, of all policies together
JOINTS: Final = 1024  # combinations of machines and transitions
MEMORABLE: Final = 256  # characters of the longest key that is kept
MAX_KEY_BYTES: Final = 1024


def _is_oversize(key: str) -> bool:
    return len(key) * 4 > MAX_KEY_BYTES and len(key.encode(errors="surrogatepass")) > MAX_KEY_BYTES


class _Watch(Struct, frozen=True, gc=False):
    """A machine, and those of its transitions that a tool may match."""

    machine: Machine
    transitions: tuple[tuple[int, Pattern], ...]
    made_from: tuple[str, str]  # the key's template and normalizer

    def reads(self) -> Iterator[str | None]:
        """The arguments that anything here reads, by the names at the top; None: whichever."""
        texts = [self.machine.key]
        for index, on in self.transitions:
            yield from (None,) if on.reads is None else on.reads
            transition = self.machine.transitions[index]
            texts += [text for text in (transition.emit_text, transition.reason) if text is not None]
        for text in texts:
            yield from (path[0] if isinstance(path[0], str) else None for path in text.paths)


class _Seen(Struct):
    """What is known of one call: how it matches patterns, by their text, and its keys, by template and normalizer."""

    matches: dict[str, Literal["exact", "wide", "not"]]
    keys: dict[tuple[str, str], str | None]


class MachineSet:
    """The machines of one agent, found by tool name (folded: a restriction is not shaken off by a capital)."""

    __slots__ = ("_by_folded_name", "_by_name", "_elsewhere", "_joint", "_kept", "by_name", "machines")

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = tuple(machines)
        self.by_name: Mapping[str, Machine] = {machine.name: machine for machine in machines}
        names = {t.on.exact_tool for m in machines for t in m.transitions if t.on.exact_tool is not None}
        self._by_name = {name: self._watches(name) for name in names}
        self._kept = {name: kept for name, watches in self._by_name.items() if (kept := _kept(watches, self, name)) is not None}
        self._by_folded_name = {name.casefold(): self._by_name[name] for name in names}
        self._elsewhere = self._watches(None)
        self._joint = lru_cache(JOINTS)(partial(_joint, self.by_name))

    def _watches(self, tool: str | None) -> tuple[_Watch, ...]:
        """What watches a tool that some transition names, in whatever capitals, or (None) any other."""
        found = (_watch(machine, tool) for machine in self.machines)
        return tuple(watch for watch in found if watch.transitions or watch.machine.entry.strict)

    def touches(self, tool: str, args: Mapping[str, Any]) -> Touched:
        """The instances that the call bears on, in the machines' order."""
        kept = self._kept.get(tool)
        if kept is not None:
            value = "" if kept.field is None else args.get(kept.field, MISSING)
            if value.__class__ in SCALARS and len(text := value if value.__class__ is str else render(value)) <= MEMORABLE:
                return _touched(kept, text)
        watches = self._by_name.get(tool)
        if watches is None:
            watches = self._by_folded_name.get(tool.casefold(), self._elsewhere)
        return self.touched(watches, tool, args) if watches else NOTHING_TOUCHED

    def touched(self, watches: tuple[_Watch, ...], tool: str, args: Mapping[str, Any]) -> Touched:
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
        joined = Touches(touches)
        joined.joins, joined.keys = self.joins(tuple(touches)), keys_of(tuple(touches))
        return Touched(joined, tuple(findings), keys, oversize)

    def joins(self, touches: tuple[Touch, ...]) -> tuple[Join, ...]:
        """What the touches, of these machines, come to."""
        if isinstance(touches, Touches):
            return touches.joins
        at: dict[tuple[bool, str], list[Part]] = {}
        for touch in touches:
            here = (self.by_name[touch.machine].own, touch.key)
            at.setdefault(here, []).append((touch.machine, touch.exact, touch.overrides))
        return tuple([Join(own, key, *self._joint(tuple(found))) for (own, key), found in at.items()])


def keys_of(touches: tuple[Touch, ...]) -> tuple[str, ...]:
    """The keys at which a call is in flight."""
    if isinstance(touches, Touches):
        return touches.keys
    return tuple(dict.fromkeys(touch.key for touch in touches if touch.exact))


def _joint(machines: Mapping[str, Machine], parts: tuple[Part, ...]) -> Joint:
    """A join, but for its key: the same of many."""
    limits = [
        (name, sources, m.initial) for name, exact, _ in parts if (sources := (m := machines[name]).sources(exact)) is not None
    ]
    kinds = {name: kind for name, exact, also in parts if exact and (kind := machines[name].kind(exact, also)) is not None}
    free = all(initial in sources for _, sources, initial in limits)
    return tuple(limits), free, kinds, {name: machines[name].fresh for name in kinds}


class _Kept:
    """A tool's machines where all that they make of a call comes from one argument: what each touches is made once and kept.

    `field` is None where it comes from none.
    """

    __slots__ = ("field", "machines", "tool", "watches")

    def __init__(self, machines: MachineSet, tool: str, watches: tuple[_Watch, ...], field: str | None) -> None:
        self.machines, self.tool, self.watches, self.field = machines, tool, watches, field


@lru_cache(KEPT)
def _touched(kept: _Kept, text: str) -> Touched:
    """Only scalars are kept, and by their text: whatever reads an argument reads that."""
    return kept.machines.touched(kept.watches, kept.tool, {} if kept.field is None else {kept.field: text})


def _kept(watches: tuple[_Watch, ...], machines: MachineSet, tool: str) -> _Kept | None:
    reads = {name for watch in watches for name in watch.reads()}
    if None in reads or len(reads) > 1:
        return None
    return _Kept(machines, tool, watches, next(iter(reads), None))


def _watch(machine: Machine, tool: str | None) -> _Watch:
    folded = None if tool is None else tool.casefold()
    patterns = [(index, transition.on) for index, transition in enumerate(machine.transitions)]
    mine = tuple((i, on) for i, on in patterns if on.exact_tool is None or on.exact_tool.casefold() == folded)
    return _Watch(machine, mine, (machine.key.text, machine.entry.key_normalizer))


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
