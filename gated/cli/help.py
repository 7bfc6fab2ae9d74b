"""How help looks: plain lines, in which no option's name is ever cut, at any width; every group has an example too."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup


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
    return typer.Typer(
        help=what, epilog=f"Example: {example}", no_args_is_help=True, cls=Group, rich_markup_mode=None, add_completion=False
    )


def single() -> typer.Typer:
    """The app of a command that is no group; what runs it finds the command in it."""
    return typer.Typer(rich_markup_mode=None, add_completion=False)
