"""The hosts that a text names, in canonical form: what a forbidden address must be found in, however it is spelled.

A host is read by the WHATWG rules; an IPv6 address that embeds an IPv4 address also counts as the embedded one.
Everything is linear in the text.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

import ada_url

from gated.core.scope.effort import Effort

# Canonicalising a name that is not ASCII is not linear, and no name is longer.
LONGEST_WIDE_HOST: Final = 255

# A number that a URL parser reads as an IPv4 address, with an optional port.
_NUMERIC: Final = re.compile(r"(?:0[xX]|[0-9]{8}|[0-9]+\.)[0-9a-fA-FxX.]*(?::[0-9]*)?")
# An IPv6 address is at most 45 characters; brackets, zone and port are optional.
_COLONS: Final = re.compile(r"\[?([0-9a-fA-F:.]{2,45})(?:%[^\]\s]*)?(?:\](?::[0-9]*)?)?")
_MARKED: Final = re.compile(r"[.:\[]|0[xX]")

# What follows two slashes, or a special scheme, is an authority; its pieces around `@` may all be meant as the host.
_AUTHORITY: Final = re.compile(
    r"[/\\:](?:(?<=[/\\])[/\\]|(?<=http:)|(?<=https:)|(?<=ftp:)|(?<=file:)|(?<=ws:)|(?<=wss:))[/\\]*([^/\\?#\s]*)", re.IGNORECASE
)
_PIECE: Final = re.compile(r"""\[[^\]]*\](?::[0-9]+)?|[^"'<>()\]{}|,;&=]+""")
# Without these a text between `@` signs spells no host but itself.
_ODD: Final = re.compile(r"[^\x00-\x7f]|[:\[]|(?:\A|@)[0-9]")

# A reader that takes leading zeros for decimal, as inet_pton of some systems did.
_ZEROS: Final = re.compile(r"0*([0-9]{1,3})\.0*([0-9]{1,3})\.0*([0-9]{1,3})\.0*([0-9]{1,3})(?::[0-9]*)?")

_SEPARATOR: Final = re.compile(r"[/\\?#]")
_SPACE: Final = re.compile(r"\s")
_NOT_BARE: Final = re.compile(r"[\s/\\?#@]")


def parse_host(text: str) -> str | None:
    """The canonical host of `text`, a host with an optional port; an IPv6 address keeps its brackets."""
    if not text.isascii() and len(text) > LONGEST_WIDE_HOST:
        return None
    try:
        href = ada_url.normalize_url(f"http://{text}/")
    except ValueError:
        return None
    authority = href[len("http://") : href.index("/", len("http://"))]
    if authority.startswith("["):
        return authority[: authority.index("]") + 1]
    return authority.partition(":")[0].removesuffix(".")


def is_bare(text: str) -> bool:
    return bool(text) and _NOT_BARE.search(text) is None


def read_host(text: str) -> str | None:
    """The canonical host that `text` spells, where that is not plainly the text itself in lower case.

    A bare number below 2^24 is just a number.
    """
    if not text.isascii():
        host = parse_host(text)
    elif _NUMERIC.fullmatch(text):
        host = parse_host(text)
    else:
        colons = _COLONS.fullmatch(text)
        host = parse_host(f"[{colons[1]}]") if colons and colons[1].count(":") > 1 else None
    if host is not None and host.startswith("0.") and is_address(host) and not _MARKED.search(text):
        return None
    return host


def is_address(host: str) -> bool:
    """Of a canonical host: whether it is an IP address. No name ends in a number, so digits and dots are enough."""
    return host.startswith("[") or host.replace(".", "").isdigit()


def is_spelled_address(text: str) -> bool:
    """Whether `text` holds a dot, `0x` or a colon and is an IP address as a host."""
    if not _MARKED.search(text) or not is_bare(text):
        return False
    host = read_host(text)
    return host is not None and is_address(host)


def names_of(host: str) -> tuple[str, ...]:
    """Every name a canonical host counts as."""
    if not host.startswith("["):
        return (host,)
    bare = host[1:-1]
    return (host, *embedded_ipv4(ipaddress.IPv6Address(bare).packed))


def embedded_ipv4(packed: bytes) -> tuple[str, ...]:
    """The IPv4 addresses inside an IPv6 address, by every scheme that has a fixed place for them."""
    found = []
    if packed[:10] == bytes(10) and packed[10:12] in (b"\xff\xff", b"\x00\x00"):  # mapped; compatible
        found.append(packed[12:])
    elif packed[:8] == bytes(8) and packed[8:12] == b"\xff\xff\x00\x00":  # translated (RFC 2765)
        found.append(packed[12:])
    elif packed[:12] == b"\x00\x64\xff\x9b" + bytes(8):  # NAT64 (RFC 6052)
        found.append(packed[12:])
    elif packed[:6] == b"\x00\x64\xff\x9b\x00\x01":  # local NAT64 (RFC 8215): any prefix length of RFC 6052
        found += [packed[6:8] + packed[9:11], packed[7:8] + packed[9:12], packed[9:13], packed[12:]]
    elif packed[:2] == b"\x20\x02":  # 6to4
        found.append(packed[2:6])
    elif packed[:4] == b"\x20\x01\x00\x00":  # Teredo: its server, and its client inverted
        found += [packed[4:8], bytes(byte ^ 0xFF for byte in packed[12:])]
    if packed[8:12] in (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe"):  # ISATAP
        found.append(packed[12:])
    return tuple(".".join(map(str, part)) for part in found)


def host_forms(text: str) -> tuple[str, ...]:
    """Every name of the host that `text` certainly is."""
    host = parse_host(text)
    return () if host is None else names_of(host)


def normal_host(text: str) -> str:
    return parse_host(text) or text


def hosts_in(text: str, effort: Effort) -> Iterator[str]:
    """The names of every host that `text` begins with, or holds in a URL, where they differ from how it is written."""
    start = _SEPARATOR.split(text, 1)[0]
    if _ODD.search(start) and not _SPACE.search(start):
        for part in filter(None, start.split("@")):
            yield from _names(part, effort)
    if ":" not in text and "//" not in text and "\\" not in text:
        return
    seen: set[str] = set()
    for authority in _AUTHORITY.finditer(text):
        effort.spend(2)
        if not _ODD.search(authority[1]):
            continue
        for part in authority[1].split("@"):
            piece = _PIECE.match(part)
            if piece and piece[0] not in seen:
                seen.add(piece[0])
                yield from _names(piece[0], effort)


def _names(text: str, effort: Effort) -> tuple[str, ...]:
    effort.spend(2 if text.isascii() else 5)
    host = read_host(text)
    decimal = _ZEROS.fullmatch(text)
    named = () if host is None else names_of(host)
    return (*named, ".".join(decimal.groups())) if decimal else named
