"""The command line. One file a group of verbs; exit statuses: 0 done, 1 no (a difference, a failure), 2 cannot be done.

A command's module is imported when the command is asked for: importing all of them takes most of a second.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from gated.cli.help import Group
from gated.documents import did_you_mean

# Title -> command, or group of commands -> the module of `gated.cli` whose `app` holds it.
SECTIONS: Final = {
    "Running a gate": {"up": "daemon", "serve": "daemon", "doctor": "doctor", "cluster": "cluster"},
    "What agents may do": {"policy": "policy"},
    "Agents of other hosts": {"mcp": "mcp", "hook": "hook"},
    "People who answer": {"tickets": "tickets", "console": "console", "users": "users", "notify": "notify"},
    "What happened": {
        "runs": "runs",
        "log": "logs",
        "replay": "logs",
        "verify": "verify",
        "what-if": "whatif",
        "stats": "stats",
    },
    "The contract": {"asyncapi": "asyncapi"},
}
COMMANDS: Final = {name: module for commands in SECTIONS.values() for name, module in commands.items()}


class Lazy(Group):
    """Finds its commands in `COMMANDS`."""

    def list_commands(self, ctx: object) -> list[str]:
        return list(COMMANDS)

    def sections(self, ctx: object) -> dict[str, list[str]]:
        return {title: list(commands) for title, commands in SECTIONS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:
            ctx.fail(f"No such command '{args[0]}'{did_you_mean(args[0], COMMANDS) or '.'}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:
        if cmd_name not in COMMANDS:
            return None
        held = typer.main.get_command(import_module(f"gated.cli.{COMMANDS[cmd_name]}").app)
        found = held.commands.get(cmd_name, held) if isinstance(held, TyperGroup) else held
        assert isinstance(found, TyperCommand | TyperGroup)
        found.name = cmd_name
        return found


app = typer.Typer(
    name="gated",
    cls=Lazy,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="Begin: gated policy init, then gated up",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"gated {metadata.version('gated')}")
        raise typer.Exit


@app.callback()
def gated(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")] = False,
) -> None:
    """A daemon that decides whether an AI agent's tool call may happen."""


def main() -> None:
    """The entry point of `gated`."""
    app()
