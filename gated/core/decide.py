"""The pure core: an observation and the state it meets become decisions, and the state that they leave.

    step(registry, state, run, observation, at) -> Step        # decisions, replies, state
    record(...)                                                # the same, sealed for the log

`step` never raises for an observation: what is wrong with it is a refusal, what crashes in a stage is a denial. It has no
clock, no randomness and no IO, so the same log gives the same decisions, byte for byte.
"""

from __future__ import annotations

from typing import Final, assert_never

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from gated.core import answers, batches, calls, flags, foresee, outcomes
from gated.core.fold import advance
from gated.core.order import engine
from gated.core.redaction.cover import is_clear, look
from gated.core.state import RunState, ThreadState
from gated.core.turn import Registry, Reply, Turn, Unfollowed, Unscored, may_speak
from gated.events import (
    GENESIS,
    VERSION,
    AbortRequested,
    AgentId,
    Body,
    CanIAsked,
    DeadlineReached,
    Decision,
    ErasureRequested,
    FinishRequested,
    ForgetRequested,
    IntentsReceived,
    MessageRefused,
    NoticeReported,
    Observation,
    OutcomeReported,
    Phase,
    PolicyBound,
    PolicyRebound,
    RecallRequested,
    Record,
    ResolutionReceived,
    RunAnswered,
    RunEnded,
    RunId,
    RunOpened,
    RunStarted,
    as_said,
    kind_of,
    seal,
)

_Redacted = tuple[tuple[str, ...] | UnsetType, str | UnsetType, str | UnsetType]
_WHOLE: Final[_Redacted] = (UNSET, UNSET, UNSET)

MAX_LISTED: Final = 100  # machine instances that a steering message lists, and the event of a run that is bound anew


class Step(Struct, frozen=True, gc=False):
    """`decisions` must be recorded before anything of them is published; `replies` change nothing and need no record.

    Where something is `unscored`, the step fails closed: ask the detectors, give their answers to the observation
    (`scores.with_answers`) and decide that instead.
    """

    decisions: tuple[Decision, ...]
    replies: tuple[Reply, ...]
    state: ThreadState
    at: int
    unscored: tuple[Unscored, ...] = ()
    unfollowed: tuple[Unfollowed, ...] = ()


def step(registry: Registry, state: ThreadState, run_id: RunId, observation: Observation, at: int) -> Step:
    """`at` is when the bus stored the input (µs); within a thread it never goes back."""
    turn = Turn(registry, state, run_id, at)
    _handle(turn, observation)
    return _step(turn, turn.state)


def _step(turn: Turn, state: ThreadState) -> Step:
    return Step(tuple(turn.decisions), tuple(turn.replies), state, turn.at, turn.unscored, turn.unfollowed)


def record(
    registry: Registry,
    state: ThreadState,
    run_id: RunId,
    observation: Observation,
    at: int,
    input: int = 0,
    before: Body | None = None,
) -> tuple[Step, Record | None]:
    """A step, sealed: the record to append (none where nothing is decided) and the state after it.

    `before` is a record that is decided again without a key: what it says of its redaction stands. Raises `Unkeyed` where the
    key of the subject, whose data is to be sealed, is not at hand.
    """
    turn = Turn(registry, state, run_id, at)
    recorded = _handle(turn, observation)
    if not turn.decisions:
        return _step(turn, turn.state), None
    if type(recorded) is ResolutionReceived and recorded.links:
        recorded = _without_sealed_links(state, run_id, recorded)
    redacted, subject, sealed = _WHOLE if before is None else (before.redacted, before.subject, before.sealed)
    if turn.cover is not None and turn.vault is not None:
        redacted = tuple(turn.cover.places) or UNSET
        if turn.subject and not isinstance(observation, ErasureRequested):
            subject, sealed = turn.subject, UNSET if recorded is observation else turn.vault.seal_text(as_said(observation))
    seq, now, decisions = state.seq + 1, turn.at, tuple(turn.decisions)
    made = seal(
        Body(
            VERSION,
            state.thread,
            run_id,
            seq,
            now,
            kind_of(observation),
            recorded,
            decisions,
            registry.current.digest,
            state.head or GENESIS,
            turn.flags,
            input,
            redacted,
            subject,
            sealed,
        )
    )
    after = advance(turn.state, seq, now, made.hash, input)
    return Step(decisions, tuple(turn.replies), after, now, turn.unscored, turn.unfollowed), made


def _handle(turn: Turn, observation: Observation) -> Observation:
    """Decide, and give what is to be recorded of the observation: by the policy of its run, something may be taken out of it."""
    vault, redactor = turn.vault, turn.policy.redactor
    if vault is None or is_clear(observation, redactor):
        _dispatch(turn, observation)
        return observation
    seen = look(observation, _tool_of(turn.opened, observation), redactor, vault)
    turn.cover = seen.cover
    _dispatch(turn, seen.decided)
    return seen.recorded


def _without_sealed_links(state: ThreadState, run_id: RunId, said: ResolutionReceived) -> ResolutionReceived:
    """An approval without where the paths of sealed arguments lead: they would say what was taken out."""
    run = state.runs.get(run_id)
    ticket = None if run is None else run.tickets.get(said.ticket)
    sealed = {call.call for call in ticket.calls if call.sealed is not None} if ticket is not None else set()
    return replace(said, links={call: found for call, found in said.links.items() if call not in sealed})


def _tool_of(run: RunState | None, observation: Observation) -> str | None:
    """The tool that an outcome or an answer is about."""
    if run is None:
        return None
    if isinstance(observation, OutcomeReported):
        known = run.known(observation.call)
        return None if known is None else known.tool
    if isinstance(observation, ResolutionReceived):
        ticket = run.tickets.get(observation.ticket)
        return None if ticket is None else ticket.calls[0].tool
    return None


def _dispatch(turn: Turn, observation: Observation) -> None:
    match observation:
        case IntentsReceived():
            _intents(turn, observation)
        case OutcomeReported():
            outcomes.report(turn, observation)
        case RunStarted():
            _start(turn, observation)
        case FinishRequested():
            _finish(turn, observation)
        case AbortRequested():
            _abort(turn, observation)
        case ResolutionReceived():
            answers.resolve(turn, observation)
        case ForgetRequested():
            answers.forget(turn, observation)
        case RecallRequested():
            calls.recall(turn, observation)
        case CanIAsked():
            foresee.can_i(turn, observation)
        case DeadlineReached():
            answers.time_passed(turn)
        case NoticeReported():
            answers.note_delivery(turn, observation)
        case PolicyBound():
            _bind(turn, observation)
        case ErasureRequested():
            answers.erase(turn, observation)
        case MessageRefused():
            turn.refuse(observation.code, observation.reason)
        case _:
            assert_never(observation)


def _intents(turn: Turn, intents: IntentsReceived) -> None:
    agent = AgentId(intents.by.name)
    barred = may_speak(turn, agent)
    if barred is None and turn.opened is None:
        barred = calls.open_run(turn, agent, intents)
    if intents.mode == "atomic" and barred is None and turn.opened is not None:
        batches.receive_atomic(turn, intents)
    else:
        calls.receive_each(turn, intents, barred)


def _start(turn: Turn, start: RunStarted) -> None:
    by_operator = start.by.role == "operator"
    if not by_operator and start.by.name != start.agent:
        turn.refuse("lifecycle.not_run_owner", f"`{start.by}` cannot open a run of `{start.agent}`")
        return
    run = turn.opened
    if run is not None and start.message is not None and (run.agent, run.message) == (start.agent, start.message):
        turn.replies.append(RunAnswered(status=run.end or "open", message=run.reason))  # the same message again
        return
    barred = may_speak(turn, start.agent) or _reopens(turn)
    elsewhere = start.open_elsewhere
    barred = barred or calls.may_open(turn, start.agent, by_operator=by_operator, elsewhere=elsewhere)
    barred = barred or _orphan(turn, start.parent)
    if barred is not None:
        turn.refuse(*barred)
        return
    turn.do(
        RunOpened(
            agent=start.agent,
            policy=turn.registry.current.digest,
            task=start.task,
            labels=start.labels,
            tools=start.tools,
            parent=start.parent,
            announced=True,
            message=start.message,
            embedding=start.embedding,
        )
    )


def _reopens(turn: Turn) -> tuple[str, str] | None:
    if turn.opened is None:
        return None
    return "lifecycle.run_exists", f"run `{turn.run_id}` exists already: run ids are single use within a thread"


def _orphan(turn: Turn, parent: RunId | None) -> tuple[str, str] | None:
    if parent is None:
        return None
    run = turn.state.runs.get(parent)
    if run is None:
        return "lifecycle.parent_thread", f"there is no run `{parent}` on this thread to be the parent"
    if run.end:
        return "lifecycle.parent_thread", f"the parent run `{parent}` has ended"
    return None


def _finish(turn: Turn, finish: FinishRequested) -> None:
    barred = may_speak(turn, AgentId(finish.by.name))
    run = turn.opened
    if barred is not None or run is None:
        turn.refuse(*(barred or ("lifecycle.run_not_open", "there is no such run to finish")))
        return
    if run.end:
        turn.replies.append(_ended_answer(run))
        return
    profile, continuation = turn.profile, turn.policy.continuation
    steers = ("order", False) in profile.stages
    undone = engine.incomplete(profile.machines, turn.state.order, turn.run_id) if steers else ()
    if undone and run.continuations < continuation.max_continuations:
        more = (f"and {len(undone) - MAX_LISTED} more",) if len(undone) > MAX_LISTED else ()
        message = continuation.message.replace("{summary}", ", ".join((*undone[:MAX_LISTED], *more)))
        turn.do(RunAnswered(status="steer", message=message))
        return
    grounded = run.grounded if profile.grounds else None
    ungrounded = None if grounded is None else grounded == 0
    turn.end(RunEnded(status="complete", phase=Phase.ANSWERING, grounded_calls=grounded, ungrounded=ungrounded))


def _ended_answer(run: RunState) -> RunAnswered:
    """What finishing said the first time, and says again."""
    ended = run.ended
    return RunAnswered(
        status="failed" if run.failed else "complete",
        message=run.reason,
        grounded_calls=None if ended is None else ended.grounded_calls,
        ungrounded=None if ended is None else ended.ungrounded,
    )


def _abort(turn: Turn, abort: AbortRequested) -> None:
    barred = None if abort.by.role == "operator" else may_speak(turn, AgentId(abort.by.name))
    run = turn.opened
    if barred is not None or run is None:
        turn.refuse(*(barred or ("lifecycle.run_not_open", "there is no such run to abort")))
    elif run.end:
        turn.replies.append(RunAnswered(status=run.end, message=run.reason))
    else:
        turn.end(RunEnded(status="aborted", phase=Phase.ANSWERING, reason=abort.reason))


def _bind(turn: Turn, bind: PolicyBound) -> None:
    """An operator binds the run to a policy that the log knows."""
    run, policy = turn.opened, None if bind.unknown else turn.registry.known.get(bind.policy)
    if run is None:
        turn.refuse("lifecycle.run_not_open", "there is no such run to bind")
        return
    if policy is None:
        turn.refuse("ingress.id", f"no policy `{bind.policy}` is known: one is known once the gate has read its file")
        return
    strangers = engine.strangers(policy.profile(run.agent).machines, turn.state.order, turn.run_id)
    listed = strangers[:MAX_LISTED] if turn.follows(flags.LISTED) else strangers
    turn.do(PolicyRebound(policy=bind.policy, strangers=listed, more=len(strangers) - len(listed)))
