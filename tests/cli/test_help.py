"""Every command says what it does, with an example; its options are whole on the narrowest terminal that people use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gated.cli import COMMANDS, app
from gated.cli.help import WORDS


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    context = typer.Context(command, info_name="gated")
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from commands(command.get_command(context, name), (*path, name))


EVERY = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(path) or "gated" for path, _ in EVERY])
def test_help_at_80_columns(path: tuple[str, ...], command: Any) -> None:
    done = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 80
    assert path == () or re.search(r"\n  Example: .*gated", done.output)
    options = [
        name
        for option in command.params
        if not getattr(option, "hidden", False)
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("-")
    ]
    assert [name for name in options if name not in done.output] == []
    assert not {"--install-completion", "--show-completion"} & set(options)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (path, option.opts[0])
        for path, command in EVERY
        if path and not hasattr(command, "list_commands")
        for option in command.params
        if option.opts[0].startswith("--") and not option.is_flag and option.name not in WORDS
    ],
)
def test_an_empty_text_names_nothing(path: tuple[str, ...], name: str) -> None:
    """`--log ''` was as if no log had been named, and `--data ''` the folder where one stood."""
    for said in ([name, ""], [f"{name}="]):
        done = CliRunner().invoke(app, [*path, *said])
        assert done.exit_code == 2
        assert f"'{name}'" in done.output
        assert "it is empty: name one, or leave it out" in done.output


@pytest.mark.parametrize(
    "path", [path for path, command in EVERY if any(option.envvar == "GATED_PREFIX" for option in command.params)]
)
def test_a_prefix_is_one_token(path: tuple[str, ...]) -> None:
    """With `a.b` a gate served, and knew no input on its subject; with `*` the server's refusal was a traceback."""
    for prefix in ("a.b", "a b", "*", ">", "é", "a" * 129):
        said = CliRunner().invoke(app, [*path, "--prefix", prefix], env={"COLUMNS": "300"})
        assert (said.exit_code, f"`{prefix}` cannot be the prefix of subjects" in said.output) == (2, True)


def test_an_empty_word_where_a_file_is_named() -> None:
    for words in (["policy", "check", ""], ["policy", "test", ""], ["runs", "show", ""], ["log", "ls", ""]):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, "it is empty" in done.output) == (2, True)


def test_a_note_may_be_empty() -> None:
    done = CliRunner().invoke(app, ["tickets", "approve", "t1", "--note", "", "--data", "nowhere"])
    assert (done.exit_code, "no gate runs with the folder" in done.output) == (2, True)


def test_a_name_that_is_nearly_a_command_is_told() -> None:
    for words, meant in ((["tickes"], "`tickets`"), (["polcy", "check"], "`policy`"), (["runs", "shwo"], "'show'")):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, f"id you mean {meant}" in done.output) == (2, True)
    assert "No such command 'zzzz'.\n" in CliRunner().invoke(app, ["zzzz"]).output


VERBS = [(path, command) for path, command in EVERY if not hasattr(command, "list_commands")]


@pytest.mark.parametrize(("path", "command"), VERBS, ids=[" ".join(path) for path, _ in VERBS])
def test_what_stands_without_an_option_is_in_capitals(path: tuple[str, ...], command: Any) -> None:
    usage = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"}).output.splitlines()[0]
    words = usage.removeprefix(f"Usage: gated {' '.join(path)}")
    assert words == words.upper()


def test_what_lacks_an_option_says_which() -> None:
    """`gated what-if` alone was a traceback."""
    for words, lacks in ((["what-if"], "--policy"), (["serve"], "--policy"), (["notify", "follow"], "--cursor")):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, f"Missing option '{lacks}'" in done.output) == (2, True)


def test_every_command_is_under_a_title() -> None:
    said = CliRunner().invoke(app, ["--help"]).output
    assert [name for name in COMMANDS if f"  {name} " not in said] == []
    assert len(EVERY) > 40
