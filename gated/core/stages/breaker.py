"""breaker: a tool that keeps failing is left alone for a while.

`failures` error outcomes of a tool within `window` open its circuit for `cooldown`; then exactly one call is let through, the
trial. Its success closes the circuit, its error opens it again; a trial that was not run leaves the next call to be the trial.
A lapsed call is an error. What calls admitted before the circuit opened come to changes nothing while it is open.
A circuit belongs to a tool in a *thread*, whichever of its runs and agents calls it: a decision depends on its thread's log
alone, so that it can be derived again. (One circuit for all threads would make every verdict depend on all of them.)
INVARIANT: a circuit holds at most `failures` times, and a thread at most `MAX_CIRCUITS` circuits.
Codes: `breaker.open`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from immutables import Map
from msgspec import Meta, Struct

from gated.events import CallId, Circuit, Finding, RunId, Status
from gated.units import format_duration, parse_duration

STAGE: Final = "breaker"

MAX_CIRCUITS: Final = 1000  # of a thread; past it the one that is closed and failed longest ago is forgotten
CLOSED: Final = Circuit()

Duration = str | int


class BreakerEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`breaker:` of the policy, an agent or a tool; a tool's own goes before its agent's, that before the policy's."""

    failures: Annotated[int, Meta(ge=1, le=100)] = 5
    window: Duration = "60s"
    cooldown: Duration = "30s"


Wish = BreakerEntry | Literal["off"] | None


class Rule(Struct, frozen=True):
    """Durations in µs."""

    failures: int
    window: int
    cooldown: int


class BreakerRules(Struct, frozen=True):
    """The rule of each tool that has its own (None: off), and of every other tool."""

    default: Rule | None = None
    tools: Mapping[str, Rule | None] = {}

    def rule(self, tool: str) -> Rule | None:
        return self.tools[tool] if tool in self.tools else self.default

    @property
    def any(self) -> bool:
        return self.default is not None or any(rule is not None for rule in self.tools.values())


class BreakerError(ValueError):
    """`path` leads to the setting that is wrong."""

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.path = path


def compile_rule(wish: Wish) -> Rule | None:
    """Raises `BreakerError`."""
    if not isinstance(wish, BreakerEntry):
        return None
    return Rule(wish.failures, _duration(wish.window, "window"), _duration(wish.cooldown, "cooldown"))


def _duration(value: Duration, name: str) -> int:
    try:
        us = parse_duration(value)
    except ValueError as error:
        raise BreakerError(str(error), name) from error
    if us == 0:
        raise BreakerError(f"`{name}` is longer than 0s", name)
    return us


def check(rule: Rule | None, circuit: Circuit | None, tool: str, at: int) -> tuple[Finding, ...]:
    if rule is None or circuit is None or circuit.until is None:
        return ()
    if at < circuit.until:
        left = format_duration(circuit.until - at + 999_999)  # a part of a second counts as one
        reason = f"`{tool}` kept failing ({len(circuit.errors)} errors): no calls for another {left}"
        return (Finding(STAGE, "deny", "breaker.open", reason, retry=True, circuit=circuit),)
    if circuit.trial is not None:
        reason = f"`{tool}` failed before and one call is trying it now: wait for its outcome"
        return (Finding(STAGE, "deny", "breaker.open", reason, retry=True, circuit=circuit),)
    return ()


def is_trial(rule: Rule | None, circuit: Circuit | None, at: int) -> bool:
    """Whether a call that is admitted now is the one that tries the tool."""
    return not (rule is None or circuit is None or circuit.until is None or at < circuit.until or circuit.trial is not None)


def settle(rule: Rule | None, circuit: Circuit | None, call: tuple[RunId, CallId], status: Status, at: int) -> Circuit | None:
    """The circuit after a call's end; None where nothing changes."""
    if circuit is not None and circuit.trial == call:
        return _tried(rule, circuit, status, at)
    if rule is None or status != "error" or (circuit is not None and circuit.until is not None):
        return None
    before = () if circuit is None else circuit.errors
    errors = (*(time for time in before if time > at - rule.window), at)[-rule.failures :]
    return Circuit(errors, at + rule.cooldown if len(errors) >= rule.failures else None)


def _tried(rule: Rule | None, circuit: Circuit, status: Status, at: int) -> Circuit:
    if status == "success" or rule is None:
        return CLOSED
    return Circuit(circuit.errors, circuit.until if status == "not_run" else at + rule.cooldown)


# --- the circuits of a thread ----------------------------------------------------------------------------------------


Circuits = Map[str, Circuit]


def keep(circuits: Circuits, tool: str, circuit: Circuit) -> Circuits:
    """The thread's circuits with this one changed; one that is closed and clean is not kept."""
    if circuit == CLOSED:
        return circuits.delete(tool) if tool in circuits else circuits
    if len(circuits) >= MAX_CIRCUITS and tool not in circuits:
        oldest = min(circuits.items(), key=lambda item: (item[1].until is not None, item[1].errors[-1], item[0]))
        circuits = circuits.delete(oldest[0])
    return circuits.set(tool, circuit)


def start_trial(circuits: Circuits, tool: str, run: RunId, call: CallId) -> Circuits:
    circuit = circuits[tool]
    return circuits.set(tool, Circuit(circuit.errors, circuit.until, (run, call)))
