"""The console as an ASGI application: its addresses, and what each wants of who asks.

INVARIANT: an address answers only somebody who is logged in, unless it is listed under `OPEN`; every POST reads its form through
`Visit.form`, which wants the session's token. Addresses hold ids and page numbers, nothing else
(but for what an OpenID provider adds on the way back).
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from importlib import resources
from typing import Final

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gated.console import answers_pages, entry, oidc_pages, runs_pages, tickets_pages
from gated.console.desk import EVENTS, Desk, Forbidden, Handler, Visit
from gated.console.guard import Guard
from gated.console.line import NoAnswer
from gated.console.people import PeopleError

LARGEST: Final = 3_000_000  # bytes of a form: arguments of a call as text, percent-encoded
KINDS: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

log = structlog.get_logger("gated.console")

OPEN: Final[Mapping[tuple[str, str], Handler]] = {
    ("GET", "/login"): entry.login_page,
    ("POST", "/login"): entry.login,
    ("GET", "/oidc"): oidc_pages.start,
    ("GET", "/oidc/back"): oidc_pages.back,
    ("GET", "/setup/{token}"): entry.setup_page,
    ("POST", "/setup/{token}"): entry.setup,
}

TICKET: Final = "/tickets/{thread}/{run}/{ticket}"


async def _events(visit: Visit) -> Response:
    desk, session = visit.desk, visit.here

    def still() -> bool:
        return desk.still(session) and desk.sessions.find(visit.key, uses=False) is session

    async def stream() -> AsyncIterator[str]:
        async for text in desk.hub.listen(visit.me, desk.board, desk.past, still):
            yield text

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


LOGGED_IN: Final[Mapping[tuple[str, str], Handler]] = {
    ("GET", "/"): tickets_pages.listed,
    ("GET", "/rows"): tickets_pages.rows,
    ("GET", EVENTS): _events,
    ("GET", "/ended"): tickets_pages.ended,
    ("GET", "/tickets/{ticket}"): tickets_pages.by_id,
    ("GET", TICKET): tickets_pages.ticket,
    ("GET", f"{TICKET}/full"): tickets_pages.full,
    ("POST", f"{TICKET}/approve"): answers_pages.approve,
    ("POST", f"{TICKET}/reject"): answers_pages.reject,
    ("POST", f"{TICKET}/result"): answers_pages.result,
    ("GET", f"{TICKET}/edit"): answers_pages.edit_page,
    ("POST", f"{TICKET}/edit"): answers_pages.edit,
    ("POST", f"{TICKET}/confirm"): answers_pages.confirm,
    ("GET", "/runs"): runs_pages.runs,
    ("GET", "/runs/rows"): runs_pages.run_rows,
    ("GET", "/runs/{thread}/{run}"): runs_pages.run,
    ("POST", "/runs/{thread}/{run}/forget"): answers_pages.forget,
    ("GET", "/search"): runs_pages.search_page,
    ("POST", "/search"): runs_pages.search,
    ("POST", "/theme"): entry.theme,
    ("POST", "/logout"): entry.logout,
}


def console(desk: Desk, hosts: Collection[str] = ()) -> Guard:
    """The application. `hosts` are names by which the console may be asked for besides that of its origin."""
    files = _static()
    desk.pages.globals["static"] = {name: f"/static/{version}/{name}" for name, (version, _) in files.items()}

    async def static(request: Request) -> Response:
        version, body = files.get(request.path_params["name"], ("", b""))
        if version != request.path_params["version"]:
            return PlainTextResponse("there is no such file\n", status_code=404)
        kind = KINDS[request.path_params["name"].rpartition(".")[2]]
        return Response(body, media_type=kind, headers={"cache-control": "public, max-age=31536000, immutable"})

    routes = [Route("/static/{version}/{name}", static)]
    routes += [Route(path, _answering(desk, handler, wants=False), methods=[way]) for (way, path), handler in OPEN.items()]
    routes += [Route(path, _answering(desk, handler, wants=True), methods=[way]) for (way, path), handler in LOGGED_IN.items()]

    async def failed(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        visit = Visit(desk, request)
        return visit.show("lost.html", status, what="There is no such page." if status == 404 else "That cannot be done here.")

    made = Starlette(routes=routes, exception_handlers={HTTPException: failed}, max_body_size=LARGEST)
    return Guard(made, desk.settings.origin, hosts)


def _answering(desk: Desk, handler: Handler, *, wants: bool) -> Callable[[Request], Awaitable[Response]]:
    """A handler as Starlette calls it: with a log-in where it wants one, and with an answer whatever happens."""

    async def answer(request: Request) -> Response:
        visit = Visit(desk, request)
        if wants and visit.person is None:
            return entry.turn_away(visit)
        try:
            return await handler(visit)
        except Forbidden:
            return visit.show("lost.html", 403, what="The page was too old, or another site sent this. Nothing was done.")
        except NoAnswer as error:
            return visit.show("lost.html", 503, what=f"The gate cannot be asked now: {error}.")
        except PeopleError as error:
            log.error("the file of users cannot be used", error=str(error))
            return visit.show("lost.html", 503, what="Nobody can log in now: the file of users cannot be read.")

    return answer


def _static() -> dict[str, tuple[str, bytes]]:
    """The files of the pages, each with a version made from its bytes, so that browsers may keep it for ever."""
    found: dict[str, tuple[str, bytes]] = {}
    for file in resources.files("gated.console").joinpath("static").iterdir():
        if file.name.rpartition(".")[2] in KINDS:
            body = file.read_bytes()
            found[file.name] = (hashlib.sha256(body).hexdigest()[:12], body)
    return found
