"""`gated runs …`: runs as people read them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import typer
from rich.markup import escape

from gated.cli import timeline as timelines
from gated.cli.can_i import can_i
from gated.cli.folded import folded
from gated.cli.help import group
from gated.cli.output import NO, Json, colour, fail, place_of, run_async, say, say_beneath, say_json, short, table
from gated.cli.running import kill, start
from gated.cli.which_log import Folder, LogFirst, LogPath, TheRun, log_and, log_of
from gated.core.curves import Curve, Recorded
from gated.core.timeline import answered, timeline, told
from gated.events import (
    Body,
    CallDecided,
    CallRefused,
    CallSettled,
    RunAnswered,
    RunEnded,
    RunId,
    RunOpened,
    ThreadId,
    TicketAnswered,
    TicketClosed,
    TicketOpened,
)
from gated.shell.log.anchors import archived_states
from gated.shell.log.open import open_log, policies_of
from gated.units import rfc3339, some
from gated.views import run_view

RUN: Final = "a run (`gated runs ls` shows them)"

app = group("Runs as people read them.", "gated runs show r1")


@app.command("ls", epilog="Example: gated runs ls")
def ls(log_: LogPath = None, data: Folder = None, json_: Json = False) -> None:
    """Every run of a log: who, how far, how it ended."""
    log = log_of(log_, data)
    states, _, known = run_async(lambda: folded(log, None))
    views = [run_view(state, run, known[state.runs[run].policy]) for state in states.values() for run in state.runs]
    views.sort(key=lambda view: (view["opened_at"], view["run"]))
    if json_:
        say_json(views)
        return
    if not views:
        say("the log has no runs")
        return
    columns = ("opened", "run", "agent", "status", "calls", "steps", "cost $", "task")
    fields = ("opened_at", "run", "agent", "status", "call_count", "step_count", "cost_usd", "task")
    views = [{**view, "opened_at": view["opened_at"][:19], "run": place_of(view["thread"], view["run"])} for view in views]
    table(columns, ([short(str(view[field] if view[field] is not None else ""), 200) for field in fields] for view in views))


@app.command("show", cls=LogFirst, epilog="Example: gated runs show r1")
def show(
    log_: LogPath = None,
    run_: TheRun = None,
    data: Folder = None,
    thread: Annotated[str | None, typer.Option(help="Its thread, where the id occurs on several.")] = None,
    json_: Json = False,
) -> None:
    """One run: every call with its verdict and reason, what it has spent, machines, barriers, tickets."""
    view, mine = _one(*log_and(RUN, log_, run_, data), thread)
    if json_:
        say_json({**view, "records": [msgspec.to_builtins(body) for body in mine]})
        return
    _print_head(view)
    for body in mine:
        for line in _story(body):
            say_beneath(f"  {rfc3339(body.at)[11:23]}", line)
    _print_state(view)


@app.command("timeline", cls=LogFirst, epilog="Example: gated runs timeline r1")
def show_timeline(
    log_: LogPath = None,
    run_: TheRun = None,
    data: Folder = None,
    thread: Annotated[str | None, typer.Option(help="Its thread, where the id occurs on several.")] = None,
    json_: Json = False,
) -> None:
    """One run against the clock: when each call was asked, waited, ran and ended, and how its barriers went."""
    log, run = log_and(RUN, log_, run_, data)
    view, mine = _one(log, run, thread)
    found = timeline(mine)
    curve = run_async(lambda: _curve(log, view["thread"], view["run"]))
    if json_:
        say_json({**view, "timeline": found, "curve": curve})
    else:
        timelines.show(view, found, curve)


def _one(log: str, run: str, thread: str | None) -> tuple[dict[str, Any], list[Body]]:
    """A run as it stands, and its records."""
    states, bodies, known = run_async(lambda: folded(log, run))
    found = [s for s in states.values() if any(r == run for r in s.runs) and thread in (None, s.thread)]
    if len(found) != 1:
        threads = ", ".join(state.thread for state in found)
        fail(f"run `{run}` is on the threads {threads}: say which with --thread" if found else f"the log has no run `{run}`", NO)
    state = found[0]
    run_id = next(r for r in state.runs if r == run)
    view = run_view(state, run_id, known[state.runs[run_id].policy])
    return view, [body for body in bodies if body.thread == state.thread]


async def _curve(log: str, thread: ThreadId, run: RunId) -> Curve | None:
    """How the run's barriers went."""
    async with open_log(log) as opened:
        recorded = Recorded(await policies_of(opened), None, await archived_states(opened))
        async for record in opened.read(thread):
            for _ in recorded.feed(record):
                pass
    return recorded.curves.get((thread, run))


def _print_head(view: dict[str, Any]) -> None:
    say(f"[bold]run {escape(view['run'])}[/] of {escape(view['agent'])} on thread {escape(view['thread'])}: {view['status']}")
    if view["task"]:
        say(f"task {escape(short(view['task'], 200))}")
    if view["reason"]:
        say(f"because {escape(view['reason'])}")


def _story(body: Body) -> list[str]:
    """The lines of a record in a run's story."""
    lines: list[str] = []
    for decision in body.decisions:
        match decision:
            case RunOpened():
                lines.append(f"opened by {body.observation.by} under policy {decision.policy[:12]}")
            case CallDecided():
                word = f"[{colour(decision.decision)}]{decision.decision:7}[/]"
                why = f"  {decision.code}: {decision.reason}" if decision.code else ""
                would = f"  (would {decision.would}: observed only)" if decision.would else ""
                lines.append(f"{word} {escape(decision.tool)} [dim]{escape(decision.call)}[/]{escape(why)}{would}")
            case CallRefused():
                lines.append(f"[red]refused[/] {escape(decision.call or '')} {decision.code}: {escape(decision.reason)}")
            case CallSettled():
                ended = f"{decision.status:7} {decision.call} {short(decision.summary, 80)}".rstrip()
                lines.append(f"[dim]{escape(ended)}[/]")
                lines += [f"[red]broken [/] {escape(finding.reason)}" for finding in decision.breached]
                lines += [f"[cyan]remind [/] {escape(reminder.content)}" for reminder in decision.reminders]
            case RunAnswered():
                lines.append(f"{decision.status} {escape(decision.message)}")
            case RunEnded():
                note = "  [yellow]ungrounded[/]: none of the calls that its policy calls grounding" if decision.ungrounded else ""
                lines.append(f"{escape(told(decision, str(body.observation.by)))}{note}")
            case TicketOpened():
                lines.append(f"ticket {decision.ticket} opened until {rfc3339(decision.expires_at)[:19]}Z")
            case TicketAnswered():
                lines.append(f"ticket {decision.ticket} {answered(decision)}")
            case TicketClosed():
                lines.append(f"ticket {decision.ticket} {decision.state}")
            case _:
                lines.append(escape(told(decision, str(body.observation.by))) or str(msgspec.to_builtins(decision)["kind"]))
    return lines


def _print_state(view: dict[str, Any]) -> None:
    say(
        f"phase {view['phase']}, {some(view['call_count'], 'call')} admitted, {some(view['step_count'], 'step')}, "
        f"{some(view['hop_count'], 'hop')}, ${view['cost_usd']:g}, {len(view['in_flight'])} in flight"
    )
    say("barriers " + ", ".join(f"{name} {value:g}" for name, value in view["barriers"].items()))
    for machine, keys in view["machines"].items():
        for key, value in keys.items():
            say(escape(f"machine {machine}[{key}] = {value}"))
    _print_counters(view)
    for waiting in view["waiting"]:
        say(f"[yellow]waits[/] ticket {waiting['ticket']} until {waiting['expires_at']}")


def _print_counters(view: dict[str, Any]) -> None:
    """What the machines of the thread have counted, said and refused."""
    counters = [("order rules", view["metrics"]), *((f"  {name}", found) for name, found in view["metrics_by_machine"].items())]
    for name, found in counters:
        counted = [f"{number} {what}" for what, number in found.items() if number]
        if counted:
            say(escape(f"{name}: {', '.join(counted)}"))
    reminders = view["reminders"]
    for machine, keys in reminders["last"].items():
        for key, tick in keys.items():
            say(escape(f"reminded {machine}[{key}] {some(reminders['tick'] - tick, 'outcome')} ago"))
    violations = view["violations"]
    if violations:
        say(f"violations on the thread, the newest {len(violations)}:")
    for one in violations:
        say_beneath(f"  {one['action']:4}", escape(f"{one['machine']}[{one['key']}] {one['tool']}: {one['reason']}"))


app.command("start", epilog="Example: gated runs start r1 --agent coder --task 'Fix the typo'")(start)
app.command("can-i", epilog='Example: gated runs can-i r1 --tool send_email --args \'{"to": "ana"}\' --times 3')(can_i)
app.command("kill", epilog="Example: gated runs kill r1 --reason 'wrong branch'")(kill)
