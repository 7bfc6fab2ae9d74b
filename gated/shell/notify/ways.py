"""The ways of a notice: a POST, a mail, a message on the bus. Each sends one notice once, or raises `NotDelivered`.

A webhook is signed under the channel's secret as `gated.signatures` says, and who receives it checks it with what stands there.
INVARIANT: the text of an error never holds a URL, a password or an answer's body: it goes into the log.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import ModuleType
from typing import Final, Protocol

import anyio
import msgspec

from gated.errors import GatedError
from gated.shell.notify.notice import Notice, as_json, as_mail, as_slack
from gated.shell.notify.settings import APPROVERS, Mail, Subject, Webhook
from gated.signatures import sign

SECONDS: Final = 15.0  # for one attempt
BUSY: Final = (408, 425, 429)  # answers that ask for another attempt although they are the sender's fault

Publish = Callable[[str, bytes], Awaitable[None]]


class NotDelivered(Exception):
    """One attempt failed. `after` is how long the other side asks to be left alone, in seconds."""

    def __init__(self, why: str, after: float | None = None) -> None:
        super().__init__(why)
        self.after = after


class NotifyMissing(GatedError):
    """A channel needs a library that is not installed."""


class Way(Protocol):
    async def send(self, notice: Notice, to: Sequence[str]) -> None:
        """`to` are the addresses of who may answer. Raises `NotDelivered`."""

    async def close(self) -> None: ...


class WebhookWay:
    """One client for all of a channel's posts; it follows no redirect, since that could lead the signed body anywhere."""

    def __init__(self, way: Webhook) -> None:
        httpx = _library("httpx")
        self._way, self._httpx = way, httpx
        verify = _context(way.ca_file)
        self._client = httpx.AsyncClient(timeout=SECONDS, follow_redirects=False, verify=verify, trust_env=False)

    async def send(self, notice: Notice, to: Sequence[str]) -> None:
        body = msgspec.json.encode(as_slack(notice) if self._way.format == "slack" else as_json(notice))
        try:
            answer = await self._client.post(self._way.url, content=body, headers=self._headers(notice, body))
        except self._httpx.HTTPError as error:
            raise NotDelivered(_kind(error)) from error
        if not answer.is_success:
            raise NotDelivered(f"HTTP {answer.status_code}", _after(answer.headers, answer.status_code))

    def _headers(self, notice: Notice, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": "gated", "Gated-Notice": notice.id}
        if self._way.secret is not None:
            headers |= sign(self._way.secret, int(time.time()), body)
        return headers

    async def close(self) -> None:
        await self._client.aclose()


def _after(headers: Mapping[str, str], status: int) -> float | None:
    wait = headers.get("Retry-After", "")
    return float(wait) if wait.isdigit() and (status in BUSY or status == 503) else None


class MailWay:
    """A connection a mail: there are few."""

    def __init__(self, way: Mail) -> None:
        self._way, self._smtp = way, _library("aiosmtplib")
        self._context = _context(way.ca_file)

    async def send(self, notice: Notice, to: Sequence[str]) -> None:
        way = self._way
        named = list(dict.fromkeys([*(name for name in way.to if name != APPROVERS), *(to if APPROVERS in way.to else ())]))
        if not named:
            raise NotDelivered("nobody who may answer has an address")
        try:
            await self._smtp.send(
                as_mail(notice, way.sender, named),
                hostname=way.host,
                port=way.port,
                username=way.user,
                password=way.password,
                use_tls=way.security == "tls",
                start_tls=way.security == "starttls",
                tls_context=None if way.security == "none" else self._context,
                timeout=SECONDS,
            )
        except (self._smtp.SMTPException, OSError, ValueError) as error:
            code = getattr(error, "code", None)
            raise NotDelivered(f"SMTP {code}" if code else _kind(error)) from error

    async def close(self) -> None:
        pass


class SubjectWay:
    def __init__(self, way: Subject, publish: Publish) -> None:
        self._way, self._publish = way, publish

    async def send(self, notice: Notice, to: Sequence[str]) -> None:
        try:
            with anyio.fail_after(SECONDS):
                await self._publish(self._way.subject, msgspec.json.encode(as_json(notice)))
        except TimeoutError as error:
            raise NotDelivered("the bus is away") from error

    async def close(self) -> None:
        pass


def open_way(way: Webhook | Mail | Subject, publish: Publish) -> Way:
    """Raises `NotifyMissing`."""
    match way:
        case Webhook():
            return WebhookWay(way)
        case Mail():
            return MailWay(way)
        case Subject():
            return SubjectWay(way, publish)


def _library(name: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise NotifyMissing(f"notices need `{name}`, which is not installed: install `gated[notify]`") from error


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise NotifyMissing(f"the certificates `{ca_file}` cannot be used: {error}") from error


def _kind(error: BaseException) -> str:
    """What kind of failure it was, in words without anything secret."""
    return {
        "ConnectError": "cannot connect",
        "ConnectTimeout": "cannot connect in time",
        "ReadTimeout": "no answer in time",
        "SMTPConnectError": "cannot connect",
        "SMTPConnectTimeoutError": "cannot connect in time",
        "ConnectionRefusedError": "cannot connect",
    }.get(type(error).__name__, type(error).__name__)
