"""`gated up`, `gated serve`, `gated doctor`: running a gate and asking how it is."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import anyio
import structlog
import typer
from rich.markup import escape

from gated import wire
from gated.cli import beside
from gated.cli.help import single
from gated.cli.output import CANNOT, NO, Authority, Prefix, fail, run_async, say
from gated.console.people import People
from gated.core.policy import Policy
from gated.ingress import is_id
from gated.shell.custody import Copies, Custody, keys_beside, open_custody
from gated.shell.daemon import Settings, daemon, run_until_told
from gated.shell.embedded import embedded_server
from gated.shell.log.sealing import EVERY
from gated.shell.log.sqlite import open_for_writing
from gated.shell.login import login
from gated.shell.membership import new_name
from gated.shell.metrics import MetricsError, parse_address
from gated.shell.nats_config import inbox_prefix
from gated.shell.notify.settings import read_settings
from gated.shell.observing import Observing
from gated.shell.policies import read_policy
from gated.shell.supervisor import Supervisor, worker_command
from gated.shell.worker import worker

app = single()

Data = Annotated[Path, typer.Option(help="Folder for the bus, the log and the credentials.")]
MetricsAddress = Annotated[
    str | None, typer.Option("--metrics", help="Answer Prometheus on this port or HOST:PORT.", metavar="ADDRESS")
]
Traces = Annotated[bool, typer.Option(help="Send a trace of every run by OpenTelemetry, as the `OTEL_…` variables say.")]
Notify = Annotated[Path | None, typer.Option(help="Tell people of tickets as this file says (docs/notifications.md).")]
CheckpointFile = Annotated[
    Path | None, typer.Option(help="Append each sealed checkpoint to this file; keep it elsewhere, and a cut log shows.")
]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Records between two checkpoints; there is one at stop too.")]
SignVerdicts = Annotated[
    bool, typer.Option(help="Give each call that may run a token that its tool can check: a JWT under `verdict.key` of the keys.")
]
HealthFile = Annotated[
    Path | None,
    typer.Option(
        envvar="GATED_HEALTH_FILE",
        help="Keep this file while it decides, for probes: `python -m gated.shell.readiness FILE` asks it.",
    ),
]
CLUSTER_KEYS: Final = Path("gated.keys")  # of the workers of a cluster, where nobody names another folder
PolicyPath = Annotated[Path, typer.Option("--policy", "-p", help="Policy file, or a folder of them.")]


def configure_logging(*, json_lines: bool) -> None:
    """Structured lines on standard error, coloured for a terminal unless `NO_COLOR` is set."""
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    renderer: Any = structlog.processors.JSONRenderer() if json_lines else structlog.dev.ConsoleRenderer(colors=colours)
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True), renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


@app.command(epilog="Example: gated up --policy policy.yaml")
def up(
    policy: PolicyPath = Path("policy.yaml"),
    data: Data = Path(".gated"),
    port: Annotated[int, typer.Option(help="Port of the embedded bus; -1 takes a free one.")] = -1,
    notify: Notify = None,
    metrics: MetricsAddress = None,
    traces: Traces = False,
    checkpoint_file: CheckpointFile = None,
    checkpoint_every: CheckpointEvery = EVERY,
    console: Annotated[bool, typer.Option(help="Serve the web console, as a process of its own.")] = True,
    console_port: Annotated[int | None, typer.Option(help="Its port; 8420, or a free one where that is taken.")] = None,
    sign_verdicts: SignVerdicts = False,
    json_logs: Annotated[bool, typer.Option(help="Log lines as JSON.")] = False,
) -> None:
    """Start a gate on this machine: an embedded nats-server, the log, the daemon and the console, all in one folder."""
    configure_logging(json_lines=json_logs)
    copies = Copies(checkpoint_every, checkpoint_file)
    served = Served(console_port) if console else None
    custody = partial(open_custody, data.absolute() / "keys", copies, sign_verdicts=sign_verdicts)
    watched = _observing(metrics, traces)
    _run(lambda came_up: _up(policy.absolute(), data.absolute(), port, custody, served, notify, watched, came_up))


def _observing(metrics: str | None, traces: bool) -> Observing:
    try:
        return Observing(None if metrics is None else parse_address(metrics), traces)
    except MetricsError as error:
        fail(str(error))


class Served(NamedTuple):
    """That a console is served, and where."""

    port: int | None


async def _up(
    path: Path,
    data: Path,
    port: int,
    keys: Callable[[], Custody],
    served: Served | None,
    notify: Path | None,
    watched: Observing,
    came_up: Callable[[], None],
) -> None:
    policy = await anyio.to_thread.run_sync(read_policy, path)
    channels = None if notify is None else await anyio.to_thread.run_sync(read_settings, notify)
    await anyio.Path(data).mkdir(parents=True, exist_ok=True, mode=0o700)
    custody = await anyio.to_thread.run_sync(keys)
    event_log = await open_for_writing(data / "log.db", custody.sealing)
    try:
        people = People(beside.users_file(data))
        people.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        users = beside.bus_users(policy, people)
        async with embedded_server(data / "bus", users, port) as server, anyio.create_task_group() as tasks:
            credentials = {"user": "daemon", "password": server.bus.users["daemon"], "inbox_prefix": inbox_prefix("daemon", "")}
            cursor = data / "notify.json"
            more = {"custody": custody, "notify": channels, "notify_cursor": cursor, "observing": watched}
            settings = Settings(server.bus.url, path, credentials, **more)  # type: ignore[arg-type]

            async def watch_server() -> None:
                status = await server.wait()
                fail(f"the embedded nats-server ended with status {status}; its log is in {data / 'bus'}", NO)

            async def watch_writes() -> None:
                why = await server.until_deaf()
                fail(f"the embedded nats-server takes nothing any more: {why}; make room on the disk, and start again", NO)

            stopped = anyio.Event()

            def ready() -> None:
                came_up()
                _announce(server.bus.url, data, policy)
                if served is not None:
                    tasks.start_soon(beside.run_console, data, served.port, stopped.is_set)

            tasks.start_soon(watch_server)
            tasks.start_soon(watch_writes)
            tasks.start_soon(beside.keep_users, server, path, people, stopped)
            try:
                await run_until_told(daemon(settings, event_log, policy), ready)
            finally:
                stopped.set()
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await event_log.close()


def _run(work: Callable[[Callable[[], None]], Coroutine[Any, Any, None]]) -> None:
    """Run a gate. What ends it once it came up is a failure (exit status 1), what does before is a start that cannot be (2)."""
    up: list[bool] = []
    run_async(lambda: work(lambda: up.append(True)), status=lambda: NO if up else CANNOT)


def _announce(url: str, data: Path, policy: Policy) -> None:
    agents = ", ".join(sorted(policy.agents)) or "none: every call is denied"
    say(f"[bold]gated is up[/]  bus {url}  data {escape(str(data))}  agents {agents}")


@app.command(epilog="Example: gated serve --nats nats://127.0.0.1:4222 --policy policy.yaml --log gated.db")
def serve(
    policy: PolicyPath,
    log: Annotated[str, typer.Option(help="The log: a SQLite file, or `nats:` to share the cluster's with other workers.")],
    nats_url: Annotated[
        str, typer.Option("--nats", envvar="GATED_NATS_URL", help="URL of the NATS server or cluster; several with commas.")
    ] = "",
    user: Annotated[str, typer.Option(envvar="GATED_NATS_USER", help="User of the daemon.")] = "",
    creds: Annotated[Path | None, typer.Option(help="A NATS credentials file (`.creds`), instead of user and password.")] = None,
    tls_ca: Authority = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The daemon's own certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, where the certificate's file does not hold it.")] = None,
    prefix: Prefix = wire.PREFIX,
    replicas: Annotated[int, typer.Option(help="Replicas of the streams, where they are made.")] = 1,
    keys: Annotated[Path | None, typer.Option(help="Folder of the keys; `LOG.keys` where it is not given.")] = None,
    notify: Notify = None,
    metrics: MetricsAddress = None,
    traces: Traces = False,
    checkpoint_file: CheckpointFile = None,
    checkpoint_every: CheckpointEvery = EVERY,
    checkpoint_subject: Annotated[
        str | None, typer.Option(help="Publish each checkpoint on this subject; the daemon must be let to.")
    ] = None,
    checkpoint_stdout: Annotated[bool, typer.Option(help="Print each checkpoint on standard output.")] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, help="With `--log nats:`: so many processes.")] = 1,
    partitions: Annotated[int, typer.Option(min=1, max=1024, help="With `--log nats:`: fixed when the log is made.")] = 64,
    name: Annotated[str, typer.Option(help="With `--log nats:`: the worker's name; one is made where none is given.")] = "",
    sign_verdicts: SignVerdicts = False,
    health_file: HealthFile = None,
    json_logs: Annotated[bool, typer.Option(help="Log lines as JSON.")] = False,
) -> None:
    """Run the daemon on a NATS server of yours, or a worker of a cluster.

    The password comes from GATED_NATS_PASSWORD or the file that GATED_NATS_PASSWORD_FILE names, never from an argument. With
    GATED_NATS_CA or --tls-ca the server's certificate must be of that authority. More workers, on this machine or others,
    only have to be started with the same `--log nats:`.
    """
    configure_logging(json_lines=json_logs)
    cluster = log.startswith("nats:")
    if not cluster and (workers > 1 or name):
        fail("several workers share a log on the bus: use `--log nats:`")
    if cluster and notify is not None:
        fail("a worker of a cluster tells nobody: run `gated notify follow nats: FILE` once, beside the workers")
    if workers > 1 and metrics is not None:
        fail("each worker needs a port of its own for its metrics: start the workers one by one")
    if name and not is_id(name):
        fail(f"`{name}` cannot be a worker's name: use 1-128 of A-Z a-z 0-9 _ -")
    watched = _observing(metrics, traces)
    show = _print_checkpoint if checkpoint_stdout else None
    copies = Copies(checkpoint_every, checkpoint_file, show, checkpoint_subject)
    folder = keys or (CLUSTER_KEYS if cluster else keys_beside(Path(log)))
    opened = partial(open_custody, folder, copies, sign_verdicts=sign_verdicts)

    async def work(came_up: Callable[[], None]) -> None:
        custody = await anyio.to_thread.run_sync(opened)  # before the workers, that all find the same keys
        if workers > 1:
            raise typer.Exit(await Supervisor(command(), name or new_name(), workers, health_file).run())
        url = nats_url if nats_url or log == "nats:" else log if cluster else ""
        told = login(url, os.environ, user=user, creds=creds, ca=tls_ca, cert=tls_cert, key=tls_key)
        channels = None if notify is None else await anyio.to_thread.run_sync(read_settings, notify)
        settings = Settings(
            told.url,
            policy.absolute(),
            told.credentials,
            prefix,
            replicas,
            custody=custody,
            notify=channels,
            notify_cursor=Path(log).with_name(Path(log).name + ".notify.json"),
            partitions=partitions,
            observing=watched,
            health_file=health_file,
        )
        await (_work(settings, name, came_up) if cluster else _serve(settings, Path(log), custody, came_up))

    def command() -> list[str]:
        options = {
            "--policy": policy,
            "--log": log,
            "--nats": nats_url or None,
            "--user": user or None,
            "--creds": creds,
            "--tls-ca": tls_ca,
            "--tls-cert": tls_cert,
            "--tls-key": tls_key,
            "--prefix": prefix,
            "--replicas": replicas,
            "--partitions": partitions,
            "--keys": folder,
            "--checkpoint-file": checkpoint_file,
            "--checkpoint-every": checkpoint_every,
            "--checkpoint-subject": checkpoint_subject,
        }
        flags = {
            "--checkpoint-stdout": checkpoint_stdout,
            "--json-logs": json_logs,
            "--traces": traces,
            "--sign-verdicts": sign_verdicts,
        }
        return worker_command(options, [flag for flag, given in flags.items() if given])

    _run(work)


def _print_checkpoint(note: str) -> None:
    sys.stdout.write(note)
    sys.stdout.flush()


async def _serve(settings: Settings, path: Path, custody: Custody, came_up: Callable[[], None]) -> None:
    policy = await anyio.to_thread.run_sync(read_policy, settings.policy)
    event_log = await open_for_writing(path, custody.sealing)

    def ready() -> None:
        came_up()
        say(f"[bold]gated serves[/]  bus {settings.url}  log {path}")

    try:
        await run_until_told(daemon(settings, event_log, policy), ready)
    finally:
        with anyio.CancelScope(shield=True):
            await event_log.close()


async def _work(settings: Settings, name: str, came_up: Callable[[], None]) -> None:
    policy = await anyio.to_thread.run_sync(read_policy, settings.policy)
    name = name or new_name()

    def ready() -> None:
        came_up()
        say(f"[bold]gated works[/]  cluster {settings.url}  worker {name}")

    await run_until_told(worker(settings, policy, name), ready)
