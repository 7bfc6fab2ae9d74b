"""The file format of tool-order machines, and machines compiled for deciding.

A machine watches a family of tool calls and keeps one small state per instance. It only narrows: it never grants. Machines
are found by tool name, so a call costs what those that touch it cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from gated.core.order.fields import render
from gated.core.order.globs import Glob, GlobError, compile_glob
from gated.core.order.patterns import Conditions, Pattern, PatternError, compile_conditions, compile_pattern
from gated.core.order.templates import NORMALIZERS, Template, TemplateError, compile_template
from gated.events import Finding, Status, Touch

STAGE: Final = "order"

Action = Literal["deny", "ask", "warn"]
Target = Literal["system", "suffix_system", "session", "conversation"]
State = Annotated[str, Meta(min_length=1)]
STRICTNESS: Final = {"warn": 0, "ask": 1, "deny": 2}


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
    scope: Literal["thread", "run"] = "thread"
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


class MachineError(ValueError):
    """A mistake in a machine; `path` leads to it inside the machine's entry."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


class Transition(Struct, frozen=True):
    """`sources` is None for any state. `contents` and `facts` are further conditions of `status`."""

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
    name: str
    entry: MachineEntry
    key: Template
    transitions: tuple[Transition, ...]
    states: frozenset[str]

    @property
    def initial(self) -> str:
        return self.entry.initial


class Touched(Struct, frozen=True):
    """What a call bears on, and what is wrong with its keys."""

    touches: tuple[Touch, ...] = ()
    findings: tuple[Finding, ...] = ()


NOTHING_TOUCHED: Final = Touched()


def compile_machine(entry: MachineEntry) -> Machine:
    """Raises `MachineError` with the path of the mistake inside the entry."""
    try:
        key = compile_template(entry.key)
    except TemplateError as error:
        raise MachineError(str(error), "key") from error
    transitions = tuple(_transition(item, position) for position, item in enumerate(entry.transitions))
    states = {entry.initial, *entry.terminal, *(item.to for item in entry.transitions)} | {s for s in (entry.on_unmatched,) if s}
    return Machine(entry.name, entry, key, transitions, frozenset(states))


def _sources(item: TransitionEntry) -> tuple[str, ...]:
    return (item.from_,) if isinstance(item.from_, str) else item.from_


def _transition(item: TransitionEntry, position: int) -> Transition:
    def at(field: str, compile: Any, text: str | None) -> Any:
        if text is None:
            return None
        try:
            return compile(text)
        except (PatternError, TemplateError, GlobError) as error:
            raise MachineError(str(error), "transitions", position, field) from error

    when = item.when if isinstance(item.when, WhenEntry) else WhenEntry(status=item.when)
    violation = item.on_violation if isinstance(item.on_violation, ViolationEntry) else ViolationEntry(action=item.on_violation)
    sources = _sources(item)
    if not sources:
        raise MachineError("`from` names no state: write one, a list of them, or `*`", "transitions", position, "from")
    return Transition(
        on=at("on", compile_pattern, item.on),
        sources=None if "*" in sources else frozenset(sources),
        to=item.to,
        status=when.status,
        content=at("when", compile_glob, when.content),
        facts=at("when", compile_conditions, when.facts),
        emit=item.emit,
        emit_text=at("emit", compile_template, item.emit.content if item.emit else None),
        action=violation.action,
        reason=at("on_violation", compile_template, violation.reason),
    )


class MachineSet:
    """The machines of one agent, found by tool name."""

    __slots__ = ("_anywhere", "_by_tool", "by_name", "machines")

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = tuple(machines)
        self.by_name: Mapping[str, Machine] = {machine.name: machine for machine in machines}
        self._anywhere = frozenset(m.name for m in machines if m.entry.strict or any(_open(t) for t in m.transitions))
        names = {t.on.exact_tool.casefold() for m in machines for t in m.transitions if t.on.exact_tool}
        self._by_tool = {name: self._watching(name) for name in names}

    def _watching(self, name: str | None) -> tuple[Machine, ...]:
        return tuple(
            m
            for m in self.machines
            if m.name in self._anywhere or any(t.on.exact_tool and t.on.exact_tool.casefold() == name for t in m.transitions)
        )

    def touches(self, tool: str, args: Mapping[str, Any]) -> Touched:
        """The instances that the call bears on, in the machines' order."""
        watching = self._by_tool.get(tool.casefold())
        if watching is None:
            if not self._anywhere:
                return NOTHING_TOUCHED
            watching = self._watching(None)
        touches: list[Touch] = []
        findings: list[Finding] = []
        for machine in watching:
            found = _touch(machine, tool, args)
            if isinstance(found, Touch):
                touches.append(found)
            elif found is not None:
                findings.append(found)
        return Touched(tuple(touches), tuple(findings)) if touches or findings else NOTHING_TOUCHED


def _open(transition: Transition) -> bool:
    return transition.on.exact_tool is None


def _touch(machine: Machine, tool: str, args: Mapping[str, Any]) -> Touch | Finding | None:
    exact: list[int] = []
    wide: list[int] = []
    for index, transition in enumerate(machine.transitions):
        if transition.on.matches(tool, args):
            exact.append(index)
        elif transition.on.matches_wide(tool, args):
            wide.append(index)
    if not exact and not wide and not machine.entry.strict:
        return None
    key = machine.key.render_key(args)
    if key is None:
        return _missing_key(machine, tool)
    return Touch(
        machine.name,
        NORMALIZERS[machine.entry.key_normalizer](key),
        tuple(exact),
        tuple(wide),
        emits=_emits(machine, exact, args),
        warning=_warning(machine, exact or wide, args),
    )


def _emits(machine: Machine, exact: list[int], args: Mapping[str, Any]) -> tuple[str, ...]:
    texts = [machine.transitions[index].emit_text for index in exact]
    if not any(text is not None for text in texts):
        return ()
    return tuple("" if text is None else text.render_text(args) for text in texts)


def _warning(machine: Machine, matched: list[int], args: Mapping[str, Any]) -> str | None:
    if not matched or machine.transitions[matched[0]].action != "warn":
        return None
    reason = machine.transitions[matched[0]].reason
    return None if reason is None else reason.render_text(args)


def _missing_key(machine: Machine, tool: str) -> Finding | None:
    action = machine.entry.on_missing_key
    if action == "ignore":
        return None
    reason = f"`{tool}` lacks what state machine `{machine.name}` takes its key from: {machine.entry.key}"
    authoritative = machine.entry.mode == "enforce"
    return Finding(STAGE, action, "order.missing_key", reason, authoritative=authoritative, machine=machine.name)
