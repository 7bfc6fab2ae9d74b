"""What `gated tickets watch` shows and what its keys do, without a terminal and without a gate: keys in, wishes and a screen out.

INVARIANT: a ticket is approved only from its own page, and only once its last line was on the screen.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text

from gated.cli import ticket_text
from gated.ticket_views import in_order
from gated.units import some

Line = dict[str, Any]

LIST_HELP: Final = "↑↓ choose   enter show   a approve   r reject   q quit"
PAGE_HELP: Final = "a approve   r reject   ↑↓ pgdn end scroll   esc back   q quit"
NOTE_HELP: Final = "enter reject   esc go back"
_CONSOLE: Final = Console()  # wrapping needs one; nothing is printed on it


@lru_cache(maxsize=2000)
def _wrapped(line: str, width: int) -> tuple[Text, ...]:
    """A line of markup as it is laid out on a screen: long ones are costly, and drawn every second."""
    text = Text.from_markup(line)
    return tuple(text.wrap(_CONSOLE, width)) if text.plain else (text,)


class Wish(NamedTuple):
    """What the person wants done: a ticket opened in full, answered, or the end."""

    kind: Literal["open", "approve", "reject", "quit"]
    line: Line
    note: str = ""


class Board:
    """`lines` are the open tickets, `page` the one that is shown in full, `note` what is being typed."""

    def __init__(self, by: str) -> None:
        self.by = by
        self.lines: dict[str, Line] = {}
        self.page: Line | None = None
        self.note: str | None = None
        self.message = ""
        self.away = False  # no connection: what is shown may be of before
        self.chosen: str | None = None
        self.scroll = 0
        self.unseen = 0  # lines of the page that were not on the screen yet
        self._width, self._rows = 80, 24

    # --- what waits --------------------------------------------------------------------------------------------------

    def put(self, line: Line) -> None:
        lines = {**self.lines, line["ticket"]: line}
        self.lines = {line["ticket"]: line for line in in_order(lines.values())}

    def drop(self, ticket: str, why: str) -> None:
        """A ticket that is no longer open; whoever looks at it is told."""
        order = list(self.lines)
        if self.lines.pop(ticket, None) is None:
            return
        if self.chosen == ticket:
            at = order.index(ticket)
            self.chosen = next(iter([*order[at + 1 :], *reversed(order[:at])]), None)
        if self.page is not None and self.page["ticket"] == ticket:
            self.page, self.note = None, None
        self.message = f"{ticket} {why}"

    def selected(self) -> Line | None:
        if self.chosen not in self.lines:
            self.chosen = next(iter(self.lines), None)
        return None if self.chosen is None else self.lines[self.chosen]

    # --- keys --------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> Wish | None:
        """`key` is a character, or `up`, `down`, `pageup`, `pagedown`, `enter`, `escape`, `backspace`."""
        if self.note is not None:
            return self._type(key)
        self.message = ""
        if key == "q":
            return Wish("quit", {})
        return self._on_list(key) if self.page is None else self._on_page(key, self.page)

    def _on_list(self, key: str) -> Wish | None:
        line = self.selected()
        if line is None:
            return None
        order = list(self.lines)
        at = order.index(line["ticket"])
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -10, "pagedown": 10, "home": -len(order), "end": len(order)}
        if key in steps:
            self.chosen = order[min(max(at + steps[key], 0), len(order) - 1)]
        elif key in ("enter", "a"):
            return Wish("open", line)
        elif key == "r":
            self.note = ""
        return None

    def _on_page(self, key: str, page: Line) -> Wish | None:
        page_down = self._rows - 6
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page_down, "pagedown": page_down, " ": page_down}
        if key in steps:
            self.scroll = max(0, self.scroll + steps[key])
        elif key in ("home", "end"):
            self.scroll = 0 if key == "home" else len(self._laid_out())
        elif key in ("escape", "backspace"):
            self.page = None
        elif key == "a" and self.unseen:
            were = "was" if self.unseen == 1 else "were"
            self.message = f"{some(self.unseen, 'line')} below {were} not on the screen yet: look at the end of it first"
        elif key == "a":
            return Wish("approve", page)
        elif key == "r":
            self.note = ""
        return None

    def _type(self, key: str) -> Wish | None:
        assert self.note is not None
        if key == "escape":
            self.note = None
        elif key == "backspace":
            self.note = self.note[:-1]
        elif key == "enter":
            note, self.note = self.note, None
            line = self.page or self.selected()
            return None if line is None else Wish("reject", line, note)
        elif len(key) == 1 and key.isprintable() and len(self.note) < 1000:
            self.note += key
        return None

    def show(self, line: Line) -> None:
        """A ticket in full, as it was asked for."""
        self.page, self.scroll = line, 0
        self.unseen = len(self._laid_out())

    # --- the screen --------------------------------------------------------------------------------------------------

    def screen(self, width: int, rows: int) -> RenderableType:
        self._width, self._rows = width, rows
        count = len(self.lines)
        waits = "no tickets wait" if count == 0 else "1 ticket waits" if count == 1 else f"{count} tickets wait"
        head = Text.assemble((waits, "bold"), (f"   you are {self.by}", "dim"))
        if self.away:
            head.append("   no connection, this is how it was", style="bold red")
        return Group(head, Text(""), *self._middle(width, rows - 5), Text(""), *self._foot(width))

    def _middle(self, width: int, room: int) -> list[RenderableType]:
        return self._list(width, room) if self.page is None else self._page(room)

    def _list(self, width: int, room: int) -> list[RenderableType]:
        line = self.selected()
        if line is None:
            return [Text("what an agent must ask for appears here", style="dim")]
        order = list(self.lines)
        at = order.index(line["ticket"])
        first = max(0, min(at - room // 2, len(order) - room + 1))
        shown = [self.lines[ticket] for ticket in order[first : first + room - 1]]
        return [ticket_text.listing(shown, selected=at - first, width=width)]

    def _page(self, room: int) -> list[RenderableType]:
        wrapped = self._laid_out()
        self.scroll = min(self.scroll, max(0, len(wrapped) - room))
        shown = wrapped[self.scroll : self.scroll + room]
        below = len(wrapped) - self.scroll - len(shown)
        if below > 0:
            below += 1
            shown[-1] = Text(f"… {below} more lines", style="dim")
        self.unseen = min(self.unseen, below)
        return [*shown]

    def _laid_out(self) -> list[Text]:
        lines = [] if self.page is None else ticket_text.whole(self.page)
        return [text for line in lines for text in _wrapped(line, self._width)]

    def _foot(self, width: int) -> list[RenderableType]:
        if self.note is not None:
            typed = self.note[-max(10, width - 20) :]
            return [Text.assemble(("why reject? ", "bold"), typed, ("▏", "blink")), Text(NOTE_HELP, style="dim")]
        help_text = LIST_HELP if self.page is None else PAGE_HELP
        return [Text.from_markup(escape(self.message), style="yellow", overflow="ellipsis"), Text(help_text, style="dim")]
