"""What a CEL expression sees of a run. decisions.md §8, §9."""

from __future__ import annotations

import re
from typing import Any

import cel

from oracle import dfa, tally
from oracle.findings import Question
from oracle.history import Entry, Run, Runs, Thread
from oracle.values import Json

RECENT = 5


_FORBIDS = re.compile(r"(args(?:\.\w+)+) != '")


def evaluate(expression: str, names: dict[str, Any]) -> Json:
    """Raises what the library raises for what cannot be evaluated; pains.md: what is true only because types differ is such."""
    found: Json = cel.evaluate(expression, names)
    if found is True:
        for path in _FORBIDS.findall(expression):
            if not isinstance(cel.evaluate(path, names), str):
                raise TypeError(f"{path} is no text")
    return found


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


def names_now(question: Question, runs: Runs) -> dict[str, Any]:
    """For a barrier: the numbers are those of `runs` (the run and its children, or its whole thread), in flight included.

    ambiguous: whether `recent` holds calls in flight. It does: a state predicted by appending a call must then be reached.
    """
    thread, run = question.thread, question.run
    names = names_of(question)
    tools = tally.history(thread, runs)
    steps, cost = tally.steps_and_in_flight(thread, runs), tally.cost(thread, runs)
    counts = {tool: tools.count(tool) for tool in tools}
    names["run"] |= {"step_count": steps, "counts": counts, "cost_usd": cost / 1e6}
    flying = [_flying(e.data["tool"], e.data["digest"]) for e in thread.in_flight(run.id)]
    names["recent"] = [*names["recent"], *flying][-RECENT:]
    return names


def names_after(question: Question, runs: Runs, asking: Run) -> dict[str, Any]:
    """The state with the call of `asking` appended, for a barrier's next value."""
    names = names_now(question, runs)
    call = question.call
    counts = dict(names["run"]["counts"])
    counts[call.tool] = counts.get(call.tool, 0) + 1
    cost = tally.cost(question.thread, runs) + tally.reservation(asking, call.tool, call.cost_usd)
    step_count = names["run"]["step_count"] + 1
    names["run"] |= {"phase": "ACTING", "step_count": step_count, "counts": counts, "cost_usd": cost / 1e6}
    names["recent"] = [*names["recent"], _flying(call.tool, call.digest)][-RECENT:]
    return names


def _flying(tool: str, digest: str) -> dict[str, str]:
    return {"tool": tool, "status": "in_flight", "args_sha256": digest}
