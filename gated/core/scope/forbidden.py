"""Forbidden patterns: texts that may stand in no argument, in whatever spelling.

A pattern is searched, case folded, in a string as written and in every form that some reader makes of it: trimmed,
unescaped up to three times, its path collapsed, its URL and hosts in canonical form.
INVARIANT: one more pattern never allows more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gated.core.scope import paths, urls
from gated.core.scope.addresses import hosts_in, names_of, parse_host, read_host
from gated.core.scope.effort import Effort
from gated.core.scope.rules import ScopeError
from gated.core.scope.spelling import are_plain, is_plain, may_be_plain, readings, unbroken

UNESCAPED_TIMES: Final = 3


class Hit(NamedTuple):
    """`form` is the spelling that the pattern was found in."""

    pattern: str
    form: str


class Forbidden:
    """The compiled patterns of one scope."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._needles = tuple((needle, pattern) for pattern in patterns for needle in _needles(pattern))
        self._plain = tuple(pair for pair in self._needles if may_be_plain(pair[0]))
        # Nearly every string of nearly every call ends here, so the common case must not cost a call more.
        self.allows_plain: Callable[[str], bool] = self._allows_plain if self._plain else is_plain
        """Whether a string is plain and free of patterns."""

    def _allows_plain(self, text: str) -> bool:
        return is_plain(text) and _search(self._plain, text) is None

    def allows_plain_lines(self, args: Mapping[str, object]) -> bool:
        """Whether all arguments are texts, and they and their names plain and free of patterns. A no is not certain."""
        try:
            text = "\n".join((*args, *args.values()))  # type: ignore[arg-type]
        except TypeError:
            return False
        return are_plain(text, 2 * len(args)) and (not self._plain or _search(self._plain, text) is None)

    def spares(self, text: str) -> bool:
        """Whether no pattern stands in this one form."""
        return _search(self._needles, text) is None

    def find(self, text: str, effort: Effort) -> Hit | None:
        """A pattern in any spelling of `text`. Raises `TooMuch`."""
        return self.find_in(spellings(text, effort)) if self._needles else None

    def find_in(self, forms: Iterable[str]) -> Hit | None:
        """A pattern in one of the forms as they are."""
        for form in forms:
            pattern = _search(self._needles, form)
            if pattern is not None:
                return Hit(pattern, form)
        return None


def _search(needles: tuple[tuple[str, str], ...], text: str) -> str | None:
    folded = text.lower() if text.isascii() else text.casefold()  # the same, and ten times faster
    for needle, pattern in needles:
        if needle in folded:
            return pattern
    return None


def _needles(pattern: str) -> list[str]:
    if not pattern.strip():
        raise ScopeError(f"forbidden_patterns: `{pattern}` is empty and would forbid everything; remove it")
    address = read_host(pattern)
    canonical = [] if address is None else [address.strip("[]")]
    return list(dict.fromkeys([pattern.casefold(), *canonical]))


def spellings(text: str, effort: Effort) -> Iterator[str]:
    """Every form of an undeclared string; linear in it. Raises `TooMuch`."""
    yield text
    for reading in readings(text, UNESCAPED_TIMES, effort):
        joined = unbroken(reading)
        yield from (form for form in (reading, joined) if form != text)
        if "/" in joined or "\\" in joined:
            # The slash at the end lets a pattern that ends with one match the folder itself.
            yield f"{paths.normal(joined)}/"
        if urls.SCHEME.match(joined):
            yield from url_forms(joined)
        yield from hosts_in(joined, effort)


def url_forms(text: str) -> tuple[str, ...]:
    """The canonical URL, and it again with each other name of its host."""
    url = urls.parse(text)
    if url is None:
        return ()
    host = url.host if url.scheme in urls.DEFAULT_PORTS else parse_host(url.host) or url.host
    return tuple(url.text.replace(url.host, name, 1) if url.host else url.text for name in names_of(host))
