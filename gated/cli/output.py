"""How commands speak: tables and sentences for people, JSON for machines, errors on standard error with their exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any, NoReturn

import anyio
import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gated.errors import GatedError

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]
LogPath = Annotated[str, typer.Argument(help="A log: a SQLite file or a .jsonl export.", metavar="LOG")]

NO, CANNOT = 1, 2

console = Console()
errors = Console(stderr=True)


def say(text: str) -> None:
    console.print(text, highlight=False)


def say_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table that fits the terminal; what agents supplied is shown as text, never as markup."""
    drawn = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        drawn.add_row(*(escape(str(cell)) for cell in row))
    console.print(drawn)


def some(number: int, what: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def colour(decision: str) -> str:
    return {"allow": "green", "deny": "red", "suspend": "yellow"}.get(decision, "white")


def fail(message: str, status: int = CANNOT) -> NoReturn:
    errors.print(f"[red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(status)


def run_async(work: Callable[[], Coroutine[Any, Any, Any]], pass_on: type[GatedError] | None = None) -> Any:
    """Run a command's coroutine; an error that is for people ends it with its text, unless it is one to `pass_on`."""
    try:
        return anyio.run(work)
    except BaseException as error:
        leaves = _leaves(error)
        if pass_on is not None and isinstance(leaves[0], pass_on):
            raise leaves[0] from None
        if not all(isinstance(leaf, GatedError) for leaf in leaves):
            raise
        fail("; ".join(dict.fromkeys(str(leaf) for leaf in leaves)))


def _leaves(group: BaseException) -> list[BaseException]:
    if isinstance(group, BaseExceptionGroup):
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [group]
