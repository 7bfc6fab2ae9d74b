"""The file that says whom to tell of tickets, and how (`gated up --notify notify.yaml`).

Secrets stand in files or in the environment, never in this file: `url`, `secret` and `password` are given as `…_file` or `…_env`.
Strict like a policy: unknown keys and wrong types are errors with file and line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from msgspec import Meta, Struct

from gated.core.order.globs import Glob, compile_glob
from gated.core.order.globs import GlobError as BadGlob
from gated.documents import Document, DocumentError, decode, parse_document
from gated.ingress import ID_PATTERN
from gated.units import SECOND, parse_duration

Event = Literal["opened", "expiring_soon", "escalated", "closed"]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)

APPROVERS: Final = "approvers"  # in `to`: whoever may answer the ticket and has an address under `people`


class ChannelEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every channel may say: which events, of which agents and tools (globs)."""

    events: tuple[Event, ...] = EVENTS
    agents: tuple[str, ...] = ("*",)
    tools: tuple[str, ...] = ("*",)


class WebhookEntry(ChannelEntry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="webhook", tag_field="kind"):
    """A POST to a URL. `format: slack` is what Slack, Mattermost and others take, `json` all that a program wants."""

    url: str | None = None
    url_file: str | None = None
    url_env: str | None = None
    secret_file: str | None = None
    secret_env: str | None = None
    format: Literal["slack", "json"] = "slack"
    ca_file: str | None = None


class MailEntry(
    ChannelEntry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="mail", tag_field="kind", rename={"sender": "from"}
):
    """A mail by SMTP to addresses, or to `approvers`: whoever may answer the ticket."""

    host: str
    sender: str
    to: tuple[str, ...]
    port: Annotated[int, Meta(ge=1, le=65535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str | None = None
    password_file: str | None = None
    password_env: str | None = None
    ca_file: str | None = None


class SubjectEntry(ChannelEntry, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="subject", tag_field="kind"):
    """A message on a subject of the bus, as `format: json`."""

    subject: str


class RetryEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """After a failure: again after `first`, then twice as long each time up to `most`, until `give_up`.

    After `undelivered_after` failures in a row the ticket says that its people were not told.
    """

    first: str | int = "1s"
    most: str | int = "5m"
    give_up: str | int = "24h"
    undelivered_after: Annotated[int, Meta(ge=1)] = 3


class NotifyEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file."""

    version: Literal[1]
    channels: dict[Annotated[str, Meta(pattern=ID_PATTERN)], WebhookEntry | MailEntry | SubjectEntry]
    people: dict[str, str] = {}
    console: str | None = None
    retry: RetryEntry = RetryEntry()


class Retry(Struct, frozen=True):
    """In seconds."""

    first: float
    most: float
    give_up: float
    undelivered_after: int


class Wanted(Struct, frozen=True):
    """Which notices a channel takes."""

    events: frozenset[str]
    agents: tuple[Glob, ...]
    tools: tuple[Glob, ...]

    def takes(self, event: str, agent: str, tool: str) -> bool:
        named = any(glob.matches(agent) for glob in self.agents) and any(glob.matches(tool) for glob in self.tools)
        return event in self.events and named


class Webhook(Struct, frozen=True):
    url: str
    secret: bytes | None
    format: Literal["slack", "json"]
    ca_file: str | None


class Mail(Struct, frozen=True):
    host: str
    port: int
    security: Literal["starttls", "tls", "none"]
    user: str | None
    password: str | None
    sender: str
    to: tuple[str, ...]
    ca_file: str | None


class Subject(Struct, frozen=True):
    subject: str


class Channel(Struct, frozen=True):
    name: str
    wanted: Wanted
    way: Webhook | Mail | Subject


class NotifySettings(Struct, frozen=True):
    """Compiled, with its secrets. `people`: approvers' mail addresses; `console`: the page's address, for links."""

    channels: tuple[Channel, ...]
    people: dict[str, str]
    console: str | None
    retry: Retry


def read_settings(path: Path) -> NotifySettings:
    """Raises `DocumentError` for the file, and where a secret that it names is not to be had."""
    try:
        document = parse_document(path.read_bytes(), file=str(path))
    except OSError as error:
        raise DocumentError(str(path), 0, f"cannot be read: {error.strerror}") from error
    return compile_settings(document, path.parent)


def compile_settings(document: Document, folder: Path) -> NotifySettings:
    """Files that it names are looked for beside it."""
    entry = decode(document, NotifyEntry)
    reader = _Reader(document, folder)
    channels = tuple(reader.channel(name, made) for name, made in entry.channels.items())
    for name, made in entry.channels.items():
        if isinstance(made, MailEntry) and APPROVERS in made.to and not entry.people:
            raise reader.error(("channels", name, "to"), "`approvers` have no addresses: write them under `people`")
    return NotifySettings(channels, entry.people, entry.console, reader.retry(entry.retry))


T = TypeVar("T")
Path_ = tuple[str | int, ...]


class _Reader:
    def __init__(self, document: Document, folder: Path) -> None:
        self._document, self._folder = document, folder

    def error(self, path: Path_, message: str) -> DocumentError:
        return DocumentError(self._document.file_of(path), self._document.line(path), message)

    def channel(self, name: str, entry: WebhookEntry | MailEntry | SubjectEntry) -> Channel:
        path: Path_ = ("channels", name)
        return Channel(name, self._wanted(path, entry), self._way(path, entry))

    def _wanted(self, path: Path_, entry: ChannelEntry) -> Wanted:
        try:
            return Wanted(frozenset(entry.events), tuple(map(compile_glob, entry.agents)), tuple(map(compile_glob, entry.tools)))
        except BadGlob as error:
            raise self.error(path, str(error)) from error

    def _way(self, path: Path_, entry: WebhookEntry | MailEntry | SubjectEntry) -> Webhook | Mail | Subject:
        match entry:
            case WebhookEntry():
                url = self._secret(path, "url", entry.url, entry.url_file, entry.url_env)
                if url is None or not url.startswith(("https://", "http://")):
                    raise self.error(path, "a webhook needs an `http` or `https` URL: `url`, `url_file` or `url_env`")
                secret = self._secret(path, "secret", None, entry.secret_file, entry.secret_env)
                return Webhook(url, None if secret is None else secret.encode(), entry.format, self._beside(entry.ca_file))
            case MailEntry():
                password = self._secret(path, "password", None, entry.password_file, entry.password_env)
                if (entry.user is None) != (password is None):
                    raise self.error(path, "`user` and a password go together: `password_file` or `password_env`")
                ca_file = self._beside(entry.ca_file)
                return Mail(entry.host, entry.port, entry.security, entry.user, password, entry.sender, entry.to, ca_file)
            case SubjectEntry():
                if not entry.subject or any(token in ("", "*", ">") or " " in token for token in entry.subject.split(".")):
                    raise self.error((*path, "subject"), f"`{entry.subject}` is no subject to publish on")
                return Subject(entry.subject)

    def _secret(self, path: Path_, what: str, plain: str | None, file: str | None, env: str | None) -> str | None:
        """Given once, or not at all."""
        given = [name for name, value in (("", plain), ("_file", file), ("_env", env)) if value is not None]
        if len(given) > 1:
            raise self.error(path, f"`{what}` is given twice: " + ", ".join(f"`{what}{ending}`" for ending in given))
        if file is not None:
            try:
                return (self._folder / file).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise self.error((*path, f"{what}_file"), f"`{file}` cannot be read: {error}") from error
        if env is not None:
            if env not in os.environ:
                raise self.error((*path, f"{what}_env"), f"the environment has no `{env}`")
            return os.environ[env]
        return plain

    def _beside(self, file: str | None) -> str | None:
        return None if file is None else str(self._folder / file)

    def retry(self, entry: RetryEntry) -> Retry:
        def seconds(name: str) -> float:
            value: Any = getattr(entry, name)
            try:
                return parse_duration(value) / SECOND
            except ValueError as error:
                raise self.error(("retry", name), str(error)) from error

        return Retry(seconds("first"), seconds("most"), seconds("give_up"), entry.undelivered_after)
