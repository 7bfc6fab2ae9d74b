"""`gated notify …`: trying out the file that says whom to tell of tickets."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.markup import escape

from gated.cli.daemon import configure_logging
from gated.cli.help import group
from gated.cli.output import NO, Json, fail, run_async, say, say_json
from gated.cli.which_log import Folder, LogFirst, LogPath, log_and
from gated.events import AnswerRule, Ask
from gated.shell.log.open import open_log
from gated.shell.notify.following import follower
from gated.shell.notify.notice import Notice
from gated.shell.notify.notifier import Cursor
from gated.shell.notify.settings import Channel, NotifySettings, Subject, read_settings
from gated.shell.notify.ways import NotDelivered, open_way

app = group("Telling people of tickets.", "gated notify test notify.yaml")

SECOND = 1_000_000


@app.command("test", epilog="Example: gated notify test notify.yaml --channel ops")
def try_out(
    file: Annotated[Path, typer.Argument(help="The file that names the channels.")],
    channel: Annotated[str | None, typer.Option(help="Only this channel.")] = None,
    json_: Json = False,
) -> None:
    """Read the file and say a sample notice over every webhook and mail channel, once. Exit status 1: one was not delivered."""

    async def work() -> dict[str, str]:
        settings = await anyio.to_thread.run_sync(read_settings, file)
        chosen = [made for made in settings.channels if channel in (None, made.name)]
        if not chosen:
            fail(f"`{file}` names no channel `{channel}`: there are {', '.join(c.name for c in settings.channels) or 'none'}")
        return {made.name: await _tried(settings, made) for made in chosen}

    results: dict[str, str] = run_async(work)
    failed = [name for name, why in results.items() if why not in ("delivered", ON_THE_BUS)]
    if json_:
        say_json({"ok": not failed, "channels": results})
    else:
        for name, why in results.items():
            say(f"[{'red' if name in failed else 'green'}]{escape(name)}[/]  {escape(why)}")
    if failed:
        raise typer.Exit(NO)


@app.command("follow", cls=LogFirst, epilog="Example: gated notify follow nats: notify.yaml --cursor notices.json")
def follow(
    cursor: Annotated[Path, typer.Option(help="Where to keep how far it has come; a restart goes on there.")],
    log_: LogPath = None,
    file_: Annotated[
        str | None, typer.Argument(help="The file that names the channels.", metavar="FILE", show_default=False)
    ] = None,
    data: Folder = None,
) -> None:
    """Tell people of the tickets of a log that others write: a cluster's, or a daemon's that runs without --notify."""
    log, file = log_and("the file that names the channels", log_, file_, data, file=True)
    configure_logging(json_lines=False)

    async def work() -> None:
        settings = await anyio.to_thread.run_sync(read_settings, Path(file))
        async with open_log(log) as opened, anyio.create_task_group() as tasks:
            tasks.start_soon(follower(settings, opened, Cursor(cursor)).run_on)
            say(f"[bold]telling people[/]  log {log}  channels {', '.join(c.name for c in settings.channels)}")
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as heard:
                async for _ in heard:
                    break
            tasks.cancel_scope.cancel()

    run_async(work)


ON_THE_BUS = "not tried: it needs a running gate"


async def _tried(settings: NotifySettings, channel: Channel) -> str:
    async def nowhere(subject: str, data: bytes) -> None:
        raise NotDelivered(ON_THE_BUS)

    if isinstance(channel.way, Subject):
        return ON_THE_BUS
    way = open_way(channel.way, nowhere)
    try:
        await way.send(sample(settings.console), tuple(settings.people.values()))
    except NotDelivered as error:
        return f"not delivered: {error}"
    finally:
        await way.close()
    return "delivered"


def sample(console: str | None) -> Notice:
    """A notice that nobody can take for a ticket."""
    now = time.time_ns() // 1000
    return Notice(
        id=f"sample-{now}",
        event="opened",
        at=now,
        ticket="sample",
        thread="sample",
        run="sample",
        agent="sample",
        tool="sample_tool",
        calls=1,
        preview='{"this":"is a sample: nothing waits for you"}',
        hidden_bytes=0,
        args_sha256="0" * 64,
        asks=(Ask("sample", "privilege", "privilege.approval_required", "this is only a test of the notices"),),
        rules=(AnswerRule(anyone=True),),
        state="pending",
        opened_at=now,
        expires_at=now + 900 * SECOND,
        link=console,
    )
