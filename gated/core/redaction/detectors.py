"""What counts as a secret or as personal data in a text: named detectors, each a few rules.

A rule is a regular expression of RE2, which is linear on what an agent sends, and where that is too coarse a check of the match
(check digits). All rules of a policy are tried at once first, as one automaton: about a microsecond for a usual call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import re2

from gated.core.redaction import personal, secrets
from gated.core.redaction.forms import forms
from gated.core.redaction.rules import Limit, Rule

DetectorName = Literal["secrets", "email", "card", "ssn", "iban", "phone"]

MEMORY: Final = 32 << 20  # bytes that the automaton of all rules may take
LONG: Final = 16_384  # characters
KEYS: Final = 20_000  # keys of machines whose answer is remembered: they come again and again


class Span(NamedTuple):
    """Where a detector found something."""

    start: int
    end: int
    kind: str


class _Compiled(NamedTuple):
    kind: str
    search: Callable[[str], Iterator[Any]]
    check: Callable[[str, Limit], bool] | None


class Finder:
    """The rules of some detectors, compiled together."""

    __slots__ = ("_match", "_name_rule", "_names", "_rules", "_set", "active", "suspects_key")

    def __init__(self, names: Sequence[DetectorName]) -> None:
        found = [(name, rule) for name in names for rule in _rules_of(name)]
        self.active = bool(found)
        self._rules = tuple(_compile(name, rule) for name, rule in found)
        self._set = re2.Set.SearchSet(_options())
        for _, rule in found:
            self._set.Add(rule.regex)
        self._names = "secrets" in names
        self._name_rule = self._set.Add(secrets.TELLING_LINE) if self._names else None
        self._set.Compile()
        self._match: Callable[[str | bytes], Sequence[int] | None] = self._set.Match
        self.suspects_key = lru_cache(KEYS)(self.suspects)

    def suspects(self, text: str) -> bool:
        """Whether a rule may match somewhere in a text, or (`secrets`) a line of it names a secret. Never a false no.

        A text that is long in other ways than by plain characters is suspect: it is looked at once, not twice.
        """
        if not self.active:
            return False
        if text.isascii() and "%" not in text:
            return self._match(text.encode()) is not None
        return len(text) > LONG or any(self._match(form) for form in forms(text))

    def kind_of(self, text: str, limit: Limit | None = None) -> str | None:
        """The detector that finds something in a text, in whatever of its forms. `limit` is shared by the texts of a message."""
        limit = limit or Limit()
        if "%" in text and not limit.may_unescape(text):
            return self._rules[0].kind if self._rules else None
        for form in forms(text):
            found = self._first(form, limit)
            if found is not None:
                return found
        return None

    def _first(self, form: str, limit: Limit) -> str | None:
        hits = [i for i in sorted(self._match(form) or ()) if i != self._name_rule]
        return next((self._rules[i].kind for i in hits if _holds(self._rules[i], form, limit)), None)

    def spans(self, text: str, most: int) -> list[Span] | None:
        """What is found in a text as it is written, in order, none inside another; None where the rules find more than `most`."""
        hits = (self.active and self._match(text)) or ()
        limit = Limit()
        found = (span for i in sorted(hits) if i != self._name_rule for span in _spans(self._rules[i], text, limit))
        spans = list(islice(found, most + 1))
        if len(spans) > most:
            return None
        spans.sort(key=lambda span: (span.start, -span.end))
        kept: list[Span] = []
        for span in spans:
            if not kept or span.start >= kept[-1].end:
                kept.append(span)
            elif span.end > kept[-1].end:
                kept[-1] = kept[-1]._replace(end=span.end)
        return kept

    def is_telling(self, key: str) -> bool:
        """Whether a key says that its value is a secret."""
        return self._names and secrets.is_telling(key)


@lru_cache(maxsize=64)
def finder(names: tuple[DetectorName, ...]) -> Finder:
    return Finder(names)


def _rules_of(name: DetectorName) -> tuple[Rule, ...]:
    return secrets.rules() if name == "secrets" else personal.RULES[name]


def _options() -> Any:
    options: Any = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY
    return options


def _compile(kind: str, rule: Rule) -> _Compiled:
    return _Compiled(kind, re2.compile(rule.regex, _options()).finditer, rule.check)


def _holds(rule: _Compiled, text: str, limit: Limit) -> bool:
    """Whether a rule that matches somewhere in a text finds something there."""
    return rule.check is None or not limit.may_search() or any(True for _ in _spans(rule, text, limit))


def _spans(rule: _Compiled, text: str, limit: Limit) -> Iterator[Span]:
    for match in rule.search(text):
        if rule.check is None or rule.check(match.group(), limit):
            yield Span(match.start(), match.end(), rule.kind)
