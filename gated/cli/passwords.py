"""Secrets of commands come out of files or the environment: what is an argument, everybody on the machine can read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gated.cli.output import fail

_SEEN = "a secret that is an argument is read by everybody on this machine: put it into"


def _no_password(value: str | None) -> None:
    if value is not None:
        _refuse("GATED_NATS_PASSWORD, or into a file that --password-file or GATED_NATS_PASSWORD_FILE names")


def _no_oidc_secret(value: str | None) -> None:
    if value is not None:
        _refuse("GATED_OIDC_SECRET, or into a file that --oidc-secret-file names")


def _refuse(where: str) -> NoReturn:
    fail(f"{_SEEN} {where}")


PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", help="File of your password there; else GATED_NATS_PASSWORD, or its _FILE.")
]
NoPassword = Annotated[str | None, typer.Option("--password", hidden=True, callback=_no_password)]
OidcSecretFile = Annotated[
    Path | None,
    typer.Option("--oidc-secret-file", envvar="GATED_OIDC_SECRET_FILE", help="File of its secret there; else GATED_OIDC_SECRET."),
]
NoOidcSecret = Annotated[str | None, typer.Option("--oidc-secret", hidden=True, callback=_no_oidc_secret)]
