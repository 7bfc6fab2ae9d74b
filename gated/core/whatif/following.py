"""Following one log under another policy: each record's verdicts compared, and its facts applied to the state."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec.structs import replace

from gated.core import calls, outcomes, tickets, trial, waiting
from gated.core.call import Call
from gated.core.decide import step
from gated.core.fold import KNOWN_AS, apply
from gated.core.policy import Policy
from gated.core.reading import is_redacted, reads_results
from gated.core.redaction.opened import opened_body
from gated.core.redaction.vault import Vault
from gated.core.stages import semantic
from gated.core.stages.lifecycle import ended_reason
from gated.core.state import Known, ThreadState
from gated.core.turn import Turn, may_speak
from gated.core.verdicts import Judged
from gated.core.whatif.compared import Compared, Outcome, Verdict
from gated.core.whatif.unknowns import unreadable, unscored
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
    Record,
    Remembered,
    ResolutionReceived,
    RunAnswered,
    RunEnded,
    RunId,
    RunOpened,
    ThreadId,
    TicketAnswered,
    TicketCall,
    TicketOpened,
    UngatedExecution,
    Value,
    Wanted,
    unseal,
)


class WhatIf:
    """Feed it the records of a log in order; each thread is followed by itself."""

    def __init__(
        self, policy: Policy, begun: Mapping[ThreadId, ThreadState] = MappingProxyType({}), vault: Vault | None = None
    ) -> None:
        """`begun` are the states of threads whose first records are not here; a `vault` opens what was kept encrypted."""
        self.policy, self._vault = policy, vault
        self.tried = trial.bound(policy)
        self._registry = trial.bound(trial.observed(policy))
        self._states = dict(begun)
        self._barred: dict[tuple[ThreadId, RunId], tuple[str, str]] = {}
        self._tickets: dict[str, TicketOpened] = {}
        self._failed: dict[tuple[ThreadId, RunId], str] = {}  # runs that the policy on trial would have ended, and why
        self._asked: dict[tuple[ThreadId, RunId], dict[CallId, Known]] = {}  # every call that got a verdict, as recorded
        self._blind: set[tuple[ThreadId, str]] = set()  # machines whose moves rest on a redacted result

    def feed(self, record: Record) -> tuple[Compared, ...]:
        """What the policy says of one record."""
        body = unseal(record) if self._vault is None else opened_body(unseal(record), self._vault)
        state = self._states.get(body.thread) or ThreadState(body.thread)
        step = _Step(self, body, state)
        step.play()
        self._states[body.thread] = replace(step.state, seq=body.seq, at=max(state.at, body.at))
        return tuple(step.found)


class _Step:
    """One record: its verdicts compared, and its facts applied to the state."""

    def __init__(self, whatif: WhatIf, body: Body, state: ThreadState) -> None:
        self.whatif, self.body, self.state = whatif, body, state
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
                    self.whatif._tickets[decision.ticket] = decision
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
        known = self.whatif._registry.known
        self.state = apply(known, self.state, self.body.run, self.body.seq, self.body.at, decision)

    def _opened(self, opened: RunOpened) -> None:
        whatif, body = self.whatif, self.body
        turn = Turn(whatif.tried, self.state, body.run, body.at)
        barred = calls.may_open(turn, opened.agent, by_operator=body.observation.by.role == "operator")
        if barred is not None:
            whatif._barred[(body.thread, body.run)] = barred
        self._apply(replace(opened, policy=whatif.policy.digest))

    def _settled(self, settled: CallSettled) -> None:
        turn = Turn(self.whatif._registry, self.state, self.body.run, self.body.at)
        run = turn.opened
        if run is None or settled.call not in run.in_flight:
            return
        content, facts = self._result(settled)
        hidden = is_redacted(content), is_redacted(facts)
        if any(hidden):
            machines = turn.profile.machines
            touched = [touch.machine for touch in run.in_flight[settled.call].touches]
            blind = [name for name in touched if reads_results(machines.by_name[name], *hidden)]
            self.whatif._blind.update((self.body.thread, name) for name in blind)
        what = (settled.call, settled.status, content, facts, settled.cost_microusd, settled.tokens)
        acted = Turn(self.whatif.tried, self.state, self.body.run, self.body.at)
        outcomes.settle(acted, *what, lapsed=settled.lapsed, reading=settled.reading)
        self._fail(next((d.reason for d in acted.decisions if isinstance(d, RunEnded)), None))
        outcomes.settle(turn, *what, lapsed=settled.lapsed, reading=settled.reading)
        self.state = turn.state

    def _fail(self, reason: str | None) -> None:
        """The policy on trial would have ended the run here: what comes after would have come too late."""
        if reason is not None:
            self.whatif._failed.setdefault((self.body.thread, self.body.run), reason)

    def _ungated(self, ungated: UngatedExecution) -> None:
        run = self.state.runs.get(self.body.run)
        profile = None if run is None else self.whatif.policy.profile(run.agent)
        if profile is not None and profile.fail_ungated and not profile.observed:
            self._fail(f"call `{ungated.call}` was executed without an allow verdict")

    def _result(self, settled: CallSettled) -> tuple[Value, dict[str, Value]]:
        observation = self.body.observation
        if isinstance(observation, OutcomeReported):
            return observation.content, observation.facts
        if isinstance(observation, ResolutionReceived):
            return observation.result, {}
        return settled.summary, {}

    def _admit(self, plea: Call, lifted: frozenset[str] | None) -> None:
        """The call ran: it takes its place in history, under the rules on trial or in spite of them."""
        whatif, body = self.whatif, self.body
        agent = self.state.runs[body.run].agent
        judged = trial.decide_call(whatif.tried, self.state, body.run, plea, agent, body.at, lifted)
        if judged.decided.admission is None:
            turn = Turn(whatif._registry, self.state, body.run, body.at)
            judged = calls.judge_by_pipeline(turn, plea, frozenset())
        self._apply(replace(judged.decided, hop=False, misfit=False, findings=(), phase=None))

    # --- what would have been decided --------------------------------------------------------------------------------

    def _decided(self, decided: CallDecided) -> None:
        wanted = self.wanted.get(decided.call)
        if wanted is None:
            return  # a later verdict on a call that waited: its ticket's
        observation = self.body.observation
        assert isinstance(observation, IntentsReceived)
        plea = calls.call_of(wanted, observation.nesting, self.others)
        agent = AgentId(observation.by.name)
        derived = self._derive(agent, plea, decided)
        unknown = self._unreadable(agent, plea)
        unknown = unknown or unscored(self.whatif.policy, self.state.semantic, plea, _verdict(decided), derived)
        self._compare(decided, derived, unknown)
        if self.body.run not in self.state.runs:
            return
        if decided.decision == "allow":
            self._admit(plea, None)
        if decided.known:
            self._count(decided)
            asked = self.whatif._asked.setdefault((self.body.thread, self.body.run), {})
            seq = self.body.seq
            first = asked[decided.call].asked if decided.call in asked else seq
            asked[decided.call] = Known(decided.args_sha256, decided.tool, seq, KNOWN_AS[decided.decision], first)

    def _count(self, decided: CallDecided) -> None:
        run = self.state.runs[self.body.run]
        counted = replace(run, hop_count=run.hop_count + decided.hop, retry_count=run.retry_count + decided.misfit)
        self.state = replace(self.state, runs=self.state.runs.set(self.body.run, counted))

    def _with_asked(self) -> ThreadState:
        """The state with the calls that were not allowed: an atomic batch asks what became of those that it repeats."""
        run = self.state.runs[self.body.run]
        asked = self.whatif._asked.get((self.body.thread, self.body.run), {})
        known = run.calls
        for call, asked_for in asked.items():
            known = known if run.known(call) else known.set(call, asked_for)
        return replace(self.state, runs=self.state.runs.set(self.body.run, replace(run, calls=known)))

    def _derive(self, agent: AgentId, plea: Call, decided: CallDecided) -> Verdict:
        whatif, body = self.whatif, self.body
        barred = whatif._barred.get((body.thread, body.run))
        if barred is None and body.run not in self.state.runs:
            return self._as_first(decided)
        if barred is not None:
            return Verdict("deny", barred[0].partition(".")[0], *barred)
        barred = may_speak(Turn(whatif.tried, self.state, body.run, body.at), agent)
        if barred is not None:
            return Verdict("deny", barred[0].partition(".")[0], *barred)
        if failed := whatif._failed.get((body.thread, body.run)):
            return Verdict("deny", "lifecycle", *ended_reason(plea.tool, "failed", failed))
        observation = body.observation
        if isinstance(observation, IntentsReceived) and observation.mode == "atomic":
            if self.atomic is None:
                self.atomic = trial.decide_atomic(whatif.tried, self._with_asked(), body.run, observation, body.at)
            return _verdict(self.atomic.get(plea.id, decided))
        judged = trial.decide_call(whatif.tried, self.state, body.run, plea, agent, body.at)
        self._fail(None if judged.ends is None else judged.ends.reason)
        return _verdict(judged.decided)

    def _as_first(self, decided: CallDecided) -> Verdict:
        """The run was never opened: the call on its own, as the first of a new run."""
        observation = self.body.observation
        assert isinstance(observation, IntentsReceived)
        alone = replace(observation, calls=(self.wanted[decided.call],), mode="each")
        made = step(self.whatif.tried, self.state, self.body.run, alone, self.body.at)
        verdicts = [d for d in (*made.decisions, *made.replies) if isinstance(d, CallDecided)]
        return _verdict(verdicts[0] if verdicts else decided)

    def _unreadable(self, agent: AgentId, plea: Call) -> str | None:
        whatif = self.whatif
        return unreadable(whatif.policy, whatif.policy.profile(agent), self.body.thread, whatif._blind, plea)

    def _compare(self, decided: CallDecided, derived: Verdict, unreadable: str | None) -> None:
        recorded = _verdict(decided)
        outcome: Outcome = "unchanged" if recorded.decision == derived.decision else "flipped"
        self._found(
            "call",
            "not_replayable" if unreadable else outcome,
            decided.call,
            decided.tool,
            recorded,
            None if unreadable else derived,
            unreadable or "",
        )

    def _found(
        self,
        what: Literal["call", "approval", "finish"],
        outcome: Outcome,
        call: str,
        tool: str,
        recorded: Verdict,
        derived: Verdict | None,
        why: str = "",
    ) -> None:
        body = self.body
        run = self.state.runs.get(body.run)
        agent = body.observation.by.name if run is None else run.agent
        self.found.append(
            Compared(what, outcome, body.thread, body.run, body.seq, body.at, agent, call, tool, recorded, derived, why)
        )

    # --- approvals and ends ------------------------------------------------------------------------------------------

    def _answered(self, answered: TicketAnswered) -> None:
        """An approval is void where the call would be denied by then, or where these people could not have given it."""
        known = self.whatif._tickets
        if answered.ticket not in known or self.body.run not in self.state.runs:
            return
        ticket = replace(known[answered.ticket], answers=(*known[answered.ticket].answers, answered.answer))
        known[answered.ticket] = ticket
        if answered.remembered is not None:
            self._remember(answered.remembered)
        if answered.state not in ("approved", "superseded"):
            return
        verdicts = {d.call: d for d in self.body.decisions if isinstance(d, CallDecided)}
        for call in ticket.calls:
            verdict = verdicts.get(call.call)
            if verdict is not None:
                self._reconsider(ticket, call, verdict)

    def _remember(self, item: Remembered) -> None:
        """It is bound to the digest of its policy: under another one it lifts nothing."""
        if item.scope == "thread":
            self.state = replace(self.state, remembered=(*self.state.remembered, item))
            return
        run = self.state.runs[self.body.run]
        held = replace(run, remembered=(*run.remembered, item))
        self.state = replace(self.state, runs=self.state.runs.set(self.body.run, held))

    def _reconsider(self, ticket: TicketOpened, call: TicketCall, decided: CallDecided) -> None:
        whatif, body = self.whatif, self.body
        agent = self.state.runs[body.run].agent
        fresh = body.observation.scores.get(call.call) if isinstance(body.observation, ResolutionReceived) else None
        scores = semantic.again(None if decided.args else call.scores, fresh)
        near = None if decided.args else call.embedding
        args = decided.args or call.args
        links = body.observation.links.get(call.call) if isinstance(body.observation, ResolutionReceived) else None
        wanted = Wanted(call.call, call.tool, args, call.parent, call.cost_microusd, scores=scores, links=links, embedding=near)
        plea = calls.call_of(wanted, call.nesting, self._with_asked().runs[body.run].beside(call.call))
        judged = trial.decide_call(whatif.tried, self.state, body.run, plea, agent, body.at, frozenset())
        lifted = trial.sources(judged)
        void = self._void(judged, ticket)
        recorded = Verdict(decided.decision, decided.stage, decided.code, decided.reason)
        unreadable = self._unreadable(agent, plea)
        derived = _verdict(judged.decided) if judged.decided.decision == "deny" else None
        outcome: Outcome = "not_replayable" if unreadable else "void" if void and decided.decision == "allow" else "unchanged"
        self._found("approval", outcome, call.call, call.tool, recorded, derived, unreadable or void or "")
        if decided.decision == "allow":
            self._admit(plea, lifted)

    def _void(self, judged: Judged, ticket: TicketOpened) -> str | None:
        if judged.decided.decision == "deny":
            return f"the call would be denied: {judged.decided.reason}"
        if judged.decided.decision == "allow":
            return None  # nobody need be asked
        turn = Turn(self.whatif.tried, self.state, self.body.run, self.body.at)
        opened = waiting.ticket_for(turn, (judged,), atomic=False)
        asked = tickets.open_ticket(replace(opened, opened_at=ticket.opened_at, answers=ticket.answers))
        if tickets.satisfied(asked, self.whatif.policy.approvals.groups):
            return None
        return "who approved it could not have done so alone"

    def _finish(self, decision: RunAnswered | RunEnded) -> None:
        """Only an end that the agent or an operator asked for is a fact; one that a rule made is that rule's verdict."""
        observation, run = self.body.observation, self.state.runs.get(self.body.run)
        if run is None or run.end or not isinstance(observation, FinishRequested | AbortRequested):
            return
        if isinstance(observation, FinishRequested) and decision.status in ("steer", "complete"):
            derived = self._end()
            outcome: Outcome = "unchanged" if derived == decision.status else "flipped"
            self._found("finish", outcome, "", "run.finish", Verdict(decision.status), Verdict(derived))
        self._apply(decision)

    def _end(self) -> str:
        made = step(self.whatif.tried, self.state, self.body.run, self.body.observation, self.body.at)
        answers = [d for d in made.decisions if isinstance(d, RunAnswered | RunEnded)]
        return answers[0].status if answers else "complete"


def _verdict(decided: CallDecided) -> Verdict:
    return Verdict(decided.decision, decided.stage, decided.code, decided.reason)
