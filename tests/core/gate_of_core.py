"""The core behind the methods of `oracle.Gate`: the same words in, answers in the same words out.

It speaks to the core as scenarios do, and takes every record's decisions apart into what agents and people are told.
"""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from gated import canonical
from gated.core import policy as policies
from gated.core.order.state import THREAD, OrderState
from gated.core.scenario import expect, steps
from gated.core.scenario.format import CallEntry, OutcomeEntry, ResolveEntry
from gated.core.scenario.runner import state_of
from gated.core.scenario.world import START, World
from gated.core.turn import Repeat
from gated.events import (
    AbortRequested,
    AgentId,
    CallDecided,
    CallRefused,
    CallSettled,
    FinishRequested,
    PolicyBound,
    RunAnswered,
    RunEnded,
    RunId,
    Sender,
    ThreadId,
    TicketAnswered,
    UngatedExecution,
)

Result = dict[str, Any]


class CoreGate:
    """One policy, many threads and runs; every operation with its time (`at`, µs), which never goes back.

    `also` holds the verdicts on other calls that the last intent or outcome caused, as that of `oracle.Gate` does.
    """

    def __init__(self, policy: dict[str, Any]) -> None:
        self.world = World(policies.load_text(canonical.encode(policy), "policy.json"))
        self.also: list[Result] = []
        self._resolutions = 0

    def _at(self, thread: str, run: str, agent: str, at: int) -> World:
        self.world.now = max(self.world.now, START + at)
        self.world.speak_for(ThreadId(thread), RunId(run), AgentId(agent))
        return self.world

    def start(
        self,
        thread: str,
        run: str,
        agent: str,
        *,
        by: str = "agent",
        task: str | None = None,
        labels: dict[str, str] | None = None,
        tools: list[str] | None = None,
        parent: str | None = None,
        at: int,
    ) -> Result:
        world = self._at(thread, run, agent, at)
        sender = by if by.startswith("operator") else f"agent:{agent}"
        said = steps.start(world, task=task, labels=labels, tools=tools, parent=parent, by=sender)
        return _refused(said) or {"phase": "IDLE"}

    def intents(
        self,
        thread: str,
        run: str,
        agent: str,
        calls: list[dict[str, Any]],
        mode: str = "each",
        nesting: str = "inferred",
        *,
        at: int,
    ) -> list[Result]:
        world = self._at(thread, run, agent, at)
        said = steps.intents(world, tuple(CallEntry(**call) for call in calls), mode, nesting)
        world.scored.clear()  # what is decided again is not scored again unless the answer says so
        wanted = [call["id"] for call in calls]
        views = [view for answer in said if (view := self._view(answer)) is not None]
        answers, self.also = _in_order(wanted, views)
        return answers

    def outcome(
        self,
        thread: str,
        run: str,
        by: str,
        call: str,
        status: Any,
        content: Any = None,
        facts: dict[str, Any] | None = None,
        cost_usd: Any = None,
        tokens: int | None = None,
        scores: dict[str, Any] | None = None,
        *,
        at: int,
    ) -> Result:
        world = self._at(thread, run, by.partition(":")[2], at)
        said = steps.outcome(
            world,
            OutcomeEntry(
                call=call,
                status=status,
                content=content,
                facts=facts or {},
                cost_usd=cost_usd,
                tokens=tokens or 0,
                by=by,
                scores=scores or {},
            ),
        )
        self.also = self._verdicts(said)
        settled = next((s for s in said if isinstance(s, CallSettled)), None)
        return _refused(said) or {
            "phase": str(world.run_state.phase) if world.run_state else None,
            "reminders": [to_builtins(reminder) for reminder in settled.reminders] if settled else [],
            "ungated": any(isinstance(s, UngatedExecution) for s in said),
        }

    def bind(self, thread: str, run: str, policy: dict[str, Any], *, now: bool, at: int) -> Result:
        world = self._at(thread, run, "", at)
        world.bind(policies.load_text(canonical.encode(policy), "policy.json"))
        said = world.observe(PolicyBound(Sender("operator", "op"), world.current.digest)) if now else []
        return _refused(said) or {}

    def finish(self, thread: str, run: str, agent: str, *, at: int) -> Result:
        world = self._at(thread, run, agent, at)
        return self._end(world.observe(FinishRequested(world.sender)))

    def abort(self, thread: str, run: str, agent: str, reason: str = "", *, at: int) -> Result:
        world = self._at(thread, run, agent, at)
        return self._end(world.observe(AbortRequested(world.sender, reason)))

    def _end(self, said: list[Any]) -> Result:
        refused = _refused(said)
        if refused is not None:
            return refused
        answer = next(s for s in said if isinstance(s, RunEnded | RunAnswered))
        message = answer.message if isinstance(answer, RunAnswered) else answer.reason
        ended = {"status": answer.status, "message": message, "ungrounded": answer.ungrounded}
        return {**ended, "verdicts": self._verdicts(said)}

    def resolve(self, thread: str, run: str, ticket: str, by: str, decision: Any, *, at: int, **said: Any) -> Result:
        world = self._at(thread, run, "", at)
        self._resolutions += 1
        answers = steps.resolve(world, ResolveEntry(ticket=ticket, by=by, decision=decision, **said), self._resolutions)
        refused = _refused(answers)
        if refused is not None:
            return refused
        answer = next(a for a in answers if isinstance(a, TicketAnswered))
        return {"ticket": answer.state, "verdicts": self._verdicts(answers)}

    def advance(self, to: int) -> list[Result]:
        return self._verdicts(self.world.advance(START + to - self.world.now, fire=True))

    def state(self, thread: str, run: str) -> Result:
        self.world.thread, self.world.run = ThreadId(thread), RunId(run)
        opened = self.world.state.runs[RunId(run)]
        return state_of(self.world) | {
            "machines": moved_of(self.world.state.order, run),
            "summary": opened.reason if opened.failed else None,
            "tickets": {ticket.id: ticket.state for ticket in opened.tickets.values()},
        }

    def _verdicts(self, said: list[Any]) -> list[Result]:
        return [view for answer in said if isinstance(answer, CallDecided) and (view := self._view(answer)) is not None]

    def _view(self, answer: Any) -> Result | None:
        if isinstance(answer, CallRefused):
            return {"call": answer.call, "refused": answer.code}
        if not isinstance(answer, CallDecided | Repeat):
            return None
        (view,) = expect.views(self.world, [answer])
        decided = self.world.verdict_of(answer) if isinstance(answer, Repeat) else answer
        said = {name: list(getattr(decided, name)) for name in ("checks_failed", "checks_skipped")}
        barriers = [breach.barrier for f in decided.findings if f.authoritative for breach in f.breaches]
        return {**view, **said, "barriers": barriers, "ticket": decided.ticket}


def moved_of(order: OrderState, run: str) -> dict[str, dict[str, str]]:
    """The instances that ever moved: those that only have calls in flight are not listed by the oracle."""
    found: dict[str, dict[str, str]] = {}
    for owner in (THREAD, run):  # the thread's before the run's own of the same name
        for machine, keys in order.of(owner).items():
            states = {key: instance.state for key, instance in keys.items() if instance.moved}
            if states:
                found[machine] = states
    return found


def _refused(said: list[Any]) -> Result | None:
    return next(({"refused": answer.code} for answer in said if isinstance(answer, CallRefused)), None)


def _in_order(wanted: list[Any], views: list[Result]) -> tuple[list[Result], list[Result]]:
    """One answer for each call wanted, in their order, and what else was said. A malformed id is answered without one."""
    left, found = list(views), []
    for name in wanted:
        mine = _answer(name, left)
        left.remove(mine)
        found.append({**mine, "call": name})
    return found, left


def _answer(name: Any, left: list[Result]) -> Result:
    """What was said of a call that is asked for. Where its ticket ended meanwhile, that is no answer to its being asked."""
    said = [view for view in left if view["call"] == name]
    own = [view for view in said if view.get("replayed") or view.get("stage") != "approvals"]
    return next((view for view in (*own, *said)), None) or next(view for view in left if view["call"] is None)
