"""URLs and the endpoints an agent may reach. Both are parsed by the WHATWG rules and compared part by part.

What clients read differently is not compared but refused: user-info, backslashes and control characters as written.
An allow side folds nothing that the parser does not fold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import ada_url

from gated.core.scope.addresses import LONGEST_WIDE_HOST, is_bare, parse_host
from gated.core.scope.rules import ScopeError
from gated.core.scope.spelling import CONTROL, unbroken

DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}
# An endpoint that is a host says nothing of a scheme: it means the web.
WEB_PORTS: Final = (80, 443)

SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
SPECIAL: Final = re.compile(r"(?:https?|ftp|file|wss?):", re.IGNORECASE)

_CANONICAL: Final = re.compile(r"([^:]+):(?://([^/?#]*))?([^?#]*)", re.DOTALL)
_WRITTEN: Final = re.compile(r"[^:]*:[/\\]*([^/\\?#]*)([^?#]*)", re.DOTALL)
_USER_INFO: Final = re.compile(r"//[^/?#]*@")
_PORT: Final = re.compile(r":0*([0-9]+) *\Z")

# Servers decode once or twice more than the parser, and some drop what follows a semicolon in a segment.
_ESCAPED_SEPARATOR: Final = re.compile(r"%(?:25)*(?:2f|5c)", re.IGNORECASE)
_DOTS: Final = re.compile(r"(?:\.|%(?:25)*2e){1,2}(?:(?:;|%(?:25)*3b).*)?", re.IGNORECASE | re.DOTALL)


class Url(NamedTuple):
    """`host` is "" if there is none, `port` if it is the scheme's default; `text` is the normal form, no user-info."""

    scheme: str
    host: str
    port: str
    path: str
    text: str
    user_info: bool


def parse(text: str) -> Url | None:
    """The URL that `text` is, or None. Costs one pass over the text and a few microseconds."""
    written = _WRITTEN.match(unbroken(text))
    if not text.isascii() and (written is None or len(written[1]) > LONGEST_WIDE_HOST):
        return None
    try:
        href = ada_url.normalize_url(text)
    except ValueError:
        return None
    parts = _CANONICAL.match(href)
    if parts is None or written is None:
        return None
    scheme, authority, path = parts.groups(default="")
    user, at, location = authority.rpartition("@")
    host, port = _split_port(location)
    text = href.replace(f"{user}{at}", "", 1) if at else href
    return Url(scheme, host.removesuffix("."), port, path, text, bool(at) or "@" in written[1])


def _split_port(location: str) -> tuple[str, str]:
    if location.endswith("]"):
        return location, ""
    host, colon, port = location.rpartition(":")
    return (host, port) if colon else (location, "")


def is_url_like(text: str) -> bool:
    return "://" in text or SPECIAL.match(text.lstrip()) is not None


def normal_url(text: str) -> str:
    """For people: the normal form, or the text itself; a password is in neither."""
    url = parse(text)
    return _USER_INFO.sub("//", text) if url is None else url.text


class Endpoint(NamedTuple):
    """`scheme` None: the entry is a host. `path` has no slash at its end; "" is every path."""

    scheme: str | None
    host: str
    port: str
    path: str

    def _covers_host(self, host: str) -> bool:
        return host == self.host or host.endswith(f".{self.host}")

    def covers(self, url: Url, written: str) -> bool:
        if not self._covers_host(url.host) or url.port != self.port:
            return False
        if self.scheme is None:
            return url.scheme in ("http", "https")
        return url.scheme == self.scheme and (not self.path or self._covers_path(url, written))

    def _covers_path(self, url: Url, written: str) -> bool:
        inside = url.path == self.path or url.path.startswith(f"{self.path}/")
        return inside and not hides_a_step(written)

    def covers_bare(self, host: str, port: int | None) -> bool:
        """A bare host is reached on a default port, so the entry must be on its own default too."""
        if self.port or not self._covers_host(host):
            return False
        if port is None:
            return True
        return port in WEB_PORTS if self.scheme is None else port == DEFAULT_PORTS.get(self.scheme)


def hides_a_step(written: str) -> bool:
    """Whether the path of a URL, as written, holds an escaped slash, backslash or dot segment."""
    match = _WRITTEN.match(written)
    path = match[2] if match else ""
    if "%" not in path and ";" not in path:
        return False
    if _ESCAPED_SEPARATOR.search(path):
        return True
    return any(step not in (".", "..") and _DOTS.fullmatch(step) for step in path.split("/"))


class Endpoints:
    """The allowed endpoints of a scope."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = tuple(map(read_endpoint, entries))

    def refuse_url(self, written: str) -> str | None:
        """Why the URL is not inside an endpoint, or None. What does not parse is not."""
        if "\\" in written or CONTROL.search(written):
            return "holds a backslash or a control character"
        url = parse(written)
        if url is None:
            return "does not parse as a URL"
        if url.user_info:
            return "carries user-info before its host"
        if url.host and any(entry.covers(url, written) for entry in self._entries):
            return None
        return "is not inside an allowed endpoint"

    def refuse_host(self, written: str) -> str | None:
        text = written.strip(" ")
        if not is_bare(text):
            return "is not a bare host"
        host = parse_host(f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text)
        if host is None:
            return "is not a host"
        port = _PORT.search(text) if text.count(":") == 1 or "]" in text else None
        if any(entry.covers_bare(host, int(port[1]) if port else None) for entry in self._entries):
            return None
        return "is not an allowed host"


def read_endpoint(entry: str) -> Endpoint:
    """An entry of `allowed_api_endpoints`. Raises ScopeError for what could never match, or match too much."""
    if "\\" in entry or CONTROL.search(entry) or "*" in entry:
        raise _bad(entry, "holds a backslash, a control character or a `*`", "subdomains are included without one")
    if "://" not in entry:
        return _host_entry(entry)
    url = parse(entry)
    if url is None or not url.host:
        raise _bad(entry, "is no URL with a host", "write it as `https://host/path`")
    if url.user_info or url.text != url.text.partition("?")[0].partition("#")[0]:
        raise _bad(entry, "has user-info, a query or a fragment", "leave it out: they are not compared")
    if hides_a_step(entry):
        raise _bad(entry, "has an escaped slash or dot segment", "write the path plainly")
    return Endpoint(url.scheme, url.host, url.port, url.path.rstrip("/"))


def _host_entry(entry: str) -> Endpoint:
    host = parse_host(entry) if is_bare(entry) else None
    if host is None or _PORT.search(entry):
        raise _bad(entry, "is neither a host nor a URL", "write `host` or `scheme://host:port/path`")
    return Endpoint(None, host, "", "")


def _bad(entry: str, what: str, mend: str) -> ScopeError:
    return ScopeError(f"allowed_api_endpoints: `{entry}` {what}; {mend}")
