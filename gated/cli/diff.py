"""`gated policy diff`: what two policies differ in, and which recorded calls would get another verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from gated.cli.output import NO, Json, run_async, say, say_json, short, table
from gated.cli.which_log import Folder, LogOption, log_of
from gated.core.policy import Policy
from gated.core.structure import Differing, differences
from gated.core.whatif import Compared, WhatIf
from gated.shell.log.anchors import archived_states
from gated.shell.log.open import open_log
from gated.shell.policies import read_policy
from gated.units import some

SHOWN = 50


def diff(
    old: Annotated[Path, typer.Argument(help="A policy file, or a folder of them.", metavar="OLD")],
    new: Annotated[Path, typer.Argument(help="Another one.", metavar="NEW")],
    log_: LogOption = None,
    data: Folder = None,
    fail_on: Annotated[bool, typer.Option("--fail-on", help="Exit status 1 where a recorded call flips.")] = False,
    json_: Json = False,
) -> None:
    """Say what two policies differ in; with --log or --data, which calls of the log the two decide otherwise."""
    log = log_of(log_, data) if log_ or data else None

    async def work() -> tuple[Policy, Policy, list[tuple[Compared, Compared]]]:
        before, after = read_policy(old), read_policy(new)
        return before, after, await _flips(log, before, after) if log else []

    before, after, flips = run_async(work)
    found = differences(before, after)
    if json_:
        say_json({"old": before.digest, "new": after.digest, "differences": found, "flips": [_plain(*pair) for pair in flips]})
    else:
        _print(found, flips, log)
    if fail_on and flips:
        raise typer.Exit(NO)


async def _flips(log: str, before: Policy, after: Policy) -> list[tuple[Compared, Compared]]:
    """Recorded verdicts on which the two policies differ, each decided on the history as it was recorded."""
    found: list[tuple[Compared, Compared]] = []
    async with open_log(log) as opened:
        begun = await archived_states(opened)
        one, other = WhatIf(before, begun), WhatIf(after, begun)
        async for _, record in opened.read_all():
            pairs = zip(one.feed(record), other.feed(record), strict=True)
            found += [(a, b) for a, b in pairs if _says(a) != _says(b)]
    return found


def _says(found: Compared) -> tuple[str, str]:
    if found.what == "approval":
        return found.outcome, ""
    return ("", found.derived.decision) if found.derived is not None else (found.outcome, "")


def _plain(a: Compared, b: Compared) -> dict[str, Any]:
    head = {key: getattr(a, key) for key in ("what", "thread", "run", "seq", "call", "tool", "agent")}
    return {**head, "old": a.derived, "new": b.derived, "why": b.why or a.why}


def _print(found: tuple[Differing, ...], flips: list[tuple[Compared, Compared]], log: str | None) -> None:
    if not found:
        say("[green]the same[/]: the two policies differ in nothing")
    for item in found:
        match item.what:
            case "added":
                say(f"[green]+[/] {escape(item.place)}: {escape(_short(item.new))}")
            case "removed":
                say(f"[red]-[/] {escape(item.place)}: {escape(_short(item.old))}")
            case "changed":
                say(f"[yellow]~[/] {escape(item.place)}: {escape(_short(item.old))} -> {escape(_short(item.new))}")
    if log is None:
        return
    if not flips:
        say("[green]no recorded call flips[/]")
        return
    say(f"[red]{some(len(flips), 'recorded verdict')} flip{'s' if len(flips) == 1 else ''}[/]")
    columns = ("run", "call", "tool", "old", "new", "why")
    table(columns, (_row(a, b) for a, b in flips[:SHOWN]))
    if len(flips) > SHOWN:
        say(f"and {len(flips) - SHOWN} more: --json lists them all")


def _row(a: Compared, b: Compared) -> tuple[object, ...]:
    old, new = (_word(side) for side in (a, b))
    why = b.why or (b.derived.reason if b.derived and b.derived.reason else a.derived.reason if a.derived else "")
    return a.run, a.call, a.tool, old, new, short(why or "", 90)


def _word(found: Compared) -> str:
    return found.outcome if found.what == "approval" or found.derived is None else found.derived.decision


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return short(text, 120)
