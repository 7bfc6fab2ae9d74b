"""`gated tickets …`: what waits for people, and their answers, from a terminal."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Annotated, Any

import anyio
import nats
import typer
from nats.errors import Error as NatsError
from rich.markup import escape

from gated import wire
from gated.cli.daemon import ask
from gated.cli.output import NO, Json, fail, run_async, say, say_json, table
from gated.core.order.templates import escape_text
from gated.events import RunId, Sender, ThreadId
from gated.shell.nats_config import inbox_prefix
from gated.wire import Origin

app = typer.Typer(help="Calls that wait for people.", no_args_is_help=True)

Data = Annotated[Path, typer.Option(help="Folder of the running gate.")]
TicketArgument = Annotated[str, typer.Argument(help="The ticket's id.", metavar="TICKET")]
By = Annotated[str, typer.Option("--as", help="The approver that you are.")]
Note = Annotated[str, typer.Option(help="A note for the log and the agent.")]

ANSWER_SECONDS = 5.0


@app.command("ls", epilog="Example: gated tickets ls")
def ls(data: Data = Path(".gated"), json_: Json = False) -> None:
    """The open tickets, oldest first."""
    found = run_async(lambda: ask(data, "tickets.list", {}))
    if json_:
        say_json(found)
        return
    rows = ((t["ticket"], t["agent"], t["tool"], t["expires_at"][:19], "; ".join(a["reason"] for a in t["asks"])) for t in found)
    table(("ticket", "agent", "tool", "expires", "why"), rows)


@app.command("show", epilog="Example: gated tickets show t0123456789")
def show(ticket: TicketArgument, data: Data = Path(".gated"), json_: Json = False) -> None:
    """One ticket: every argument in full, and why it is asked."""
    found = run_async(lambda: _find(data, ticket))
    if json_:
        say_json(found)
        return
    say(f"[bold]{found['ticket']}[/] agent {escape(found['agent'])} run {escape(found['run'])} until {found['expires_at']}")
    for asked in found["asks"]:
        say(f"[yellow]asks[/] {escape(asked['stage'])} {escape(asked['code'])}: {escape(asked['reason'])}")
    for call in found["calls"]:
        text = json.dumps(call["args"], indent=2, ensure_ascii=False)
        say(f"{escape(call['tool'])}  {call['args_sha256']}")
        say("\n".join(escape(escape_text(line, len(line))) for line in text.splitlines()))


async def _find(data: Path, ticket: str) -> dict[str, Any]:
    for found in await ask(data, "tickets.list", {}):
        if found["ticket"] == ticket:
            return dict(found)
    fail(f"no ticket `{ticket}` is open", NO)


@app.command("approve", epilog="Example: gated tickets approve t0123456789 --as ana --note 'seen the invoice'")
def approve(ticket: TicketArgument, by: By = "local", note: Note = "", data: Data = Path(".gated")) -> None:
    """Let the call run, once, with exactly the arguments that the ticket shows."""
    run_async(lambda: _answer(data, ticket, by, "approve", note))


@app.command("reject", epilog="Example: gated tickets reject t0123456789 --as ana --note 'no receipt'")
def reject(ticket: TicketArgument, by: By = "local", note: Note = "", data: Data = Path(".gated")) -> None:
    """Refuse the call; the agent is told, with the note."""
    run_async(lambda: _answer(data, ticket, by, "reject", note))


async def _answer(data: Path, ticket: str, by: str, decision: str, note: str) -> None:
    found = await _find(data, ticket)
    message_id = uuid.uuid4().hex
    said = {
        "type": "resolution",
        "ticket": ticket,
        "decision": decision,
        "decision_id": message_id,
        "args_sha256": found["args_sha256"],
        "note": note,
    }
    answer = await _say_and_hear(data, by, found, message_id, json.dumps(said).encode())
    if answer.get("type") == "refusal":
        fail(f"{answer['code']}: {answer['reason']}", NO)
    say(f"ticket {ticket} is [bold]{answer['state']}[/]")


async def _say_and_hear(data: Path, by: str, found: dict[str, Any], message_id: str, message: bytes) -> dict[str, Any]:
    """Publish a resolution and wait for the gate's word on it."""
    bus = json.loads(await anyio.Path(data / "bus" / "bus.json").read_text())
    login = f"approver:{by}"
    if login not in bus["users"]:
        fail(f"`{by}` is no approver of this gate: its groups name {', '.join(_approvers(bus)) or 'nobody'}")
    client = await nats.connect(
        bus["url"], user=login, password=bus["users"][login], inbox_prefix=inbox_prefix("approver", by), allow_reconnect=False
    )
    try:
        heard = [
            await client.subscribe(subject) for subject in (f"{wire.PREFIX}.tickets.>", f"{wire.PREFIX}.out.*.*.approver.{by}")
        ]
        await client.flush()
        origin = Origin(ThreadId(found["thread"]), RunId(found["run"]), Sender("approver", by))
        await client.publish(wire.in_subject(origin), message, headers={"Nats-Msg-Id": message_id})
        return await _first_answer(heard, message_id)
    except (NatsError, TimeoutError) as error:
        fail(f"the gate did not answer: {error or type(error).__name__}", NO)
    finally:
        await client.close()


async def _first_answer(heard: list[Any], message_id: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def listen(subscription: Any, scope: anyio.CancelScope) -> None:
        async for message in subscription.messages:
            said = json.loads(message.data)
            if message.headers and message.headers.get(wire.RE) == message_id and said.get("event") in ("answered", None):
                found.append(said)
                scope.cancel()
                return

    with anyio.move_on_after(ANSWER_SECONDS):
        async with anyio.create_task_group() as tasks:
            for subscription in heard:
                tasks.start_soon(listen, subscription, tasks.cancel_scope)
    if not found:
        raise TimeoutError(f"nothing within {ANSWER_SECONDS:g}s")
    return found[0]


def _approvers(bus: dict[str, Any]) -> list[str]:
    return [login.removeprefix("approver:") for login in bus["users"] if login.startswith("approver:")]
