"""What a CEL expression sees of a run. decisions.md §8, §9."""

from __future__ import annotations

from typing import Any

import cel

from oracle import dfa, tally
from oracle.findings import Question
from oracle.history import Entry, Thread
from oracle.values import Json

RECENT = 5


def evaluate(expression: str, names: dict[str, Any]) -> Json:
    """Raises what the library raises for what cannot be evaluated."""
    return cel.evaluate(expression, names)


def names_of(question: Question) -> dict[str, Any]:
    thread, run, call = question.thread, question.run, question.call
    ending = thread.ending(run.id)
    tools = tally.history(thread, [run.id])
    return {
        "tool": call.tool,
        "args": call.args,
        "agent": run.agent,
        "at": question.at,
        "run": {
            "phase": dfa.phases(thread, run.id).phase,
            "step_count": tally.steps(thread, [run.id]),
            "counts": {tool: tools.count(tool) for tool in tools},
            "cost_usd": tally.cost(thread, [run.id]) / 1e6,
            "task": run.task or "",
            "labels": dict(run.labels),
            "failed": ending is not None and ending.kind == "failed",
        },
        "recent": [_recent(thread, e) for e in thread.of("settled", run.id)][-RECENT:],
    }


def _recent(thread: Thread, settled: Entry) -> dict[str, str]:
    """An entry has a status, so a call is recent once it has an outcome."""
    admitted = thread.admission(settled.run, str(settled.call))
    assert admitted is not None
    return {"tool": admitted.data["tool"], "status": settled.data["status"], "args_sha256": admitted.data["digest"]}


def names_after(question: Question) -> dict[str, Any]:
    """The state with this call appended, for a barrier's next value. In barriers `run.step_count` counts what is in flight."""
    names = names_now(question)
    run, call = question.run, question.call
    counts = dict(names["run"]["counts"])
    counts[call.tool] = counts.get(call.tool, 0) + 1
    cost = tally.cost(question.thread, [run.id]) + tally.reservation(run, call.tool, call.cost_usd)
    step_count = names["run"]["step_count"] + 1
    names["run"] = {**names["run"], "phase": "ACTING", "step_count": step_count, "counts": counts, "cost_usd": cost / 1e6}
    appended = {"tool": call.tool, "status": "in_flight", "args_sha256": call.digest}
    names["recent"] = [*names["recent"], appended][-RECENT:]
    return names


def names_now(question: Question) -> dict[str, Any]:
    names = names_of(question)
    names["run"]["step_count"] = tally.steps_and_in_flight(question.thread, [question.run.id])
    return names
