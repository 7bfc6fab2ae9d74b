"""`gated console`: the web page where people decide."""

from __future__ import annotations

import os
import secrets
import signal
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import typer

from gated import wire
from gated.cli.beside import users_file
from gated.cli.help import single
from gated.cli.output import Authority, Prefix, fail, run_async, say
from gated.cli.passwords import NoOidcSecret, OidcSecretFile
from gated.console.line import Passwords
from gated.console.people import People
from gated.console.serve import HOST, Serving, is_loopback, running
from gated.shell.connection import BusError
from gated.shell.login import secret_of
from gated.shell.nats_login import client_context

if TYPE_CHECKING:
    from gated.console.oidc import Oidc  # an extra

app = single()

NICE: Final = 5  # beside a gate on the same machine its verdicts come first

Data = Annotated[Path, typer.Option(help="Folder of the gate that `gated up` runs.")]


@app.command(epilog="Example: gated console --data .gated --port 8420")
def console(
    data: Data = Path(".gated"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = HOST,
    port: Annotated[int | None, typer.Option(help="Port; 8420, or a free one where that is taken.")] = None,
    origin: Annotated[str, typer.Option(help="How browsers reach it, behind a proxy: https://gate.example.")] = "",
    users: Annotated[Path | None, typer.Option(help="File of users; console/users.json in the folder.")] = None,
    nats_url: Annotated[str | None, typer.Option("--nats", help="URL of a NATS server of yours.")] = None,
    bus: Annotated[Path | None, typer.Option(help="File of bus passwords by login; bus/bus.json in the folder.")] = None,
    tls_ca: Authority = None,
    prefix: Prefix = wire.PREFIX,
    oidc_issuer: Annotated[str, typer.Option(help="Address of an OpenID provider to log in with.")] = "",
    oidc_client: Annotated[str, typer.Option(help="The console's client id there.")] = "",
    oidc_secret_file: OidcSecretFile = None,
    oidc_secret: NoOidcSecret = None,
    oidc_claim: Annotated[str, typer.Option(help="The claim that says who it is.")] = "email",
    oidc_name: Annotated[str, typer.Option(help="What the log-in page calls the provider.")] = "OpenID",
    while_stdin: Annotated[bool, typer.Option("--while-stdin", hidden=True)] = False,
) -> None:
    """Serve the console: open tickets, runs, and people's answers. `gated up` starts one by itself.

    Add users with `gated users add`. Behind a proxy that terminates TLS give `--origin`.
    """
    serving = Serving(
        people=People(users or users_file(data.absolute())),
        passwords=Passwords(bus or data.absolute() / "bus" / "bus.json", nats_url),
        host=host,
        port=port,
        origin=_origin(origin),
        setup=secrets.token_urlsafe(24) if is_loopback(host) else "",
        prefix=prefix,
        oidc=_oidc(oidc_issuer, oidc_client, oidc_secret_file, oidc_claim, oidc_name),
        tls=_trusting(tls_ca),
    )
    if while_stdin:
        os.nice(NICE)
    run_async(lambda: _console(serving, while_stdin))


def _trusting(ca: Path | None) -> ssl.SSLContext | None:
    try:
        return client_context(ca, None, None)
    except BusError as error:
        fail(str(error))


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if text and (parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/")):
        fail(f"`{text}` is no origin: write one like `https://gate.example`")
    return text.rstrip("/")


def _oidc(issuer: str, client: str, secret_file: Path | None, claim: str, name: str) -> Callable[[str], Oidc] | None:
    """What makes the log-in with a provider, where one is given."""
    if not issuer:
        return None
    if not client:
        fail("--oidc-issuer wants --oidc-client, the console's client id there")
    try:
        from gated.console.oidc import Oidc, Provider
    except ImportError as error:
        fail(f"logging in with OIDC needs the extra: pip install 'gated[oidc]' ({error})")
    try:
        secret = os.environ.get("GATED_OIDC_SECRET", "") if secret_file is None else secret_of(secret_file)
    except BusError as error:
        fail(str(error))
    provider = Provider(issuer, client, secret, claim, name)
    return lambda address: Oidc(provider, address)


async def _console(serving: Serving, while_stdin: bool) -> None:
    if not is_loopback(serving.host) and not serving.people.all():
        fail("nobody can log in yet, and the console is to listen beyond this machine: add a user first with `gated users add`")
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as heard:
        async with running(serving) as desk:
            say(f"[bold]console[/]  {desk.settings.origin}")
            if not serving.people.all():
                typer.echo(f"nobody can log in yet; create the first user at {desk.settings.origin}/setup/{serving.setup}")
            async with anyio.create_task_group() as tasks:
                if while_stdin:
                    tasks.start_soon(_until_stdin_ends, tasks.cancel_scope)
                async for _ in heard:
                    tasks.cancel_scope.cancel()


async def _until_stdin_ends(scope: anyio.CancelScope) -> None:
    """Whoever started the console holds the other end, so that it does not outlive them."""
    await anyio.to_thread.run_sync(sys.stdin.buffer.read, abandon_on_cancel=True)
    scope.cancel()
