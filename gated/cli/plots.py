"""Curves as pictures: a line of block characters for a terminal, and an SVG of small panels, one for each barrier.

In both a value below 0, the edge of the safe set, is red and cannot be overlooked: a line that is narrower than its data
keeps the least value of what it leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Final

from msgspec import Struct

BLOCKS: Final = "▁▂▃▄▅▆▇█"
WIDTH: Final = 24  # characters of a sparkline
COLOURS: Final = ("#4477aa", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988", "#bbbbbb")
DRAWN: Final = 200  # curves in one panel: those that came closest to the edge
POINTS: Final = 400  # of one curve

_PANEL_W, _PANEL_H, _LEFT, _TOP, _GAP, _COLUMNS = 400, 180, 52, 64, 34, 2


class Line(Struct, frozen=True):
    """One run in a panel."""

    name: str
    values: Sequence[float]


class Panel(Struct, frozen=True):
    title: str
    lines: Sequence[Line]


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Rich markup: from 0 (the lowest block) to the greatest value; below 0 a red `▁`."""
    kept = _thinned(values, width)
    top = max((v for v in kept if v > 0), default=1.0)
    cells = (BLOCKS[min(7, int(8 * v / top))] if v >= 0 else "[bold red]▁[/]" for v in kept)
    return "".join(cells)


def _thinned(values: Sequence[float], width: int) -> list[float]:
    """At most `width` values, each the least of those it stands for."""
    return [value for _, value in _points(values, width)]


def _points(values: Sequence[float], most: int) -> list[tuple[int, float]]:
    """At most so many steps with their values: of every stretch the one with the least."""
    if len(values) <= most:
        return list(enumerate(values))
    edges = [round(i * len(values) / most) for i in range(most + 1)]
    return [min(((step, values[step]) for step in range(a, b)), key=lambda point: point[1]) for a, b in pairwise(edges)]


def svg(title: str, panels: Sequence[Panel]) -> str:
    """A picture of all panels, readable on light and dark ground."""
    rows = -(-len(panels) // _COLUMNS)
    width = _COLUMNS * (_PANEL_W + _GAP) + _GAP
    height = _TOP + rows * (_PANEL_H + _GAP) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_GAP}" y="26" font-size="15" fill="#222222">{escape(title)}</text>',
    ]
    names = dict.fromkeys(line.name for panel in panels for line in panel.lines)
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    parts += _legend(colours)
    for number, panel in enumerate(panels):
        x = _GAP + (number % _COLUMNS) * (_PANEL_W + _GAP)
        y = _TOP + (number // _COLUMNS) * (_PANEL_H + _GAP)
        parts += _panel(panel, x, y, colours)
    return "\n".join([*parts, "</svg>", ""])


def _legend(colours: Mapping[str, str]) -> list[str]:
    """Which colour is which run, where there are few."""
    if not 1 < len(colours) <= len(COLOURS):
        return []
    parts, x = [], _GAP
    for name, colour in colours.items():
        parts.append(f'<rect x="{x}" y="39" width="14" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="45" fill="#555555">{escape(name[:12])}</text>')
        x += 34 + 7 * min(12, len(name))
    return parts


def _panel(panel: Panel, x: int, y: int, colours: Mapping[str, str]) -> list[str]:
    values = [v for line in panel.lines for v in line.values]
    low, high = min([0.0, *values]), max([0.0, *values])
    if low == high:
        high = low + 1.0
    pad = (high - low) * 0.08
    low, high = low - (pad if low < 0 else 0), high + pad
    longest = max((len(line.values) for line in panel.lines), default=1)
    left, right, top, bottom = x + _LEFT, x + _PANEL_W, y + 18, y + 18 + _PANEL_H - 34

    def px(step: int) -> float:
        return left + (right - left) * (step / max(1, longest - 1))

    def py(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / (high - low)

    edge = py(0.0)
    parts = [
        f'<text x="{x}" y="{y + 8}" font-weight="600" fill="#222222">{escape(panel.title)}</text>',
        f'<rect x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" fill="#f7f7f7"/>',
        f'<rect x="{left}" y="{edge:.1f}" width="{right - left}" height="{max(0.0, bottom - edge):.1f}" fill="#fde2e2"/>',
        f'<line x1="{left}" y1="{edge:.1f}" x2="{right}" y2="{edge:.1f}" stroke="#d62728" stroke-dasharray="4 3"/>',
    ]
    for mark in sorted({0.0, min([0.0, *values]), max([0.0, *values])}):
        parts.append(f'<text x="{left - 6}" y="{py(mark) + 4:.1f}" text-anchor="end" fill="#555555">{mark:.3g}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 15}" text-anchor="end" fill="#555555">step {longest - 1}</text>')
    parts.append(f'<text x="{left}" y="{bottom + 15}" fill="#555555">0</text>')
    nearest = sorted(panel.lines, key=lambda line: min(line.values))[:DRAWN]
    for line in reversed(nearest):  # the one that came closest on top
        points = " ".join(f"{px(step):.1f},{py(value):.1f}" for step, value in _points(line.values, POINTS))
        parts.append(
            f'<polyline fill="none" stroke="{colours[line.name]}" stroke-width="1.6" stroke-linejoin="round" points="{points}">'
            f"<title>{escape(line.name)}</title></polyline>"
        )
    return parts + _least(panel, px, py, left, right)


def _least(panel: Panel, px: Callable[[int], float], py: Callable[[float], float], left: int, right: int) -> list[str]:
    """A mark where the panel's curves came closest to the edge."""
    found = [(value, step, line.name) for line in panel.lines for step, value in enumerate(line.values)]
    if not found:
        return []
    value, step, name = min(found, key=lambda item: item[:2])
    x, y = px(step), py(value)
    anchor, shift = ("end", -8) if x > (left + right) / 2 else ("start", 8)
    halo = 'paint-order="stroke" stroke="#f7f7f7" stroke-width="4"'
    text = f"{value:.3g} in {escape(name)}"
    said = f'<text x="{x + shift:.1f}" y="{y - 6:.1f}" text-anchor="{anchor}" fill="#222222" {halo}>{text}</text>'
    return [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="none" stroke="#222222" stroke-width="1.5"/>', said]
