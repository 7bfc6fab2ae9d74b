"""All that the pages work with, put together; and one visit: a request with its session and its person."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import jinja2
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gated.console import drawings, shown
from gated.console.board import Board
from gated.console.gate_health import GateHealth
from gated.console.hub import Hub
from gated.console.line import Lines
from gated.console.past import Past
from gated.console.people import People, PeopleError, Person
from gated.console.sessions import Attempts, Session, Sessions
from gated.console.threads import Policies, Threads
from gated.core.order.templates import escape_text
from gated.units import format_duration, rfc3339, some

if TYPE_CHECKING:
    from gated.console.oidc import Oidc  # an extra

COOKIE: Final = "gated_session"
FIELDS: Final = 500
EVENTS: Final = "/events"  # where an open page hears of changes


class Settings(Struct, frozen=True):
    """`origin` is how browsers reach the console; `setup` a token that lets the first person in, while there is nobody."""

    origin: str
    setup: str = ""


class Desk:
    """Everything of a running console."""

    def __init__(self, settings: Settings, people: People, lines: Lines, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings, self.people, self.lines = settings, people, lines
        self.sessions, self.attempts = Sessions(clock), Attempts(clock)
        self.hub = Hub()
        self.policies = Policies(lines)
        self.threads = Threads(lines, self.policies)
        self.board = Board(lines, self.policies, self.hub.ticket)
        self.gate = GateHealth(lines)
        self.past = Past(lines, self.policies, self.hub.run, self.hub.busy)
        self.pages = _environment()
        self.oidc: Oidc | None = None

    @property
    def secure(self) -> bool:
        return self.settings.origin.startswith("https:")

    def cookie(self, response: Response, name: str) -> None:
        response.set_cookie(_cookie(self), name, path="/", secure=self.secure, httponly=True, samesite="lax")

    def no_cookie(self, response: Response) -> None:
        response.delete_cookie(_cookie(self), path="/", secure=self.secure, httponly=True, samesite="lax")

    def still(self, session: Session) -> bool:
        """Whether a session's person is in the file as they were when they logged in."""
        try:
            return session.person is not None and self.people.find(session.person.name) == session.person
        except PeopleError:
            return False


def _cookie(desk: Desk) -> str:
    return f"__Host-{COOKIE}" if desk.secure else COOKIE


class Forbidden(Exception):
    """A request that changes something without the session's token."""


class Visit:
    """A request of a browser. `person` is None where nobody is logged in."""

    def __init__(self, desk: Desk, request: Request) -> None:
        self.desk, self.request = desk, request
        self.now = time.time_ns() // 1000
        self.key = request.cookies.get(_cookie(desk))
        session = desk.sessions.find(self.key, uses=not self.part)
        if session is not None and session.person is not None and not desk.still(session):
            desk.sessions.end(self.key)
            session = None
        self.session = session
        self.person: Person | None = session.person if session is not None else None

    @property
    def part(self) -> bool:
        """Whether an open page asks, to bring a part of itself up to date: what is to be said once is not said to it, and
        nobody need sit before it."""
        return "x-gated-part" in self.request.headers or self.request.url.path == EVENTS

    @property
    def me(self) -> Person:
        assert self.person is not None, "the page wants a log-in"
        return self.person

    @property
    def here(self) -> Session:
        assert self.session is not None, "the page wants a session"
        return self.session

    async def form(self) -> dict[str, str]:
        """What was sent, if it carries the session's token. Raises `Forbidden`."""
        body = await self.request.body()
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=FIELDS)
        except (ValueError, UnicodeDecodeError) as error:
            raise Forbidden from error
        found = {name: value.replace("\r\n", "\n") for name, value in pairs}  # how forms write a line break
        token = found.pop("csrf", "")
        if self.session is None or not hmac.compare_digest(token.encode(), self.session.csrf.encode()):
            raise Forbidden
        return found

    def show(self, template: str, status: int = 200, **values: Any) -> Response:
        """A page, in the person's colours."""
        theme = self.request.cookies.get("gated_theme", "")
        text = self.desk.pages.get_template(template).render(
            me=self.person,
            csrf=self.session.csrf if self.session is not None else "",
            notices=self.session.told() if self.session is not None and not self.part else [],
            theme=theme if theme in ("light", "dark") else "",
            open_tickets=len(self.desk.board.visible(self.person)) if self.person is not None else 0,
            trouble=self.desk.board.trouble if self.person is not None else "",
            gate=self.desk.gate if self.person is not None else None,
            now=self.now,
            **values,
        )
        return HTMLResponse(text, status_code=status)

    def go(self, path: str) -> Response:
        return RedirectResponse(path, status_code=303)

    def lost(self, what: str = "There is no such page, or it is not yours to see.") -> Response:
        """The same answer for what is not there and for what a person may not see."""
        return self.show("lost.html", 404, what=what)


Handler = Callable[[Visit], Awaitable[Response]]


# --- templates -----------------------------------------------------------------------------------------------------------


def _finalize(value: Any) -> Any:
    """Every text that a template writes: what cannot be seen is written out, whoever it came from."""
    if type(value) is not str or (value.isascii() and value.isprintable()):
        return value
    return "\n".join(escape_text(line, len(line)) for line in value.split("\n"))


def _ago(us: int) -> str:
    """A time span for people: seconds while it is short, then minutes."""
    return format_duration(max(0, us) if us < 600_000_000 else us // 60_000_000 * 60_000_000)


def _usd(dollars: float) -> str:
    """`$0.10`; small sums with their digits."""
    return f"${dollars:,.2f}" if dollars >= 1 or dollars == round(dollars, 2) else f"${dollars:.4g}"


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("gated.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    made.filters |= {
        "at": rfc3339,
        "clock": lambda at: rfc3339(at)[11:19],
        "day": lambda at: rfc3339(at)[:10],
        "ago": _ago,
        "seen": shown.plain,
        "number": drawings.number,
        "short": lambda text: str(text)[:12],
        "bytes": lambda count: f"{count:,}",
        "some": some,
        "usd": _usd,
    }
    return made
