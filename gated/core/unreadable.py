"""Which records cannot be decided again, since a rule would have to read what was redacted before it was recorded."""

from __future__ import annotations

from gated.core.reading import is_redacted, reads_arguments, reads_results
from gated.core.redaction.cover import MACHINE_KEY
from gated.core.redaction.vault import Unreadable
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import AgentId, Body, CallDecided, IntentsReceived, OutcomeReported, ResolutionReceived, RunId, TicketOpened


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
    standing = {item.tool for item in (*state.remembered, *(() if run is None else run.remembered)) if item.pattern}
    for wanted in intents.calls:
        if wanted.args_sha256 is None:
            continue
        rule = reads_arguments(policy, profile, wanted.tool)
        rule = rule or ("a standing approval" if wanted.tool in standing else None)
        rule = rule or ("the ticket" if waits else "a postcondition" if sealed else None)
        if rule is not None:
            raise Unreadable(f"{rule} reads the arguments of call `{wanted.id}`, which were redacted")


def _refuse_outcome(registry: Registry, state: ThreadState, run_id: RunId, outcome: OutcomeReported) -> None:
    run = state.runs.get(run_id)
    entry = None if run is None else run.in_flight.get(outcome.call)
    if run is None or entry is None:
        return
    profile = registry.known[entry.policy].profile(run.agent)
    rule = "the error's summary" if outcome.status == "error" else None
    touched = [profile.machines.by_name[touch.machine] for touch in entry.touches if touch.machine in profile.machines.by_name]
    rule = next((f"machine `{machine.name}`" for machine in touched if reads_results(machine)), rule)
    if registry.known[run.policy].profile(run.agent).contracts.ensures(entry.tool):
        rule = "a postcondition"
    if rule is not None:
        raise Unreadable(f"{rule} reads what `{entry.tool}` answered, which was redacted")
