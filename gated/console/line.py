"""The console's lines to the bus: one of its own that only reads, and one for each person who is logged in, as that person.

INVARIANT: an answer to a ticket leaves on the line of the person who gave it, so what the server's permissions let that line say
is all that the console can say for them. A person's line is opened when they first answer and closed with their last session.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import SlowConsumerError

from gated import wire
from gated.errors import GatedError
from gated.events import RunId, Sender, ThreadId
from gated.shell.dialling import Unreachable, dial, is_shut_out
from gated.shell.nats_client import SturdyClient
from gated.shell.nats_config import inbox_prefix

ANSWER_SECONDS: Final = 8.0
ASK_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 5.0

T = TypeVar("T")
Hear = Callable[[Msg], Awaitable[None]]


class NoAnswer(GatedError):
    """The gate does not answer, or not so: why, in words for the person who waits."""


class Passwords:
    """A file in the form of `bus.json`: the URL of the bus, and passwords by login. Read anew each time."""

    def __init__(self, path: Path, url: str | None = None) -> None:
        self.path, self._url = path, url

    async def options(self, login: str, password: str | None = None) -> tuple[str, dict[str, Any]] | None:
        """The URL and the credentials of a login; None where the file has none and no other is given. Raises `NoAnswer`."""
        try:
            held = json.loads(await anyio.Path(self.path).read_text())
            url, users = self._url or str(held["url"]), held["users"]
        except FileNotFoundError as error:
            here = f"no gate runs here: `{self.path}` is not there; `gated up` writes it"
            theirs = f"the file of bus passwords `{self.path}` is not there: --bus names it"
            raise NoAnswer(here if self._url is None else theirs) from error
        except (OSError, ValueError, KeyError) as error:
            raise NoAnswer(f"the passwords of the bus in `{self.path}` cannot be read: {error}") from error
        if password is None and login not in users:
            return None
        role, _, name = login.partition(":")
        return url, {"user": login, "password": password or users[login], "inbox_prefix": inbox_prefix(role, name)}


class Told(Struct, frozen=True):
    """What became of an answer: the ticket's state, or the code and reason of its refusal."""

    state: str = ""
    code: str = ""
    reason: str = ""


class _Connection(SturdyClient):
    """`refused`: the server does not let its user in any more, so it would try for ever."""

    refused = False

    @property
    def is_over(self) -> bool:
        return self.is_closed or self.refused


class Lines:
    """Connections of the console. `tls` goes to the client as it is."""

    def __init__(self, passwords: Passwords, prefix: str = wire.PREFIX, tls: Any = None) -> None:
        self.prefix = prefix
        self._passwords, self._tls = passwords, tls
        self._own: _Connection | None = None
        self._followed: list[tuple[str, Hear]] = []
        self._missed: Callable[[], None] = lambda: None
        self._people: dict[str, _PersonLine] = {}
        self._unsealed: dict[str, str] = {}  # bus passwords of people who are logged in, as they gave them
        self._opening, self._opening_own = anyio.Lock(), anyio.Lock()

    async def open(self, missed: Callable[[], None] = lambda: None) -> None:
        """Open the console's own line; `missed` is called when something may not have been heard. Raises `NoAnswer`."""
        self._missed, self._followed = missed, []
        self._own = await self._connect("console", missed)

    async def close(self) -> None:
        for person in self.speakers:
            await self.leave(person)
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    async def _ours(self) -> Client:
        """The console's own line. One that is over is opened anew, with the password of now, and hears what it heard."""
        async with self._opening_own:
            if self._own is None:
                raise NoAnswer("the console's line to the bus is not open")
            if self._own.is_over:
                await self._own.close()
                self._own = await self._opened_again()
                self._missed()
            return self._own

    async def _opened_again(self) -> _Connection:
        made = await self._connect("console", self._missed)
        try:
            for what, hear in self._followed:
                await self._hear(made, what, hear)
        except NoAnswer:
            await made.close()
            raise
        return made

    async def _connect(self, login: str, missed: Callable[[], None] = lambda: None) -> _Connection:
        found = await self._passwords.options(login, self._unsealed.get(login.partition(":")[2]))
        if found is None:
            raise NoAnswer(f"the bus has no user `{login}`, so nothing can be said in that name")
        url, options = found

        async def again() -> None:
            missed()

        async def failed(error: Exception) -> None:
            client.refused = client.refused or is_shut_out(error)
            if client.refused or isinstance(error, SlowConsumerError):
                missed()

        client = _Connection()
        try:
            await dial(
                client,
                url,
                CONNECT_SECONDS,
                failed,
                name=f"gated console ({login})",
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.5,  # it is slept, so it may be a fraction
                ping_interval=5,
                max_outstanding_pings=2,
                reconnected_cb=again,
                closed_cb=again,  # whoever missed something asks, and asking opens the line
                **options,
                **({"tls": self._tls} if self._tls is not None else {}),
            )
        except Unreachable as error:
            raise NoAnswer(f"no line to the bus as `{login}`: {error}") from error
        return client

    # --- reading -----------------------------------------------------------------------------------------------------

    async def ask(self, verb: str, kind: type[T], **question: Any) -> T:
        """What the gate answers to `gated.api.<verb>`. Raises `NoAnswer`."""
        subject, own = f"{self.prefix}.api.{verb}", await self._ours()
        try:
            answer = await own.request(subject, msgspec.json.encode(question), timeout=ASK_SECONDS)
        except (NatsError, TimeoutError) as error:
            raise NoAnswer(f"the gate does not answer `{verb}`: {str(error) or type(error).__name__}") from error
        if answer.headers and "Nats-Service-Error" in answer.headers:
            raise NoAnswer(f"the gate does not answer `{verb}`: {answer.headers['Nats-Service-Error']}")
        try:
            return msgspec.json.decode(answer.data, type=kind)
        except msgspec.MsgspecError as error:
            raise NoAnswer(f"the gate's answer to `{verb}` is not of this version of the console: {error}") from error

    async def follow(self, what: str, hear: Hear) -> None:
        """Hear `tickets` or `events`, of every thread, from now on. Raises `NoAnswer`."""
        await self._hear(await self._ours(), what, hear)
        self._followed.append((what, hear))

    async def _hear(self, own: Client, what: str, hear: Hear) -> None:
        try:
            await own.subscribe(f"{self.prefix}.{what}.>", cb=hear, pending_bytes_limit=256 * 1024 * 1024)
            await own.flush()
        except (NatsError, TimeoutError) as error:
            raise NoAnswer(f"the bus does not let the console hear its {what}: {str(error) or type(error).__name__}") from error

    # --- answering ---------------------------------------------------------------------------------------------------

    def arrived(self, person: str, password: str | None) -> None:
        """Somebody has logged in; `password` is that of their bus user, where it was sealed under their own."""
        if password is not None:
            self._unsealed[person] = password

    async def answer(self, person: str, thread: str, run: str, said: wire.Resolution) -> Told:
        """Give a person's answer, on their line, and wait for what became of it. Raises `NoAnswer`."""
        line = await self._line(person)
        return await line.say(ThreadId(thread), RunId(run), said)

    async def forget(self, person: str, thread: str, run: str, remembered: str) -> None:
        """Say, as a person, that a remembered answer holds no longer; the log shows when it is taken. Raises `NoAnswer`."""
        line = await self._line(person)
        await line.publish(ThreadId(thread), RunId(run), wire.Forget(remembered=remembered), uuid.uuid4().hex)

    async def _line(self, person: str) -> _PersonLine:
        async with self._opening:
            line = self._people.get(person)
            if line is None or line.client.is_over:
                if line is not None:
                    await line.client.close()
                line = _PersonLine(await self._connect_person(person), person, self.prefix)
                await line.listen()
                self._people[person] = line
            return line

    async def _connect_person(self, person: str) -> _Connection:
        """A person who was added just now may have to wait until the bus knows them."""
        until = anyio.current_time() + CONNECT_SECONDS
        while True:
            try:
                return await self._connect(f"approver:{person}")
            except NoAnswer:
                if anyio.current_time() > until:
                    raise
                await anyio.sleep(0.25)

    @property
    def speakers(self) -> set[str]:
        """The people who have a line now, or could have one."""
        return {*self._people, *self._unsealed}

    async def leave(self, person: str) -> None:
        """Close a person's line, and forget their password."""
        self._unsealed.pop(person, None)
        line = self._people.pop(person, None)
        if line is not None:
            with suppress(NatsError):
                await line.client.close()


class _PersonLine:
    """A connection as one person; answers come back under the id of the message that they answer."""

    def __init__(self, client: _Connection, person: str, prefix: str) -> None:
        self.client, self._prefix = client, prefix
        self._sender = Sender("approver", person)
        self._waiting: dict[str, tuple[anyio.Event, list[Told]]] = {}

    async def listen(self) -> None:
        await self.client.subscribe(f"{self._prefix}.tickets.>", cb=self._hear)
        await self.client.subscribe(f"{self._prefix}.out.*.*.approver.{self._sender.name}", cb=self._hear)
        await self.client.flush()

    async def _hear(self, message: Msg) -> None:
        waiting = self._waiting.get((message.headers or {}).get(wire.RE, ""))
        if waiting is None:
            return
        said = json.loads(message.data)
        if said.get("type") == "refusal":
            told = Told(code=said["code"], reason=said["reason"])
        elif "answer" in said.get("details", {}):
            told = Told(state=said["state"])
        else:
            return  # what the answer led to: a further ticket, others that are cancelled
        waiting[1].append(told)
        waiting[0].set()

    async def publish(self, thread: ThreadId, run: RunId, said: Struct, message_id: str) -> None:
        subject = wire.in_subject(wire.Origin(thread, run, self._sender), self._prefix)
        try:
            await self.client.publish(subject, wire.encode(said), headers={"Nats-Msg-Id": message_id, wire.RE: message_id})
        except NatsError as error:
            raise NoAnswer(f"the bus does not take it: {str(error) or type(error).__name__}") from error

    async def say(self, thread: ThreadId, run: RunId, said: wire.Resolution) -> Told:
        """Publish it and wait for what became of it. Raises `NoAnswer`."""
        message_id = uuid.uuid4().hex
        heard, told = self._waiting.setdefault(message_id, (anyio.Event(), []))
        try:
            with anyio.fail_after(ANSWER_SECONDS):
                await self.publish(thread, run, said, message_id)
                await heard.wait()
            return told[0]
        except TimeoutError as error:
            why = f"nothing was heard within {ANSWER_SECONDS:g}s"
            raise NoAnswer(f"the gate did not say what became of the answer: {why}; look at the ticket again") from error
        finally:
            self._waiting.pop(message_id, None)
