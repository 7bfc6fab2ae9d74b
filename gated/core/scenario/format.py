"""The scenario file as structs. An unknown key anywhere is an error of the file."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from gated.events import Status

Scores = dict[str, float | int | str]  # by detector: from 0 to 1, or a text that says why there is none


class CallEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One wanted call. `raw` is the JSON text of the arguments as it comes over the wire."""

    tool: Any
    id: str | None = None
    args: Any = UNSET
    raw: str | None = None
    parent: str | None = None
    cost_usd: Any = None
    nesting: Literal["explicit", "inferred"] | None = None
    scores: Scores = {}


class RunEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Short for an intent that must be allowed and its success outcome."""

    tool: str
    args: Any = UNSET
    call: str | None = None
    parent: str | None = None
    cost_usd: float | int | None = None
    nesting: Literal["explicit", "inferred"] | None = None
    content: Any = None
    facts: dict[str, Any] = {}
    scores: Scores = {}


class OutcomeEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    call: str
    status: Status
    content: Any = None
    facts: dict[str, Any] = {}
    cost_usd: Any = None
    tokens: int = 0
    by: str | None = None
    scores: Scores = {}


class ResolveEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    ticket: str
    by: str
    decision: Literal["approve", "reject"]
    args: dict[str, Any] | None = None
    result: Any = UNSET
    note: str = ""
    remember: Any = "once"
    args_sha256: str | None = None
    decision_id: str | None = None
    name: str | None = None
    tool: str | None = None
    scores: Scores = {}


class ForgetEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    ticket: str
    by: str


class AdvanceEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    by: str | int
    fire: bool = True


class AbortEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reason: str = ""


class FinishEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class SwitchEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    run: str
    agent: str | None = None
    thread: str | None = None
    open: bool = True
    parent: str | None = None
    by: str | None = None


class StepEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One step: exactly one of the actions, and what is expected of it."""

    intent: CallEntry | None = None
    batch: tuple[CallEntry, ...] | None = None
    outcome: OutcomeEntry | None = None
    run: RunEntry | None = None
    resolve: ResolveEntry | None = None
    forget: ForgetEntry | None = None
    advance: str | int | AdvanceEntry | None = None
    finish: FinishEntry | None = None
    abort: AbortEntry | None = None
    switch: SwitchEntry | None = None
    policy: str | dict[str, Any] | None = None
    concurrent: tuple[tuple[StepEntry, ...], ...] | None = None
    mode: Literal["each", "atomic"] = "each"
    nesting: Literal["explicit", "inferred"] | None = None
    now: bool = False
    interleavings: int = 1
    expect: Any = UNSET

    @property
    def action(self) -> str:
        """The name of the one action. Raises `ValueError` where there is none or more than one."""
        named = [name for name in ACTIONS if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(f"a step has one of {', '.join(ACTIONS)}; this one has {', '.join(named) or 'none'}")
        return named[0]


ACTIONS = (
    "intent",
    "batch",
    "outcome",
    "run",
    "resolve",
    "forget",
    "advance",
    "finish",
    "abort",
    "switch",
    "policy",
    "concurrent",
)


class StateEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the fold must hold in the end; only what is named is compared."""

    phase: str | UnsetType = UNSET
    step_count: int | UnsetType = UNSET
    hop_count: int | UnsetType = UNSET
    retry_count: int | UnsetType = UNSET
    call_count: int | UnsetType = UNSET
    cost_usd: float | int | UnsetType = UNSET
    tokens: int | UnsetType = UNSET
    failed: bool | UnsetType = UNSET
    history: list[str] | UnsetType = UNSET
    barriers: dict[str, float | int] | UnsetType = UNSET
    machines: dict[str, dict[str, str]] | UnsetType = UNSET
    metrics: dict[str, int] | UnsetType = UNSET
    loop_count: dict[str, int] | UnsetType = UNSET
    in_flight: list[str] | UnsetType = UNSET


class ScenarioEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    steps: tuple[StepEntry, ...]
    agent: str | None = None
    run: str = "r1"
    thread: str | None = None
    task: str | None = None
    labels: dict[str, str] = {}
    scores: Scores = {}
    links: dict[str, str] = {}
    state: StateEntry = StateEntry()


class ScenarioFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    policy: str | dict[str, Any]
    scenarios: tuple[ScenarioEntry, ...]
