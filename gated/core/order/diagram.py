"""A machine drawn from the table that decides: Mermaid text, and an SVG that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import Final

from gated.core.order.machines import Machine

WIDTH: Final = 190  # px between columns
HEIGHT: Final = 84  # px between rows


def edges(machine: Machine) -> list[tuple[str, str, str]]:
    """(from, to, label) of every transition; any state is written out."""
    states = ordered(machine)
    found: list[tuple[str, str, str]] = []
    for transition in machine.transitions:
        for state in states:
            if transition.lists(state):
                when = "" if transition.status == "success" else f" [{transition.status}]"
                found.append((state, transition.to, transition.on.text + when))
    return found


def ordered(machine: Machine) -> list[str]:
    """The initial state first, then the others as they are named."""
    named = [machine.initial, *(t.to for t in machine.transitions), *machine.entry.terminal]
    return list(dict.fromkeys([*named, *([machine.entry.on_unmatched] if machine.entry.on_unmatched else [])]))


def mermaid(machine: Machine) -> str:
    states = {state: f"s{index}" for index, state in enumerate(ordered(machine))}
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{state}" as {name}' for state, name in states.items()]
    lines.append(f"    [*] --> {states[machine.initial]}")
    lines += [f"    {states[a]} --> {states[b]}: {label}" for a, b, label in edges(machine)]
    lines += [f"    {states[state]} --> [*]" for state in machine.entry.terminal]
    return "\n".join(lines) + "\n"


def svg(machine: Machine) -> str:
    """States in a row in the order of their first mention, transitions as arcs above (forward) and below (back)."""
    states = ordered(machine)
    place = {state: 40 + index * WIDTH for index, state in enumerate(states)}
    arcs: dict[tuple[str, str], list[str]] = {}
    for source, target, label in edges(machine):
        arcs.setdefault((source, target), []).append(label)
    rise = 50 + 22 * max((abs(states.index(a) - states.index(b)) for a, b in arcs), default=1)
    middle = rise + 14 * max((len(labels) for labels in arcs.values()), default=1) + 20
    parts = [_arc(place, middle, pair, labels, states) for pair, labels in arcs.items()]
    parts += [_state(machine, place[state], middle, state) for state in states]
    width, height = place[states[-1]] + WIDTH, 2 * middle
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        "<style>svg{color:#1f2933;background:#fff}@media(prefers-color-scheme:dark){svg{color:#e4e7eb;background:#14181d}}"
        ".n{fill:none;stroke:currentColor}.t{fill:currentColor}.s{font-size:11px;opacity:.8}</style>"
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="t" d="M0 0L8 4L0 8z"/></marker></defs>'
        f"<title>{escape(machine.name)}</title>{''.join(parts)}</svg>\n"
    )


def _state(machine: Machine, x: int, middle: int, state: str) -> str:
    double = (
        f'<rect class="n" x="{x - 3}" y="{middle - 19}" width="126" height="38" rx="12"/>'
        if state in machine.entry.terminal
        else ""
    )
    start = f'<path class="n" d="M{x - 32} {middle}H{x - 4}" marker-end="url(#a)"/>' if state == machine.initial else ""
    return (
        f'{start}{double}<rect class="n" x="{x}" y="{middle - 16}" width="120" height="32" rx="10"/>'
        f'<text class="t" x="{x + 60}" y="{middle + 4}" text-anchor="middle">{escape(state[:18])}</text>'
    )


def _arc(place: dict[str, int], middle: int, pair: tuple[str, str], labels: list[str], states: list[str]) -> str:
    (source, target), x1, x2 = pair, place[pair[0]] + 60, place[pair[1]] + 60
    back = states.index(target) <= states.index(source)
    side = 1 if back else -1
    start, reach = middle + side * 16, 34 + 22 * abs(states.index(target) - states.index(source))
    if source == target:
        path = f"M{x1 - 18} {start}C{x1 - 30} {start + 46} {x1 + 30} {start + 46} {x1 + 18} {start}"
        top, reach = start + 46, 46
    else:
        path = f"M{x1} {start}C{x1} {start + side * reach} {x2} {start + side * reach} {x2} {start}"
        top = start + side * (reach * 3 // 4 + 4)
    shown = labels if side > 0 else labels[::-1]
    texts = "".join(
        f'<text class="t s" x="{(x1 + x2) // 2}" y="{top + side * 13 * row + (9 if side > 0 else -2)}" text-anchor="middle">'
        f"{escape(label[:34])}</text>"
        for row, label in enumerate(shown)
    )
    return f'<path class="n" d="{path}" marker-end="url(#a)"/>{texts}'
