"""The two addresses of a log-in with OIDC: the way to the provider, and the way back."""

from __future__ import annotations

import hmac
import secrets

import structlog
from starlette.responses import Response

from gated.console.desk import Visit
from gated.console.entry import admit, refused
from gated.errors import GatedError

log = structlog.get_logger("gated.console")


async def start(visit: Visit) -> Response:
    """Send the browser to the provider; what must come back with it stays in the session."""
    if visit.desk.oidc is None:
        return visit.lost()
    if visit.session is None:
        visit.key, visit.session = visit.desk.sessions.begin()
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    visit.session.draft |= {"state": state, "nonce": nonce, "verifier": verifier}
    try:
        response = visit.go(await visit.desk.oidc.address(state, nonce, verifier))
    except GatedError as error:
        return _failed(visit, error)
    visit.desk.cookie(response, visit.key or "")
    return response


async def back(visit: Visit) -> Response:
    """The browser comes back with a code, once, into the session that it left from."""
    if visit.desk.oidc is None:
        return visit.lost()
    asked = visit.request.query_params
    draft = visit.session.draft if visit.session is not None else {}
    state, nonce, verifier = (str(draft.pop(key, "")) for key in ("state", "nonce", "verifier"))
    if not state or not hmac.compare_digest(state.encode(), asked.get("state", "").encode()):
        return refused(visit, "This log-in was not begun here, or was used already. Try again.")
    if "code" not in asked:
        return refused(visit, "The provider did not log you in.")
    try:
        value = await visit.desk.oidc.who(asked["code"], nonce, verifier)
    except GatedError as error:
        return _failed(visit, error)
    person = visit.desk.people.find_oidc(value)
    if person is None:
        log.info("logged in elsewhere, but no user here", claim=visit.desk.oidc.provider.claim)
        return refused(visit, "You are logged in there, but no user of this gate is known by that account.")
    return admit(visit, person)


def _failed(visit: Visit, error: GatedError) -> Response:
    log.warning("the provider cannot log anybody in", error=str(error))
    return refused(visit, "The provider cannot log you in now.")
