"""`gated what-if`: a log under another policy: which verdicts would have been others."""

from __future__ import annotations

from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from gated.cli.help import Command, single
from gated.cli.logs import threads_of
from gated.cli.output import NO, Json, Keys, run_async, say, say_json, short, table
from gated.cli.progress import progressed
from gated.cli.subjects import vault_of
from gated.cli.which_log import Folder, LogPath, log_of
from gated.core.whatif import Compared, Tally, WhatIf
from gated.events import Record
from gated.shell.log.anchors import archived_states
from gated.shell.log.following import fed
from gated.shell.log.open import open_log
from gated.shell.policies import read_policy
from gated.units import some

app = single()

LISTED = 10_000  # verdicts that are not as recorded, in the JSON
SHOWN = 50  # in the table


class FailOn(StrEnum):
    flips = "flips"
    void = "void"
    not_replayable = "not-replayable"


class _Command(Command):
    """`--fail-on` alone means flips."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        told: list[str] = []
        for word, following in zip_longest(args, args[1:]):
            told += [word, FailOn.flips] if word == "--fail-on" and following not in {*FailOn, ""} else [word]
        return super().parse_args(ctx, told)


@app.command("what-if", cls=_Command, epilog="Example: gated what-if --policy new.yaml --fail-on flips")
def what_if(
    policy: Annotated[Path, typer.Option("--policy", "-p", help="The policy on trial: a file, or a folder of them.")],
    log_: LogPath = None,
    data: Folder = None,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    fail_on: Annotated[
        list[FailOn] | None,
        typer.Option("--fail-on", help="Exit status 1 where there is one of these, flips unless said; may be given again."),
    ] = None,
    keys: Keys = None,
    json_: Json = False,
) -> None:
    """Decide every recorded call under another policy, on the history as it was: unchanged, flipped, or not replayable.

    Approvals that would not hold are void. A call is not replayable where a rule of the policy would have to read what was
    redacted. Nothing is written.
    """
    log = log_of(log_, data)

    async def work() -> tuple[Tally, list[Compared]]:
        tally, changed = Tally(), list[Compared]()
        async with open_log(log) as opened:
            whatif = WhatIf(read_policy(policy), await archived_states(opened), vault_of(log, keys))
            threads = await threads_of(opened, run)

            def feed(record: Record) -> tuple[Compared, ...]:
                if threads is None or record.thread in threads:
                    return whatif.feed(record)
                whatif.pass_by(record)
                return ()

            async for compared in fed(opened, progressed(opened, "deciding"), feed):
                for found in compared:
                    if run is None or found.run == run:
                        tally.add(found)
                        if found.outcome != "unchanged" and len(changed) < LISTED:
                            changed.append(found)
        return tally, changed

    tally, changed = run_async(work)
    if json_:
        say_json({"ok": not (tally.flipped or tally.void), **_counts(tally), "verdicts": changed})
    else:
        _print(tally, changed)
    counts = {FailOn.flips: tally.flipped, FailOn.void: tally.void, FailOn.not_replayable: tally.not_replayable}
    if any(counts[kind] for kind in fail_on or ()):
        raise typer.Exit(NO)


def _counts(tally: Tally) -> dict[str, int]:
    return {name: getattr(tally, name) for name in tally.__struct_fields__}


def _print(tally: Tally, changed: list[Compared]) -> None:
    say(
        f"{some(tally.unchanged, 'verdict')} [green]unchanged[/], {tally.flipped} [red]flipped[/], "
        f"{some(tally.void, 'approval')} [red]void[/], {tally.not_replayable} [yellow]not replayable[/]"
    )
    if not changed:
        return
    table(("run", "call", "tool", "what", "recorded", "would be", "why"), map(_row, changed[:SHOWN]))
    total = tally.flipped + tally.void + tally.not_replayable
    if total > SHOWN:
        say(f"and {total - SHOWN} more: see --json")


def _row(found: Compared) -> tuple[object, ...]:
    derived = found.derived
    would = found.outcome.replace("_", " ") if derived is None else derived.decision
    why = found.why or ("" if derived is None else f"{derived.code or ''} {derived.reason or ''}".strip())
    return found.run, found.call, found.tool, found.what, found.recorded.decision, would, short(why, 90)
