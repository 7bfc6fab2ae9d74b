"""`gated policy barriers`: how near recorded runs came to the edges of their safe set, and what the condition would refuse.

It takes no `--keys`, as commands do that decide again: barriers read tools, numbers and digests of the decisions, and tasks as
they are recorded, never arguments. What was redacted, or is kept encrypted, changes no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from gated.cli.output import NO, Json, draw, fail, run_async, say, say_json, writing
from gated.cli.plots import DRAWN, Line, Panel, sparkline, svg
from gated.cli.progress import progressed
from gated.cli.which_log import Folder, LogOption, log_of
from gated.core.curves import Closest, Curve, Recorded, Verified, closest
from gated.events import RunId, ThreadId
from gated.shell.log.anchors import archived_states
from gated.shell.log.following import fed
from gated.shell.log.open import open_log, policies_of
from gated.shell.policies import read_policy
from gated.units import some

SHOWN = 20  # violations in the text
Curves = dict[tuple[ThreadId, RunId], Curve]


def barriers(
    log_: LogOption = None,
    data: Folder = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", "-p", help="Compute this policy's barriers, not those the runs were bound to.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    picture: Annotated[Path | None, typer.Option("--svg", help="Write the curves as an SVG picture.")] = None,
    json_: Json = False,
) -> None:
    """Barrier values over recorded runs: a table, curves, where each came closest to its edge, and forward invariance.

    Exit status 1 where a call that was let in left the safe set, or would under --policy.
    """
    log = log_of(log_, data)

    async def work() -> tuple[Recorded, Verified]:
        other = None if policy is None else read_policy(policy)
        async with open_log(log) as opened:
            recorded, verified = Recorded(await policies_of(opened), other, await archived_states(opened)), Verified()
            async for found in fed(opened, progressed(opened, "reading"), lambda record: list(recorded.feed(record))):
                for asked in found:
                    if run in (None, asked.run) and agent in (None, asked.agent):
                        verified.feed(asked)
            return recorded, verified

    recorded, verified = run_async(work)
    curves: Curves = {k: c for k, c in recorded.curves.items() if run in (None, c.run) and agent in (None, c.agent)}
    if not curves:
        fail(
            "no recorded run fits" + (f": the policy has no agent {_names(recorded.strangers)}" if recorded.strangers else ""), NO
        )
    found = closest(curves)
    if picture is not None:
        with writing():
            picture.write_text(_picture(log, found, curves))
    if json_:
        say_json(_json(found, curves, verified, recorded))
    else:
        _print(found, curves, verified, recorded)
        if picture is not None:
            say(f"wrote {escape(str(picture))}")
    if verified.admitted.violations:
        raise typer.Exit(NO)


def _names(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _values(curve: Curve, barrier: str) -> list[float]:
    return [sample.values[barrier] for sample in curve.samples if barrier in sample.values]


def _print(found: Sequence[Closest], curves: Curves, verified: Verified, recorded: Recorded) -> None:
    columns = ("barrier", "runs", "closest", "in run", "after call", "record", "its curve, from 0")
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for item in found:
        colour = "red" if item.value < 0 else "yellow" if item.value == 0 else "green"
        line = sparkline(_values(curves[(item.thread, item.run)], item.barrier))
        said = (item.barrier, str(item.runs), f"[{colour}]{item.value:g}[/]", item.run, item.call or "the start", str(item.seq))
        drawn.add_row(escape(said[0]), said[1], said[2], *(escape(str(cell)) for cell in said[3:]), line)
    draw(drawn)
    report, asked = verified.admitted.report(), verified.asked.report()
    mark = "[green]forward invariant[/]" if report["forward_invariant"] else "[red]not forward invariant[/]"
    say(f"calls let in: {_counts(report)}: {mark}")
    say(f"calls asked for: {_counts(asked)}")
    for violation in verified.violations[:SHOWN]:
        left = ", ".join(f"{b.barrier} {b.now:g} -> {b.next:g} (at least {b.bound:g})" for b in violation.breaches)
        call = f"{escape(violation.run)} {escape(violation.call)} {escape(violation.tool)}"
        say(f"  {call} [dim]{violation.decision}[/]: {escape(left)}")
    if verified.asked.violations > SHOWN:
        say(f"  … and {verified.asked.violations - SHOWN} more")
    if recorded.strangers:
        say(f"[yellow]left out[/]: the policy has no agent {_names(recorded.strangers)}")


def _counts(report: dict[str, Any]) -> str:
    rate = f"{report['violation_rate']:.1%}"
    return f"{report['total_checks']} checked, {report['violations']} would leave the safe set ({rate})"


def _json(found: Sequence[Closest], curves: Curves, verified: Verified, recorded: Recorded) -> dict[str, Any]:
    return {
        "closest": found,
        "invariance": {"admitted": verified.admitted.report(), "asked": verified.asked.report()},
        "violations": verified.violations,
        "left_out": sorted(recorded.strangers),
        "curves": list(curves.values()),
    }


def _picture(log: str, found: Sequence[Closest], curves: Curves) -> str:
    panels = [
        Panel(item.barrier, [Line(curve.run, values) for curve in curves.values() if (values := _values(curve, item.barrier))])
        for item in found
    ]
    drawn = f" (in each panel the {DRAWN} that came closest)" if len(curves) > DRAWN else ""
    return svg(f"Barriers of {some(len(curves), 'run')} in {Path(log).name}{drawn}: below 0 is outside the safe set", panels)
