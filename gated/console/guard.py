"""What every answer of the console carries, and which requests are not heard at all.

INVARIANT: no page runs or loads what is not of this server (no inline scripts or styles), and none can be framed. A request that
names another host is refused, so that no name of another's can be made to point here; one that changes something must come from
a page of this origin and carry the session's token.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types gated"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "x-robots-tag": "noindex, nofollow",
}
SECURE: Final = {"strict-transport-security": "max-age=31536000"}


class Guard:
    """ASGI middleware. `origin` is how browsers reach the console; `hosts` are further names of it."""

    def __init__(self, app: ASGIApp, origin: str, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._origin = origin
        self._hosts = {urlsplit(origin).netloc, *hosts}
        self._headers = HEADERS | (SECURE if origin.startswith("https:") else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            await PlainTextResponse(refusal, status_code=403)(scope, receive, sending)
            return
        await self._app(scope, receive, sending)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if host not in self._hosts:
            return "this console is not served under that name: open the address that it printed, or start it with --origin\n"
        if method in ("GET", "HEAD"):
            return None
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and urlsplit(origin).netloc not in self._hosts:
            return "the request comes from another site\n"
        if site is not None and site != "same-origin":
            return "the request comes from another site\n"
        return None
