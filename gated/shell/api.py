"""`gated.api.<verb>`: what people's tools ask of a running daemon, as a NATS micro service that answers JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import nats.micro
from nats.aio.client import Client
from nats.micro.request import Request
from nats.micro.service import Service

from gated import ingress
from gated.events import RunId, ThreadId
from gated.shell.runs import Runs
from gated.views import run_view, ticket_views

Verb = Callable[[dict[str, Any]], Awaitable[Any]]


class ApiError(Exception):
    """A request that cannot be answered as it is."""


async def serve(client: Client, runs: Runs, prefix: str) -> Service:
    """Answer requests until the service is stopped."""
    service = await nats.micro.add_service(client, name="gated", version="1.0.0", description="the gate's questions and answers")
    group = service.add_group(name=f"{prefix}.api")
    for name, verb in _verbs(runs).items():
        await group.add_endpoint(name=name.replace(".", "_"), subject=name, handler=_handler(verb))
    return service


def _verbs(runs: Runs) -> dict[str, Verb]:
    async def health(_: dict[str, Any]) -> Any:
        current = runs.registry.current
        told = msgspec.to_builtins(runs.health)
        return {"ok": not runs.health.why, "policy": current.digest, "agents": sorted(current.agents), **told}

    async def policy_show(_: dict[str, Any]) -> Any:
        current = runs.registry.current
        return {"policy": current.digest, "text": msgspec.json.decode(current.text)}

    async def runs_show(asked: dict[str, Any]) -> Any:
        thread, run = _id(asked, "thread"), _id(asked, "run")
        state = await runs.look(ThreadId(thread))
        found = state.runs.get(RunId(run))
        if found is None:
            raise ApiError(f"there is no run `{run}` on thread `{thread}`")
        return run_view(state, RunId(run), runs.registry.known[found.policy])

    async def tickets_list(_: dict[str, Any]) -> Any:
        return [view for state in runs.states() for view in ticket_views(state)]

    return {"health": health, "policy.show": policy_show, "runs.show": runs_show, "tickets.list": tickets_list}


def _id(asked: dict[str, Any], name: str) -> str:
    value = asked.get(name)
    if not isinstance(value, str) or not ingress.is_id(value):
        raise ApiError(f"the request wants `{name}`, an id")
    return value


def _handler(verb: Verb) -> Callable[[Request], Awaitable[None]]:
    async def handle(request: Request) -> None:
        if not request._msg.reply.startswith("_INBOX."):
            return  # an answer to any other subject would let its sender speak in the daemon's name
        try:
            asked = msgspec.json.decode(request.data, type=dict[str, Any]) if request.data else {}
            await request.respond(msgspec.json.encode(await verb(asked)))
        except (ApiError, msgspec.MsgspecError) as error:
            await request.respond_error("400", str(error))

    return handle
