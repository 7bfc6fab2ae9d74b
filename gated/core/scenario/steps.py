"""Playing one step of a scenario on its world: the observation it stands for, and the answers to it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from gated import canonical, ingress, strict_json
from gated.core.scenario import scoring
from gated.core.scenario.format import CallEntry, OutcomeEntry, ResolveEntry, RunEntry, StepEntry, SwitchEntry
from gated.core.scenario.world import World, call_id
from gated.events import (
    AgentId,
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
    read = (_wanted(call, position, limits) for position, call in enumerate(calls))
    wanted = tuple(scoring.scored(world, one, call.scores) for one, call in zip(read, calls, strict=True))
    said = nesting or next((call.nesting for call in calls if call.nesting is not None), None)
    explicit = said == "explicit"
    return world.observe(IntentsReceived(world.sender, wanted, mode, "explicit" if explicit else "inferred"))


def _wanted(call: CallEntry, position: int, limits: strict_json.Limits) -> Wanted:
    """The call as the wire would hand it over."""
    args: Any = {} if call.args is UNSET else call.args
    raw = None if call.raw is None else call.raw.encode()
    if raw is None and limits != strict_json.DEFAULT and isinstance(args, dict):
        raw = canonical.encode(args)
    if raw is not None:
        try:
            args = strict_json.parse(raw, limits)
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
        cost = _settled_cost(entry)
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


def _settled_cost(entry: OutcomeEntry) -> int | None:
    if not ingress.is_id(entry.call):
        raise ingress.Unreadable("ingress.id", f"an id is {ingress.ID_WORDS}, at `call`")
    if not 0 <= entry.tokens <= ingress.MOST_TOKENS:
        raise ingress.Unreadable("ingress.shape", f"from 0 to {ingress.MOST_TOKENS} tokens are taken, at `tokens`")
    return ingress.settled_cost(entry.cost_usd)


def _sender(world: World, by: str | None) -> Sender:
    if by is None:
        return world.sender
    role, colon, name = by.partition(":")
    if not colon:
        return Sender("agent", role)
    if not name or role not in ("agent", "runner", "operator", "approver"):
        raise ValueError(f"`by` is `agent:`, `runner:`, `operator:` or `approver:` and a name, not `{by}`")
    return Sender(role, name)  # type: ignore[arg-type]


def resolve(world: World, entry: ResolveEntry, number: int) -> Answers:
    """The answers to a person's answer; to one that the wire would not read, its refusal."""
    ticket, digest = world.ticket_named(entry.ticket)
    by = Sender("approver", entry.by)
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
        read = ingress.answer(said)
    except ingress.Unreadable as error:
        return _unread(world, by, error)
    return world.observe(replace(read, scores=scoring.again(world, ticket, entry.scores)))


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
    return world.observe(ForgetRequested(Sender("approver", by), item))


def switch(world: World, entry: SwitchEntry) -> Answers:
    """Later steps speak for this run; it is opened if it is new."""
    run_id = RunId(entry.run)
    thread = ThreadId(entry.thread or world.thread_of.get(run_id) or entry.run)
    world.speak_for(thread, run_id, AgentId(entry.agent or world.agent))
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
    return world.observe(
        RunStarted(
            by=Sender("operator", "scenario") if by is None else _sender(world, by),
            agent=world.agent,
            task=task,
            labels=labels or {},
            tools=None if tools is None else tuple(tools),
            parent=None if parent is None else RunId(parent),
        )
    )


def calls_of(step: StepEntry) -> tuple[CallEntry, ...]:
    return step.batch if step.batch is not None else (step.intent,) if step.intent is not None else ()
