"""An operator at the bus: opens runs, ends them, binds them to the policy that holds now, and hears what became of it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import msgspec
import typer
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from gated import ingress, wire
from gated.cli.output import CANNOT, NO, Authority, Prefix, fail, run_async
from gated.cli.passwords import NoPassword, PasswordFile
from gated.events import RunId, Sender, ThreadId
from gated.shell.dialling import dial
from gated.shell.login import login
from gated.shell.nats_client import SturdyClient
from gated.shell.nats_config import inbox_prefix
from gated.wire import Origin

SECONDS: Final = 5.0

Name = Annotated[
    str | None,
    typer.Option("--as", envvar="GATED_OPERATOR", help="The operator that you are; default: whoever GATED_NATS_USER is."),
]
Nats = Annotated[
    str | None, typer.Option("--nats", envvar="GATED_NATS_URL", help="A NATS server of yours instead of the folder.")
]
Creds = Annotated[Path | None, typer.Option(envvar="GATED_NATS_CREDS", help="A NATS credentials file.")]

View = dict[str, Any]  # a run, as `runs.show` of the API tells it


class Place(Struct, frozen=True):
    """Which gate, and as whom."""

    name: str
    data: Path
    url: str | None = None
    password_file: Path | None = None
    creds: Path | None = None
    ca: Path | None = None
    prefix: str = wire.PREFIX
    role: str = "operator"

    @property
    def user(self) -> str:
        return f"{self.role}:{self.name}"


def place_of(
    name: Name = None,
    data: Annotated[Path, typer.Option(help="Folder of the running gate.")] = Path(".gated"),
    nats: Nats = None,
    password_file: PasswordFile = None,
    password: NoPassword = None,
    creds: Creds = None,
    tls_ca: Authority = None,
    prefix: Prefix = wire.PREFIX,
) -> Place:
    """The options of every command that an operator gives."""
    who, role = name_of(name, nats)
    return Place(who, data, nats, password_file, creds, tls_ca, prefix if nats else wire.PREFIX, role)


def name_of(told: str | None, nats: str | None) -> tuple[str, str]:
    """Who asks, and in which role: as told, else as whom the environment logs in on a server of one's own."""
    role, colon, name = os.environ.get("GATED_NATS_USER", "").partition(":")
    return (name, role) if told is None and nats and colon else (told or "local", "operator")


class Operator:
    """What `operate` gives."""

    def __init__(self, client: Client, name: str, prefix: str) -> None:
        self._client, self._name, self._prefix = client, name, prefix
        self._refused: dict[str, str] = {}

    async def ask(self, verb: str, **question: Any) -> Any:
        """An answer of the API; None where there is no such thing. Ends the command where the gate cannot answer."""
        try:
            answer = await self._client.request(f"{self._prefix}.api.{verb}", msgspec.json.encode(question), timeout=SECONDS)
        except (NatsError, TimeoutError) as error:
            fail(f"the gate does not answer `{verb}`: {error or type(error).__name__}")
        if answer.headers and "Nats-Service-Error" in answer.headers:
            if answer.headers.get("Nats-Service-Error-Code") == wire.NOT_THERE:
                return None
            fail(f"the gate does not answer `{verb}`: {answer.headers['Nats-Service-Error']}", NO)
        return json.loads(answer.data)

    async def say(self, thread: str, run: str, said: Any, done: Callable[[View], bool]) -> View:
        """Say something for a run, and wait until it shows in the run. Ends the command where it is refused."""
        message_id = await self.tell(thread, run, said)
        with anyio.move_on_after(SECONDS):
            while True:
                if message_id in self._refused:
                    fail(self._refused[message_id], NO)
                view: View | None = await self.ask("runs.show", thread=thread, run=run)
                if view is not None and done(view):
                    return view
                await anyio.sleep(0.05)
        fail("it is stored on the bus, and the gate has not taken it yet: it does once it runs", NO)

    async def tell(self, thread: str, run: str, said: Any) -> str:
        """Say something for a run, and wait for nothing. The id by which `refusal` knows it."""
        message_id = uuid.uuid4().hex
        await self._publish(thread, run, said, message_id)
        return message_id

    def refusal(self, message_id: str) -> str | None:
        return self._refused.get(message_id)

    async def open_runs(self) -> list[tuple[str, str]]:
        """(thread, run) of every run that has not ended, by the log."""
        found: dict[tuple[str, str], None] = {}
        after, whole = 0, False
        while not whole:
            page = await self.ask("log.read", after=after)
            for record in page["records"]:
                body = record["body"]
                place = body["thread"], body["run"]
                for decision in body["decisions"]:
                    if decision["kind"] == "run_opened":
                        found[place] = None
                    elif decision["kind"] == "run_ended":
                        found.pop(place, None)
            after, whole = page["after"], page["complete"] or not page["records"]
        return list(found)

    async def _publish(self, thread: str, run: str, said: Any, message_id: str) -> None:
        origin = Origin(ThreadId(thread), RunId(run), Sender("operator", self._name))
        try:
            stored = await self._client.request(
                wire.in_subject(origin, self._prefix),
                msgspec.json.encode(said),
                timeout=SECONDS,
                headers={"Nats-Msg-Id": message_id},
            )
        except (NatsError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            fail(f"the bus did not take it: {why}; may `{self._name}` operate with these credentials?", NO)
        if (problem := json.loads(stored.data).get("error")) is not None:
            fail(f"the bus did not take it: {problem.get('description')}", NO)

    async def hear(self, message: Msg) -> None:
        said = json.loads(message.data)
        re = (message.headers or {}).get(wire.RE)
        if re is not None and said.get("type") == "refusal":
            self._refused[re] = f"{said['code']}: {said['reason']}"


@asynccontextmanager
async def operate(place: Place, roles: tuple[str, ...] = ("operator",)) -> AsyncIterator[Operator]:
    """Connect as the operator, or in another of the `roles`, which only asks. Ends the command where no gate is found."""
    if place.role not in roles:
        wanted = " or ".join(f"`{role}:NAME`" for role in roles)
        fail(f"GATED_NATS_USER is `{place.user}`, and this is for {wanted}: log in as one, or say with --as who you are")
    url, options = await _credentials(place)
    options["inbox_prefix"] = inbox_prefix(place.role, place.name)
    client = SturdyClient()
    await dial(client, url, SECONDS, allow_reconnect=False, connect_timeout=3, **options)
    try:
        operator = Operator(client, place.name, place.prefix)
        if place.role == "operator":
            await client.subscribe(f"{place.prefix}.out.*.*.operator.{place.name}", cb=operator.hear)
        await client.flush()
        yield operator
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()


async def _credentials(place: Place) -> tuple[str, dict[str, Any]]:
    user = place.user
    if place.url is not None:
        told = login(place.url, user=user, password_file=place.password_file, creds=place.creds, ca=place.ca)
        return told.url, told.credentials
    try:
        bus = json.loads(await anyio.Path(place.data / "bus" / "bus.json").read_text())
    except OSError:
        fail(f"no gate runs with the folder `{place.data.absolute()}`: start one with `gated up`, or give `--nats`", CANNOT)
    if user not in bus["users"]:
        fail(f"`{place.name}` is no operator of this gate", CANNOT)
    return bus["url"], {"user": user, "password": bus["users"][user]}


def at_bus(place: Place, work: Callable[[Operator], Awaitable[Any]], roles: tuple[str, ...] = ("operator",)) -> Any:
    """Do something as an operator, or in another of the `roles`, and give back what came of it."""

    async def sit() -> Any:
        async with operate(place, roles) as operator:
            return await work(operator)

    return run_async(sit)


def checked_run(thread: str | None, run: str) -> tuple[str, str]:
    """A run and its thread, which is the run itself unless it is told. Ends the command where one of them is no id."""
    run = checked_id(run, "run")
    return run if thread is None else checked_id(thread, "thread"), run


def checked_id(text: str, what: str) -> str:
    if not ingress.is_id(text):
        fail(f"`{text}` is no id of a {what}: 1 to 128 of the characters A-Z a-z 0-9 _ -")
    return text
