"""The file format of tool-order machines, and machines compiled for deciding.

A machine watches a family of tool calls and keeps one small state per instance. It only narrows: it never grants. A state in
`from` that nothing reaches is left to `lint`: machines that only ever warn or ask are written that way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Struct

from gated.core.names import Label, Words
from gated.core.order.fields import render
from gated.core.order.globs import Glob, compile_glob
from gated.core.order.patterns import Conditions, Pattern, compile_conditions, compile_pattern
from gated.core.order.state import ANY, Instance, Kind, kind_of
from gated.core.order.templates import NORMALIZERS, Template, compile_template
from gated.events import Status, Touch

STAGE: Final = "order"

Action = Literal["deny", "ask", "warn"]
Scope = Literal["thread", "run"]
Target = Literal["system", "suffix_system", "session", "conversation"]
State = Words
Path = tuple[str | int, ...]
STRICTNESS: Final = {"warn": 0, "ask": 1, "deny": 2}


# --- the file --------------------------------------------------------------------------------------------------------


class WhenEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    status: Literal["any", "success", "error"] = "success"
    content: str | None = None
    facts: str | None = None


class EmitEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    content: Words
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
    name: Label
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
    message: Words = "Finish the protocol work: {summary}"


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
        if self.status != status and (self.status != "any" or status == "not_run"):
            return False
        if self.content is not None and not self.content.matches(render(content)):
            return False
        return self.facts is None or self.facts.holds(facts)


class Machine(Struct, frozen=True):
    """`states` in the order of the file, those that nothing reaches included; `fresh` is an instance that nobody touched."""

    name: str
    scope: Scope
    own: bool  # every run has instances of its own
    observed: bool
    key: Template
    normalize: Callable[[str], str]
    initial: str
    fresh: Instance
    transitions: tuple[Transition, ...]
    kinds: Mapping[tuple[int, ...], Kind]  # of calls that match one transition
    states: tuple[str, ...]
    terminal: frozenset[str]
    speaks: bool  # some transition emits, or warns
    entry: MachineEntry

    def kind(self, exact: tuple[int, ...], overrides: tuple[int, ...]) -> Kind | None:
        """Every way in which a call may move an instance, whatever its outcome; None: it has no such transitions."""
        kind = self.kinds.get(exact)
        if kind is not None and not overrides:
            return kind
        if exact and exact[-1] >= len(self.transitions):
            return None
        moves = [move for index in exact for move in self.transitions[index].moves]
        return kind_of([*moves, *(move for index in overrides for move in self.transitions[index].forced)])

    def sources(self, exact: tuple[int, ...]) -> frozenset[str] | None:
        """The states from which a call that matches these transitions is allowed; None: any."""
        found: frozenset[str] = frozenset()
        for index in exact:
            sources = self.transitions[index].sources
            if sources is None:
                return None
            found = found | sources if found else sources
        return found

    def declares(self, touch: Touch) -> bool:
        """Whether the touch can be this machine's: it may have been another policy's machine of the same name."""
        count, exact, wide = len(self.transitions), touch.exact, touch.wide
        return not (exact and exact[-1] >= count) and not (wide and wide[-1] >= count)


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
        own=entry.scope == "run",
        observed=entry.mode == "observe",
        key=key,
        normalize=NORMALIZERS[entry.key_normalizer],
        initial=entry.initial,
        fresh=Instance(entry.initial),
        transitions=transitions,
        kinds={(index,): transition.moves for index, transition in enumerate(transitions)},
        states=tuple(dict.fromkeys(named)),
        terminal=frozenset(entry.terminal),
        speaks=any(t.emit is not None or t.action == "warn" for t in transitions),
        entry=entry,
    )


def check_continuation(entry: Continuation) -> Continuation:
    """Raises `MachineError`, as `compile_machine` does."""
    unknown = [field for field in _at(("message",), compile_template, entry.message).fields if field != "summary"]
    if unknown:
        raise MachineError(f"`{{{unknown[0]}}}` means nothing in a continuation's message: only `{{summary}}` does", ("message",))
    return entry


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
