"""Playing one step of a scenario on its world: the observation it stands for, and the answers to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from gated import canonical, ingress, strict_json
from gated.core.scenario import scoring
from gated.core.scenario.format import CallEntry, OutcomeEntry, ResolveEntry, RunEntry, StepEntry, SwitchEntry
from gated.core.scenario.world import World, call_id
from gated.core.state import RunState
from gated.events import (
    AbortRequested,
    AgentId,
    CallId,
    CallRefused,
    ForgetRequested,
    IntentsReceived,
    MessageRefused,
    OutcomeReported,
    Remember,
    ResolutionReceived,
    RunId,
    RunStarted,
    Sender,
    ThreadId,
    Wanted,
)

Answers = list[Any]


def intents(world: World, calls: tuple[CallEntry, ...], mode: Any, nesting: str | None) -> Answers:
    limits = world.current.limits.of_messages
    try:
        ingress.refuse_unfit(ingress.Calls, calls, "calls")
    except ingress.Unreadable as error:
        return _unread(world, world.sender, error)
    read = (_wanted(call, position, limits) for position, call in enumerate(calls))
    wanted = tuple(scoring.scored(world, one, call.scores) for one, call in zip(read, calls, strict=True))
    said = nesting or next((call.nesting for call in calls if call.nesting is not None), None)
    explicit, before = said == "explicit", world.run_state
    answers = world.observe(IntentsReceived(world.sender, wanted, mode, "explicit" if explicit else "inferred"))
    return _in_order(before, wanted, answers)


def _in_order(before: RunState | None, wanted: tuple[Wanted, ...], answers: Answers) -> Answers:
    """The answers in the order of the calls that they are to; first what the message led to for other calls."""
    told: dict[CallId | None, tuple[Answers, Answers]] = {call.id: ([], []) for call in wanted}
    ordered: Answers = []
    for answer in answers:
        verdicts, refusals = told.get(getattr(answer, "call", None), (ordered, ordered))
        (refusals if isinstance(answer, CallRefused) else verdicts).append(answer)
    known = _digests(before, wanted)
    last = {call.id: place for place, call in enumerate(wanted)}
    for place, call in enumerate(wanted):
        verdicts, refusals = told[call.id]
        taken = call.refused is None and canonical.args_digest(call.tool, call.args) == known[call.id]
        queue = verdicts if taken else refusals
        ordered += [queue.pop(0)] if queue else []
        if last[call.id] == place:  # one that waited has two answers where the message ends its run
            ordered += verdicts + refusals
    return ordered


def _digests(before: RunState | None, wanted: tuple[Wanted, ...]) -> dict[CallId | None, str]:
    """What each id stands for: a call that the run knew, or the first of the message that could be read."""
    digests: dict[CallId | None, str] = {}
    for call in wanted:
        met = None if before is None or call.id is None else before.known(call.id)
        if met is not None:
            digests[call.id] = met.args_sha256
        elif call.refused is None:
            digests.setdefault(call.id, canonical.args_digest(call.tool, call.args))
    return digests


def _wanted(call: CallEntry, position: int, limits: strict_json.Limits) -> Wanted:
    """The call as the wire would hand it over."""
    args: Any = {} if call.args is UNSET else call.args
    raw = call.raw if call.raw is not None else json.dumps(args) if isinstance(args, dict) else None
    if raw is not None:
        try:
            args = strict_json.parse(raw.encode(), limits)
        except strict_json.BadJson as error:
            return Wanted(call_id(call.id), refused=f"ingress.{_code(error)}", why=str(error))
    data = {"id": call.id, "tool": call.tool, "args": args, "parent": call.parent, "cost_usd": call.cost_usd}
    return ingress.wanted_from(data, position)


def _code(error: strict_json.BadJson) -> str:
    """What is wrong inside the arguments of one call is wrong with its arguments."""
    return "args" if error.code == "shape" else error.code


def run(world: World, entry: RunEntry, name: str) -> tuple[Answers, Answers]:
    """An intent, and its success outcome: the answers to each."""
    call = CallEntry(
        tool=entry.tool,
        id=name,
        args=entry.args,
        parent=entry.parent,
        cost_usd=entry.cost_usd,
        nesting=entry.nesting,
        scores=entry.scores,
    )
    asked = intents(world, (call,), "each", entry.nesting)
    success = OutcomeEntry(call=name, status="success", content=entry.content, facts=entry.facts, scores=entry.scores)
    ended = outcome(world, success)
    return asked, ended


def outcome(world: World, entry: OutcomeEntry) -> Answers:
    """The answers to an outcome; to one that the wire would not read, its refusal."""
    by = _sender(world, entry.by)
    try:
        cost = _settled_cost(world, entry)
    except ingress.Unreadable as error:
        return _unread(world, by, error)
    return world.observe(
        OutcomeReported(
            by=by,
            call=call_id(entry.call),
            status=entry.status,
            content=entry.content,
            facts=entry.facts,
            cost_microusd=cost,
            tokens=entry.tokens,
            reading=scoring.reading(world, call_id(entry.call), entry),
        )
    )


def _settled_cost(world: World, entry: OutcomeEntry) -> int | None:
    ingress.refuse_unfit(ingress.MessageId, entry.call, "call")
    ingress.refuse_unfit(ingress.Tokens, entry.tokens, "tokens")
    _refuse_beyond_limits(world, {"content": entry.content, "facts": entry.facts})
    return ingress.settled_cost(entry.cost_usd)


def _refuse_beyond_limits(world: World, message: dict[str, Any]) -> None:
    """Raises `Unreadable` where the wire would not take this much."""
    try:
        strict_json.parse(json.dumps(message).encode(), world.current.limits.of_messages)
    except strict_json.BadJson as error:
        raise ingress.Unreadable(f"ingress.{error.code}", str(error)) from error


def _sender(world: World, by: str | None) -> Sender:
    if by is None:
        return world.sender
    role, colon, name = by.partition(":")
    if not colon:
        return Sender("agent", known_id("by", role))
    if not name or role not in ("agent", "runner", "operator", "approver"):
        raise ValueError(f"`by` is `agent:`, `runner:`, `operator:` or `approver:` and a name, not `{by}`")
    return Sender(role, known_id("by", name))  # type: ignore[arg-type]


def known_id(key: str, name: str) -> str:
    """A name that stands in a subject of the bus. Raises `ValueError`: by any other nobody could say anything."""
    if not ingress.is_id(name):
        raise ValueError(f"`{key}`: `{name[:200]}` cannot be on the bus: a name there is {ingress.ID_WORDS}")
    return name


def resolve(world: World, entry: ResolveEntry, number: int) -> Answers:
    """The answers to a person's answer; to one that the wire would not read, its refusal."""
    ticket, digest = world.ticket_named(entry.ticket)
    by = Sender("approver", known_id("by", entry.by))
    said = ResolutionReceived(
        by=by,
        ticket=ticket,
        decision=entry.decision,
        decision_id=entry.decision_id or f"d{number}",
        args_sha256=entry.args_sha256 or digest,
        note=entry.note,
        args=entry.args,
        result=None if entry.result is UNSET else entry.result,
        answers=entry.result is not UNSET,
        remember=_remember(entry.remember),
        named=entry.name,
        tool=entry.tool,
    )
    try:
        ingress.refuse_unfit(ingress.TicketName, said.ticket, "ticket")
        ingress.refuse_unfit(ingress.MessageId, said.decision_id, "decision_id")
        ingress.refuse_unfit(ingress.Note, said.note, "note")
        _refuse_beyond_limits(world, {"args": said.args, "result": said.result})
        read = ingress.answer(said)
    except ingress.Unreadable as error:
        return _unread(world, by, error)
    found = scoring.answered(world, ticket, said.result, entry.scores) if said.answers else None
    return world.observe(replace(read, scores=scoring.again(world, ticket, entry.scores), reading=found))


def _unread(world: World, by: Sender, error: ingress.Unreadable) -> Answers:
    """The answers to a message that the wire would not read."""
    text = canonical.encode(error.reason)
    return world.observe(MessageRefused(by, error.code, error.reason, hashlib.sha256(text).hexdigest(), len(text)))


def _remember(wish: Any) -> Remember | None:
    if wish == "once":
        return None
    if wish == "call":
        return Remember("call")
    if isinstance(wish, dict) and set(wish) == {"pattern", "for"} and wish["for"] in ("run", "thread"):
        return Remember(wish["for"], str(wish["pattern"]))
    raise ValueError(f"`remember` is `once`, `call` or {{pattern: …, for: run|thread}}, not `{wish}`")


def forget(world: World, ticket_name: str, by: str) -> Answers:
    ticket, _ = world.ticket_named(ticket_name)
    state, run_state = world.state, world.run_state
    standing = (*state.remembered, *(run_state.remembered if run_state else ()))
    item = next((item.id for item in standing if item.id.startswith(f"{ticket}-")), str(ticket))
    return world.observe(ForgetRequested(Sender("approver", known_id("by", by)), item))


def switch(world: World, entry: SwitchEntry) -> Answers:
    """Later steps speak for this run; it is opened if it is new."""
    run_id = RunId(known_id("run", entry.run))
    thread = ThreadId(known_id("thread", entry.thread or world.thread_of.get(run_id) or entry.run))
    world.speak_for(thread, run_id, AgentId(known_id("agent", entry.agent or world.agent)))
    if world.run_state is not None or not entry.open:
        return []
    return start(world, parent=entry.parent, by=entry.by)


def start(
    world: World,
    *,
    task: str | None = None,
    labels: dict[str, str] | None = None,
    tools: Sequence[str] | None = None,
    parent: str | None = None,
    by: str | None = None,
) -> Answers:
    """Open the present run, as an operator would unless `by` says who."""
    sender = Sender("operator", "scenario") if by is None else _sender(world, by)
    try:
        ingress.refuse_unfit(ingress.MessageId | None, parent, "parent_run")
    except ingress.Unreadable as error:
        return _unread(world, sender, error)
    return world.observe(
        RunStarted(
            by=sender,
            agent=world.agent,
            task=task,
            labels=labels or {},
            tools=None if tools is None else tuple(tools),
            parent=None if parent is None else RunId(parent),
        )
    )


def abort(world: World, reason: str) -> Answers:
    try:
        ingress.refuse_unfit(ingress.Reason, reason, "reason")
    except ingress.Unreadable as error:
        return _unread(world, world.sender, error)
    return world.observe(AbortRequested(world.sender, reason))


def calls_of(step: StepEntry) -> tuple[CallEntry, ...]:
    return step.batch if step.batch is not None else (step.intent,) if step.intent is not None else ()
