"""The gate: one policy, many threads and runs. The slow, obvious reading of the pages that others are compared with."""

from __future__ import annotations

from typing import Any

from oracle import answers, dcbf, dfa, effects, ingress, lifecycle, order_after, pipeline, tally, tickets
from oracle import calls as deciding
from oracle.answers import Answer
from oracle.effects import Verdict
from oracle.history import Call, Entry, Run, Thread, Ticket
from oracle.rules import Policy

Result = dict[str, Any]


class Gate:
    """Everything is said with its time (`at`, in microseconds), which never goes back.

    `also` holds the verdicts on other calls that the last operation caused: cancelled tickets of a run that failed, the
    members of a batch that was resolved.
    """

    def __init__(self, policy: dict[str, Any]) -> None:
        self.policy = Policy(policy)
        self.threads: dict[str, Thread] = {}
        self.also: list[Verdict] = []
        self.now = 0
        self.messages = 0

    def rebind(self, policy: dict[str, Any]) -> None:
        """policy.md: a reload binds new runs."""
        self.policy = Policy(policy)

    def bind_now(self, thread: str, run: str) -> None:
        self.threads[thread].runs[run].policy = self.policy

    def bind(self, thread: str, run: str, policy: dict[str, Any], *, now: bool, at: int) -> Result:
        """A reload; with `now` an operator binds this run to it, too, if there is one."""
        self._time(at)
        self.rebind(policy)
        if now and (thread not in self.threads or run not in self.threads[thread].runs):
            return {"refused": "lifecycle.run_not_open"}
        if now:
            self.bind_now(thread, run)
        return {}

    def _time(self, at: int) -> int:
        """decisions.md §1: the event's own time, made non-decreasing. It decides nothing that timers are late."""
        self.now, self.also = max(self.now, at), []
        return self.now

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
        """`by`: `agent` (the agent itself) or `operator:<name>`."""
        at, found = self._time(at), self.threads.get(thread)
        operator = by.startswith("operator")
        code = lifecycle.stranger(self.policy, found, run, agent)
        if code is None and found is not None and run in found.runs:
            code = "lifecycle.run_exists"
        code = (
            code or lifecycle.opening(self.policy, self.threads, agent, by_operator=operator) or lifecycle.orphan(found, parent)
        )
        if code is not None:
            return {"refused": code}
        opened = self._open(thread, run, agent, at)
        opened.task, opened.labels, opened.tools, opened.parent = task, labels or {}, tools, parent
        return {"phase": "IDLE"}

    def _open(self, thread: str, run: str, agent: str, at: int) -> Run:
        found = self.threads.setdefault(thread, Thread(thread, agent))
        found.runs[run] = Run(run, agent, self.policy, at)
        found.note("opened", run, None, at)
        return found.runs[run]

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
        """One answer for each call wanted: a verdict, or `{call, refused}`."""
        at = self._time(at)
        self.messages += 1
        refusals = [ingress.refusal_of(call) for call in calls]
        shaped = [self._call(w, nesting) for w, refusal in zip(calls, refusals, strict=True) if refusal is None]
        said = self._decide(thread, run, agent, shaped, mode, at, refused=len(shaped) < len(calls)) if shaped else []
        answers_left = iter(said)
        return [
            next(answers_left) if refusal is None else {"call": w.get("id"), "refused": refusal}
            for w, refusal in zip(calls, refusals, strict=True)
        ]

    def _call(self, wanted: dict[str, Any], nesting: str) -> Call:
        args, parent = ingress.arguments(wanted), wanted.get("parent")
        return Call(
            wanted["id"],
            wanted["tool"],
            args,
            args,
            parent,
            self.messages,
            nesting,
            wanted.get("cost_usd"),
            wanted.get("scores") or {},
        )

    def _decide(
        self, thread: str, run: str, agent: str, wanted: list[Call], mode: str, at: int, *, refused: bool
    ) -> list[Verdict]:
        found = self.threads.get(thread)
        code = lifecycle.stranger(self.policy, found, run, agent)
        if code is None and (found is None or run not in found.runs):
            code = lifecycle.opening(self.policy, self.threads, agent, by_operator=False)
            if code is None:
                self._open(thread, run, agent, at)  # an intent with no start before it opens the run
        if code is not None:
            stage = code.split(".")[0]
            return [pipeline.refused_verdict(call.id, stage, code, f"`{agent}` may not call `{call.tool}`") for call in wanted]
        if mode == "atomic":
            self.threads[thread], verdicts, self.also = deciding.atomic(self.threads[thread], run, wanted, at, refused=refused)
            return verdicts
        verdicts = []
        for call in wanted:
            found = self.threads[thread]
            verdict, also = deciding.one(found, found.runs[run], call, at)
            verdicts.append(verdict)
            self.also += also
        return [self._newest(thread, run, verdict) for verdict in verdicts]

    def _newest(self, thread: str, run: str, verdict: Verdict) -> Verdict:
        """What is answered from the record is so when the message is done: another call of it may have ended the run."""
        if not verdict.get("replayed"):
            return verdict
        return {**self.threads[thread].verdict(run, verdict["call"]), "replayed": True}

    def _known_run(self, thread: str, run: str, agent: str | None) -> str | None:
        """The refusal of what is said of a run, except its opening and its calls. None `agent`: no agent spoke."""
        found = self.threads.get(thread)
        code = lifecycle.stranger(self.policy, found, run, agent) if agent is not None else None
        if code is None and (found is None or run not in found.runs):
            code = "lifecycle.run_not_open"
        return code

    def outcome(
        self,
        thread: str,
        run: str,
        by: str,
        call: str,
        status: str,
        content: Any = None,
        facts: dict[str, Any] | None = None,
        cost_usd: Any = None,
        tokens: int | None = None,
        scores: dict[str, Any] | None = None,
        *,
        at: int,
    ) -> Result:
        """`by`: `agent:<name>` or `runner:<name>`. Answers `{phase, reminders, ungated}` or `{refused}`."""
        at = self._time(at)
        agent = by.removeprefix("agent:") if by.startswith("agent:") else None
        code = ingress.outcome_refusal(status, cost_usd) or self._known_run(thread, run, agent)
        code = code or lifecycle.outcome_source(self.threads[thread].runs[run], by)
        if code is not None:
            return {"refused": code}
        found = self.threads[thread]
        admitted = found.admission(run, call)
        if admitted is None:
            return self._ungated(found, run, call, at)
        if found.settlement(run, call) is not None or at > admitted.data["due"]:
            return {"refused": "lifecycle.already_settled"}  # also when no timer ran: by the two times
        reminders, self.also = effects.settle(
            found,
            admitted,
            at,
            by=by,
            status=status,
            content=content,
            facts=facts,
            cost_usd=cost_usd,
            tokens=tokens,
            scores=scores,
        )
        return {"phase": dfa.phases(found, run).phase, "reminders": reminders, "ungated": False}

    def _ungated(self, thread: Thread, run: str, call: str, at: int) -> Result:
        """Recorded and counted, never folded; fails the run when the profile says so and the agent is not only observed."""
        thread.note("ungated", run, call, at)
        opened = thread.runs[run]
        if opened.profile.get("on_ungated", "record") == "fail" and not opened.policy.observed(opened.agent, "lifecycle"):
            self.also = effects.fail(thread, run, f"call `{call}` was executed without an allow verdict", at)
        return {"phase": dfa.phases(thread, run).phase, "reminders": [], "ungated": True}

    def finish(self, thread: str, run: str, agent: str, *, at: int) -> Result:
        at = self._time(at)
        code = self._known_run(thread, run, agent)
        if code is not None:
            return {"refused": code}
        found = self.threads[thread]
        if found.ending(run) is None:
            message = order_after.steering(found, found.runs[run])
            if message is not None:
                found.note("steered", run, None, at)
                return {"status": "steer", "message": message, "verdicts": []}
            found.note("finished", run, None, at, grounds=bool(found.runs[run].profile.get("grounding")))
            self.also = effects.cancel(found, run, at)
        return {**self._end(found, run), "verdicts": self.also}

    def _end(self, thread: Thread, run: str) -> Result:
        """Finishing an ended run answers as before; a failed one answers `failed`. What the end says of grounding."""
        ending = thread.ending(run)
        assert ending is not None
        grounded = tally.grounded_calls(thread, thread.runs[run])
        status = "failed" if ending.kind == "failed" else "complete"
        ungrounded = ending.kind == "finished" and ending.data["grounds"] and grounded == 0
        return {"status": status, "ungrounded": ungrounded, "grounded_calls": grounded}

    def abort(self, thread: str, run: str, agent: str, reason: str = "", *, at: int) -> Result:
        at = self._time(at)
        code = self._known_run(thread, run, agent)
        if code is not None:
            return {"refused": code}
        found = self.threads[thread]
        if found.ending(run) is None:
            found.note("aborted", run, None, at, reason=reason)
            self.also = effects.cancel(found, run, at)
        return {"status": "aborted", "verdicts": self.also}

    def resolve(self, thread: str, run: str, ticket: str, by: str, decision: str, *, at: int, **said: Any) -> Result:
        """`said`: args, args_sha256, tool, result, remember, note, name, scores (by call).

        Answers `{ticket, verdicts, …}` or `{refused}`.

        Where the ticket's call got a verdict its keys stand beside `ticket`.
        """
        at, found = self._time(at), self.threads.get(thread)
        opened = tickets.find(found, run, ticket) if found is not None else None
        answer = Answer(by, decision, **{key: value for key, value in said.items() if value is not None})
        if found is None or opened is None:
            return {"refused": "approvals.unknown_ticket"}
        code = answers.refusal(found, found.runs[run], opened, answer, at)
        if code is not None:
            return {"refused": code}
        self.threads[thread], state, verdicts = answers.take(found, opened, answer, at)
        named = ticket.partition(".")[0]
        self.also = [v for v in verdicts if v["call"] != named]
        own = next((v for v in verdicts if v["call"] == named), {})
        return {**own, **state, "verdicts": verdicts}

    def advance(self, to: int, *, fire: bool = True) -> list[Verdict]:
        """Time passes; what is due fires in the order of its due time. What is due exactly now is still in time."""
        fired: list[Verdict] = []
        while fire:
            due = self._due(to)
            if due is None:
                break
            fired += self._fire(*due)
        self._time(to)
        return fired

    def _due(self, to: int) -> tuple[int, Thread, Ticket | Entry] | None:
        waiting: list[tuple[int, Thread, Ticket | Entry]] = []
        for thread in self.threads.values():
            waiting += [(t.expires_at, thread, t) for t in thread.tickets if t.state == "pending"]
            waiting += [(e.data["due"], thread, e) for e in thread.in_flight(*thread.all_runs())]
        return min((w for w in waiting if w[0] < to), key=lambda w: w[0], default=None)

    def _fire(self, due: int, thread: Thread, what: Ticket | Entry) -> list[Verdict]:
        at = self._time(due)
        if isinstance(what, Ticket):
            return effects.close(thread, what, "expired", at)
        content = f"no outcome within {what.data['timeout']}"  # a lapse: an error, its cost settled at the estimate
        _, also = effects.settle(
            thread, what, at, by="timer", status="error", content=content, facts=None, cost_usd=None, tokens=0
        )
        return also

    def state(self, thread: str, run: str) -> Result:
        """In the vocabulary of a scenario's `state:` block, and a little more."""
        found = self.threads[thread]
        opened, now = found.runs[run], dfa.phases(found, run)
        counted = [e.data["metric"] for e in found.log if e.kind == "counted"]
        ending = found.ending(run)
        return {
            "phase": now.phase,
            "step_count": tally.steps(found, [run]),
            "hop_count": tally.hops(found, run),
            "retry_count": tally.consecutive_errors(found, run),
            "call_count": tally.calls(found, [run]),
            "cost_usd": tally.cost(found, [run]) / 1e6,
            "cost_microusd": tally.cost(found, [run]),
            "failed": ending is not None and ending.kind == "failed",
            "summary": ending.data["summary"] if ending is not None and ending.kind == "failed" else None,
            "in_flight": [e.call for e in found.in_flight(run)],
            "history": tally.history(found, [run]),
            "barriers": {name: float(h) for name, h in dcbf.values(found, opened).items()},
            "machines": order_after.instances(found, None) | order_after.instances(found, run),
            "metrics": {m: counted.count(m) for m in ("asked", "denied", "warned", "transitioned", "emitted")},
            "loop_count": {"ACTING": now.loops},
            "tickets": {t.name: t.state for t in found.tickets if t.run == run},
        }
