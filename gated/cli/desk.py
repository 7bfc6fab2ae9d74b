"""A person's desk: their own connection to the bus, the open tickets, what happens to them, and the person's answers.

Who answers is who the bus credentials say: with `gated up` those of its folder, on a server of yours the person's own.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from gated import wire
from gated.errors import GatedError
from gated.events import RunId, Sender, ThreadId
from gated.shell.dialling import Unreachable, dial
from gated.shell.login import login
from gated.shell.nats_client import SturdyClient
from gated.shell.nats_config import inbox_prefix
from gated.ticket_views import in_order
from gated.units import rfc3339
from gated.wire import Origin

ANSWER_SECONDS: Final = 5.0
STILL_SEARCHING: Final = 0.1  # seconds until a gate is asked again that has started just now and found nothing yet

Line = dict[str, Any]  # an open ticket, as the API lists it, with RFC 3339 times


class DeskError(GatedError):
    """The bus is out of reach, or the gate does not do what was asked of it. `absent`: no gate was found at all."""

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


class Whereabouts(Struct, frozen=True):
    """The gate and who sits at the desk: the folder of `gated up`, or a server with the person's credentials."""

    by: str
    data: Path
    url: str | None = None
    user: str | None = None
    password_file: Path | None = None
    creds: Path | None = None
    ca: Path | None = None
    prefix: str = wire.PREFIX


class Desk:
    """What `sit_down` gives. `news` is told of each message on the life of a ticket."""

    def __init__(self, client: Client, by: str, prefix: str) -> None:
        self.by = by
        self.news: Any = None
        self._client, self._prefix = client, prefix
        self._answers: dict[str, Any] = {}
        self._answered = anyio.Event()

    @property
    def connected(self) -> bool:
        return bool(self._client.is_connected)

    # --- looking -----------------------------------------------------------------------------------------------------

    async def tickets(self) -> list[Line]:
        """All open tickets. Raises `DeskError`."""
        found: list[Line] = []
        after, whole = 0, False
        while not whole:
            page = await self.ask("tickets.page", after=after)
            found += map(_readable, page["tickets"])
            after, whole = page["after"], page["complete"]
            if not whole and not page["tickets"]:
                await anyio.sleep(STILL_SEARCHING)
        return in_order(found)

    async def ticket(self, ticket: str) -> Line | None:
        """One open ticket with its calls' arguments in full, None where it is not open. Raises `DeskError`."""
        page = await self.ask("tickets.show", tickets=[ticket])
        if not page["tickets"]:
            return None
        line = _readable(page["tickets"][0])
        run = await self.run(line["thread"], line["run"])
        waiting = next((item for item in run["waiting"] if item["ticket"] == ticket), None)
        return None if waiting is None else {**line, "calls": waiting["calls"], "task": run["task"], "history": run["counts"]}

    async def line(self, ticket: str, *, closed: bool = False) -> Line | None:
        """One open ticket as lists show it; with `closed`, also one that has closed lately."""
        page = await self.ask("tickets.show", tickets=[ticket], closed=closed)
        return _readable(page["tickets"][0]) if page["tickets"] else None

    async def run(self, thread: str, run: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.ask("runs.show", thread=thread, run=run)
        return found

    async def ask(self, verb: str, **question: Any) -> Any:
        """Raises `DeskError` with the gate's own words, or where it does not answer."""
        try:
            answer = await self._client.request(f"{self._prefix}.api.{verb}", msgspec.json.encode(question), timeout=5)
        except (NatsError, TimeoutError) as error:
            raise DeskError(f"the gate does not answer `{verb}`: {error or type(error).__name__}") from error
        if answer.headers and "Nats-Service-Error" in answer.headers:
            raise DeskError(answer.headers["Nats-Service-Error"])
        return json.loads(answer.data)

    # --- answering ---------------------------------------------------------------------------------------------------

    async def resolve(self, line: Line, decision: str, **more: Any) -> dict[str, Any]:
        """Approve or reject; the gate's word: a ticket message, or a refusal. Raises `DeskError` where none comes in time."""
        said = {
            "type": "resolution",
            "ticket": line["ticket"],
            "decision": decision,
            "decision_id": uuid.uuid4().hex,
            "args_sha256": line["args_sha256"],
            **more,
        }
        return await self._say(line["thread"], line["run"], said)

    async def forget(self, thread: str, run: str, remembered: str) -> None:
        """Withdraw a standing approval. Raises `DeskError` where the run has none of that name."""
        standing = (await self.run(thread, run))["remembered"]
        if all(item["id"] != remembered for item in standing):
            known = ", ".join(f"`{item['id']}`" for item in standing) or "nothing"
            raise DeskError(f"nothing is remembered as `{remembered}`; run `{run}` remembers {known}")
        await self._publish(thread, run, {"type": "forget", "remembered": remembered}, uuid.uuid4().hex)
        with anyio.move_on_after(ANSWER_SECONDS):
            while any(item["id"] == remembered for item in (await self.run(thread, run))["remembered"]):  # noqa: ASYNC110
                await anyio.sleep(0.05)
            return
        raise DeskError(f"the gate has not forgotten `{remembered}` yet: it takes it once it runs")

    async def _say(self, thread: str, run: str, said: dict[str, Any]) -> dict[str, Any]:
        message_id = said["decision_id"]
        self._answers[message_id] = None
        try:
            await self._publish(thread, run, said, message_id)
            with anyio.move_on_after(ANSWER_SECONDS):
                while self._answers[message_id] is None:
                    await self._answered.wait()
            answer = self._answers[message_id]
        finally:
            del self._answers[message_id]
        if answer is None:
            raise DeskError(
                "the answer is stored on the bus, and the gate has not taken it yet: it counts from when it was stored"
            )
        return dict(answer)

    async def _publish(self, thread: str, run: str, said: dict[str, Any], message_id: str) -> None:
        """Until the bus has stored it."""
        origin = Origin(ThreadId(thread), RunId(run), Sender("approver", self.by))
        subject = wire.in_subject(origin, self._prefix)
        try:
            stored = await self._client.request(
                subject, msgspec.json.encode(said), timeout=ANSWER_SECONDS, headers={"Nats-Msg-Id": message_id}
            )
        except (NatsError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise DeskError(f"the bus did not take the answer: {why}; may `{self.by}` answer with these credentials?") from error
        if (problem := json.loads(stored.data).get("error")) is not None:
            raise DeskError(f"the bus did not take the answer: {problem.get('description')}")

    # --- hearing -----------------------------------------------------------------------------------------------------

    async def hear(self, message: Msg) -> None:
        said = json.loads(message.data)
        re = (message.headers or {}).get(wire.RE)
        if re in self._answers and (said.get("type") == "refusal" or _answers(said)):
            self._answers[re] = said
            self._answered.set()
            self._answered = anyio.Event()
        if said.get("type") == "ticket" and message.subject.startswith(f"{self._prefix}.tickets.") and self.news is not None:
            await self.news(said)


@asynccontextmanager
async def sit_down(where: Whereabouts, *, stay: bool = False) -> AsyncIterator[Desk]:
    """Connect; with `stay`, again and again for as long as the block runs. Raises `DeskError`."""
    url, options = await _credentials(where)
    client: Client = SturdyClient()
    reconnection: dict[str, Any] = {"allow_reconnect": stay, "max_reconnect_attempts": -1 if stay else 1, "connect_timeout": 3}
    try:
        await dial(client, url, 5, **{**options, "inbox_prefix": inbox_prefix("approver", where.by)}, **reconnection)
    except Unreachable as error:
        raise DeskError(str(error), absent=True) from error
    try:
        desk = Desk(client, where.by, where.prefix)
        for subject in (f"{where.prefix}.tickets.>", f"{where.prefix}.out.*.*.approver.{where.by}"):
            await client.subscribe(subject, cb=desk.hear)
        await client.flush()
        yield desk
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()


async def _credentials(where: Whereabouts) -> tuple[str, dict[str, Any]]:
    if where.url is not None:
        told = login(where.url, user=where.user, password_file=where.password_file, creds=where.creds, ca=where.ca)
        return told.url, told.credentials
    try:
        bus = json.loads(await anyio.Path(where.data / "bus" / "bus.json").read_text())
    except OSError as error:
        what = f"no gate runs with the folder `{where.data.absolute()}`: start one with `gated up`, or give `--nats`"
        raise DeskError(what, absent=True) from error
    user = f"approver:{where.by}"
    if user not in bus["users"]:
        known = ", ".join(sorted(name.removeprefix("approver:") for name in bus["users"] if name.startswith("approver:")))
        raise DeskError(f"`{where.by}` is no approver of this gate; it knows {known}", absent=True)
    return bus["url"], {"user": user, "password": bus["users"][user]}


def _answers(said: dict[str, Any]) -> bool:
    """Whether a message on a ticket's life is about an answer that was taken, and not what the answer led to."""
    return "answer" in said.get("details", {})


def _readable(line: Line) -> Line:
    """Times as people and `jq` read them."""
    answers = [{**answer, "at": rfc3339(answer["at"])} for answer in line["answers"]]
    times = {key: rfc3339(line[key]) for key in ("opened_at", "expires_at")}
    return {**line, **times, "answers": answers}
