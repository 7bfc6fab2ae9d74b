"""Following one log under another policy: each record's verdicts compared, and its facts applied to the state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from msgspec.structs import replace

from gated.core import calls, outcomes, trial
from gated.core.call import Call
from gated.core.decide import step
from gated.core.fold import apply
from gated.core.reading import is_redacted, reads_results
from gated.core.stages import semantic
from gated.core.stages.lifecycle import ended_reason
from gated.core.state import ThreadState
from gated.core.turn import Turn, may_speak
from gated.core.verdicts import Judged
from gated.core.whatif.approving import why_void
from gated.core.whatif.compared import Compared, Outcome, Verdict
from gated.core.whatif.memory import OnTrial
from gated.core.whatif.unknowns import lost_by, unreadable, unscored
from gated.events import (
    AbortRequested,
    AgentId,
    Body,
    CallDecided,
    CallId,
    CallSettled,
    FinishRequested,
    Forgotten,
    IntentsReceived,
    OutcomeReported,
    Remembered,
    ResolutionReceived,
    RunAnswered,
    RunEnded,
    RunOpened,
    RunStarted,
    TicketAnswered,
    TicketCall,
    TicketClosed,
    TicketOpened,
    UngatedExecution,
    Value,
    Wanted,
)

_SIBLING: Final = "another call of the atomic batch could not have run"


class Step:
    """One record: its verdicts compared, and its facts applied to the state."""

    def __init__(self, on_trial: OnTrial, body: Body, state: ThreadState) -> None:
        self.on_trial, self.body, self.state = on_trial, body, state
        self.memory, self.place = on_trial.memory, (body.thread, body.run)
        self.found: list[Compared] = []
        observation = body.observation
        self.wanted: dict[CallId, Wanted] = {}
        if isinstance(observation, IntentsReceived):
            for wanted in observation.calls:
                if wanted.id is not None and wanted.refused is None:
                    self.wanted.setdefault(wanted.id, wanted)  # the same id again was refused, or answered as before
        run = state.runs.get(body.run)
        self.others = 0 if run is None else len(run.in_flight)
        self.atomic: dict[CallId, CallDecided] | None = None

    def play(self) -> None:
        for decision in self.body.decisions:
            match decision:
                case RunOpened():
                    self._opened(decision)
                case CallDecided():
                    self._decided(decision)
                case CallSettled():
                    self._settled(decision)
                case TicketOpened():
                    self.memory.tickets[decision.ticket] = decision
                case TicketClosed():
                    self.memory.tickets.pop(decision.ticket, None)
                case TicketAnswered():
                    self._answered(decision)
                case RunAnswered() | RunEnded():
                    self._finish(decision)
                case Forgotten():
                    self._apply(decision)
                case UngatedExecution():
                    self._ungated(decision)
                case _:
                    pass  # refusals and the life of tickets are no verdicts of a policy's rules

    # --- what happened, applied --------------------------------------------------------------------------------------

    def _apply(self, decision: RunOpened | CallDecided | RunEnded | RunAnswered | Forgotten) -> None:
        known = self.on_trial.watched.known
        self.state = apply(known, self.state, self.body.run, self.body.seq, self.body.at, decision)

    def _opened(self, opened: RunOpened) -> None:
        on_trial, body = self.on_trial, self.body
        turn = Turn(on_trial.acted, self.state, body.run, body.at)
        by_operator, elsewhere = body.observation.by.role == "operator", self._elsewhere(opened.agent)
        barred = calls.may_open(turn, opened.agent, by_operator=by_operator, elsewhere=elsewhere)
        if barred is not None:
            self.memory.barred[self.place] = barred
        self._apply(replace(opened, policy=on_trial.policy.digest))

    def _elsewhere(self, agent: AgentId) -> int:
        """What the agent's open runs are, as recorded, beyond those that the state of this thread holds."""
        said = self.body.observation
        told = said.open_elsewhere if isinstance(said, IntentsReceived | RunStarted) else 0
        return self.memory.open.held(self.body.thread, agent, told) - self.state.open_runs.get(agent, 0)

    def _settled(self, settled: CallSettled) -> None:
        turn = Turn(self.on_trial.watched, self.state, self.body.run, self.body.at)
        run = turn.opened
        if run is None or settled.call not in run.in_flight:
            return
        content, facts = self._result(settled)
        hidden = is_redacted(content), is_redacted(facts)
        if any(hidden):
            machines = turn.profile.machines
            touched = [touch.machine for touch in run.in_flight[settled.call].touches]
            blind = [name for name in touched if reads_results(machines.by_name[name], *hidden)]
            self.memory.blind.update((self.body.thread, name) for name in blind)
        what = (settled.call, settled.status, content, facts, self._cost(turn, settled), settled.tokens)
        acted = Turn(self.on_trial.acted, self.state, self.body.run, self.body.at)
        outcomes.settle(acted, *what, lapsed=settled.lapsed, reading=settled.reading)
        self.memory.fail(self.place, next((d.reason for d in acted.decisions if isinstance(d, RunEnded)), None))
        outcomes.settle(turn, *what, lapsed=settled.lapsed, reading=settled.reading)
        self.state = turn.state

    def _ungated(self, ungated: UngatedExecution) -> None:
        run = self.state.runs.get(self.body.run)
        profile = None if run is None else self.on_trial.policy.profile(run.agent)
        if run is not None and not run.end and profile is not None and profile.fail_ungated and not profile.observed:
            self.memory.fail(self.place, f"call `{ungated.call}` was executed without an allow verdict")

    def _cost(self, turn: Turn, settled: CallSettled) -> int:
        """What was spent, as the policy on trial counts it: only what the outcome said of it is a fact."""
        entry, observation = turn.run.in_flight[settled.call], self.body.observation
        if isinstance(observation, OutcomeReported):
            return outcomes.cost_of(turn, observation, entry.tool, entry.reserved_microusd)
        return entry.reserved_microusd if settled.lapsed else settled.cost_microusd

    def _result(self, settled: CallSettled) -> tuple[Value, dict[str, Value]]:
        observation = self.body.observation
        if isinstance(observation, OutcomeReported):
            return observation.content, observation.facts
        if isinstance(observation, ResolutionReceived):
            return observation.result, {}
        return settled.summary, {}

    def _admit(self, plea: Call, lifted: frozenset[str] | None) -> None:
        """The call ran: it takes its place in history, under the rules on trial or in spite of them."""
        on_trial, body = self.on_trial, self.body
        agent = self.state.runs[body.run].agent
        judged = trial.decide_call(on_trial.acted, self.state, body.run, plea, agent, body.at, lifted)
        if judged.decided.admission is None:
            turn = Turn(on_trial.watched, self.state, body.run, body.at)
            judged = calls.judge_by_pipeline(turn, plea, frozenset())
        if admission := judged.decided.admission:
            lost = lost_by(on_trial.policy.profile(agent), plea, admission.touches)
            self.memory.lost.update((body.thread, machine) for machine in lost)
        self._apply(replace(judged.decided, hop=False, misfit=False, findings=(), phase=None))

    # --- what would have been decided --------------------------------------------------------------------------------

    def _decided(self, decided: CallDecided) -> None:
        wanted = self.wanted.pop(decided.call, None)
        if wanted is None:
            return  # a later verdict on a call that waited: its ticket's
        observation = self.body.observation
        assert isinstance(observation, IntentsReceived)
        plea = calls.call_of(wanted, observation.nesting, self.others)
        agent = AgentId(observation.by.name)
        derived = self._derive(agent, wanted, plea, decided)
        unknown = self._unreadable(agent, plea)
        unknown = unknown or unscored(self.on_trial.policy, self.state.semantic, plea, _verdict(decided), derived)
        self._compare(decided, derived, unknown)
        if self.body.run not in self.state.runs:
            return
        if decided.decision == "allow":
            self._admit(plea, None)
        if decided.known:
            self._count(decided)
            self.memory.asked(self.place).note(decided, self.body.seq)

    def _count(self, decided: CallDecided) -> None:
        run = self.state.runs[self.body.run]
        counted = replace(run, hop_count=run.hop_count + decided.hop, retry_count=run.retry_count + decided.misfit)
        self.state = replace(self.state, runs=self.state.runs.set(self.body.run, counted))

    def _derive(self, agent: AgentId, wanted: Wanted, plea: Call, decided: CallDecided) -> Verdict:
        memory, body, tried = self.memory, self.body, self.on_trial.acted
        barred = memory.barred.get(self.place)
        if barred is None and body.run not in self.state.runs:
            return self._as_first(wanted, decided)
        barred = self._silenced(agent, barred is not None) or barred
        if barred is not None:
            return Verdict("deny", barred[0].partition(".")[0], *barred)
        observation, failed = body.observation, memory.failed.get(self.place)
        if self.atomic is None and failed:
            return Verdict("deny", "lifecycle", *ended_reason(plea.tool, "failed", failed))
        if isinstance(observation, IntentsReceived) and observation.mode == "atomic":
            self.atomic = self._batch(observation) if self.atomic is None else self.atomic
            return _verdict(self.atomic.get(plea.id, decided))
        met = self.state if decided.known else self._knowing((plea.id,))
        judged = trial.decide_call(tried, met, body.run, plea, agent, body.at)
        memory.fail(self.place, None if judged.ends is None else judged.ends.reason)
        if judged.asks and decided.known:
            memory.asked(self.place).asks[plea.id] = trial.sources(judged)
        return _verdict(judged.decided)

    def _silenced(self, agent: AgentId, unopened: bool) -> tuple[str, str] | None:
        """Why the agent may not speak. A run that would never have been opened has no owner: its thread has."""
        state, body = self.state, self.body
        state = replace(state, runs=state.runs.delete(body.run)) if unopened else state
        return may_speak(Turn(self.on_trial.acted, state, body.run, body.at), agent)

    def _knowing(self, calls: Iterable[CallId]) -> ThreadState:
        """The state with those of these calls that were asked for and not allowed: what is asked again is not decided anew."""
        run = self.memory.asked(self.place).within(self.state.runs[self.body.run], calls)
        return replace(self.state, runs=self.state.runs.set(self.body.run, run))

    def _batch(self, observation: IntentsReceived) -> dict[CallId, CallDecided]:
        """The verdicts on an atomic batch by call, the first of each: what the run's end makes of it is none of its own."""
        met = self._knowing(wanted.id for wanted in observation.calls if wanted.id is not None)
        verdicts: dict[CallId, CallDecided] = {}
        for decision in trial.decide_atomic(self.on_trial.acted, met, self.body.run, observation, self.body.at):
            match decision:
                case CallDecided():
                    verdicts.setdefault(decision.call, decision)
                case TicketOpened():
                    asked = self.memory.asked(self.place)
                    asked.asks |= {c.call: frozenset(a.source for a in decision.asks if a.call == c.call) for c in decision.calls}
                case RunEnded():
                    self.memory.fail(self.place, decision.reason)
                case _:
                    pass
        return verdicts

    def _as_first(self, wanted: Wanted, decided: CallDecided) -> Verdict:
        """The run was never opened: the call on its own, or the batch that stands or falls whole, as the first of a new run."""
        observation, agent = self.body.observation, AgentId(self.body.observation.by.name)
        assert isinstance(observation, IntentsReceived)
        first = replace(observation, open_elsewhere=self._elsewhere(agent))
        first = first if observation.mode == "atomic" else replace(first, calls=(wanted,))
        made = step(self.on_trial.acted, self.state, self.body.run, first, self.body.at)
        said = (d for d in (*made.decisions, *made.replies) if isinstance(d, CallDecided) and d.call == decided.call)
        return _verdict(next(said, decided))

    def _unreadable(self, agent: AgentId, plea: Call) -> str | None:
        policy, memory = self.on_trial.policy, self.memory
        return unreadable(policy, policy.profile(agent), self.body.thread, memory.blind, memory.lost, plea)

    def _compare(self, decided: CallDecided, derived: Verdict, unreadable: str | None) -> None:
        recorded = _verdict(decided)
        outcome: Outcome = "unchanged" if recorded.decision == derived.decision else "flipped"
        found = self._compared(
            "call",
            "not_replayable" if unreadable else outcome,
            decided.call,
            decided.tool,
            recorded,
            None if unreadable else derived,
            unreadable or "",
        )
        self.found.append(found)

    def _compared(
        self,
        what: Literal["call", "approval", "finish"],
        outcome: Outcome,
        call: str,
        tool: str,
        recorded: Verdict,
        derived: Verdict | None,
        why: str = "",
    ) -> Compared:
        body = self.body
        run = self.state.runs.get(body.run)
        agent = body.observation.by.name if run is None else run.agent
        return Compared(what, outcome, body.thread, body.run, body.seq, body.at, agent, call, tool, recorded, derived, why)

    # --- approvals and ends ------------------------------------------------------------------------------------------

    def _answered(self, answered: TicketAnswered) -> None:
        """An approval is void where the call would be denied by then, or where these people could not have given it.

        What was remembered counts as said under the policy on trial, unless the approval is void.
        """
        known, said = self.memory.tickets, self.body.observation
        opened = known.get(answered.ticket)
        if opened is None or self.body.run not in self.state.runs or not isinstance(said, ResolutionReceived):
            return
        ticket = replace(opened, answers=(*opened.answers, answered.answer))
        if answered.state == "pending":
            known[answered.ticket] = ticket
            return
        del known[answered.ticket]
        if answered.state == "rejected":
            return
        verdicts = {d.call: d for d in self.body.decisions if isinstance(d, CallDecided)}
        found = [self._reconsider(ticket, call, verdicts[call.call], said) for call in ticket.calls if call.call in verdicts]
        if ticket.atomic and any(item.outcome == "void" for item in found):
            found = [item if item.outcome == "void" else replace(item, outcome="void", why=_SIBLING) for item in found]
        self.found += found
        if answered.remembered is not None and all(item.outcome != "void" or item.derived is not None for item in found):
            self._remember(replace(answered.remembered, policy=self.on_trial.policy.digest))

    def _remember(self, item: Remembered) -> None:
        if item.scope == "thread":
            self.state = replace(self.state, remembered=(*self.state.remembered, item))
            return
        run = self.state.runs[self.body.run]
        held = replace(run, remembered=(*run.remembered, item))
        self.state = replace(self.state, runs=self.state.runs.set(self.body.run, held))

    def _reconsider(self, ticket: TicketOpened, call: TicketCall, decided: CallDecided, said: ResolutionReceived) -> Compared:
        on_trial, body = self.on_trial, self.body
        agent, edit = self.state.runs[body.run].agent, said.args is not None
        scores = semantic.again(None if edit else call.scores, said.scores.get(call.call))
        wanted = Wanted(
            call.call,
            call.tool,
            decided.args if edit and decided.args is not None else call.args,
            call.parent,
            call.cost_microusd,
            scores=scores,
            links=said.links.get(call.call),
            embedding=None if edit else call.embedding,
            args_sha256=decided.args_sha256,
        )
        asked = self.memory.asked(self.place)
        plea = calls.call_of(wanted, call.nesting, asked.beside(self.state.runs[body.run], call.call))
        judged = trial.decide_call(on_trial.acted, self.state, body.run, plea, agent, body.at, frozenset())
        sources = trial.sources(judged)
        void = self._void(judged, ticket, said, None if edit else asked.asks.get(call.call))
        recorded = Verdict(decided.decision, decided.stage, decided.code, decided.reason)
        unreadable = self._unreadable(agent, plea)
        derived = _verdict(judged.decided) if judged.decided.decision == "deny" and not unreadable else None
        outcome: Outcome = "not_replayable" if unreadable else "void" if void and decided.decision == "allow" else "unchanged"
        found = self._compared("approval", outcome, call.call, call.tool, recorded, derived, unreadable or void or "")
        if decided.decision == "allow":
            self._admit(plea, sources)
        elif decided.decision == "suspend":
            asked.asks[call.call] = asked.asks.get(call.call, sources) | sources
        return found

    def _void(self, judged: Judged, ticket: TicketOpened, said: ResolutionReceived, asked: frozenset[str] | None) -> str | None:
        """`asked` are the sources of what was asked about on the ticket under the policy on trial; None: nobody knows."""
        if self.place in self.memory.barred or self.place in self.memory.failed:
            return "the run would not have been open"
        turn = Turn(self.on_trial.acted, self.state, self.body.run, self.body.at)
        return why_void(turn, judged, ticket, said, asked)

    def _finish(self, decision: RunAnswered | RunEnded) -> None:
        """Only an end that the agent or an operator asked for is a fact; one that a rule made is that rule's verdict."""
        observation, run = self.body.observation, self.state.runs.get(self.body.run)
        if run is None or run.end or not isinstance(observation, FinishRequested | AbortRequested):
            return
        if isinstance(observation, FinishRequested) and decision.status in ("steer", "complete"):
            derived = self._end()
            outcome: Outcome = "unchanged" if derived == decision.status else "flipped"
            self.found.append(self._compared("finish", outcome, "", "run.finish", Verdict(decision.status), Verdict(derived)))
        self._apply(decision)
        if isinstance(decision, RunEnded):
            self.memory.end(self.place)

    def _end(self) -> str:
        if self.place in self.memory.barred:
            return "refused"
        if self.place in self.memory.failed:
            return "failed"
        made = step(self.on_trial.acted, self.state, self.body.run, self.body.observation, self.body.at)
        answers = [d for d in made.decisions if isinstance(d, RunAnswered | RunEnded)]
        return answers[0].status if answers else "complete"


def _verdict(decided: CallDecided) -> Verdict:
    return Verdict(decided.decision, decided.stage, decided.code, decided.reason)
