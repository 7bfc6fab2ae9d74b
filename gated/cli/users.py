"""`gated users …`: who may log in to the console."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gated.cli.beside import users_file
from gated.cli.help import group
from gated.cli.output import CANNOT, Json, asking, fail, say, say_json, table
from gated.console.people import People, PeopleError, Person, hash_of, seal
from gated.ingress import is_id

app = group("Who may log in to the console.", "gated users add ana")

Data = Annotated[Path, typer.Option(help="Folder of the gate; its users stand in console/users.json.")]
Users = Annotated[Path | None, typer.Option("--users", help="The file of users, where it is not in the folder.")]
Name = Annotated[str, typer.Argument(help="The user's name, which is that on the bus and in the policy's groups.")]
Stdin = Annotated[bool, typer.Option("--password-stdin", help="Read the password from standard input.")]
BusPassword = Annotated[
    bool, typer.Option("--bus-password", help="Also ask for (or read) their bus password, and keep it sealed under their own.")
]


STDIN = "--password-stdin reads it from standard input"


def _people(data: Path, users: Path | None) -> People:
    return People(users or users_file(data))


def _password(stdin: bool) -> str:
    if stdin:
        return sys.stdin.readline().rstrip("\n")
    with asking(STDIN):
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))


def _bus_password(stdin: bool) -> str:
    if stdin:
        return sys.stdin.readline().rstrip("\n")
    with asking(STDIN):
        return str(typer.prompt("Password on the bus", hide_input=True))


@app.command("add", epilog="Example: gated users add ana")
def add(
    name: Name,
    data: Data = Path(".gated"),
    users: Users = None,
    auditor: Annotated[bool, typer.Option(help="Sees every ticket and run, also those of others.")] = False,
    oidc: Annotated[str, typer.Option(help="The value of the OIDC claim by which they are known; no password then.")] = "",
    bus_password: BusPassword = False,
    password_stdin: Stdin = False,
) -> None:
    """Add a user. What they may answer is the policy's to say: its `approvers` name them as `user:NAME`, or a group of theirs."""
    try:
        found = _people(data, users)
        if not is_id(name):  # before a password is asked for
            fail(f"`{name}` cannot be a name on the bus: use 1-128 of A-Z a-z 0-9 _ -")
        if found.find(name) is not None:
            raise PeopleError(f"there is a user `{name}` already: change the password with `gated users passwd`")
        if oidc:
            found.put(Person(name, auditor=auditor, oidc=oidc), new=True)
        else:
            password = _password(password_stdin)
            sealed = seal(_bus_password(password_stdin), password) if bus_password else ""
            found.put(Person(name, hash_of(password), auditor, bus=sealed), new=True)
    except PeopleError as error:
        fail(str(error))
    say(f"user [bold]{name}[/] may log in" + (", and sees everything" if auditor else ""))


@app.command("ls", epilog="Example: gated users ls")
def ls(data: Data = Path(".gated"), users: Users = None, json_: Json = False) -> None:
    """The users, and how they log in."""
    try:
        found = list(_people(data, users).all().values())
    except PeopleError as error:
        fail(str(error), CANNOT)
    if json_:
        say_json([{**msgspec.to_builtins(p), "hash": bool(p.hash), "bus": bool(p.bus)} for p in found])
        return
    if not found:
        say("nobody may log in yet: `gated users add NAME` lets somebody")
        return
    rows = ((p.name, "password" if p.hash else f"OIDC {p.oidc}", "sees everything" if p.auditor else "") for p in found)
    table(("name", "log-in", "auditor"), rows)


@app.command("rm", epilog="Example: gated users rm ana")
def rm(name: Name, data: Data = Path(".gated"), users: Users = None) -> None:
    """Remove a user. Their sessions end at once."""
    try:
        _people(data, users).remove(name)
    except PeopleError as error:
        fail(str(error))
    say(f"user [bold]{name}[/] is removed")


@app.command("passwd", epilog="Example: gated users passwd ana")
def passwd(
    name: Name,
    data: Data = Path(".gated"),
    users: Users = None,
    bus_password: BusPassword = False,
    password_stdin: Stdin = False,
) -> None:
    """Give a user another password. Their sessions end at once."""
    try:
        found = _people(data, users)
        if found.find(name) is None:
            raise PeopleError(f"there is no user `{name}`: add one with `gated users add`")
        password = _password(password_stdin)
        found.set_password(name, password, _bus_password(password_stdin) if bus_password else "")
    except PeopleError as error:
        fail(str(error))
    say(f"user [bold]{name}[/] has another password")
