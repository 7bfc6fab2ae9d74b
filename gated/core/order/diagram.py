"""A machine drawn from the table that decides: Mermaid text, and an SVG that needs nothing else.

The SVG is laid out in columns, by the calls that it takes to reach a state. What leads one column on is drawn between the
columns, what leads back (or further) in lanes below, what stays as a loop above its state: so no label covers another.
Widths are reckoned from a monospaced font.
"""

from __future__ import annotations

from collections.abc import Collection
from html import escape
from typing import Final, NamedTuple

from gated.core.order.lint import distances
from gated.core.order.machines import Machine, Transition
from gated.core.order.templates import escape_text

CHAR: Final = 6.7  # px, of the font below
LINE: Final = 14
BOX: Final = 34  # the least height of a state
TRACK: Final = 9  # between parallel lines
LONGEST: Final = 44  # characters of a label

_NO_XML: Final = {0xFFFE: "?", 0xFFFF: "?"}
_ENTITIES: Final = {ord(char): f"#{ord(char)};" for char in "#;:<>{}%"}


class Edge(NamedTuple):
    source: str
    target: str
    labels: tuple[str, ...]


def edges(machine: Machine) -> list[Edge]:
    """Every move that can be made, any state written out; what makes the same move is one edge."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for transition in machine.transitions:
        for state in machine.states:
            listed = transition.lists(state)
            if listed or transition.action == "ask":
                moves = [(transition.to, _when(transition))]
                if machine.entry.on_unmatched is not None:
                    moves.append((machine.entry.on_unmatched, ["otherwise"]))
                for target, when in moves:
                    notes = ", ".join(when if listed else ["approved", *when])
                    label = f"{transition.on.text} [{notes}]" if notes else transition.on.text
                    found.setdefault((state, target), {})[label] = None
    return [Edge(source, target, tuple(labels)) for (source, target), labels in found.items()]


def _when(transition: Transition) -> list[str]:
    when: list[str] = [] if transition.status == "success" else [transition.status]
    when += [f"content ~ {transition.content.text}"] if transition.content is not None else []
    when += [transition.facts.text] if transition.facts is not None else []
    return when


def _clean(text: str, limit: int = 200) -> str:
    text = escape_text(text).translate(_NO_XML)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _about(machine: Machine) -> str:
    instances = f"one instance per {machine.key.text}" if machine.key.text else "one instance"
    return f"{instances} and {machine.scope}" + (", only observed" if machine.observed else "")


# --- Mermaid ---------------------------------------------------------------------------------------------------------


def mermaid(machine: Machine) -> str:
    """A `stateDiagram-v2`."""
    names = {state: f"s{index}" for index, state in enumerate(machine.states)}
    lines = ["stateDiagram-v2"]
    quoted = [(_entities(state).replace('"', "#34;"), name) for state, name in names.items()]
    lines += [f'    state "{text}" as {name}' for text, name in quoted]
    lines.append(f"    [*] --> {names[machine.initial]}")
    for edge in edges(machine):
        lines += [f"    {names[edge.source]} --> {names[edge.target]}: {_entities(label)}" for label in edge.labels]
    lines += [f"    {name} --> [*]" for state, name in names.items() if state in machine.terminal]
    lines.append(f"    note right of {names[machine.initial]}: {_entities(_about(machine))}")
    return "\n".join(lines) + "\n"


def _entities(text: str) -> str:
    return _clean(text).translate(_ENTITIES)


# --- SVG -------------------------------------------------------------------------------------------------------------


class _Box:
    """A state: its column and place, and the edges at its sides. `inner` is its width, `over` the height of what stays."""

    def __init__(self, state: str, column: int, stays: tuple[str, ...]) -> None:
        self.state, self.column, self.stays = state, column, stays
        self.name = _clean(state, LONGEST)
        self.inner = max(70.0, _width((self.name,)) + 28)
        self.width = max(self.inner, _width(stays) + 8)
        self.over = LINE * len(stays) + 22 if stays else 0
        self.out: list[Edge] = []
        self.into: list[Edge] = []
        self.x = self.y = 0.0  # of the middle

    @property
    def height(self) -> float:
        return max(BOX, TRACK * (1 + max(len(self.out), len(self.into))))

    def leaves(self, edge: Edge) -> tuple[float, float]:
        return self.x + self.inner / 2, self._port(self.out.index(edge), len(self.out))

    def enters(self, edge: Edge) -> tuple[float, float]:
        return self.x - self.inner / 2, self._port(self.into.index(edge), len(self.into))

    def _port(self, index: int, of: int) -> float:
        return self.y + (index - (of - 1) / 2) * TRACK


def _width(labels: tuple[str, ...]) -> float:
    return max((len(label) for label in labels), default=0) * CHAR


class _Drawing:
    def __init__(self, machine: Machine, inside: str = "", now: Collection[str] = ()) -> None:
        self.machine, self.inside, self.now = machine, inside, now
        self.parts: list[str] = []
        drawn = [Edge(e.source, e.target, tuple(_clean(label, LONGEST) for label in e.labels)) for e in edges(machine)]
        self.boxes = _boxes(machine, drawn)
        self.forward = [e for e in drawn if self._step(e) == 1]
        self.lanes = [e for e in drawn if self._step(e) != 1 and e.source != e.target]
        for edge in (*self.forward, *self.lanes):
            self.boxes[edge.source].out.append(edge)
            self.boxes[edge.target].into.append(edge)
        self.columns = 1 + max(box.column for box in self.boxes.values())
        self.width = self._place_columns()
        self.bottom = self._place_rows()
        for box in self.boxes.values():  # sides in the order of the other ends, lanes lowest, so that fewer lines cross
            box.out.sort(key=lambda edge: (self._step(edge) != 1, self.boxes[edge.target].y))
            box.into.sort(key=lambda edge: (self._step(edge) != 1, self.boxes[edge.source].y))

    def _step(self, edge: Edge) -> int:
        return self.boxes[edge.target].column - self.boxes[edge.source].column

    def _column(self, column: int) -> list[_Box]:
        return [box for box in self.boxes.values() if box.column == column]

    def _place_columns(self) -> float:
        x = 44.0
        for column in range(self.columns):
            x += TRACK * sum(self.boxes[e.target].column == column for e in self.lanes)
            width = max(box.width for box in self._column(column))
            for box in self._column(column):
                box.x = x + width / 2
            leaving = [e for e in self.forward if self.boxes[e.source].column == column]
            tracks = TRACK * sum(self.boxes[e.source].column == column for e in self.lanes)
            x += width + tracks + 60 + max((_width(e.labels) for e in leaving), default=0)
        return x

    def _place_rows(self) -> float:
        bottom = 0.0
        for column in range(self.columns):
            y = 48.0
            for box in self._column(column):
                box.y = y + box.over + box.height / 2
                y += box.over + box.height + 30
            bottom = max(bottom, y)
        return bottom

    def draw(self) -> str:
        for column in range(self.columns):
            self._draw_forward([e for e in self.forward if self.boxes[e.source].column == column])
        self._draw_lanes()
        for box in self.boxes.values():
            self._draw_box(box)
        height = self.bottom + 12
        self.width = max(self.width, 16 + CHAR * len(self._title()))
        arrow = f"a{self.inside}"
        style = (
            "svg{color:#1f2933;background:#fff}@media(prefers-color-scheme:dark){svg{color:#e4e7eb;background:#14181d}}"
            ".n{fill:none;stroke:currentColor;stroke-width:1.2}.t{fill:currentColor}.q{opacity:.85}"
        )
        sheet = "" if self.inside else f"<style>{style}</style>"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {self.width:.0f} {height:.0f}" '
            f'width="{self.width:.0f}" height="{height:.0f}" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="11">'
            f"<title>{escape(_clean(self.machine.name))}</title>{sheet}"
            f'<defs><marker id="{arrow}" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path class="t" d="M0 0L8 4L0 8z"/></marker></defs>'
            f"{_text(12, 22, (self._title(),), 'start')}{''.join(self.parts)}</svg>\n"
        )

    def _title(self) -> str:
        return _clean(f"{self.machine.name}: {_about(self.machine)}")

    def _draw_forward(self, leaving: list[Edge]) -> None:
        """Curves to a shelf that bears the label, and on; shelves stand one above the other."""
        ports = {edge: (*self.boxes[edge.source].leaves(edge), *self.boxes[edge.target].enters(edge)) for edge in leaving}
        free, widest = 40.0, max((_width(edge.labels) for edge in leaving), default=0)
        for edge in sorted(leaving, key=lambda edge: ports[edge][1] + ports[edge][3]):
            x1, y1, x2, y2 = ports[edge]
            shelf = max((y1 + y2) / 2, free + LINE * len(edge.labels))
            free = shelf + 6
            self.bottom = max(self.bottom, shelf + 16)
            end = self._left(edge) - 20
            start = end - widest
            path = f"M{x1:.1f} {y1:.1f}C{start - 8:.1f} {y1:.1f} {x1 + 8:.1f} {shelf:.1f} {start:.1f} {shelf:.1f}"
            path += f"H{end:.1f}C{x2 - 6:.1f} {shelf:.1f} {end + 6:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
            self._line(path)
            self.parts.append(_text(start, shelf - 4, edge.labels, "start"))

    def _draw_lanes(self) -> None:
        """Out to the right, down to a lane of its own, along it, and up into the left of the target."""
        y = self.bottom
        taken: dict[tuple[str, int], int] = {}
        for edge in self.lanes:
            source, target = self.boxes[edge.source], self.boxes[edge.target]
            (x1, y1), (x2, y2) = source.leaves(edge), target.enters(edge)
            y += LINE * len(edge.labels) + 8
            right = source.x + self._half(source.column) + TRACK * _next(taken, "out", source.column)
            left = target.x - self._half(target.column) - TRACK * _next(taken, "in", target.column)
            self._line(_cornered([(x1, y1), (right, y1), (right, y), (left, y), (left, y2), (x2, y2)]))
            middle = max((left + right) / 2, _width(edge.labels) / 2 + 6)
            self.width = max(self.width, middle + _width(edge.labels) / 2 + 6)
            self.parts.append(_text(middle, y - 4, edge.labels))
        self.bottom = y + 4

    def _left(self, edge: Edge) -> float:
        """Where the lines that come out of lanes begin, left of the target's column."""
        target = self.boxes[edge.target]
        return (
            target.x - self._half(target.column) - TRACK * sum(self.boxes[e.target].column == target.column for e in self.lanes)
        )

    def _half(self, column: int) -> float:
        return max(box.width for box in self._column(column)) / 2

    def _draw_box(self, box: _Box) -> None:
        x, y, width, height = box.x - box.inner / 2, box.y - box.height / 2, box.inner, box.height
        if box.state == self.machine.initial:
            self.parts.append(f'<circle class="t" cx="{x - 30:.1f}" cy="{y + 6:.1f}" r="4"/>')
            self._line(f"M{x - 26:.1f} {y + 6:.1f}H{x:.1f}")
        self.parts.append(_rect(x, y, width, height, 9, "n now" if box.state in self.now else "n"))
        if box.state in self.machine.terminal:
            self.parts.append(_rect(x + 3, y + 3, width - 6, height - 6, 6))
        self.parts.append(_text(box.x, box.y + 4, (box.name,)))
        if box.stays:
            self._line(
                f"M{box.x - 14:.1f} {y:.1f}C{box.x - 22:.1f} {y - 24:.1f} {box.x + 22:.1f} {y - 24:.1f} {box.x + 14:.1f} {y:.1f}"
            )
            self.parts.append(_text(box.x, y - 22, box.stays))

    def _line(self, path: str) -> None:
        self.parts.append(f'<path class="n" d="{path}" marker-end="url(#a{self.inside})"/>')


def _next(taken: dict[tuple[str, int], int], side: str, column: int) -> int:
    taken[side, column] = taken.get((side, column), 0) + 1
    return taken[side, column]


def _boxes(machine: Machine, drawn: list[Edge]) -> dict[str, _Box]:
    """Columns by distance; what cannot be reached stands last."""
    calls = distances(machine)
    last = 1 + max(calls.values())
    stays = {edge.source: edge.labels for edge in drawn if edge.source == edge.target}
    return {state: _Box(state, calls.get(state, last), stays.get(state, ())) for state in machine.states}


def _cornered(points: list[tuple[float, float]], radius: float = 6) -> str:
    """A line of right angles, its corners rounded."""
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x, y), (x1, y1) in zip(points, points[1:], points[2:], strict=False):
        before, after = _short_of(x, y, x0, y0, radius), _short_of(x, y, x1, y1, radius)
        path += f"L{before[0]:.1f} {before[1]:.1f}Q{x:.1f} {y:.1f} {after[0]:.1f} {after[1]:.1f}"
    return path + f"L{points[-1][0]:.1f} {points[-1][1]:.1f}"


def _short_of(x: float, y: float, to_x: float, to_y: float, radius: float) -> tuple[float, float]:
    """From a corner, as far as the radius (or half the way) towards a neighbour."""
    way = abs(to_x - x) + abs(to_y - y)
    share = min(radius, way / 2) / way if way else 0
    return x + (to_x - x) * share, y + (to_y - y) * share


def _rect(x: float, y: float, width: float, height: float, round: int, kind: str = "n") -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{round}"/>'


def _text(x: float, bottom: float, lines: tuple[str, ...], anchor: str = "middle") -> str:
    """Lines of text, the last at `bottom`."""
    top = bottom - LINE * (len(lines) - 1)
    return "".join(
        f'<text class="t q" x="{x:.1f}" y="{top + LINE * row:.1f}" text-anchor="{anchor}">{escape(line)}</text>'
        for row, line in enumerate(lines)
    )


def svg(machine: Machine) -> str:
    """A drawing that stands alone, for light and dark pages."""
    return _Drawing(machine).draw()


def inline_svg(machine: Machine, name: str, now: Collection[str] = ()) -> str:
    """A drawing as a part of a page, which brings the style; `name` is an id on that page, `now` the states to mark."""
    return _Drawing(machine, name, now).draw()
