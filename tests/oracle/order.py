"""Tool-order machines before the call, by brute force over the in-flight calls. order.md, Before the call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from oracle import patterns, templates
from oracle.findings import Finding, Question
from oracle.history import Call, Entry, Run, Thread
from oracle.values import compact

STAGE = "order"
STRICTNESS = {"warn": 0, "ask": 1, "deny": 2}
MANY = 1000


@dataclass(frozen=True)
class Watch:
    """A machine that applies to a call: what an admission records of it."""

    machine: dict[str, Any]
    key: str
    exact: tuple[int, ...]
    wide: tuple[int, ...]
    """The transitions that match exactly, and widely (those that match exactly included)."""
    observed: bool
    override: int | None = None
    texts: tuple[str, ...] = ()
    """The rendered reason of every transition, for the reminder after a warning."""
    emits: tuple[str | None, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Watch:
        return self

    @property
    def name(self) -> str:
        return str(self.machine["name"])

    def transition(self, index: int) -> dict[str, Any]:
        return dict(self.machine["transitions"][index])

    def listing(self, state: str) -> list[int]:
        """The exact transitions that list a state; an approved ask fires as if it were listed."""
        return [i for i in self.exact if i == self.override or lists(self.transition(i), state)]

    def targets(self, state: str) -> set[str]:
        """Where the call could lead from a state, whatever the `when`s, and by `on_unmatched`."""
        listing = self.listing(state)
        found = {self.transition(i)["to"] for i in listing}
        unmatched = self.machine.get("on_unmatched")
        return found | {unmatched} if listing and unmatched is not None else found


def lists(transition: dict[str, Any], state: str) -> bool:
    sources = transition["from"]
    return sources == "*" or state == sources or (isinstance(sources, list) and (state in sources or "*" in sources))


def action_of(transition: dict[str, Any]) -> str:
    said = transition.get("on_violation", "deny")
    return str(said if isinstance(said, str) else said.get("action", "deny"))


def watches(run: Run, call: Call) -> list[tuple[dict[str, Any], Watch | None, bool]]:
    """Every machine of the agent with what it makes of a call; no watch where its key does not render."""
    found = []
    for machine in run.policy.machines(run.agent):
        ons = [t["on"] for t in machine["transitions"]]
        exact = tuple(i for i, on in enumerate(ons) if patterns.matches(on, call.tool, call.args))
        wide = tuple(i for i, on in enumerate(ons) if patterns.matches_wide(on, call.tool, call.args))
        observed = run.policy.observed(run.agent, STAGE) or machine.get("mode") == "observe"
        key = templates.render_key(machine.get("key", ""), call.args)
        watch = None
        if key is not None:
            key = templates.normalise(machine.get("key_normalizer", "none"), key)
            watch = Watch(machine, key, exact, wide, observed, None, _texts(machine, call), _emits(machine, call))
        found.append((machine, watch, bool(wide)))
    return found


def _texts(machine: dict[str, Any], call: Call) -> tuple[str, ...]:
    said = [t.get("on_violation", {}) for t in machine["transitions"]]
    return tuple(templates.render_text((s.get("reason") or "") if isinstance(s, dict) else "", call.args) for s in said)


def _emits(machine: dict[str, Any], call: Call) -> tuple[str | None, ...]:
    return tuple(
        templates.render_text(t["emit"]["content"], call.args) if t.get("emit") else None for t in machine["transitions"]
    )


def scope_of(machine: dict[str, Any], run: str) -> str | None:
    """The run that an instance belongs to; None where it is the thread's."""
    return run if machine.get("scope", "thread") == "run" else None


def place_of(watch: Watch, run: str) -> tuple[str, str, str | None]:
    """What an instance is. One of the thread and one of a run are two, also where a later policy changes a machine's scope."""
    return watch.name, watch.key, scope_of(watch.machine, run)


def current(thread: Thread, run: str, watch: Watch) -> str:
    """The instance's state: where its last move led."""
    place = place_of(watch, run)
    moves = [e for e in thread.log if e.kind == "moved" and (e.data["machine"], e.data["key"], e.data["scope"]) == place]
    return str(moves[-1].data["to"] if moves else watch.machine["initial"])


def in_flight_on(thread: Thread, run: str, watch: Watch) -> list[tuple[Entry, Watch]]:
    """The admitted calls, of any run of the thread, that may still move this instance."""
    return [
        (entry, other)
        for entry in thread.in_flight(*thread.all_runs())
        for other in entry.data["watches"]
        if place_of(other, entry.run) == place_of(watch, run) and other.exact
    ]


def possible_states(start: str, flying: list[Watch]) -> set[str]:
    """Every state that some of the calls, each at most once, in any order of their outcomes, could lead to."""
    kinds = {compact([w.exact, w.override, w.machine]): w for w in flying}
    left = sorted(compact([w.exact, w.override, w.machine]) for w in flying)
    seen, waiting = set(), [(start, tuple(left))]
    while waiting:
        state, calls = waiting.pop()
        if (state, calls) in seen:
            continue
        seen.add((state, calls))
        if len(seen) > MANY:
            return fixpoint(start, flying)
        for i in range(len(calls)):
            rest = calls[:i] + calls[i + 1 :]
            waiting += [(target, rest) for target in kinds[calls[i]].targets(state)]
    return {state for state, _ in seen}


def fixpoint(start: str, flying: list[Watch]) -> set[str]:
    """Every call any number of times: never fewer states, so it never allows more."""
    found = {start}
    while True:
        more = {target for state in found for watch in flying for target in watch.targets(state)} - found
        if not more:
            return found
        found |= more


def check(question: Question) -> list[Finding]:
    findings = []
    for machine, watch, matched in watches(question.run, question.call):
        finding = _missing(machine, question, matched=matched) if watch is None else _gate(watch, question)
        if finding is not None:
            observed = question.run.policy.observed(question.run.agent, STAGE) or machine.get("mode") == "observe"
            findings.append(replace(finding, authoritative=not observed, machine=machine["name"]))
    return sorted(findings, key=lambda f: -STRICTNESS[f.outcome])  # over all machines deny > ask > warn


def _missing(machine: dict[str, Any], question: Question, *, matched: bool) -> Finding | None:
    """Only for calls that match some transition; with `strict` also for those that match none."""
    action = machine.get("on_missing_key", "ignore")
    if action == "ignore" or not (matched or machine.get("strict", False)):
        return None
    reason = f"`{question.call.tool}` lacks the key of `{machine['name']}`"
    return Finding(STAGE, action, "order.missing_key", reason, source=(STAGE, machine["name"], "missing_key"))


def _gate(watch: Watch, question: Question) -> Finding | None:
    thread, run = question.thread, question.run
    state = current(thread, run.id, watch)
    if not watch.wide:
        if not watch.machine.get("strict", False):
            return None
        return Finding(STAGE, "deny", "order.undeclared", _default_reason(watch, question, state))
    flying = in_flight_on(thread, run.id, watch)
    allowing = [bool(watch.listing(s)) for s in possible_states(state, [w for _, w in flying])]
    if all(allowing):
        return None
    chosen = violated(watch)
    action = violation_action(watch)
    reason = watch.texts[chosen] or _default_reason(watch, question, state)
    if any(allowing):  # waiting may help: a denial, except that a warning stays a warning
        waits = ", ".join(str(e.call) for e, _ in flying if e.run == run.id) or "calls of other runs"
        return Finding(STAGE, "warn" if action == "warn" else "deny", "order.in_flight", f"waits for {waits}: {reason}")
    overrides = chosen if chosen in watch.exact else None
    return Finding(STAGE, action, "order.violation", reason, source=(STAGE, watch.name), overrides=overrides)


def violated(watch: Watch) -> int:
    """The first that matched exactly, else the first that matched widely: its reason is given."""
    return (watch.exact or watch.wide)[0]


def violation_action(watch: Watch) -> str:
    """That one's action; a wide match can only make it stricter."""
    candidates = [violated(watch), *(i for i in watch.wide if i not in watch.exact)]
    return max((action_of(watch.transition(i)) for i in candidates), key=lambda action: STRICTNESS[action])


def _default_reason(watch: Watch, question: Question, state: str) -> str:
    return f"Tool `{question.call.tool}` is not permitted by state machine `{watch.name}` from state `{state}`."
