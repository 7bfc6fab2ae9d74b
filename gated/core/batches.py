"""Atomic batches: decided in order on a copy of the state, and admitted whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from gated.core import waiting
from gated.core.call import Call
from gated.core.calls import bounds, call_of, each, judge_new
from gated.core.state import Known, ThreadState
from gated.core.turn import Turn
from gated.core.verdicts import Judged, denied
from gated.events import CallDecided, CallId, IntentsReceived

JudgeMember = Callable[[Turn, Call], Judged]


def receive_atomic(turn: Turn, intents: IntentsReceived) -> None:
    """Known calls are answered as ever; the others stand or fall together, also with a member that is refused."""
    others = len(turn.run.in_flight)
    calls: dict[CallId, Call] = {}
    refused = kept_out = False
    twins: list[Call] = []
    for wanted in intents.calls:
        if wanted.refused is not None:
            turn.refuse(wanted.refused, wanted.why or "", wanted.id)
            refused = True
            continue
        call = call_of(wanted, intents.nesting, others)
        twin = calls.get(call.id) or turn.run.known(call.id)
        if twin is None:
            calls[call.id] = call
        elif twin.args_sha256 != call.args_sha256:
            turn.refuse("ingress.id_conflict", f"call `{call.id}` is known with other arguments", call.id)
            refused = True
        else:
            twins.append(call)
            kept_out = kept_out or (isinstance(twin, Known) and twin.state in ("denied", "suspended"))
    _judge_atomic(turn, list(calls.values()), refused, kept_out)
    for twin in twins:
        each(turn, twin)


def _judge_atomic(turn: Turn, calls: list[Call], refused: bool, kept_out: bool) -> None:
    """`kept_out`: a call of the batch is known and was not allowed, so the batch cannot be admitted whole."""
    verdicts = rehearse(turn, calls, judge_beside_refused if refused else judge_member)
    if refused:
        _turn_down(turn, verdicts, [item.decided for item in verdicts])
    elif kept_out:
        _deny_atomic(turn, verdicts)
    else:
        conclude_atomic(turn, verdicts)


def judge_beside_refused(trial: Turn, call: Call) -> Judged:
    """The verdict on a new call of an atomic batch with a member that was refused: ends, caps and hops hold all the same."""
    refused = denied(call, "batch.sibling_refused", "another call of the atomic batch was refused")
    return bounds(trial, call) or Judged(call, refused)


def judge_member(trial: Turn, call: Call) -> Judged:
    """The verdict on a new call of an atomic batch."""
    return bounds(trial, call) or judge_new(trial, call)


def rehearse(turn: Turn, calls: list[Call], judge: JudgeMember) -> list[Judged]:
    """The verdicts in order, each on what those before it would leave; the turn itself is untouched."""
    trial = Turn(turn.registry, turn.state, turn.run_id, turn.at, turn.cover)
    verdicts = [_rehearse_one(trial, call, judge) for call in calls]
    turn.cover = trial.cover
    turn.unscored += trial.unscored
    turn.unfollowed += trial.unfollowed
    return verdicts


def rehearsed(turn: Turn, calls: Iterable[Call], judge: JudgeMember) -> ThreadState:
    """What some calls of an atomic batch would leave: the next one is judged on it."""
    trial = Turn(turn.registry, turn.state, turn.run_id, turn.at, turn.cover)
    for call in calls:
        _rehearse_one(trial, call, judge)
    return trial.state


def _rehearse_one(trial: Turn, call: Call, judge: JudgeMember) -> Judged:
    judged = judge(trial, call)
    if judged.decided.known:
        trial.do(judged.decided)
    if judged.ends is not None and judged.decided.code == "ceilings.hops":
        trial.do(judged.ends)
    return judged


def conclude_atomic(turn: Turn, verdicts: list[Judged]) -> None:
    if any(item.decided.decision == "deny" for item in verdicts):
        _deny_atomic(turn, verdicts)
    elif any(item.decided.decision == "suspend" for item in verdicts):
        _suspend_atomic(turn, verdicts)
    else:
        for item in verdicts:
            turn.do(item.decided)


def _deny_atomic(turn: Turn, verdicts: list[Judged]) -> None:
    """Each denial stands, the others fall with it; nothing but hops moves."""
    _turn_down(turn, verdicts, [_fallen(item) for item in verdicts])


def _fallen(item: Judged) -> CallDecided:
    if item.decided.decision == "deny":
        return replace(item.decided, misfit=False, phase=None, counted=False)
    sibling = denied(item.call, "batch.sibling_denied", "another call of the atomic batch was denied")
    return replace(sibling, hop=item.decided.hop, ticket=item.decided.ticket)


def _turn_down(turn: Turn, verdicts: list[Judged], denials: Iterable[CallDecided]) -> None:
    for decided in denials:
        if decided.known:
            turn.do(decided)
        else:
            turn.turn_away(decided)
    ended = next((item.ends for item in verdicts if item.decided.code == "ceilings.hops"), None)
    if ended is not None:
        turn.end(ended)


def _suspend_atomic(turn: Turn, verdicts: list[Judged]) -> None:
    opened = waiting.ticket_for(turn, tuple(verdicts), atomic=True)
    turn.do(opened)
    for item in verdicts:
        if item.decided.decision == "suspend":
            decided = item.decided
        else:
            decided = _waiting_sibling(item)
        turn.do(replace(decided, ticket=opened.ticket))


def _waiting_sibling(item: Judged) -> CallDecided:
    return CallDecided(
        call=item.call.id,
        tool=item.call.tool,
        args_sha256=item.call.args_sha256,
        decision="suspend",
        stage="batch",
        code="batch.sibling_suspended",
        reason="another call of the atomic batch waits for an approval",
        hop=item.decided.hop,
    )
