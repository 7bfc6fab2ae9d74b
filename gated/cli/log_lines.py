"""Records of a log as lines, and which of them a person wants to see."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from msgspec import Struct

from gated.cli.output import place_of, short
from gated.events import Body, CallDecided, CallRefused, CallSettled, DataErased, RunId, RunOpened, ThreadId
from gated.units import rfc3339

COLUMNS = ("position", "at", "run", "seq", "by", "decision", "tool", "why")
WHY = 90  # characters

Row = tuple[object, ...]


class Verdict(StrEnum):
    allow = "allow"
    deny = "deny"
    suspend = "suspend"


Run = Annotated[str | None, typer.Option(help="Only this run.")]
Agent = Annotated[str | None, typer.Option(help="Only runs of this agent, and what it said elsewhere.")]
Tool = Annotated[str | None, typer.Option(help="Only calls of this tool.")]
Decided = Annotated[Verdict | None, typer.Option("--decision", help="Only allow, deny or suspend.")]
Since = Annotated[str | None, typer.Option(help="From this time on (RFC 3339).")]
Until = Annotated[str | None, typer.Option(help="Before this time.")]


class Wanted(Struct, frozen=True):
    """What is asked for; None: anything. Times are in microseconds since 1970."""

    run: str | None = None
    agent: str | None = None
    tool: str | None = None
    decision: str | None = None
    since: int | None = None
    until: int | None = None


class Selection:
    """Which records are wanted, told of all of them in their order: whose a run is stands in its first."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._agents: dict[tuple[ThreadId, RunId], str] = {}

    @property
    def chooses(self) -> bool:
        """Whether anything is asked for in particular."""
        return self._wanted != Wanted()

    def takes(self, body: Body) -> bool:
        wanted = self._wanted
        return (
            self._is_of_agent(body)
            and wanted.run in (None, body.run)
            and (wanted.since is None or body.at >= wanted.since)
            and (wanted.until is None or body.at < wanted.until)
            and self._decides(body)
        )

    def _is_of_agent(self, body: Body) -> bool:
        agent, place, by = self._wanted.agent, (body.thread, body.run), body.observation.by
        if agent is None:
            return True
        for decision in body.decisions:
            if isinstance(decision, RunOpened):
                self._agents[place] = decision.agent
        return self._agents.get(place) == agent or (by.role, by.name) == ("agent", agent)

    def _decides(self, body: Body) -> bool:
        tool, decision = self._wanted.tool, self._wanted.decision
        if tool is None and decision is None:
            return True
        made = (d for d in body.decisions if isinstance(d, CallDecided))
        return any(tool in (None, d.tool) and decision in (None, d.decision) for d in made)


def rows(position: int, body: Body) -> Iterator[Row]:
    """A record as rows: one for each thing it decided that people ask about."""
    head = (position, rfc3339(body.at)[:19], place_of(body.thread, body.run), body.seq, body.observation.by)
    for decision in body.decisions:
        match decision:
            case CallDecided():
                why = f"{decision.code or ''} {decision.reason or ''}".strip()
                yield (*head, decision.decision, decision.tool, short(why, WHY))
            case CallRefused():
                yield (*head, "refused", decision.call or "", short(f"{decision.code} {decision.reason}", WHY))
            case CallSettled():
                yield (*head, decision.status, decision.call, short(decision.summary, WHY))
            case DataErased():
                yield (*head, "erased", "", short(f"the data of {decision.subject}", WHY))
            case _:
                yield (*head, msgspec.to_builtins(decision)["kind"].replace("_", " "), "", "")
