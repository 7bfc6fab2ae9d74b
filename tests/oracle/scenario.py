"""Runs scenario files against the oracle. scenarios.md."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracle import documents
from oracle.expectations import Failures, compare, compare_state
from oracle.gate import Gate
from oracle.values import micros

Step = dict[str, Any]
SEED = 20260101
VERDICTS = {"allow": "allowed", "deny": "denied", "suspend": "suspended"}


@dataclass(frozen=True)
class Result:
    name: str
    ok: bool
    failures: list[str]


def run_file(path: str | Path) -> list[Result]:
    path = Path(path)
    document = documents.read(path)
    return [_run(document, scenario, path.parent) for scenario in document["scenarios"]]


def _run(document: Step, scenario: Step, folder: Path) -> Result:
    speaker = Speaker(_policy(document["policy"], folder), scenario, folder)
    failures: Failures = []
    for number, step in enumerate(scenario["steps"], 1):
        failures += [f"step {number}: {failure}" for failure in speaker.take(step)]
    if "state" in scenario:
        got = speaker.gate.state(speaker.thread, speaker.run)
        failures += [f"state: {failure}" for failure in compare_state(scenario["state"], got)]
    return Result(scenario["name"], not failures, failures)


def _policy(said: Any, folder: Path) -> dict[str, Any]:
    return dict(documents.read(folder / said) if isinstance(said, str) else said)


class Speaker:
    """Whoever the scenario speaks for at the moment, and what it says."""

    def __init__(self, policy: dict[str, Any], scenario: Step, folder: Path) -> None:
        self.folder = folder
        self.gate = Gate(policy)
        agents = list(policy.get("agents", {}))
        self.agent = scenario.get("agent") or agents[0]
        self.run = str(scenario.get("run", "r1"))
        self.thread = str(scenario.get("thread", self.run))
        self.threads = {self.run: self.thread}
        self.verdicts: list[str] = []
        self.ids = _assigned(scenario["steps"])
        self.scores = scenario.get("scores", {})
        self.scored: dict[tuple[str, str], Step] = {}
        self.at = 0
        self._open(scenario.get("task"), scenario.get("labels"), None)

    def _open(self, task: str | None, labels: dict[str, str] | None, parent: str | None) -> None:
        """The runner opens a run as an operator would. What it may not open, the steps will tell."""
        known = self.gate.threads.get(self.thread)
        if known is None or self.run not in known.runs:
            self.gate.start(
                self.thread, self.run, self.agent, by="operator:runner", task=task, labels=labels, parent=parent, at=self.at
            )

    def take(self, step: Step) -> Failures:
        verb = next(key for key in step if key not in ("expect", "mode", "interleavings", "nesting", "now"))
        said = getattr(self, f"_{verb}")(step)
        if "expect" in step:
            return compare(step["expect"], said)
        refused = [r["refused"] for r in (said if isinstance(said, list) else [said]) if isinstance(r, dict) and "refused" in r]
        return [f"refused: {code}" for code in refused]

    def _intents(self, wanted: list[Step], mode: str, nesting: str) -> list[Step]:
        calls = [{**call, "id": self.ids[id(call)], "scores": {**self.scores, **call.get("scores", {})}} for call in wanted]
        for call in calls:
            self.scored.setdefault((self.run, call["id"]), call["scores"])
        said = self.gate.intents(self.thread, self.run, self.agent, calls, mode, nesting, at=self.at)
        self._count([v for v in said if not v.get("replayed")])
        return said

    def _count(self, verdicts: list[Step]) -> None:
        self.verdicts += [VERDICTS[v["decision"]] for v in verdicts if "decision" in v]

    def _intent(self, step: Step) -> Step:
        return self._intents([step["intent"]], "each", step["intent"].get("nesting", "inferred"))[0]

    def _batch(self, step: Step) -> list[Step]:
        return self._intents(step["batch"], step.get("mode", "each"), step.get("nesting", "inferred"))

    def _run(self, step: Step) -> Step:
        """Short for an intent that must be allowed and its success outcome."""
        verdict = self._intents([step["run"]], "each", "inferred")[0]
        if verdict.get("decision") != "allow":
            return {"refused": f"not allowed: {verdict.get('code') or verdict.get('refused')}"}
        said = {key: step["run"][key] for key in ("content", "facts", "scores") if key in step["run"]}
        return self._outcome({"outcome": {"call": verdict["call"], "status": "success", **said}})

    def _outcome(self, step: Step) -> Step:
        said = {"by": f"agent:{self.agent}", **step["outcome"]}
        said["scores"] = {**self.scores, **said.get("scores", {})}
        result = self.gate.outcome(self.thread, self.run, at=self.at, **said)
        self._count(self.gate.also)
        return result

    def _resolve(self, step: Step) -> Step:
        said, given = dict(step["resolve"]), step["resolve"].get("scores", {})
        said["scores"] = {call: {**scores, **given} for (run, call), scores in self.scored.items() if run == self.run}
        result = self.gate.resolve(self.thread, self.run, at=self.at, **said)
        self._count(result.get("verdicts", []))
        return result

    def _advance(self, step: Step) -> list[Step]:
        said = step["advance"] if isinstance(step["advance"], dict) else {"by": step["advance"]}
        self.at += micros(said["by"])
        fired = self.gate.advance(self.at, fire=said.get("fire", True))
        self._count(fired)
        return fired

    def _finish(self, step: Step) -> Step:
        return self.gate.finish(self.thread, self.run, self.agent, at=self.at)

    def _abort(self, step: Step) -> Any:
        said = self.gate.abort(self.thread, self.run, self.agent, step["abort"].get("reason", ""), at=self.at)
        return said["verdicts"] if isinstance(step.get("expect"), list) else said

    def _switch(self, step: Step) -> None:
        said = step["switch"]
        self.run = said["run"]
        self.agent = said.get("agent", self.agent)
        self.thread = self.threads[self.run] = said.get("thread", self.threads.get(self.run, self.run))
        if said.get("open", True):
            self._open(None, None, said.get("parent"))

    def _policy(self, step: Step) -> None:
        self.gate.rebind(_policy(step["policy"], self.folder))
        if step.get("now", False):
            self.gate.bind_now(self.thread, self.run)

    def _concurrent(self, step: Step) -> Step:
        """As if from so many connections, in that many orders; the state of the last goes on."""
        draw = random.Random(SEED)
        before, expected = copy.deepcopy((self.gate, self.verdicts)), step.get("expect")
        for _ in range(step.get("interleavings", 1)):
            (self.gate, self.verdicts), start = copy.deepcopy(before), len(before[1])
            failures = [f for inner in _interleaved(step["concurrent"], draw) for f in self.take(inner)]
            said = self.verdicts[start:]
            counts = {name: said.count(name) for name in VERDICTS.values()}
            wrong = compare(expected, counts) if expected else []
            if failures or wrong:
                return {"refused": f"an interleaving of seed {SEED}: {failures + wrong}", **counts}
        return counts


def _interleaved(lists: list[list[Step]], draw: random.Random) -> Iterator[Step]:
    order = [index for index, steps in enumerate(lists) for _ in steps]
    draw.shuffle(order)
    left = [iter(steps) for steps in lists]
    return (next(left[index]) for index in order)


def _assigned(steps: list[Step]) -> dict[int, str]:
    """The n-th call of the scenario is `c<n>` if it names no id; a clash is an error of the file."""
    calls = list(_calls(steps))
    named = [call.get("id", call.get("call")) for call in calls]
    auto = [f"c{n}" for n in range(1, len(calls) + 1)]
    for given, fallback in zip(named, auto, strict=True):
        if given is None and fallback in named:
            raise ValueError(f"two calls are `{fallback}`")
    return {id(call): given or fallback for call, given, fallback in zip(calls, named, auto, strict=True)}


def _calls(steps: list[Step]) -> Iterator[Step]:
    for step in steps:
        for verb in ("intent", "run"):
            if verb in step:
                yield step[verb]
        yield from step.get("batch", [])
        for inner in step.get("concurrent", []):
            yield from _calls(inner)
