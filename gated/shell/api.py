"""`gated.api.<verb>`: what people's tools ask of a running daemon, as a NATS micro service that answers JSON.

Lists come in pages of at most `PAGE_BYTES`, since an answer is one message.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import anyio
import msgspec
import nats.micro
from msgspec import Struct
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from nats.micro.request import Request
from nats.micro.service import Service

from gated import ingress
from gated.core.foresee import remaining
from gated.core.links import with_links
from gated.core.state import RunState, ThreadState
from gated.core.turn import Turn
from gated.errors import GatedError
from gated.events import CanIAsked, Record, RunId, Sender, ThreadId, TicketId
from gated.ingress import Unreadable
from gated.shell.damaged import NOT_ITS_HASH, is_whole
from gated.shell.log import LogError, ThreadDamaged
from gated.shell.paths import links_of
from gated.shell.runs import Runs
from gated.ticket_views import in_order, line_view, open_ticket, ticket_views
from gated.views import run_view
from gated.wire.questions import (
    NOT_THERE,
    Bare,
    LogRead,
    LogThread,
    PolicyShow,
    RunsCanI,
    RunsShow,
    TicketsPage,
    TicketsShow,
    read_question,
)

PAGE_BYTES: Final = 500_000
PAGE_ITEMS: Final = 500
STOP_SECONDS: Final = 2.0  # for the questions that are being answered


class Verb(NamedTuple):
    """What may be asked, and who answers it."""

    question: type[Struct]
    answer: Callable[[Any], Awaitable[Any]]


class ApiError(GatedError):
    """A request that cannot be answered as it is."""


class NotThere(ApiError):
    """What is asked about does not exist."""


async def serve(client: Client, runs: Runs, prefix: str, more: Mapping[str, Verb] | None = None) -> Service:
    """Answer requests until the service is stopped."""
    service = await nats.micro.add_service(client, name="gated", version="1.0.0", description="the gate's questions and answers")
    group = service.add_group(name=f"{prefix}.api")
    for name, verb in {**_verbs(runs), **(more or {})}.items():
        await group.add_endpoint(name=name.replace(".", "_"), subject=name, handler=_handler(verb))
    await client.flush()  # whoever is told that the daemon is ready may ask
    return service


async def stop(service: Service) -> None:
    """Answer no more; a bus that is away, or a question that takes too long, holds nobody up."""
    with suppress(NatsError), anyio.move_on_after(STOP_SECONDS):
        await service.stop()


def _verbs(runs: Runs) -> dict[str, Verb]:
    async def health(_: Bare) -> Any:
        current = runs.registry.current
        told = msgspec.to_builtins(runs.health)
        return {"ok": not runs.health.why, "policy": current.digest, "agents": sorted(current.agents), **told}

    async def policy_show(asked: PolicyShow) -> Any:
        """The current policy, or the one with a digest that the log knows."""
        digest = asked.policy if asked.policy is not None else runs.registry.current.digest
        known = runs.registry.known.get(digest)
        text = known.text if known is not None else await runs.log.policy(digest)
        if text is None:
            raise NotThere(f"the log has no policy `{digest}`")
        return {"policy": digest, "text": msgspec.Raw(text)}

    async def found_run(asked: RunsShow | RunsCanI) -> tuple[ThreadState, RunId, RunState]:
        thread, run = ThreadId(asked.thread), RunId(asked.run)
        state = await runs.look(thread)
        runs.telemetry.looked(thread)
        found = state.runs.get(run)
        if found is None:
            raise NotThere(f"there is no run `{run}` on thread `{thread}`")
        return state, run, found

    async def runs_show(asked: RunsShow) -> Any:
        state, run, found = await found_run(asked)
        return run_view(state, run, runs.registry.known[found.policy])

    async def can_i(asked: RunsCanI) -> Any:
        """What is left to a run, and what would be decided on `calls`; nothing is taken for it."""
        state, run, found = await found_run(asked)
        wanted = tuple(ingress.wanted_from(call, i) for i, call in enumerate(asked.calls))
        question, at = CanIAsked(Sender("agent", found.agent), wanted), time.time_ns() // 1000
        answer = remaining(turn := Turn(runs.registry, state, run, at), question)
        if turn.unfollowed:
            question = with_links(question, await links_of(turn.unfollowed))
            answer = remaining(Turn(runs.registry, state, run, at), question)
        return answer

    async def tickets_list(_: Bare) -> Any:
        """Every open ticket whole, those of threads that are not in memory too. Many do not fit one answer: ask for pages."""
        await runs.open_tickets.whole()
        threads = dict.fromkeys(place.thread for _, place in runs.open_tickets.after(0))
        return in_order([view for thread in threads for view in await tickets_of(runs, thread)])

    async def tickets_page(asked: TicketsPage) -> Any:
        """Open tickets that were found after number `after`, with what lists show of them."""
        found, after = _Page(), asked.after
        searched = runs.open_tickets.complete  # asked first: what is found while the lines are read is not on this page
        for ticket, place in runs.open_tickets.after(after):
            line = await _line(runs, ticket)
            if line is not None and not found.takes(line):
                break
            after = place.number
        return {"tickets": found.items, "after": after, "complete": not found.full and searched}

    async def tickets_show(asked: TicketsShow) -> Any:
        """The lines of the tickets that are named and open; with `closed`, also of those that closed lately."""
        lines = [await _line(runs, name, closed=asked.closed) for name in asked.tickets]
        return {"tickets": [line for line in lines if line is not None]}

    async def log_head(_: Bare) -> Any:
        return {"position": await runs.log.head()}

    async def log_read(asked: LogRead) -> Any:
        """Records of all threads behind the position `after`, up to the position `until` where that is given.

        Of those that are not what their hashes say only the positions are told.
        """
        found, after, until = _Page(), asked.after, asked.until
        lost: list[int] = []
        async for position, record in runs.log.read_all(after):
            if until and position > until:
                break
            if not is_whole(record):
                lost.append(position)
            elif not found.takes(_stored(record)):
                break
            after = position
        return {"records": found.items, "after": after, "complete": not found.full, "damaged": lost}

    async def log_thread(asked: LogThread) -> Any:
        """Records of a thread behind the number `after`."""
        found, after, thread = _Page(), asked.after, ThreadId(asked.thread)
        runs.telemetry.looked(thread)
        async for record in runs.log.read(thread, after):
            if not is_whole(record):
                raise ThreadDamaged(record.thread, record.seq, NOT_ITS_HASH)
            if record.seq != after + 1 or not found.takes(_stored(record)):
                break  # what follows on an archived thread can only be read with its archive
            after = record.seq
        return {"records": found.items, "after": after, "complete": not found.full}

    return {
        "health": Verb(Bare, health),
        "policy.show": Verb(PolicyShow, policy_show),
        "runs.show": Verb(RunsShow, runs_show),
        "can_i": Verb(RunsCanI, can_i),
        "tickets.list": Verb(Bare, tickets_list),
        "tickets.page": Verb(TicketsPage, tickets_page),
        "tickets.show": Verb(TicketsShow, tickets_show),
        "log.head": Verb(Bare, log_head),
        "log.read": Verb(LogRead, log_read),
        "log.thread": Verb(LogThread, log_thread),
    }


class _Page:
    """Items of an answer, encoded, as many as fit; the first always does."""

    def __init__(self) -> None:
        self.items: list[msgspec.Raw] = []
        self.full = False
        self._bytes = 0

    def takes(self, item: Any) -> bool:
        encoded = msgspec.json.encode(item)
        self.full = bool(self.items) and (self._bytes + len(encoded) > PAGE_BYTES or len(self.items) >= PAGE_ITEMS)
        if not self.full:
            self.items.append(msgspec.Raw(encoded))
            self._bytes += len(encoded)
        return not self.full


async def tickets_of(runs: Runs, thread: ThreadId) -> list[dict[str, Any]]:
    """The open tickets of a thread; of a damaged one nobody may answer any."""
    try:
        return ticket_views(await runs.look(thread))
    except ThreadDamaged:
        return []


async def _line(runs: Runs, ticket_id: str, *, closed: bool = False) -> dict[str, Any] | None:
    place = runs.open_tickets.find(ticket_id, closed=closed)
    if place is None:
        return None
    try:
        run = (await runs.look(place.thread)).runs.get(place.run)
    except ThreadDamaged:
        return None
    found = None if run is None else run.tickets.get(TicketId(ticket_id))
    if run is None or found is None or (found.state != "pending" and not closed):
        return None
    return line_view(open_ticket(place.thread, place.run, run, found), found.state)


def _stored(record: Record) -> dict[str, Any]:
    return {"hash": record.hash, "body": msgspec.Raw(record.body)}


def _handler(verb: Verb) -> Callable[[Request], Awaitable[None]]:
    async def handle(request: Request) -> None:
        if not request._msg.reply.startswith("_INBOX."):
            return  # an answer to any other subject would let its sender speak in the daemon's name
        try:
            asked = read_question(verb.question, request.data)
            await request.respond(msgspec.json.encode(await verb.answer(asked)))
        except NotThere as error:
            await request.respond_error(NOT_THERE, str(error))
        except (ApiError, Unreadable) as error:
            await request.respond_error("400", str(error))
        except LogError as error:
            await request.respond_error("503", str(error))
        except MaxPayloadError:
            await request.respond_error("413", "the answer is larger than a message of the bus: ask for pages, or the log itself")

    return handle
