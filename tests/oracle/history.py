"""What happened, as plain lists: every count in this package is a scan of a thread's whole log.

An entry's `kind` is one of
  opened       a run was opened
  hop          a call got a verdict of its own that counts as a hop
  verdict      `data["verdict"]` is what was said of a call
  admitted     a call was let in (the verdict was allow); `data` holds what the decision recorded
  settled      an admitted call's outcome, whoever gave it (agent, runner, a lapse, a person's answer)
  misfit       arguments that missed the schema, or an unknown tool: a tool error without an admission
  ungated      an outcome for a call that never had an allow verdict
  moved        a machine instance changed its state
  reminded     a transition's reminder went out
  counted      a metric of a machine grew by one
  violation    a machine's violation, for the violation log
  steered      a finish was answered with `steer`
  exhausted    `on_budget: exhaust` ended the run's phases
  failed       the run failed, with `data["summary"]`
  finished     the run finished
  aborted      the run was aborted, with `data["reason"]`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oracle.rules import Policy
from oracle.values import Json, digest


@dataclass
class Entry:
    kind: str
    run: str
    call: str | None
    at: int
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    id: str
    tool: str
    args: Json
    """The effective arguments: an approver's edit, else what was asked for."""
    asked_args: Json
    parent: str | None
    message: int
    """Calls of one message are siblings."""
    nesting: str
    cost_usd: Json
    scores: dict[str, Json] = field(default_factory=dict)
    """What detectors said of it."""

    @property
    def digest(self) -> str:
        return digest(self.tool, self.args)


@dataclass
class Run:
    id: str
    agent: str
    policy: Policy
    opened_at: int
    parent: str | None = None
    task: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    tools: list[str] | None = None
    calls: dict[str, Call] = field(default_factory=dict)

    @property
    def profile(self) -> dict[str, Any]:
        return self.policy.profile_or_empty(self.agent)


@dataclass(frozen=True)
class Family:
    """A run and every run whose admissions count in its budgets."""

    run: str


Runs = list[str] | Family


@dataclass
class Ticket:
    run: str
    name: str
    calls: list[str]
    batch: bool
    asks: dict[str, list[tuple[Any, ...]]]
    """The source of every ask, by call."""
    digests: dict[str, str]
    requirements: list[dict[str, Any]]
    opened_at: int
    expires_at: int
    state: str = "pending"
    answers: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Thread:
    id: str
    owner: str
    runs: dict[str, Run] = field(default_factory=dict)
    log: list[Entry] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    memories: list[dict[str, Any]] = field(default_factory=list)

    def note(self, kind: str, run: str, call: str | None, at: int, **data: Any) -> Entry:
        entry = Entry(kind, run, call, at, data)
        self.log.append(entry)
        return entry

    def of(self, kind: str, *runs: str) -> list[Entry]:
        """Every entry of a kind, of the runs named."""
        return [e for e in self.log if e.kind == kind and e.run in runs]

    def last_at(self) -> int:
        return max((e.at for e in self.log), default=0)

    def all_runs(self) -> list[str]:
        return list(self.runs)

    def ancestors(self, run: Run) -> list[Run]:
        """decisions.md §3: a child's admissions count in its parent's budgets too, unless the parent says `children: own`.

        ambiguous: whose profile says so. The parent's: a child must not choose to spend outside its parent's budget.
        """
        found = []
        while run.parent is not None:
            run = self.runs[run.parent]
            if run.profile.get("children", "inherit") == "own":
                break
            found.append(run)
        return found

    def among(self, kind: str, runs: Runs) -> list[Entry]:
        """Every entry of a kind that counts for these runs.

        A call counts in the runs in which it counted when it was admitted: what its parent's policy says later of the children
        takes nothing back and adds nothing (policy.md: a rebinding is an event, and the fold reads what was recorded).
        """
        if not isinstance(runs, Family):
            return self.of(kind, *runs)
        return [e for e in self.log if e.kind == kind and runs.run in (e.run, *self._above(e))]

    def _above(self, entry: Entry) -> list[str]:
        admitted = self.admission(entry.run, entry.call) if entry.call is not None else None
        return [] if admitted is None else list(admitted.data["above"])

    def settlement(self, run: str, call: str | None) -> Entry | None:
        return next((e for e in self.of("settled", run) if e.call == call), None)

    def in_flight(self, *runs: str) -> list[Entry]:
        return [e for e in self.of("admitted", *runs) if self.settlement(e.run, e.call) is None]

    def admission(self, run: str, call: str) -> Entry | None:
        return next((e for e in self.of("admitted", run) if e.call == call), None)

    def verdict(self, run: str, call: str) -> dict[str, Any]:
        """The newest word on a call."""
        return dict([e for e in self.of("verdict", run) if e.call == call][-1].data["verdict"])

    def ending(self, run: str) -> Entry | None:
        return next((e for e in self.log if e.run == run and e.kind in ("finished", "aborted", "failed")), None)
