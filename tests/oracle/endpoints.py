"""Endpoint entries against URLs and hosts. decisions.md §5, URLs."""

from __future__ import annotations

import re

from oracle.spellings import bare, has_control, host_and_port, is_address, parse_url


def allows_url(entries: list[str], text: str) -> bool:
    url = parse_url(text)
    if url is None or "\\" in text or has_control(text) or _has_user(text) or url.username or url.password:
        return False
    return any(_entry_allows(entry, text) for entry in entries)


def _has_user(text: str) -> bool:
    authority = re.match(r"[^:]*:[/\\]*([^/\\?#]*)", text)
    return authority is not None and "@" in authority[1]


def _entry_allows(entry: str, text: str) -> bool:
    url = parse_url(text)
    assert url is not None
    host = bare(url.hostname)
    if "://" not in entry:  # a host accepts http(s) on default ports
        return url.protocol in ("http:", "https:") and url.port == "" and _under(host, host_and_port(entry)[0])
    wanted = parse_url(entry)
    if wanted is None or (url.protocol, url.port) != (wanted.protocol, wanted.port) or not _under(host, bare(wanted.hostname)):
        return False
    scope = str(wanted.pathname).rstrip("/")
    if not scope:
        return True
    # ambiguous: "the path of a scoped endpoint" is read as an entry that has a path
    return not _has_escapes(text) and (url.pathname == scope or str(url.pathname).startswith(scope + "/"))


def _under(host: str, entry: str) -> bool:
    """Equal, or a subdomain; an address has none."""
    if not host or not entry:
        return False
    return host == entry or (host.endswith("." + entry) and not is_address(entry))


def _has_escapes(text: str) -> bool:
    """An escaped slash, backslash or dot segment in the path as written."""
    path = re.sub(r"^[^:]*:[/\\]*[^/\\?#]*", "", text).split("?")[0].split("#")[0].lower()
    segments = [s for s in path.split("/") if "%2e" in s]
    return "%2f" in path or "%5c" in path or any(s.replace("%2e", ".") in (".", "..") for s in segments)


def allows_host(entries: list[str], text: str) -> bool:
    """A bare host is compared by host, on the default port; a port that is written must be the default one.

    ambiguous: an entry with a path. The page compares by host, so a bare host passes it.
    """
    host, port = host_and_port(text)
    written = port or ("80" if re.search(r":0*80$", text) else "")
    for entry in entries:
        url = parse_url(entry) if "://" in entry else None
        wanted = bare(url.hostname) if url else host_and_port(entry)[0]
        defaults = {"http:": ["80"], "https:": ["443"]}.get(url.protocol, []) if url else ["80", "443"]
        if (url is None or url.port == "") and written in ("", *defaults) and _under(host, wanted):
            return True
    return False
