"""`gated runs timeline`: one run against the clock, with the curves of its barriers."""

from __future__ import annotations

from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from gated.cli.output import colour, console, draw, on_one_line, say, say_beneath, told_apart
from gated.cli.plots import sparkline
from gated.core.curves import Curve
from gated.core.timeline import Span, Timeline
from gated.units import rfc3339

WIDTH: Final = 40  # characters of the clock at most
BESIDE: Final = 78  # characters that the other columns want
CALL: Final = 12  # characters that a call's id may take
TOOL: Final = 24
SECOND: Final = 1_000_000


def show(view: dict[str, Any], found: Timeline, curve: Curve | None) -> None:
    """Print a run's time line. `view` is the run as it stands."""
    length = max(1, found.last_at - found.opened_at)
    say(
        f"[bold]run {escape(view['run'])}[/] of {escape(view['agent'])} on thread {escape(view['thread'])}: {view['status']}, "
        f"{_seconds(length)} from {rfc3339(found.opened_at)[:19]}"
    )
    width = max(12, min(WIDTH, console.width - BESIDE))
    say("[dim]░ waits for people  █ runs  · asked or denied[/]")
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("at", "call", "tool", f"{'0':<{width - 8}}{_seconds(length):>8}", "verdict", "outcome"):
        drawn.add_column(title, no_wrap=title not in ("verdict", "outcome"), overflow="fold")
    calls = told_apart((span.call for span in found.spans), CALL)
    tools = told_apart((span.tool for span in found.spans), TOOL)
    for span in found.spans:
        drawn.add_row(*_row(span, found, length, width, calls[span.call], tools[span.tool]))
    draw(drawn)
    for mark in found.marks:
        say_beneath(f"[dim]{f'+{_seconds(mark.at - found.opened_at)}':>8}[/]", escape(mark.what))
    if curve is not None and curve.samples:
        names = list(dict.fromkeys(name for sample in curve.samples for name in sample.values))
        for name in names:
            values = [sample.values[name] for sample in curve.samples if name in sample.values]
            say(f"barrier {escape(name):<12} {sparkline(values, width)}  now {values[-1]:g}, least {min(values):g}")


def _row(span: Span, found: Timeline, length: int, width: int, call: str, tool: str) -> tuple[str, ...]:
    verdict = f"[{colour(span.decision)}]{span.decision}[/]"
    if span.code and span.decision != "allow":
        verdict += f" {escape(span.code)}"
    outcome = span.status or ("" if span.decision != "allow" else "in flight")
    if span.status and span.admitted_at is not None and span.ended_at is not None:
        outcome += f" {_seconds(span.ended_at - span.admitted_at)}"
    if span.moves:
        outcome += f" [dim]{escape(on_one_line(', '.join(span.moves)))}[/]"
    at = f"+{_seconds(span.asked_at - found.opened_at)}"
    return at, escape(call), escape(tool), _bar(span, found, length, width), verdict, outcome


def _bar(span: Span, found: Timeline, length: int, width: int) -> str:
    def column(at: int) -> int:
        return min(width - 1, width * (at - found.opened_at) // (length + 1))

    asked = column(span.asked_at)
    cells = [" "] * width
    cells[asked] = "·"
    still = found.last_at if span.ended_at is None else span.ended_at
    until = still if span.admitted_at is None else span.admitted_at
    if span.ticket is not None:
        cells[asked : column(until) + 1] = "░" * (column(until) + 1 - asked)
    if span.admitted_at is not None:
        start, end = column(span.admitted_at), column(still)
        cells[start : end + 1] = "█" * (end + 1 - start)
    return "".join(cells)


def _seconds(us: int) -> str:
    """A duration in what people read: ms under a second, then seconds, minutes, hours."""
    if us < SECOND:
        return f"{us / 1000:.3g}ms"
    seconds = us / SECOND
    if seconds < 120:
        return f"{seconds:.3g}s"
    return f"{seconds / 60:.3g}m" if seconds < 7200 else f"{seconds / 3600:.3g}h"
