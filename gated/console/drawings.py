"""Small drawings as inline SVG, without scripts and without styles of their own: the page's sheet colours them by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

WIDTH: Final = 240
HEIGHT: Final = 64
EDGE: Final = 6
POINTS: Final = 120


def number(value: float) -> str:
    """A barrier's value for people."""
    return f"{value:.4g}"


def curve(name: str, past: Sequence[float], after: float | None = None, *, width: int = WIDTH) -> Markup:
    """A barrier's values so far, the last one now; and what it would be after the call. Below the line it is left."""
    values = _thinned(list(past) or [0.0])
    shown = [*values, after] if after is not None else values
    low, high = min(0.0, *shown), max(0.0, *shown)
    span = (high - low) or 1.0
    right = width - EDGE - (26 if after is not None else 2)
    step = (right - EDGE) / max(1, len(values) - 1)

    def y(value: float) -> float:
        return HEIGHT - EDGE - (value - low) / span * (HEIGHT - 2 * EDGE)

    points = [(EDGE + n * step if len(values) > 1 else right, y(value)) for n, value in enumerate(values)]
    line = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in (points if len(points) > 1 else [(EDGE, points[0][1]), points[0]]))
    words = f"{name}: {number(values[-1])} now" + ("" if after is None else f", {number(after)} after this call")
    parts = [
        Markup('<svg class="curve" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(width, HEIGHT, words),
        Markup('<path class="zero" d="M{} {:.1f}H{}"/>').format(EDGE, y(0), width - EDGE),
        Markup('<path class="past" d="{}"/>').format(line),
        _dot("now", right, y(values[-1]), values[-1]),
    ]
    if after is not None:
        x = width - EDGE - 4
        parts.append(Markup('<path class="then" d="M{:.1f} {:.1f}L{:.1f} {:.1f}"/>').format(right, y(values[-1]), x, y(after)))
        parts.append(_dot("after", x, y(after), after))
    return Markup("").join([*parts, Markup("</svg>")])


def _dot(kind: str, x: float, y: float, value: float) -> Markup:
    left = " left" if value < 0 else ""
    return Markup('<circle class="{}{}" cx="{:.1f}" cy="{:.1f}" r="3.5"/>').format(kind, left, x, y)


def _thinned(values: list[float]) -> list[float]:
    """At most so many points: of each stretch its least, since that is what matters, and the last."""
    if len(values) <= POINTS:
        return values
    size = len(values) / (POINTS - 1)
    return [min(values[int(n * size) : max(int(n * size) + 1, int((n + 1) * size))]) for n in range(POINTS - 1)] + values[-1:]
