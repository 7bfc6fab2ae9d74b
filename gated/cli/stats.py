"""`gated stats`: what a log says in figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.markup import escape

from gated.cli.help import single
from gated.cli.output import Json, moment, run_async, say, say_json, table
from gated.cli.progress import progressed
from gated.cli.which_log import Folder, LogPath, log_of
from gated.core.stats import Spread, Stats, Verdicts
from gated.events import unseal
from gated.shell.log.open import open_log
from gated.units import format_duration, rfc3339, some

app = single()

MICRO = 1_000_000


@app.command(epilog="Example: gated stats --since 2026-01-01")
def stats(
    log_: LogPath = None,
    data: Folder = None,
    since: Annotated[str | None, typer.Option(help="From this time on (RFC 3339).")] = None,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Lines of each table.")] = 10,
    json_: Json = False,
) -> None:
    """Verdicts by decision, code, tool and agent; how long tools took and tickets waited; tickets that nobody answered."""
    log = log_of(log_, data)
    begin = moment("--since", since)

    async def work() -> Stats:
        found = Stats()
        async with open_log(log) as opened:
            async for _, record in progressed(opened, "counting"):
                if (run is None or record.run == run) and (begin is None or record.at >= begin):
                    found.feed(unseal(record))
        return found

    found: Stats = run_async(work)
    if json_:
        say_json(view(found))
    else:
        _print(found, top)


def view(stats: Stats) -> dict[str, Any]:
    """The figures as plain data."""
    named = {name: getattr(stats, name) for name in stats.__struct_fields__ if not name.startswith("_")}
    times = {"first_at": _time(stats.first_at), "last_at": _time(stats.last_at)}
    spans = {"tool_seconds": stats.tool_seconds, "answer_seconds": stats.answer_seconds}
    return {**named, **times, **spans, "waiting": stats.waiting, "in_flight": stats.in_flight}


def _time(at: int | None) -> str | None:
    return None if at is None else rfc3339(at)


def _print(stats: Stats, top: int) -> None:
    if stats.first_at is None or stats.last_at is None:
        say("the log has no records of that")
        return
    first, last = rfc3339(stats.first_at)[:19], rfc3339(stats.last_at)[:19]
    say(f"[bold]{stats.records}[/] record{'s' * (stats.records != 1)} from {first} to {last}, {some(stats.runs, 'run')}")
    v = stats.verdicts
    say(f"verdicts [green]{v.allow} allowed[/]  [red]{v.deny} denied[/]  [yellow]{v.suspend} suspended[/]")
    _print_tickets(stats)
    say(f"outcomes {_list(stats.statuses)}, {stats.lapsed} lapsed, {stats.in_flight} in flight, {stats.ungated} not gated")
    say(f"tools    {_spread(stats.tool_seconds)}")
    for title, counted in (
        ("code", stats.codes),
        ("only observed", stats.watched),
        ("refused", stats.refused),
        ("broken", stats.breaches),
    ):
        if counted:
            say("")
            table((title, "times"), counted.most_common(top))
    for title, by in (("stage", stats.stages), ("tool", stats.tools), ("agent", stats.agents)):
        if by:
            say("")
            table((title, "allow", "deny", "suspend"), _rows(by, top))


def _print_tickets(stats: Stats) -> None:
    t = stats.tickets
    if not t.opened:
        return
    unseen = f", [red]{t.unanswered} of them without any answer[/]" if t.unanswered else ""
    say(f"tickets  {t.opened} opened, {stats.waiting} open, {t.approved} approved, {t.rejected} rejected, {t.superseded} edited")
    say(f"         {t.cancelled} cancelled, {t.expired} expired{unseen}")
    say(f"answers  {_spread(stats.answer_seconds)}")


def _rows(by: Mapping[str, Verdicts], top: int) -> list[tuple[object, ...]]:
    ordered = sorted(by.items(), key=lambda item: (-item[1].total, item[0]))
    return [(name, v.allow, v.deny, v.suspend) for name, v in ordered[:top]]


def _list(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {escape(name)}" for name, number in sorted(counted.items())) or "none"


def _spread(found: Spread) -> str:
    if found.p50 is None or found.p90 is None or found.p99 is None or found.most is None:
        return "no times"
    named = (("half within", found.p50), ("90 % within", found.p90), ("99 % within", found.p99), ("the longest", found.most))
    return f"{found.count} timed: " + ", ".join(f"{name} {_short(value)}" for name, value in named)


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else format_duration(round(seconds) * MICRO)
