"""How commands speak: tables and sentences for people, JSON for machines, errors on standard error with their exit status."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NoReturn

import anyio
import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from gated.errors import GatedError
from gated.events import UnsealError

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
LogPath = Annotated[str, typer.Argument(help="A log: a SQLite file, a .jsonl export, or `nats:` for a cluster's.", metavar="LOG")]

Keys = Annotated[
    Path | None, typer.Option(help="Folder of the log's keys, to read what was kept encrypted; default: where `gated` put it.")
]

NO, CANNOT = 1, 2
WIDEST = 10_000  # characters of a line

console = Console()
errors = Console(stderr=True)


def say(text: str) -> None:
    """A sentence; its lines are broken between words for people who look, never for what reads it by a pipe.

    A word is never broken: an address or a digest longer than a line can still be opened or copied.
    """
    console.print(text, highlight=False, soft_wrap=not console.is_terminal, overflow="ignore", crop=False)


def say_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table that fits the terminal, or has a line a row by a pipe; what agents supplied is shown as text, never as markup."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, no_wrap=column in ("at", "opened"))  # half a time says nothing
    for row in rows:
        drawn.add_row(*(escape(str(cell)) for cell in row))
    if console.is_terminal:
        console.print(drawn)
    else:
        wide = Measurement.get(console, console.options.update(max_width=WIDEST), drawn).maximum
        Console(width=max(1, wide)).print(drawn)


def some(number: int, what: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


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
    try:
        return anyio.run(work)
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
def writing() -> Iterator[None]:
    """A file that cannot be written ends the command with its name and why."""
    try:
        yield
    except OSError as error:
        fail(_text(error))


@asynccontextmanager
async def whole_file(target: Path) -> AsyncIterator[anyio.AsyncFile[bytes]]:
    """A file that is there once all of it is written, and as it was where that fails. A pipe or a device is written as it is."""
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
