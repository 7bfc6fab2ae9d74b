"""What stages say of a call, and what tool-order machines say with it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from gated.events.ids import CallId, RunId


class Breach(Struct, frozen=True, gc=False):
    """A barrier that would be, or is, left: its value now, its value after the call, and the least it may be then."""

    barrier: str
    now: float
    next: float
    bound: float


class Circuit(Struct, frozen=True, gc=False, omit_defaults=True):
    """A tool's circuit breaker. `errors` are the times (µs) of its newest error outcomes.

    Closed while `until` is None, open before `until` (µs), then half open: `trial` is the run and call that tries the tool.
    """

    errors: tuple[int, ...] = ()
    until: int | None = None
    trial: tuple[RunId, CallId] | None = None


class Finding(Struct, frozen=True, gc=False, omit_defaults=True):
    """What one stage says of one call. `authoritative` is false where the stage is only observed."""

    stage: str
    outcome: Literal["deny", "ask", "warn"]
    code: str
    reason: str
    authoritative: bool = True
    machine: str | None = None
    key: str | None = None
    contract: str | None = None
    pattern: str | None = None
    breaches: tuple[Breach, ...] = ()
    resource: str | None = None
    run: RunId | None = None  # the ancestor whose limit it is
    retry: bool = False  # the same call may be allowed once calls in flight have ended
    error: str | None = None  # the class of what a crashed stage raised
    circuit: Circuit | None = None  # the tool's breaker as it was found
    detector: str | None = None
    score: float | None = None  # what the detector gave


# --- order machines --------------------------------------------------------------------------------------------------


class Touch(Struct, frozen=True, gc=False, omit_defaults=True):
    """A machine instance that a call bears on: the indices of the transitions it matches, exactly and only widely.

    `overrides` are transitions that an approved ask lets fire as if the current state had been listed; `emits` are the
    texts of the exact transitions' reminders and `warning` that of a warning, rendered here since the fold has no arguments.
    """

    machine: str
    key: str
    exact: tuple[int, ...] = ()
    wide: tuple[int, ...] = ()
    overrides: tuple[int, ...] = ()
    emits: tuple[str, ...] = ()
    warning: str | None = None


class Move(Struct, frozen=True, gc=False, omit_defaults=True):
    """What an outcome did to one instance. `to` equal to the present state is no transition."""

    machine: str
    key: str
    to: str


class Reminder(Struct, frozen=True, gc=False, omit_defaults=True):
    """Text for the model, handed to the agent with the acknowledgement of the outcome."""

    target: Literal["system", "suffix_system", "session", "conversation"]
    role: Literal["user", "assistant"]
    content: str
    machine: str
    key: str
    reason: Literal["transition", "warning"]
