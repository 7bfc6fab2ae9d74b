"""A game in a few words, and what the gate said of it: for tests that play one game under two policies."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from core.acts import Acts
from gated.core.scenario import steps
from gated.core.scenario.format import CallEntry, OutcomeEntry, SwitchEntry
from gated.events import CallDecided, CallRefused, FinishRequested, MessageRefused, RunAnswered, RunEnded, unseal
from gated.units import parse_duration


def policy(agent: str = "", top: str = "", allowed: str = "['*']", scope: str = "any", others: str = "") -> str:
    """A policy of one agent `a` that may do everything, but for what is said."""
    rest = f", {agent}" if agent else ""
    return f"version: 1\nagents:\n  a: {{allowed_tools: {allowed}, data_scope: {scope}{rest}}}\n{others}\n{top}\n"


class Game:
    """`moves` are calls (`T {"a": 1}`, `T {} | T {}` for a batch) and, with a colon, what else happens."""

    def __init__(self, text: str, agent: str = "a") -> None:
        self.acts = Acts(text, agent)
        self.world = self.acts.world
        self.heard: list[str] = []

    def play(self, moves: list[str]) -> list[str]:
        """A word or two for each answer."""
        for move in moves:
            word, _, rest = move.partition(" ")
            if word.startswith(":"):
                given = (rest,) if rest.startswith("{") else rest.split(" ", 1) if rest else ()
                getattr(self, f"_{word[1:]}")(*given)
            else:
                self._ask(move)
        return self.heard

    def _hear(self, answers: list[Any]) -> None:
        for answer in answers:
            match answer:
                case CallDecided():
                    self.heard.append(f"{answer.decision} {answer.code or ''} {answer.would or ''}".strip())
                case CallRefused() | MessageRefused():
                    self.heard.append(f"refused {answer.code}")
                case RunEnded() | RunAnswered():
                    self.heard.append(f"run {answer.status}")
                case _:
                    pass

    def _ask(self, move: str) -> None:
        calls = []
        for part in move.split(" | "):
            self.acts.made += 1
            tool, _, text = part.partition(" ")
            text, _, scores = text.partition(" scores=")
            given = json.loads(scores) if scores else {}
            args = json.loads(text or "{}")
            cost, parent = args.pop("$cost", None), args.pop("$parent", None)
            calls.append(CallEntry(tool=tool, id=f"c{self.acts.made}", args=args, cost_usd=cost, parent=parent, scores=given))
        self._hear(steps.intents(self.world, tuple(calls), "each", "explicit"))

    def _infer(self, move: str) -> None:
        self.acts.made += 1
        self._hear(steps.intents(self.world, (CallEntry(tool=move, id=f"c{self.acts.made}", args={}),), "each", "inferred"))

    def _ok(self, call: str = "", content: str = "ok") -> None:
        self._end(call, "success", content)

    def _err(self, call: str = "", content: str = "no") -> None:
        self._end(call, "error", content)

    def _end(self, call: str, status: Any, content: str, **more: Any) -> None:
        entry = OutcomeEntry(call=call or f"c{self.acts.made}", status=status, content=content, **more)
        self._hear(steps.outcome(self.world, entry))

    def _report(self, text: str) -> None:
        """An outcome with everything said: `:report {"call": "c1", "status": "success", "tokens": 5}`."""
        self._hear(steps.outcome(self.world, msgspec.convert(json.loads(text), OutcomeEntry)))

    def _yes(self, person: str, rest: str) -> None:
        call, _, more = rest.partition(" ")
        self._hear(self.acts.resolve(call, person, **json.loads(more or "{}")))

    def _link(self, path: str, target: str) -> None:
        """A symbolic link on the game's disk."""
        self.world.links = {**self.world.links, path: target}

    def _wait(self, duration: str) -> None:
        self._hear(self.world.advance(parse_duration(duration), fire=True))

    def _finish(self) -> None:
        self._hear(self.world.observe(FinishRequested(self.world.sender)))

    def _run(self, text: str) -> None:
        """To another run: `:run {"run": "r2", "thread": "t", "agent": "b", "parent": "r1", "by": "operator:o"}`."""
        self._hear(steps.switch(self.world, msgspec.convert(json.loads(text), SwitchEntry)))

    def decisions(self) -> bytes:
        """Everything that was decided, but for the name of the policy it was decided under."""
        bodies = [unseal(record) for record in self.acts.records]
        text = msgspec.json.encode([body.decisions for body in bodies])
        for digest in self.world.known:
            text = text.replace(digest.encode(), b"")
        return text
