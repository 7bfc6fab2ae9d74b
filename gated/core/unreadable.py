"""Which records cannot be decided again, since a rule would have to read what was redacted before it was recorded."""

from __future__ import annotations

from collections.abc import Iterable

from gated.core.order.patterns import compile_pattern
from gated.core.reading import Names, hidden_in, is_redacted, meet, quotes_arguments, reads_arguments, reads_results
from gated.core.redaction.cover import MACHINE_KEY
from gated.core.redaction.vault import Unreadable
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    AgentId,
    Body,
    CallDecided,
    IntentsReceived,
    OutcomeReported,
    Remembered,
    ResolutionReceived,
    RunId,
    TicketOpened,
)


def refuse_unreadable(registry: Registry, state: ThreadState, body: Body) -> None:
    """Raises `Unreadable`, with the reason, where a record could be decided again only by reading what was redacted."""
    if not isinstance(body.redacted, tuple):
        return
    if MACHINE_KEY in body.redacted:
        raise Unreadable("the key of a machine was redacted")
    observation = body.observation
    match observation:
        case IntentsReceived():
            _refuse_calls(registry, state, body, observation)
        case OutcomeReported():
            _refuse_outcome(registry, state, body.run, observation)
        case ResolutionReceived():
            if is_redacted(observation.args) or is_redacted(observation.result):
                raise Unreadable(f"what `{observation.by}` answered was redacted")
        case _:
            pass  # words that are decided on as they were recorded


def _refuse_calls(registry: Registry, state: ThreadState, body: Body, intents: IntentsReceived) -> None:
    run = state.runs.get(body.run)
    policy = registry.current if run is None else registry.known[run.policy]
    profile = policy.profile(AgentId(intents.by.name))
    waits = any(isinstance(decision, TicketOpened) for decision in body.decisions)
    sealed = any(isinstance(d, CallDecided) and d.admission is not None and d.admission.sealed for d in body.decisions)
    standing = (*state.remembered, *(() if run is None else run.remembered))
    for wanted in intents.calls:
        if wanted.args_sha256 is None:
            continue
        hidden = hidden_in(wanted.args)
        rule = reads_arguments(policy, profile, wanted.tool, hidden) or _standing(standing, wanted.tool, hidden)
        rule = rule or quotes_arguments(profile, wanted.tool, hidden)
        rule = rule or ("the ticket" if waits else "a postcondition" if sealed else None)
        if rule is not None:
            raise Unreadable(f"{rule} reads the arguments of call `{wanted.id}`, which were redacted")


def _standing(items: Iterable[Remembered], tool: str, hidden: Names) -> str | None:
    patterns = (compile_pattern(item.pattern) for item in items if item.pattern and item.tool == tool)
    return "a standing approval" if any(meet(pattern.reads, hidden) for pattern in patterns) else None


def _refuse_outcome(registry: Registry, state: ThreadState, run_id: RunId, outcome: OutcomeReported) -> None:
    run = state.runs.get(run_id)
    entry = None if run is None else run.in_flight.get(outcome.call)
    if run is None or entry is None:
        return
    profile = registry.known[entry.policy].profile(run.agent)
    rule = "the error's summary" if outcome.status == "error" and is_redacted(outcome.content) else None
    touched = [profile.machines.by_name[touch.machine] for touch in entry.touches if touch.machine in profile.machines.by_name]
    hidden = is_redacted(outcome.content), is_redacted(outcome.facts)
    rule = next((f"machine `{machine.name}`" for machine in touched if reads_results(machine, *hidden)), rule)
    if registry.known[run.policy].profile(run.agent).contracts.ensures(entry.tool):
        rule = "a postcondition"
    if rule is not None:
        raise Unreadable(f"{rule} reads what `{entry.tool}` answered, which was redacted")
