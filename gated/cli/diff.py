"""`gated policy diff`: what two policies differ in, and which recorded calls would get another verdict."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct
from rich.markup import escape

from gated.cli.output import NO, Json, Keys, run_async, say, say_json, short, table
from gated.cli.progress import progressed
from gated.cli.subjects import vault_of
from gated.cli.which_log import Folder, LogOption, log_of
from gated.core.policy import Policy
from gated.core.structure import Differing, differences
from gated.core.whatif import Compared, WhatIf
from gated.events import Record
from gated.shell.log.anchors import archived_states
from gated.shell.log.following import fed
from gated.shell.log.open import open_log
from gated.shell.policies import read_policy
from gated.units import some

SHOWN = 50


class Flips(Struct):
    """Recorded verdicts on which two policies differ, and how many there are that one of the two cannot decide again."""

    pairs: list[tuple[Compared, Compared]] = []
    not_replayable: int = 0


def diff(
    old: Annotated[Path, typer.Argument(help="A policy file, or a folder of them.", metavar="OLD")],
    new: Annotated[Path, typer.Argument(help="Another one.", metavar="NEW")],
    log_: LogOption = None,
    data: Folder = None,
    fail_on: Annotated[bool, typer.Option("--fail-on", help="Exit status 1 where a recorded call flips.")] = False,
    keys: Keys = None,
    json_: Json = False,
) -> None:
    """Say what two policies differ in; with --log or --data, which calls of the log the two decide otherwise.

    Verdicts for which a rule of one of the two would have to read what was redacted, or what nobody looked at then, are not
    replayable, and counted as such.
    """
    log = log_of(log_, data) if log_ is not None or data is not None else None

    async def work() -> tuple[Policy, Policy, Flips]:
        before, after = read_policy(old), read_policy(new)
        return before, after, await _flips(log, before, after, keys) if log else Flips()

    before, after, flips = run_async(work)
    found = differences(before, after)
    if json_:
        said = {"old": before.digest, "new": after.digest, "differences": found}
        flipped = [_plain(*pair) for pair in flips.pairs]
        say_json({**said, "flips": flipped, "not_replayable": flips.not_replayable})
    else:
        _print(found, flips, log)
    if fail_on and flips.pairs:
        raise typer.Exit(NO)


async def _flips(log: str, before: Policy, after: Policy, keys: Path | None) -> Flips:
    """Each verdict decided on the history as it was recorded."""
    found = Flips()
    async with open_log(log) as opened:
        begun, vault = await archived_states(opened), vault_of(log, keys)
        one, other = WhatIf(before, begun, vault), WhatIf(after, begun, vault)

        def feed(record: Record) -> Iterable[tuple[Compared, Compared]]:
            return zip(one.feed(record), other.feed(record), strict=True)

        async for pairs in fed(opened, progressed(opened, "deciding"), feed):
            for a, b in pairs:
                found.not_replayable += "not_replayable" in (a.outcome, b.outcome)
                if _says(a) != _says(b):
                    found.pairs.append((a, b))
    return found


def _says(found: Compared) -> tuple[str, str]:
    if found.what == "approval":
        return found.outcome, ""
    return ("", found.derived.decision) if found.derived is not None else (found.outcome, "")


def _plain(a: Compared, b: Compared) -> dict[str, Any]:
    head = {key: getattr(a, key) for key in ("what", "thread", "run", "seq", "call", "tool", "agent")}
    return {**head, "old": a.derived, "new": b.derived, "why": b.why or a.why}


def _print(found: tuple[Differing, ...], flips: Flips, log: str | None) -> None:
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
    if flips.not_replayable:
        blind = some(flips.not_replayable, "recorded verdict")
        say(f"[yellow]{blind} not replayable[/]: a rule of one of the two would have to read what the log does not hold")
    if not flips.pairs:
        say("[green]no recorded call flips[/]" if not flips.not_replayable else "[green]no other recorded call flips[/]")
        return
    say(f"[red]{some(len(flips.pairs), 'recorded verdict')} flip{'s' if len(flips.pairs) == 1 else ''}[/]")
    table(("run", "call", "tool", "old", "new", "why"), (_row(a, b) for a, b in flips.pairs[:SHOWN]))
    if len(flips.pairs) > SHOWN:
        say(f"and {len(flips.pairs) - SHOWN} more: --json lists them all")


def _row(a: Compared, b: Compared) -> tuple[object, ...]:
    old, new = (_word(side) for side in (a, b))
    why = b.why or (b.derived.reason if b.derived and b.derived.reason else a.derived.reason if a.derived else "")
    return a.run, a.call, a.tool, old, new, short(why or "", 90)


def _word(found: Compared) -> str:
    return found.outcome if found.what == "approval" or found.derived is None else found.derived.decision


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return short(text, 120)
