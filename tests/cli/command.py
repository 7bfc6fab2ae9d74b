"""`gated` as a person gives it, in this process."""

from __future__ import annotations

from typer.testing import CliRunner

from gated.cli import app


def gated(*arguments: object, said: str | None = None) -> tuple[int, str, str]:
    """Exit status, standard output and error; `said` is standard input. Raises what the command made no message of."""
    words = [str(argument) for argument in arguments]
    done = CliRunner().invoke(app, words, input=said, env={"COLUMNS": "200", "TERM": "dumb"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr
