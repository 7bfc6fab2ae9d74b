"""The command line. One file a group of verbs; exit statuses: 0 done, 1 no (a difference, a failure), 2 cannot be done."""

from __future__ import annotations

import json
import sys

import typer

from gated.asyncapi import document
from gated.cli import daemon, logs, policy, runs, tickets

app = typer.Typer(
    name="gated",
    help="A daemon that decides whether an AI agent's tool call may happen.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)

daemon.register(app)
logs.register(app)
app.add_typer(logs.log_app, name="log")
app.add_typer(runs.app, name="runs")
app.add_typer(policy.app, name="policy")
app.add_typer(tickets.app, name="tickets")


@app.command(epilog="Example: gated asyncapi > docs/asyncapi.json")
def asyncapi() -> None:
    """The bus contract as an AsyncAPI document."""
    sys.stdout.write(json.dumps(document(), indent=1) + "\n")


def main() -> None:
    """The entry point of `gated`."""
    app()
