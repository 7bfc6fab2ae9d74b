"""The file format of tool-order machines, machines compiled for deciding, and which of them a call bears on.

A machine watches a family of tool calls and keeps one small state per instance. It only narrows: it never grants. Machines
are found by tool name, so a call costs what those that touch it cost. A state in `from` that nothing reaches is left to
`lint`: machines that only ever warn or ask are written that way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from msgspec import Meta, Struct

from gated.core.order.fields import render
from gated.core.order.globs import Glob, compile_glob
from gated.core.order.patterns import Conditions, Pattern, compile_conditions, compile_pattern
from gated.core.order.state import ANY, Instance, Kind, kind_of, slot_of
from gated.core.order.templates import NORMALIZERS, Template, compile_template
from gated.events import Finding, RunId, Status, Touch

STAGE: Final = "order"

Action = Literal["deny", "ask", "warn"]
Scope = Literal["thread", "run"]
Target = Literal["system", "suffix_system", "session", "conversation"]
State = Annotated[str, Meta(min_length=1)]
Path = tuple[str | int, ...]
STRICTNESS: Final = {"warn": 0, "ask": 1, "deny": 2}


# --- the file --------------------------------------------------------------------------------------------------------


class WhenEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    status: Literal["any", "success", "error"] = "success"
    content: str | None = None
    facts: str | None = None


class EmitEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    content: str
    target: Target = "suffix_system"
    role: Literal["user", "assistant"] = "user"
    cooldown_turns: Annotated[int, Meta(ge=0)] = 0


class ViolationEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    action: Action = "deny"
    reason: str | None = None


class TransitionEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    on: str
    from_: State | tuple[State, ...]
    to: State
    when: Literal["any", "success", "error"] | WhenEntry = WhenEntry()
    emit: EmitEntry | None = None
    on_violation: Action | ViolationEntry = ViolationEntry()


class MachineEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    initial: State
    transitions: tuple[TransitionEntry, ...]
    scope: Scope = "thread"
    key: str = ""
    key_normalizer: Literal["none", "trim", "lowercase", "path", "url"] = "none"
    on_missing_key: Literal["ignore", "deny", "ask"] = "ignore"
    strict: bool = False
    on_unmatched: State | None = None
    terminal: tuple[State, ...] = ()
    mode: Literal["enforce", "observe"] = "enforce"


class Continuation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`continuation:` how often the end of a run is steered back to unfinished protocol work; 0 never."""

    max_continuations: Annotated[int, Meta(ge=0)] = 25
    message: str = "Finish the protocol work: {summary}"

    def __post_init__(self) -> None:
        unknown = [field for field in compile_template(self.message).fields if field != "summary"]
        if unknown:
            raise ValueError(f"`{{{unknown[0]}}}` means nothing in a continuation's message: only `{{summary}}` does")


class MachineError(ValueError):
    """A mistake in a machine; `path` leads to it inside the machine's entry."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


# --- compiled --------------------------------------------------------------------------------------------------------


class Transition(Struct, frozen=True):
    """`sources` is None for any state. `content` and `facts` are further conditions of `status`.

    `moves` is what a call in flight that matches may do to an instance, `forced` the same for an approved ask.
    """

    on: Pattern
    sources: frozenset[str] | None
    to: str
    status: Literal["any", "success", "error"]
    content: Glob | None
    facts: Conditions | None
    emit: EmitEntry | None
    emit_text: Template | None
    action: Action
    reason: Template | None
    moves: Kind
    forced: Kind

    def lists(self, state: str) -> bool:
        return self.sources is None or state in self.sources

    def fits(self, status: Status, content: Any, facts: Mapping[str, Any]) -> bool:
        """Whether the outcome is one that fires the transition."""
        if status == "not_run" or (self.status != "any" and self.status != status):
            return False
        if self.content is not None and not self.content.matches(render(content)):
            return False
        return self.facts is None or self.facts.holds(facts)


class Machine(Struct, frozen=True):
    """`states` in the order of the file, those that nothing reaches included; `fresh` is an instance that nobody touched."""

    name: str
    scope: Scope
    slot: str  # where its instances are; empty where every run has its own
    observed: bool
    key: Template
    normalize: Callable[[str], str]
    initial: str
    fresh: Instance
    transitions: tuple[Transition, ...]
    states: tuple[str, ...]
    terminal: frozenset[str]
    speaks: bool  # some transition emits, or warns
    entry: MachineEntry

    def kind(self, touch: Touch) -> Kind:
        """Every way in which the call may move an instance, whatever its outcome."""
        if len(touch.exact) == 1 and not touch.overrides:
            return self.transitions[touch.exact[0]].moves
        moves = [move for index in touch.exact for move in self.transitions[index].moves]
        return kind_of([*moves, *(move for index in touch.overrides for move in self.transitions[index].forced)])

    def declares(self, touch: Touch) -> bool:
        """Whether the touch can be this machine's: it may have been another policy's machine of the same name."""
        last = max(touch.exact[-1:] + touch.wide[-1:], default=-1)
        return last < len(self.transitions)


def compile_machine(entry: MachineEntry) -> Machine:
    """Raises `MachineError` with the path of the mistake inside the entry."""
    key = _at(("key",), compile_template, entry.key)
    transitions = tuple(_transition(entry, index) for index in range(len(entry.transitions)))
    _check_states(entry)
    named = [entry.initial, *(t.to for t in transitions), *filter(None, (entry.on_unmatched,))]
    named += [state for item in entry.transitions for state in _sources(item) if state != ANY]
    return Machine(
        name=entry.name,
        scope=entry.scope,
        slot=slot_of(entry.name, "thread", RunId("")) if entry.scope == "thread" else "",
        observed=entry.mode == "observe",
        key=key,
        normalize=NORMALIZERS[entry.key_normalizer],
        initial=entry.initial,
        fresh=Instance(entry.initial),
        transitions=transitions,
        states=tuple(dict.fromkeys(named)),
        terminal=frozenset(entry.terminal),
        speaks=any(t.emit is not None or t.action == "warn" for t in transitions),
        entry=entry,
    )


def _check_states(entry: MachineEntry) -> None:
    places: list[tuple[Path, str | None]] = [(("initial",), entry.initial), (("on_unmatched",), entry.on_unmatched)]
    places += [(("transitions", index, "to"), item.to) for index, item in enumerate(entry.transitions)]
    reached = {state for _, state in places}
    places += [(("terminal", index), state) for index, state in enumerate(entry.terminal)]
    for path, state in places:
        if state == ANY:
            raise MachineError("`*` is no state: it stands for any state, and only in `from`", path)
        if state not in reached:
            raise MachineError(f"nothing reaches the state `{state}`: it is neither `initial` nor the `to` of a transition", path)


def _sources(item: TransitionEntry) -> tuple[str, ...]:
    return (item.from_,) if isinstance(item.from_, str) else item.from_


_T = TypeVar("_T")


def _at(path: Path, compile: Callable[[str], _T], text: str) -> _T:
    try:
        return compile(text)
    except ValueError as error:  # a pattern's, a glob's or a template's
        raise MachineError(str(error), path) from error


def _maybe(path: Path, compile: Callable[[str], _T], text: str | None) -> _T | None:
    return None if text is None else _at(path, compile, text)


def _transition(machine: MachineEntry, index: int) -> Transition:
    item, at = machine.transitions[index], ("transitions", index)
    when = item.when if isinstance(item.when, WhenEntry) else WhenEntry(status=item.when)
    violation = item.on_violation
    if not isinstance(violation, ViolationEntry):
        violation = ViolationEntry(action=violation)
    sources = _sources(item)
    if not sources:
        raise MachineError("`from` names no state: write one, a list of them, or `*`", (*at, "from"))
    targets = [item.to] if machine.on_unmatched is None else [item.to, machine.on_unmatched]
    return Transition(
        on=_at((*at, "on"), compile_pattern, item.on),
        sources=None if ANY in sources else frozenset(sources),
        to=item.to,
        status=when.status,
        content=_maybe((*at, "when", "content"), compile_glob, when.content),
        facts=_maybe((*at, "when", "facts"), compile_conditions, when.facts),
        emit=item.emit,
        emit_text=_maybe((*at, "emit", "content"), compile_template, item.emit.content if item.emit else None),
        action=violation.action,
        reason=_maybe((*at, "on_violation", "reason"), compile_template, violation.reason),
        moves=kind_of((source, target) for source in sources for target in targets),
        forced=kind_of((ANY, target) for target in targets),
    )


def default_reason(tool: str, machine: Machine, state: str) -> str:
    return f"Tool `{tool}` is not permitted by state machine `{machine.name}` from state `{state}`."


# --- which machines a call bears on ----------------------------------------------------------------------------------


class Idle(NamedTuple):
    """When a touched instance surely allows the call: it is not there and `fresh`, or nothing is in flight on it and its
    state is one of `sources` (None: any)."""

    slot: str
    key: str
    fresh: bool
    sources: frozenset[str] | None


class Touched(Struct, frozen=True):
    """What a call bears on, and what is wrong with its keys.

    `idle`, where it was worked out, is when all of it surely allows the call. `oversize`: a machine whose key is too long.
    """

    touches: tuple[Touch, ...] = ()
    findings: tuple[Finding, ...] = ()
    idle: tuple[Idle, ...] = ()
    oversize: str | None = None


NOTHING_TOUCHED: Final = Touched()
KEPT: Final = 1024  # keys whose touches a tool's machines keep made
MEMORABLE: Final = 256  # characters of the longest key that is kept
MAX_KEY_BYTES: Final = 1024


def _is_oversize(key: str) -> bool:
    return len(key) * 4 > MAX_KEY_BYTES and len(key.encode(errors="surrogatepass")) > MAX_KEY_BYTES


class _Watch(Struct, frozen=True):
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
        return Touched(tuple(touches), tuple(findings), oversize=oversize)


class _Alike(NamedTuple):
    """A tool's machines where all that they make of a call is its key: what each key touches is made once and kept."""

    key: Template
    touched: Callable[[str], Touched]


def _alike(watches: tuple[_Watch, ...]) -> _Alike | None:
    if len({watch.made_from for watch in watches}) != 1 or any(w.certain is None or w.machine.speaks for w in watches):
        return None
    normalize = watches[0].machine.normalize
    certain = [(watch.machine, watch.certain) for watch in watches if watch.certain is not None]
    simple = all(machine.slot and len(exact) == 1 for machine, exact in certain)

    @lru_cache(maxsize=KEPT)
    def touched(text: str) -> Touched:
        key = normalize(text)
        touches = tuple(Touch(machine.name, key, exact) for machine, exact in certain)
        idle = tuple(_idle(machine, key, exact[0]) for machine, exact in certain) if simple else ()
        return Touched(touches, idle=idle, oversize=touches[0].machine if _is_oversize(key) else None)

    return _Alike(watches[0].machine.key, touched)


def _idle(machine: Machine, key: str, index: int) -> Idle:
    transition = machine.transitions[index]
    return Idle(machine.slot, key, transition.lists(machine.initial), transition.sources)


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
