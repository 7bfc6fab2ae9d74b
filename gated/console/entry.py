"""Logging in and out, and the page of the very first start."""

from __future__ import annotations

import hmac
import math
from typing import Any

import anyio
import anyio.to_thread
from starlette.responses import PlainTextResponse, Response

from gated import ingress
from gated.console.desk import Visit
from gated.console.people import PeopleError, Person, hash_of, unseal, verified

_AT_ONCE = 2  # password checks at a time: each takes 64 MiB and a core for a while
_checking = anyio.CapacityLimiter(_AT_ONCE)


def turn_away(visit: Visit) -> Response:
    """To the log-in, and from there to where the person wanted to go. What is no page is only told."""
    request = visit.request
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse("log in first\n", status_code=401)
    response = visit.go("/login")
    if visit.session is None:
        name, visit.session = visit.desk.sessions.begin()
        visit.desk.cookie(response, name)
    visit.session.draft["next"] = request.url.path
    return response


async def login_page(visit: Visit) -> Response:
    """The form; whoever is logged in already goes on."""
    if visit.person is not None:
        return visit.go("/")
    if visit.session is None:
        return _with_session(visit, "login.html", error="", name="")
    return visit.show("login.html", error="", name="", **_choices(visit))


def _choices(visit: Visit) -> dict[str, Any]:
    return {"oidc": visit.desk.oidc.provider.name if visit.desk.oidc is not None else ""}


def _with_session(visit: Visit, template: str, **values: Any) -> Response:
    """A page with a form for somebody who has no session yet."""
    name, visit.session = visit.desk.sessions.begin()
    response = visit.show(template, **{"status": 200, **values, **_choices(visit)})
    visit.desk.cookie(response, name)
    return response


def refused(visit: Visit, error: str) -> Response:
    """The form again, with why a log-in elsewhere did not help."""
    if visit.session is None:
        return _with_session(visit, "login.html", error=error, name="", status=403)
    return visit.show("login.html", 403, error=error, name="", **_choices(visit))


async def login(visit: Visit) -> Response:
    """Check a password; after too many failures only once some time has passed."""
    form = await visit.form()
    name, password = form.get("name", "").strip(), form.get("password", "")
    client = visit.request.client.host if visit.request.client is not None else ""
    keys = (name[:128], client)
    wait = visit.desk.attempts.wait(*keys)
    if wait > 0:
        error = f"Too many failed attempts. Try again in {math.ceil(wait)} seconds."
        response = visit.show("login.html", 429, error=error, name=name, **_choices(visit))
        response.headers["retry-after"] = str(math.ceil(wait))
        return response
    visit.desk.attempts.failed(*keys)  # first, so that many at once are counted too
    person = visit.desk.people.find(name)
    if not await anyio.to_thread.run_sync(verified, person, password, limiter=_checking) or person is None:
        return visit.show("login.html", 401, error="The name or the password is wrong.", name=name, **_choices(visit))
    visit.desk.attempts.succeeded(*keys)
    if person.bus:
        visit.desk.lines.arrived(person.name, await anyio.to_thread.run_sync(unseal, person.bus, password, limiter=_checking))
    return admit(visit, person)


def admit(visit: Visit, person: Person) -> Response:
    """Log a person in, under a session of a new name, and let them go on to where they were going."""
    wanted = str(visit.here.draft.get("next", "/"))
    path = wanted if wanted.startswith(("/tickets/", "/runs")) and "//" not in wanted else "/"
    visit.desk.sessions.end(visit.key)
    name, _ = visit.desk.sessions.begin(person)
    response = visit.go(path)
    visit.desk.cookie(response, name)
    return response


async def logout(visit: Visit) -> Response:
    await visit.form()
    name = visit.me.name
    visit.desk.sessions.end(visit.key)
    if not visit.desk.sessions.of(name):
        await visit.desk.lines.leave(name)
    response = visit.go("/login")
    visit.desk.no_cookie(response)
    return response


# --- the first start -----------------------------------------------------------------------------------------------------


def _may_set_up(visit: Visit) -> bool:
    wanted, given = visit.desk.settings.setup, str(visit.request.path_params["token"])
    return bool(wanted) and hmac.compare_digest(wanted.encode(), given.encode()) and not visit.desk.people.all()


async def setup_page(visit: Visit) -> Response:
    """Choose a name and a password, with the link that was printed, once."""
    if not _may_set_up(visit):
        return visit.lost("This link was used already, or it is of an earlier start. Add users with `gated users add`.")
    if visit.session is None:
        return _with_session(visit, "setup.html", error="", name="")
    return visit.show("setup.html", error="", name="", **_choices(visit))


async def setup(visit: Visit) -> Response:
    form = await visit.form()
    if not _may_set_up(visit):
        return visit.lost("This link was used already, or it is of an earlier start. Add users with `gated users add`.")
    name, password = form.get("name", "").strip(), form.get("password", "")
    error = "" if ingress.is_id(name) else "A name has 1 to 128 letters, digits, `_` or `-`, as the policy writes it."
    if not error and password != form.get("again"):
        error = "The two passwords differ."
    if not error:
        try:
            person = Person(name, await anyio.to_thread.run_sync(hash_of, password), auditor=True)
            if visit.desk.people.put_first(person):
                return admit(visit, person)
            error = "Somebody was quicker: log in, or add users with `gated users add`."
        except PeopleError as problem:
            error = f"{str(problem)[0].upper()}{str(problem)[1:]}."
    return visit.show("setup.html", 400, error=error, name=name, **_choices(visit))


async def theme(visit: Visit) -> Response:
    """Light, dark, or as the system has it."""
    form = await visit.form()
    chosen = form.get("theme", "")
    response = visit.go("/")
    if chosen in ("light", "dark"):
        response.set_cookie("gated_theme", chosen, path="/", max_age=31_536_000, secure=visit.desk.secure, samesite="lax")
    else:
        response.delete_cookie("gated_theme", path="/")
    return response
