"""The other spellings of a text that reach the same thing. decisions.md §5, forbidden patterns and looks."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from urllib.parse import unquote

import ada_url

from oracle.templates import normal_path

DOTS = dict.fromkeys(map(ord, "\uff0e\u3002\uff61\ufe52"), ".")
ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")


def trimmed(text: str) -> str:
    """Without leading and trailing white space, control and format characters."""

    def blank(letter: str) -> bool:
        return letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf")

    while text and blank(text[0]):
        text = text[1:]
    while text and blank(text[-1]):
        text = text[:-1]
    return text


def clean(text: str) -> str:
    """Trimmed, percent-escapes decoded once, full-width and ideographic dots as dots."""
    return unquote(trimmed(text), errors="replace").translate(DOTS)


def has_control(text: str) -> bool:
    return any(unicodedata.category(c) == "Cc" for c in text)


def parse_url(text: str) -> ada_url.URL | None:
    """By the WHATWG rules; None for what does not parse."""
    try:
        return ada_url.URL(text)
    except ValueError:
        return None


def host_and_port(text: str) -> tuple[str, str]:
    """A host as WHATWG reads it, without brackets and without one trailing dot; empty for what is none."""
    if re.search(r"[/\\?#@\s]", text) or has_control(text):
        return "", ""
    url = (parse_url(f"http://[{text}]/") if ":" in text else None) or parse_url(f"http://{text}/")
    return (bare(url.hostname), str(url.port)) if url else ("", "")


def bare(hostname: str) -> str:
    return hostname.removeprefix("[").removesuffix("]").removesuffix(".")


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def embedded(host: str) -> list[str]:
    """Every IPv4 address that an IPv6 address carries: mapped, compatible, translated, NAT64, 6to4."""
    try:
        number = int(ipaddress.IPv6Address(host))
    except ValueError:
        return []
    low, found = number & 0xFFFFFFFF, []
    if number >> 32 in (0, 0xFFFF, 0xFFFF0000, 0x0064FF9B << 64) or number >> 80 == 0x0064FF9B0001:
        found.append(low)
    if number >> 112 == 0x2002:
        found.append(number >> 80 & 0xFFFFFFFF)
    return [str(ipaddress.IPv4Address(n)) for n in found]


def forms(text: str) -> set[str]:
    """The text as written and every canonical form of it, for the forbidden patterns to be searched in."""
    found = {text, clean(text), normal_path(text), normal_path(clean(text))}
    for spelling in (text, clean(text)):
        for url in (parse_url(spelling), parse_url(f"http://{spelling}")):
            if url is not None:
                found |= {str(url.href), bare(url.hostname), *embedded(bare(url.hostname))}
        host, _ = host_and_port(spelling)
        found |= {host, *embedded(host)}
    return found
