"""The other side of notices: an HTTP server and an SMTP server that can be told to fail."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from ports import own_port


class Post(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Hooks:
    """What was posted; `answers` are the statuses of the next posts, then 200."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.posts: list[Post] = []
        self.answers: list[int] = []
        self.always: int | None = None
        self.headers: dict[str, str] = {}


@contextmanager
def hooks(port: int = 0) -> Iterator[Hooks]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.posts.append(Post(self.path, dict(self.headers), body))
            status = made.always or (made.answers.pop(0) if made.answers else 200)
            self.send_response(status)
            for name, value in made.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        made = Hooks(f"http://127.0.0.1:{server.server_address[1]}/hook")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join(5)


class Mailbox:
    """What was mailed. `refuse` is an answer to every mail, such as `451 later`."""

    def __init__(self) -> None:
        self.host, self.port = "127.0.0.1", 0
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.refuse: str | None = None

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if self.refuse is not None:
            return self.refuse
        assert isinstance(envelope.content, bytes)
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.recipients.append(list(envelope.rcpt_tos))
        return "250 OK"


@contextmanager
def mailbox(login: tuple[str, str] | None = None) -> Iterator[Mailbox]:
    made = Mailbox()

    def known(server: SMTP, session: Session, envelope: Envelope, mechanism: str, given: Any) -> AuthResult:
        good = isinstance(given, LoginPassword) and (given.login.decode(), given.password.decode()) == login
        return AuthResult(success=good)

    auth: dict[str, Any] = {"authenticator": known, "auth_required": True, "auth_require_tls": False} if login else {}
    controller = Controller(made, hostname=made.host, port=0, **auth)
    made.port = controller.port = own_port()  # the controller wants to know it before it listens
    controller.start()
    try:
        yield made
    finally:
        controller.stop()
