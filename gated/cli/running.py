"""`gated runs start`, `gated runs kill`, `gated policy bind`: what only an operator may do."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from gated.cli.operator import Operator, Place, View, at_bus, checked_id, checked_run, place_of
from gated.cli.output import NO, Json, fail, say, say_json
from gated.cli.shared import taking
from gated.units import some
from gated.wire import PolicyBind, RunKill, RunStart

RunArgument = Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")]
Thread = Annotated[str | None, typer.Option(help="Its thread; default: the run is its own.")]


@taking(place_of)
def start(
    run: RunArgument,
    agent: Annotated[str, typer.Option(help="Whose run it is.")],
    thread: Thread = None,
    task: Annotated[str | None, typer.Option(help="What the agent is to do.")] = None,
    parent: Annotated[str | None, typer.Option(help="The run that it is a child of, on the same thread.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="name=value; may be repeated.")] = None,
    *,
    place: Place,
    json_: Json = False,
) -> None:
    """Open a run for an agent: the only way where its policy says `opened_by: operator`."""
    said = RunStart(agent=checked_id(agent, "agent"), task=task, labels=_labels(label), parent_run=parent)
    where = checked_run(thread, run)

    async def work(operator: Operator) -> View:
        if await operator.ask("runs.show", thread=where[0], run=where[1]) is not None:
            fail(f"run `{run}` is there already: run ids are single use within a thread", NO)
        return await operator.say(*where, said, lambda view: True)

    _told(at_bus(place, work), json_, "open")


@taking(place_of)
def kill(
    run: RunArgument,
    thread: Thread = None,
    reason: Annotated[str, typer.Option(help="Why; the agent is told.")] = "",
    *,
    place: Place,
    json_: Json = False,
) -> None:
    """End a run: it takes no more calls, and what waits for people is cancelled."""
    where = checked_run(thread, run)

    async def work(operator: Operator) -> View:
        return await operator.say(*where, RunKill(reason=reason), lambda view: bool(view["status"] != "open"))

    _told(at_bus(place, work), json_, "ended")


@taking(place_of)
def bind(
    now: Annotated[bool, typer.Option("--now", help="Say that you mean it: running runs change their rules.")] = False,
    run: Annotated[list[str] | None, typer.Option(help="Only this run, as THREAD/RUN or RUN; may be repeated.")] = None,
    policy: Annotated[str | None, typer.Option(help="The digest of another policy that the daemon has.")] = None,
    *,
    place: Place,
    json_: Json = False,
) -> None:
    """Bind running runs to the policy that new runs get. A reload alone binds new runs only; each change is an event."""
    if not now:
        fail("this changes the rules of runs that are under way: say --now if you mean it", NO)

    async def work(operator: Operator) -> tuple[str, list[View]]:
        digest = policy or _current(await operator.ask("health"))
        if await operator.ask("policy.show", policy=digest) is None:
            fail(f"the gate knows no policy `{digest}`: it knows one once it has read the file", NO)
        chosen = [_place(text) for text in run] if run else await operator.open_runs()
        return digest, [
            await operator.say(*one, PolicyBind(policy=digest), lambda view: bool(view["policy"] == digest)) for one in chosen
        ]

    digest, bound = at_bus(place, work)
    if json_:
        say_json([{key: view[key] for key in ("thread", "run", "agent", "policy")} for view in bound])
    else:
        for view in bound:
            say(f"run {escape(view['run'])} of {escape(view['agent'])} is bound to policy {view['policy'][:12]}")
        say(f"{some(len(bound), 'run')} bound to policy {digest}" if bound else f"no run is open to be bound to policy {digest}")


def _current(health: dict[str, Any]) -> str:
    """The policy that new runs get. Ends the command where that is not what the file says: nobody would mean it."""
    if health["reload_failed"]:
        why = f"the policy file is broken, and what holds is the one before: {health['reload_failed']}"
        fail(f"nothing is bound: {why}; mend it, or name the digest of a policy with --policy", NO)
    return str(health["policy"])


def _told(view: View, json_: bool, what: str) -> None:
    if json_:
        say_json(view)
    else:
        where = "" if view["thread"] == view["run"] else f" on thread {escape(view['thread'])}"
        say(f"run {escape(view['run'])} of {escape(view['agent'])}{where} is {what}, under policy {view['policy'][:12]}")


def _labels(pairs: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            fail(f"a label is name=value, not `{pair}`")
        found[name] = value
    return found


def _place(text: str) -> tuple[str, str]:
    thread, slash, run = text.partition("/")
    return checked_run(thread, run) if slash else checked_run(None, thread)
