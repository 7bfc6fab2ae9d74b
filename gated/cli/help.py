"""How commands are: help in plain lines, in which no option's name is ever cut, at any width; every group has an example too.

What is named by an empty text (`--log ''`, as a script says it whose variable is not set) is refused, by every command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

WORDS: Final = frozenset({"note", "reason", "task", "command"})  # texts that may be empty: nobody looks them up


class Command(TyperCommand):
    """Takes no empty text for a name, a place or a time: passed over, it would be as if it had not been given.

    What it is given without an option is written in capitals, as in whatever shows how it is used.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and parameter.name is not None:
                parameter.metavar = parameter.metavar or parameter.name.upper()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        parameter: Any
        for parameter in self.params:
            value = given.get(parameter.name)
            if parameter.name not in WORDS and "" in (value if isinstance(value, list | tuple) else [value]):
                raise typer.BadParameter("it is empty: name one, or leave it out", ctx=ctx, param=parameter)
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """Commands that are `Command`s."""

    def command(self, name: str | None = None, **how: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Command, **how})


class Group(TyperGroup):
    """Says what each command does in its whole first sentence, not in as much of it as fits one line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in self.sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl([(name, self._first_sentence(ctx, name)) for name in names])

    def sections(self, ctx: Any) -> dict[str, list[str]]:
        """The commands under the titles that they are listed by."""
        return {"Commands": self.list_commands(ctx)}

    def _first_sentence(self, ctx: Any, name: str) -> str:
        command = self.get_command(ctx, name)
        assert command is not None, name
        paragraph = " ".join((command.help or "").partition("\n\n")[0].split())
        return paragraph.partition(". ")[0].removesuffix(".")


def group(what: str, example: str) -> typer.Typer:
    """The app of a group of commands."""
    return App(
        help=what, epilog=f"Example: {example}", no_args_is_help=True, cls=Group, rich_markup_mode=None, add_completion=False
    )


def single() -> typer.Typer:
    """The app of a command that is no group; what runs it finds the command in it."""
    return App(rich_markup_mode=None, add_completion=False)
