"""Which texts in the arguments are resources, and of what kind. decisions.md §5, Kinds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from oracle.spellings import clean, host_and_port, is_address, trimmed
from oracle.values import Json, Segment, parse_field, text_of

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
DRIVE = r"[A-Za-z]:(?!\s)"  # `Q: why?` is a sentence
SPECIAL = re.compile(r"(?:https?|ftp|file|wss?):", re.IGNORECASE)


@dataclass(frozen=True)
class Item:
    """A scalar below the arguments or an object key."""

    text: str
    kind: str | None
    """What a selector declares it to be; None: nothing is declared of it."""


def items(selectors: dict[str, str], args: Json) -> Iterator[Item]:
    parsed = [(parse_field(selector), kind) for selector, kind in selectors.items()]
    yield from _walk(parsed, args, [])


def _walk(selectors: list[tuple[list[Segment], str]], value: Json, place: list[str | int]) -> Iterator[Item]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield Item(key, _kind(selectors, place))
            yield from _walk(selectors, inner, [*place, key])
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _walk(selectors, inner, [*place, index])
    elif isinstance(value, str) or (_kind(selectors, place) is not None and value is not None):
        # declared scalars are rendered as text; undeclared ones are looked at when they are strings, as in the seed
        # ambiguous: a declared null. It names nothing, so it is no resource
        yield Item(text_of(value), _kind(selectors, place))


def _kind(selectors: list[tuple[list[Segment], str]], place: list[str | int]) -> str | None:
    """A selector covers everything below it; the longest wins, of equals the one with more names."""
    covering = [(len(s), sum(not step[0].startswith("any") for step in s), kind) for s, kind in selectors if _covers(s, place)]
    return max(covering, key=lambda found: found[:2])[2] if covering else None


def _covers(segments: list[Segment], place: list[str | int]) -> bool:
    def fits(segment: Segment, step: str | int) -> bool:
        kind, what = segment
        return step == what or (kind == "any key" and isinstance(step, str)) or (kind == "any index" and isinstance(step, int))

    return len(segments) <= len(place) and all(fits(s, p) for s, p in zip(segments, place, strict=False))


def is_resource(text: str) -> bool:
    """By its looks: (a) a dotted name, (b) a path, (c) a URL, (d) an address.

    ambiguous: a text that looks like a resource as written but not once its escapes are decoded (`a.b%20c`). The page
    takes looks after decoding; here either is enough, so that an escape cannot hide a resource.
    """
    return any(_dotted(t) or is_pathlike(t) or is_urllike(t) or _addresslike(t) for t in (trimmed(text), clean(text)))


def _dotted(text: str) -> bool:
    return "." in text and "@" not in text and not any(c.isspace() for c in text)


def is_pathlike(text: str) -> bool:
    return (
        text.replace("\\", "/").startswith(("/", "~", "./", "../", "$"))
        or re.match(DRIVE, text) is not None
        or ".." in re.split(r"[/\\]", text)
    )


def is_urllike(text: str) -> bool:
    text = re.sub(r"[\t\r\n]", "", text)  # as URL parsers do
    return SCHEME.search(text) is not None or SPECIAL.match(text) is not None


def _addresslike(text: str) -> bool:
    """With a port it must hold a dot or `0x` besides, or be a number that no clock shows: `12:30` is a time of day.

    ambiguous: `2852039166:80`. A number from 2^24 on spells an address outside 0.0.0.0/8, so with a port it is a host.
    """
    host = text.rpartition(":")[0] if text.count(":") == 1 else text
    spelled = any(mark in host for mark in (".", "0x", "0X", ":")) or (host != text and host.isdigit() and int(host) >= 1 << 24)
    return spelled and is_address(host_and_port(text)[0])
