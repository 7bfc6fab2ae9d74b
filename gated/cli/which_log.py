"""Which log a command reads: the one that it is given, else that of the gate in this folder or in `--data`.

Where another word follows the log (a run, a file), a single word is that one: `gated runs show r1` is enough.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gated.cli.help import Command
from gated.cli.output import fail
from gated.ingress import is_id
from gated.shell.log.open import SCHEMES

GATE: Final = Path(".gated")  # where `gated up` keeps its log
WHAT: Final = "A log: a SQLite file, a .jsonl export, or `nats:` for a cluster's. Default: the log of the gate in --data."

LogPath = Annotated[str | None, typer.Argument(help=WHAT, metavar="LOG", show_default=False)]
LogOption = Annotated[str | None, typer.Option("--log", help=WHAT, metavar="LOG", show_default=False)]
TheRun = Annotated[str | None, typer.Argument(help="The run's id.", metavar="RUN", show_default=False)]
Folder = Annotated[Path | None, typer.Option("--data", help=f"Folder of the gate whose log it is; default: {GATE}.")]


class LogFirst(Command):
    """A command that takes a log, which may be left out, and then a word, which may not."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        *before, last = super().collect_usage_pieces(ctx)
        return [*before, f"{{{last.strip('[]')}}}"]


def log_of(given: str | None, data: Path | None) -> str:
    """The log of a command. Ends the command where two are named, or none is there."""
    if given is not None:
        if data is not None:
            fail(f"`{given}` is a log, and --data names the folder of another: say one of them")
        if not given.startswith(SCHEMES):
            _exists(given)
        return given
    path = (data or GATE) / "log.db"
    if not path.is_file():
        fail(f"there is no log at `{path}`: name a log, or with --data the folder of a gate")
    return str(path)


def _exists(path: str) -> None:
    """Ends the command where there is no such file, or can be none of that name."""
    try:
        if Path(path).exists():
            return
        why = ""
    except (OSError, ValueError) as error:
        why = f": {error.strerror if isinstance(error, OSError) else error}"
    fail(f"there is no log at `{path}`{why}")


def log_and(what: str, first: str | None, second: str | None, data: Path | None, *, file: bool = False) -> tuple[str, str]:
    """The log of a command, and the word that follows it: an id, or the name of a `file`.

    Ends the command where it is missing.
    """
    if second is not None:
        return log_of(first, data), second
    if first is None or not (file or is_id(first)):
        fail(f"name {what}" + (f" after the log `{first}`" if first else ""))
    return log_of(None, data), first
