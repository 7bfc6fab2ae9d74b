"""A log made by hand: an agent that asks, reports and finishes, people that answer, in a scenario's world."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gated.core.policy import load, load_text
from gated.core.scenario import runner, steps
from gated.core.scenario.format import CallEntry, OutcomeEntry, ResolveEntry, ScenarioFile
from gated.core.scenario.world import Entry, World
from gated.documents import Document, decode, parse_document
from gated.events import AbortRequested, AgentId, CallDecided, FinishRequested, Record, RunId, ThreadId


class Acts:
    """`agent` speaks for run `r1` on thread `t`, under the policy of a text."""

    def __init__(self, policy: str, agent: str = "a") -> None:
        self.world = World(load_text(policy, "policy.yaml"))
        self.world.speak_for(ThreadId("t"), RunId("r1"), AgentId(agent))
        self.made = 0
        steps.start(self.world, task="work", by=f"agent:{agent}")

    def ask(self, tool: str, mode: str = "each", **args: Any) -> str:
        """One call; its decision."""
        return self.batch([(tool, args)], mode)[0]

    def batch(self, wanted: list[tuple[str, dict[str, Any]]], mode: str = "each") -> list[str]:
        calls = []
        for tool, args in wanted:
            self.made += 1
            calls.append(CallEntry(tool=tool, id=f"c{self.made}", args=args))
        answers = steps.intents(self.world, tuple(calls), mode, None)
        return [answer.decision for answer in answers if isinstance(answer, CallDecided)]

    def end(self, call: str | None = None, status: Any = "success", **more: Any) -> None:
        steps.outcome(self.world, OutcomeEntry(call=call or f"c{self.made}", status=status, **more))

    def run(self, tool: str, **args: Any) -> str:
        """A call, and its success where it may run."""
        decision = self.ask(tool, **args)
        if decision == "allow":
            self.end()
        return decision

    def resolve(self, call: str, by: str, decision: Any = "approve", **more: Any) -> list[Any]:
        return steps.resolve(self.world, ResolveEntry(ticket=call, by=by, decision=decision, **more), self.made)

    def finish(self) -> None:
        self.world.observe(FinishRequested(self.world.sender))

    def abort(self) -> None:
        self.world.observe(AbortRequested(self.world.sender, "enough"))

    @property
    def records(self) -> list[Record]:
        return [entry.record for entry in self.world.log]


def logs_of(file: Path) -> Iterator[tuple[str, list[Entry]]]:
    """The log that each scenario of a file leaves, with the policies that were current."""

    def read(name: str) -> Document:
        return parse_document((file.parent / name).read_bytes(), file=name)

    document = parse_document(file.read_bytes(), file=str(file))
    entry = decode(document, ScenarioFile)
    policy_of = partial(runner._policy, document, read, load)
    policy = policy_of(entry.policy)
    for position, scenario in enumerate(entry.scenarios):
        play = runner._Play(document, position, scenario, policy_of, World(policy), 0)
        play.run()
        yield scenario.name, play.world.log
