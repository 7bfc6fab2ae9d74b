"""`gated runs can-i`: what is left to a run, and whether a call would be allowed now. Nothing is taken for the question."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape

from gated.cli.operator import Operator, Place, at_bus, checked_run, place_of
from gated.cli.output import NO, Json, colour, fail, say, say_json, table
from gated.cli.shared import taking
from gated.units import some


@taking(place_of)
def can_i(
    run: Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")],
    thread: Annotated[str | None, typer.Option(help="Its thread; default: the run is its own.")] = None,
    tool: Annotated[str | None, typer.Option(help="A tool that the run would call.")] = None,
    args: Annotated[str, typer.Option(help="With these arguments, a JSON object.")] = "{}",
    times: Annotated[int, typer.Option(min=1, max=100, help="That many calls of it, in one message.")] = 1,
    cost_usd: Annotated[float | None, typer.Option(help="What each is estimated to cost.")] = None,
    *,
    place: Place,
    json_: Json = False,
) -> None:
    """What is left of a run's budgets and barriers. With --tool: would the call be allowed? Exit status 1: not all would."""
    where = dict(zip(("thread", "run"), checked_run(thread, run), strict=True))
    calls = [] if tool is None else _calls(tool, args, times, cost_usd)

    async def work(operator: Operator) -> Any:
        return await operator.ask("can_i", calls=calls, **where)

    found = at_bus(place, work, ("operator", "auditor"))
    if found is None:
        fail(f"there is no run `{run}`", NO)
    if json_:
        say_json(found)
    else:
        _show(run, found)
    if any(verdict["decision"] != "allow" for verdict in found.get("verdicts", ())):
        raise typer.Exit(NO)


def _calls(tool: str, args: str, times: int, cost_usd: float | None) -> list[dict[str, Any]]:
    try:
        given = json.loads(args)
    except ValueError as error:
        fail(f"--args is no JSON: {error}")
    cost = {} if cost_usd is None else {"cost_usd": cost_usd}
    return [{"id": f"can-i-{number}", "tool": tool, "args": given, **cost} for number in range(1, times + 1)]


def _show(run: str, found: dict[str, Any]) -> None:
    for verdict in found.get("verdicts", ()):
        why = f"  {verdict['code']}: {verdict['reason']}" if "code" in verdict else ""
        unsure = f"  (not asked: {', '.join(verdict['unsure'])})" if "unsure" in verdict else ""
        tone = colour(verdict["decision"])
        say(f"[{tone}]{verdict['decision']:7}[/] {escape(verdict['tool'])}{escape(why)}{escape(unsure)}")
    if found["status"] != "open":
        say(f"run {escape(run)} takes no more calls: {found['status']}")
        return
    say(f"run {escape(run)} may make {some(found['calls'], 'more call')}, as far as calls are counted")
    table(("limit", "left", "of", "unit", "whose"), (_row(limit) for limit in found["limits"]))
    if "barriers" in found:
        say("barriers " + ", ".join(f"{name} {value:g}" for name, value in found["barriers"].items()))


def _row(limit: dict[str, Any]) -> tuple[str, ...]:
    whose = f"run {limit['run']}" if "run" in limit else limit.get("scope", "run")
    observed = "" if limit.get("enforced", True) else " (only observed)"
    return limit["key"], f"{limit['left']:g}", f"{limit['limit']:g}", limit["unit"], whose + observed
