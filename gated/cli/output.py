"""How commands speak: tables and sentences for people, JSON for machines, errors on standard error with their exit status.

Agents wrote much of what is shown: none of it reaches a terminal as anything but text that can be seen.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from operator import mul
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import anyio
import msgspec
import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gated.core.order.templates import UNSAFE, escape_text
from gated.errors import GatedError
from gated.events import UnsealError
from gated.shell.nats_config import UserError, checked_prefix

Json = Annotated[bool, typer.Option("--json", help="JSON instead of text, on one line.")]

Keys = Annotated[
    Path | None, typer.Option(help="Folder of the log's keys, to read what was kept encrypted; default: where `gated` put it.")
]

WHOLE: Final = ("at", "opened")  # columns that are never cut: half a time says nothing
Authority = Annotated[
    Path | None,
    typer.Option("--tls-ca", envvar="GATED_NATS_CA", help="Certificate authority of the NATS server (PEM), not the system's."),
]


def _prefix(text: str) -> str:
    try:
        return checked_prefix(text)
    except UserError as error:
        raise typer.BadParameter(str(error)) from error


Prefix = Annotated[str, typer.Option(envvar="GATED_PREFIX", help="First token of every subject of the gate.", callback=_prefix)]

NO, CANNOT = 1, 2
STDOUT: Final = Path("-")
LEAST: Final = 3  # characters of a name that is cut in the middle
WIDEST: Final = 1 << 30  # characters of a line


class Safe(Console):
    """Writes out the control, bidi and zero-width characters of any text; a line break is for whoever prints it."""

    def render_str(self, text: str, **more: Any) -> Text:
        return super().render_str("\n".join(map(on_one_line, text.split("\n"))), **more)


console = Safe(emoji=False)  # `:x:` is what an agent wrote, not a picture
errors = Safe(stderr=True, emoji=False)


def on_one_line(text: str) -> str:
    """Any text, with every character that a terminal obeys, or does not show, written out."""
    return escape_text(text, len(text))


def say(text: str) -> None:
    """A sentence; its lines are broken between words for people who look, never for what reads it by a pipe.

    A word is never broken: an address or a digest longer than a line can still be opened or copied.
    """
    line = console.render_str(on_one_line(text))
    for part in _broken(line, console.width) if console.is_terminal else (line,):
        console.print(part, highlight=False, soft_wrap=True)


def _broken(line: Text, width: int) -> Iterable[Text]:
    """Lines of so many cells, each of whole words."""
    breaks, used = list[int](), 0
    for word in re.finditer(r"\s*\S+\s*", line.plain):
        if used and used + cell_len(word[0].rstrip()) > width:
            breaks.append(word.start())
            used = 0
        used += cell_len(word[0])
    for part in line.divide(breaks):
        part.rstrip()
        yield part


def say_beneath(head: str, text: str) -> None:
    """A line of which the rest goes on beneath its text, not beneath its head, where it is broken."""
    if not console.is_terminal:
        say(f"{head}  {text}")
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    grid.add_row(head, on_one_line(text))
    console.print(grid, highlight=False)


def say_json(value: Any) -> None:
    sys.stdout.write(shown_json(msgspec.json.encode(value, enc_hook=str).decode()) + "\n")


def shown_json(text: str) -> str:
    """The same JSON, in which such characters are escapes of JSON; the line breaks between its values stay."""
    return UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table with a line a row; where that is too wide for the terminal, the last column stands beneath each row.

    What agents supplied is shown as text, never as markup.
    """
    cells = [[on_one_line(str(cell)) for cell in row] for row in rows]
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column)
    for row in cells:
        drawn.add_row(*map(escape, row))
    if console.is_terminal and _width(drawn) > console.width:
        _stacked(columns, cells)
    else:
        draw(drawn)


def draw(drawn: Table) -> None:
    """Show a table: in the terminal's width to people, by a pipe with every cell whole and a line a row."""
    if console.is_terminal:
        console.print(drawn, highlight=False)
        return
    room = len(drawn.columns)  # a column of empty cells measures nothing, and takes a place
    lines = Safe(width=_width(drawn) + room, emoji=False).render_lines(drawn, pad=False)
    for line in lines:
        sys.stdout.write("".join(segment.text for segment in line).rstrip() + "\n")


def _width(drawn: Table) -> int:
    """Of a table that is not squeezed into any width."""
    return Measurement.get(console, console.options.update(max_width=WIDEST), drawn).maximum


def short(text: str, most: int) -> str:
    """A text for people in at most so many characters, which shows where it is cut; whole by a pipe."""
    return text if len(text) <= most or not console.is_terminal else f"{text[: most - 1]}…"


def told_apart(names: Iterable[str], most: int) -> dict[str, str]:
    """Each name in at most so many cells, by a pipe whole; of those that begin alike, also the part in which they differ.

    Names that cannot be told apart in so little room stay whole.
    """
    every = sorted(set(names))
    shown = {name: name if not console.is_terminal else _cut(name, most) for name in every}
    for before, name, after in zip(["", *every], every, [*every[1:], ""], strict=False):
        alike = max(_alike(before, name), _alike(name, after))
        if shown[name] != name and alike >= most - 1 >= LEAST:
            head, room = most // 2, most - most // 2 - 1
            shown[name] = f"{name[:head]}…{_cut(name[alike:], room)}"
    several = Counter(shown.values())
    return {name: text if several[text] == 1 else name for name, text in shown.items()}


def _alike(one: str, other: str) -> int:
    """With how many of the same characters they begin."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _stacked(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [row[:-1] for row in (columns, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    spare = [0 if column in WHOLE else 1 for column in columns[:-1]]
    while sum(widths) + 2 * len(widths) > console.width and max(map(mul, widths, spare)) > 1:
        widest = max(range(len(widths)), key=lambda at: widths[at] * spare[at])
        widths[widest] -= 1
    shown = [told_apart(column, width) for column, width in zip(zip(*lines, strict=True), widths, strict=True)]
    widths = [max(map(cell_len, cut.values())) for cut in shown]
    for number, (line, beneath) in enumerate(zip(lines, ("", *(row[-1] for row in rows)), strict=True)):
        cells = "  ".join(set_cell_size(cut[cell], width) for cell, cut, width in zip(line, shown, widths, strict=True))
        console.print(Text(cells.rstrip(), style="" if number else "bold"), soft_wrap=True)
        if beneath:
            console.print(Padding(Text(beneath, style="dim"), (0, 0, 0, 4)))


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"


def place_of(thread: str, run: str) -> str:
    """A run by its id, with that of its thread before it where they differ."""
    return run if run == thread else f"{thread}/{run}"


def moment(option: str, text: str | None) -> int | None:
    """A time as people write it, in microseconds since 1970; without an offset it is UTC."""
    if text is None:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option}: `{text}` is no time: write `2026-01-31` or `2026-01-31T09:30:00Z`")
    aware = given if given.tzinfo else given.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def colour(decision: str) -> str:
    return {"allow": "green", "deny": "red", "suspend": "yellow"}.get(decision, "white")


def fail(message: str, status: int = CANNOT) -> NoReturn:
    errors.print(f"[red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(status)


def run_async(
    work: Callable[[], Coroutine[Any, Any, Any]],
    pass_on: type[GatedError] | None = None,
    status: Callable[[], int] = lambda: CANNOT,
) -> Any:
    """Run a command's coroutine; an error that is for people ends it with its text, unless it is one to `pass_on`."""
    with telling(pass_on, status):
        return anyio.run(work)


@contextmanager
def telling(pass_on: type[GatedError] | None = None, status: Callable[[], int] = lambda: CANNOT) -> Iterator[None]:
    """An error that is for people ends the command with its text."""
    try:
        yield
    except BaseException as error:
        leaves = _leaves(error)
        if pass_on is not None and isinstance(leaves[0], pass_on):
            raise leaves[0] from None
        said = [leaf for leaf in leaves if isinstance(leaf, typer.Exit)]  # by a task, with its text
        if not all(isinstance(leaf, GatedError | UnsealError | typer.Exit) or _of_a_file(leaf) for leaf in leaves):
            raise
        if said:
            raise said[0] from None
        fail("; ".join(dict.fromkeys(map(_text, leaves))), status())


@contextmanager
def asking(instead: str) -> Iterator[None]:
    """Questions to a person. Where nobody is there to answer, the command ends with what to say `instead`."""
    try:
        yield
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        fail(f"nobody answers here: {instead}")


@contextmanager
def writing() -> Iterator[None]:
    """A file that cannot be written ends the command with its name and why."""
    try:
        yield
    except OSError as error:
        fail(_text(error))


@asynccontextmanager
async def whole_file(target: Path) -> AsyncIterator[anyio.AsyncFile[bytes]]:
    """A file that is there once all of it is written, and as it was where that fails. A pipe or a device is written as it is,
    and `-` is standard output.
    """
    if target == STDOUT:
        yield anyio.wrap_file(sys.stdout.buffer)
        return
    where = anyio.Path(target)
    if await where.exists() and not await where.is_file():
        async with await anyio.open_file(target, "wb") as out:
            yield out
        return
    part = where.with_name(f"{where.name}.part")
    try:
        async with await anyio.open_file(part, "wb") as out:
            yield out
        await part.replace(target)
    finally:
        with anyio.CancelScope(shield=True):
            await part.unlink(missing_ok=True)


def _of_a_file(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.filename is not None


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use `{error.filename}`: {error.strerror}"
    return str(error)


def _leaves(group: BaseException) -> list[BaseException]:
    if isinstance(group, BaseExceptionGroup):
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [group]
