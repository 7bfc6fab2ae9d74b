"""`gated tickets …`: what waits for people, and their answers, from a terminal."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from gated import wire
from gated.cli import ticket_text
from gated.cli.desk import Desk, DeskError, Line, Whereabouts, sit_down
from gated.cli.help import group
from gated.cli.output import CANNOT, NO, Authority, Json, Prefix, console, fail, run_async, say, say_json, table
from gated.cli.passwords import NoPassword, PasswordFile
from gated.cli.shared import taking
from gated.cli.watch import watch as watch_tickets

app = group("Calls that wait for people.", "gated tickets watch --as ana")

TicketArgument = Annotated[str, typer.Argument(help="The ticket's id.", metavar="TICKET")]
NOBODY = "local"  # the approver that a command speaks for where nobody says who they are
Note = Annotated[str, typer.Option(help="A note for the log and the agent.")]


def whereabouts(
    by: Annotated[
        str | None,
        typer.Option("--as", envvar="GATED_APPROVER", help="The approver that you are; default: whoever --user is."),
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder of the running gate.")] = Path(".gated"),
    nats: Annotated[
        str | None, typer.Option("--nats", envvar="GATED_NATS_URL", help="A NATS server of yours instead of the folder.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(envvar="GATED_NATS_USER", help="Your user there; else `approver:` and your name.")
    ] = None,
    password_file: PasswordFile = None,
    password: NoPassword = None,
    creds: Annotated[Path | None, typer.Option(envvar="GATED_NATS_CREDS", help="A NATS credentials file.")] = None,
    tls_ca: Authority = None,
    prefix: Prefix = wire.PREFIX,
) -> Whereabouts:
    """Which gate, and who answers there: as told, else as whom they log in on a server of yours."""
    if by is None and nats is not None and user is not None:
        role, _, by = user.partition(":")
        if role != "approver" or not by:
            fail(f"you log in as `{user}`, and tickets are for `approver:NAME`: log in as one, or say with --as who you are")
    by = by or NOBODY
    if nats is not None and creds is None and user is None:
        user = f"approver:{by}"
    return Whereabouts(by, data, nats, user, password_file, creds, tls_ca, prefix if nats else wire.PREFIX)


def _at_desk(where: Whereabouts, work: Callable[[Desk], Awaitable[Any]], *, stay: bool = False) -> Any:
    async def sit() -> Any:
        async with sit_down(where, stay=stay) as desk:
            return await work(desk)

    try:
        return run_async(sit, pass_on=DeskError)
    except DeskError as error:
        fail(str(error), CANNOT if error.absent else NO)


@app.command("ls", epilog="Example: gated tickets ls --json | jq '.[].ticket'")
@taking(whereabouts)
def ls(
    where: Whereabouts,
    json_: Json = False,
) -> None:
    """The open tickets, the first to expire first."""
    found = _at_desk(where, lambda desk: desk.tickets())
    if json_:
        say_json(found)
    elif found and console.is_terminal:
        console.print(ticket_text.listing(found))
    elif found:
        table(*ticket_text.listed(found))
    else:
        say("no tickets wait")


@app.command("show", epilog="Example: gated tickets show t0123456789")
@taking(whereabouts)
def show(
    ticket: TicketArgument,
    *,
    where: Whereabouts,
    json_: Json = False,
) -> None:
    """One ticket: every argument in full, and why it is asked."""
    found = _at_desk(where, lambda desk: _find(desk, ticket))
    if json_:
        say_json(found)
        return
    for line in ticket_text.whole(found):
        console.print(line, highlight=False, soft_wrap=True)


@app.command("approve", epilog="Example: gated tickets approve t0123456789 --as ana --note 'seen the invoice'")
@taking(whereabouts)
def approve(
    ticket: TicketArgument,
    *,
    where: Whereabouts,
    note: Note = "",
    args: Annotated[str | None, typer.Option(help="Edit: run with these arguments instead, a JSON object.")] = None,
    result: Annotated[
        str | None,
        typer.Option(help="Answer for the tool: its result, as JSON. It does not run then. Of several people the last gives it."),
    ] = None,
    remember: Annotated[
        str, typer.Option(help="`once`, `call` (the same arguments), or a pattern like 'refund(to = \"kim\")'.")
    ] = "once",
    for_: Annotated[str, typer.Option("--for", help="Where a remembered pattern holds: `run` or `thread`.")] = "run",
    json_: Json = False,
) -> None:
    """Let the call run, once, with exactly the arguments that the ticket shows."""
    more: dict[str, Any] = {"note": note}
    if args is not None:
        more["args"] = _json(args, "--args")
        if not isinstance(more["args"], dict):
            fail("`--args` is no JSON object: it holds an argument's value by its name")
    if result is not None:
        more["result"] = _json(result, "--result")
    if remember != "once":
        more["remember"] = "call" if remember == "call" else {"pattern": remember, "for": for_}
    _answer(where, ticket, "approve", more, json_=json_)


@app.command("reject", epilog="Example: gated tickets reject t0123456789 --as ana --note 'no receipt'")
@taking(whereabouts)
def reject(
    ticket: TicketArgument,
    *,
    where: Whereabouts,
    note: Note = "",
    json_: Json = False,
) -> None:
    """Refuse the call; the agent is told, with the note."""
    _answer(where, ticket, "reject", {"note": note}, json_=json_)


@app.command("forget", epilog="Example: gated tickets forget t0123456789-call --run r1")
@taking(whereabouts)
def forget(
    remembered: Annotated[str, typer.Argument(help="What was remembered; without it, all that the run remembers.")] = "",
    *,
    run: Annotated[str, typer.Option(help="A run that it holds in.")],
    thread: Annotated[str | None, typer.Option(help="The run's thread, where it is not the run itself.")] = None,
    where: Whereabouts,
    json_: Json = False,
) -> None:
    """Withdraw an approval that was remembered, or list what is."""
    if remembered:
        _at_desk(where, lambda desk: desk.forget(thread or run, run, remembered))
        say_json({"forgotten": remembered}) if json_ else say(f"[bold]{escape(remembered)}[/] is forgotten")
        return
    found = _at_desk(where, lambda desk: desk.run(thread or run, run))["remembered"]
    if json_:
        say_json(found)
        return
    for item in found:
        say(f"[bold]{escape(item['id'])}[/]  {escape(item['text'])}")
    if not found:
        say(f"run {escape(run)} remembers nothing")


@app.command("watch", epilog="Example: gated tickets watch --as ana")
@taking(whereabouts)
def watch(
    where: Whereabouts,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a line: what waits, then what happens.")] = False,
) -> None:
    """The open tickets live, and answering them by key. Without a terminal, a line for everything that happens."""
    _at_desk(where, lambda desk: watch_tickets(desk, json_lines=json_), stay=True)


async def _find(desk: Desk, ticket: str) -> Line:
    found = await desk.ticket(ticket)
    if found is None:
        over = await desk.line(ticket, closed=True)
        raise DeskError(f"no ticket `{ticket}` is open" if over is None else ticket_text.ended(over))
    return found


def _answer(where: Whereabouts, ticket: str, decision: str, more: dict[str, Any], *, json_: bool) -> None:
    async def work(desk: Desk) -> dict[str, Any]:
        line = await desk.line(ticket, closed=True)  # whoever is late hears from the gate who was first
        if line is None:
            raise DeskError(f"no ticket `{ticket}` is open")
        return await desk.resolve(line, decision, **more)

    said = _at_desk(where, work)
    refused = said.get("type") == "refusal"
    if json_:
        say_json(said)
    elif refused:
        fail(f"{said['code']}: {said['reason']}{who_instead(where, said['code'])}", NO)
    else:
        say(f"ticket {escape(ticket)} {escape(ticket_text.became(said))}")
    if refused:
        raise typer.Exit(NO)


def who_instead(where: Whereabouts, code: str) -> str:
    """What helps whoever did not say who they are."""
    return (
        f"; you are `{NOBODY}` here: say with --as who you are"
        if (where.by, code) == (NOBODY, "approvals.not_authorised")
        else ""
    )


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        fail(f"`{option}` is not JSON: {error}")
