"""`gated doctor`: asking a running gate how it is."""

from __future__ import annotations

from typing import Final

import typer
from rich.markup import escape

from gated.cli.help import single
from gated.cli.operator import Place, at_bus, place_of
from gated.cli.output import NO, Json, say, say_json
from gated.cli.shared import taking
from gated.units import some

app = single()

ASKING: Final = ("operator", "auditor", "approver", "agent", "runner")  # whom the bus lets ask how the gate is


@app.command(epilog="Example: gated doctor --data .gated")
@taking(place_of)
def doctor(
    place: Place,
    json_: Json = False,
) -> None:
    """Ask a running gate how it is. Exit status 0: it decides; 1: it cannot, or not for every thread; 2: none answers."""
    health = at_bus(place, lambda operator: operator.ask("health"), ASKING)
    if json_:
        say_json(health)
    else:
        say(f"[{'green' if health['ok'] else 'red'}]{'ok' if health['ok'] else 'not ok'}[/]  policy {health['policy'][:12]}")
        say(f"{some(health['records'], 'record')}, {some(health['verdicts'], 'verdict')} since the start")
        say(f"{some(health['waiting'], 'input')} waiting, {some(health['threads'], 'thread')} in memory")
        if health["why"]:
            say(f"[red]{escape(health['why'])}[/]")
        if health["reload_failed"]:
            say(f"[red]policy.reload_failed[/]: {escape(health['reload_failed'])}")
            say(f"[red]the policy file is broken[/]: until it is mended runs begin under the one before, {health['policy'][:12]}")
        for why in health.get("damaged", {}).values():
            say(f"[red]{escape(why)}[/]: nothing is decided on it; `gated verify` says where the log is damaged")
        if not health["agents"]:
            say("[yellow]the policy has no agents: every call is denied[/]")
    if not health["ok"] or health.get("damaged"):
        raise typer.Exit(NO)
