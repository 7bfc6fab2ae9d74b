"""What a policy redacts: values that a detector finds something in, and fields by their names, wherever they stand.

A value that is redacted is replaced whole, by `{redacted: kind, sha256: keyed digest}`; in a text for people (a reason, a key)
only what was found is, by `[redacted kind digest]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType

from gated.core.order.fields import Every, FieldError, Step, compile_field
from gated.core.order.globs import compile_glob
from gated.core.redaction.detectors import DetectorName, finder
from gated.core.redaction.rules import Limit
from gated.core.redaction.vault import SHOWN, Vault
from gated.ingress import END

FIELD: Final = "field"
MANY: Final = "many"  # what stands for a whole of which too much would have to be taken out
MOST: Final = 1000  # values that are taken out of one
KEY: Final = "<key>"
SHORT: Final = 512  # characters of a value that is looked at together with others
FEW: Final = 64  # parts of such a value; a value that is not short shows it within as many
AHEAD: Final = 1 << 17  # characters that are looked at together; a value counts `FEW` besides its own
LONG_NUMBER: Final = 10**8  # a number below cannot be a card's or a person's

Where = tuple[str | int, ...]

_TOOLED: Final = re.compile(r"(?P<tool>[^()]+)\((?P<field>[^()]+)\)")


class RedactEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`redact:` of the policy file. `fields` are paths like `body`, `customer.ssn`, `items[*].note`, or `send_email(body)`.

    `store: encrypted` keeps what is taken out, sealed under a key of its `subject`: the `thread`, the `run`, or what a label of
    the run says (`label:customer`).
    """

    detectors: tuple[DetectorName, ...] = ("secrets",)
    fields: tuple[str, ...] = ()
    store: Literal["digest", "encrypted"] = "digest"
    subject: Annotated[str, Meta(pattern=f"^(thread|run|label:.{{1,128}}){END}")] | UnsetType = UNSET


class _Field(NamedTuple):
    tool: Any  # a glob, None for every tool
    steps: tuple[Step, ...]

    def covers(self, tool: str | None, where: Where) -> bool:
        """Whether the path ends as the field says, at any depth."""
        if len(where) < len(self.steps) or (self.tool is not None and (tool is None or not self.tool.matches(tool))):
            return False
        return all(map(_fits, self.steps, where[-len(self.steps) :]))


def _fits(step: Step, found: str | int) -> bool:
    if step is Every.VALUE:
        return isinstance(found, str)
    if step is Every.ITEM:
        return isinstance(found, int)
    return step == found and type(step) is type(found)


class Redactor:
    """Compiled once a policy."""

    __slots__ = ("_clear", "_coming", "_fields", "_keyed", "active", "finder", "subject")

    def __init__(self, entry: RedactEntry, keys: Mapping[str, Sequence[Where]]) -> None:
        self.finder = finder(tuple(dict.fromkeys(entry.detectors)))
        self._fields = tuple(map(_compile, entry.fields))
        # The machines that make their keys of redacted fields.
        self._keyed = frozenset(machine for machine, paths in keys.items() if any(map(self._reads, paths)))
        self.active = self.finder.active or bool(self._fields)
        self.subject = _subject(entry, self.active)  # None: what is taken out is not kept
        self._coming: list[Iterable[Any]] = []
        self._clear: dict[int, Any] = {}  # of what was expected last: values with nothing in them, by their ids

    def _reads(self, path: Where) -> bool:
        """Whether a field that is redacted, for whatever tool, lies on a path into arguments."""
        starts = [path[:end] for end in range(1, len(path) + 1)]
        return any(field._replace(tool=None).covers(None, start) for field in self._fields for start in starts)

    def suspects(self, value: Any) -> bool:
        """Whether there may be something to redact: cheap, and never a false no."""
        if not self.active or self._fields:
            return self.active
        if self._coming:
            self._look_ahead()
        return id(value) not in self._clear and self.finder.suspects(_lines(value))

    def expect(self, values: Iterable[Any]) -> None:
        """Say what will be asked about soon, so that it is looked at together once something is: a look at many short texts costs
        a fraction of a look at each, and RE2 lets go of Python's lock once, not each time. It changes no answer, and costs no
        more than a look at `AHEAD` characters, however much comes.
        """
        self._coming = [values]

    def _look_ahead(self) -> None:
        try:
            coming = self._coming.pop()
        except IndexError:
            return  # another thread looks already
        short, texts, left = list[Any](), list[str](), AHEAD
        for value in coming:
            text = _short(value)
            left -= FEW if text is None else FEW + len(text)
            if left < 0:
                break
            if text is not None:
                short.append(value)
                texts.append(text)
        self._clear = {} if self.finder.suspects("\n".join(texts)) else dict(zip(map(id, short), short, strict=True))

    def redact(
        self, value: Any, tool: str | None, vault: Vault, where: Where = (), limit: Limit | None = None
    ) -> tuple[Any, list[Taken]]:
        """The value without what must not be written, and what was taken out of it. The value itself where that is nothing.

        Where that is more than `MOST` values, the whole is taken out. `limit` is shared by the values of a message.
        """
        taken: list[Taken] = []
        try:
            made = self._redact(value, where, tool, _Work(vault, taken, limit or Limit()))
        except _TooMuch:
            return {"redacted": MANY, "sha256": vault.digest(value)}, taken
        return (made, taken) if taken else (value, taken)

    def _redact(self, value: Any, where: Where, tool: str | None, work: _Work) -> Any:
        kind = self._kind(value, where, tool, work.limit)
        if kind is not None:
            work.take(Taken(where, kind, value))
            return {"redacted": kind, "sha256": work.vault.digest(value)}
        if isinstance(value, dict):
            written = {self._key(key, where, work): item for key, item in value.items()}
            return {key: self._redact(item, (*where, key), tool, work) for key, item in written.items()}
        if isinstance(value, list | tuple):
            return [self._redact(item, (*where, index), tool, work) for index, item in enumerate(value)]
        return value

    def _kind(self, value: Any, where: Where, tool: str | None, limit: Limit) -> str | None:
        if self._fields and any(field.covers(tool, where) for field in self._fields):
            return None if value is None else FIELD
        if self._is_told(value, where):
            return "secrets"
        text = _text(value)
        return self.finder.kind_of(text, limit) if text else None

    def _is_told(self, value: Any, where: Where) -> bool:
        """Whether a text or a number has a key above that says it is a secret, be it the key of a list that it is in."""
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            return False
        for step in reversed(where):
            if isinstance(step, str):
                return self.finder.is_telling(step)
        return False

    def _key(self, key: str, where: Where, work: _Work) -> str:
        kind = self.finder.kind_of(key, work.limit) if self.finder.active else None
        if kind is None:
            return key
        work.take(Taken((*where, KEY), kind, key))
        return mark(kind, key, work.vault)

    def text(self, text: str, vault: Vault) -> str:
        """A text for people without what the detectors find in it, in whatever spelling; no text where that is too much."""
        spans = self.finder.spans(text, MOST)
        if spans is None:
            return mark(MANY, text, vault)
        if spans:
            parts, end = list[str](), 0
            for span in spans:
                parts += (text[end : span.start], mark(span.kind, text[span.start : span.end], vault))
                end = span.end
            text = "".join((*parts, text[end:]))
        hidden = self.finder.kind_of(text) if self.finder.active and ("%" in text or not text.isascii()) else None
        return text if hidden is None else mark(hidden, text, vault)

    # --- keys of machines --------------------------------------------------------------------------------------------

    def suspects_keys(self, keys: Iterable[str]) -> bool:
        """Whether one of these keys, of whichever machines, may have to be redacted."""
        return bool(self._keyed) or any(map(self.finder.suspects_key, keys))

    def may_redact_key(self, machine: str, key: str) -> bool:
        return machine in self._keyed or self.finder.suspects_key(key)

    def key(self, machine: str, key: str, vault: Vault) -> str:
        """A machine's key as it may be written: as a whole where it is made of a redacted field."""
        return mark(FIELD, key, vault) if machine in self._keyed else self.text(key, vault)


class _TooMuch(Exception):
    """More is to be taken out of a value than is worth doing piece by piece."""


class _Work(NamedTuple):
    """One value being redacted."""

    vault: Vault
    taken: list[Taken]
    limit: Limit

    def take(self, item: Taken) -> None:
        self.taken.append(item)
        if len(self.taken) > MOST:
            raise _TooMuch


class Taken(NamedTuple):
    """A value that was taken out: where it stood, what found it, and what it was."""

    where: Where
    kind: str
    value: Any


def mark(kind: str, text: str, vault: Vault) -> str:
    """What stands in a text for a part of it."""
    return f"[redacted {kind} {vault.digest(text)[:SHOWN]}]"


def place(where: Where) -> str:
    """`args.items[0].body`"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where).removeprefix(".")


def compile_redactor(entry: RedactEntry, keys: Mapping[str, Sequence[Where]]) -> Redactor:
    """`keys` are the paths that each machine makes its key of. Raises `ValueError` for a field that has no meaning."""
    return Redactor(entry, keys)


def _subject(entry: RedactEntry, active: bool) -> str | None:
    if entry.store != "encrypted":
        if entry.subject is not UNSET:
            raise ValueError("`subject` says whose key it is sealed under: that needs `store: encrypted`")
        return None
    if not active:
        raise ValueError("`store: encrypted` keeps what is redacted, and nothing is: name `detectors` or `fields`")
    return "thread" if entry.subject is UNSET else entry.subject


def _compile(text: str) -> _Field:
    tooled = _TOOLED.fullmatch(text.strip())
    try:
        if tooled is None:
            return _Field(None, compile_field(text.strip()))
        return _Field(compile_glob(tooled["tool"].strip()), compile_field(tooled["field"].strip()))
    except FieldError as error:
        raise ValueError(
            f"`{text}` names no field: write a path like `body` or `items[*].note`, or `send_email(body)`"
        ) from error


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _digits(value)


def _digits(value: Any) -> str:
    """The digits of a number that is long and whole, also where it is written with a point or an exponent; else nothing."""
    kind = type(value)
    if (kind is int or (kind is float and value.is_integer())) and LONG_NUMBER < abs(value) < 10**40:
        return str(int(value))
    return ""


def _short(value: Any) -> str | None:
    """The lines of a short value; None of another, of which no more than `FEW` parts are looked at."""
    if type(value) is dict and len(value) <= FEW and (text := _flat(value)) is not None:
        return text if len(text) <= SHORT else None
    parts = [value]
    for part in parts:
        kind = type(part)
        if kind is str:
            if len(part) > SHORT:
                return None
        elif kind is dict or kind is list or kind is tuple or isinstance(part, Mapping):
            if len(parts) + len(part) > FEW:
                return None
            parts += part if kind is list or kind is tuple else part.values()
    text = _lines(value)
    return text if len(text) <= SHORT else None


def _flat(value: dict[str, Any]) -> str | None:
    """The lines of what has nothing but texts under its keys, as the usual call's arguments."""
    try:
        return "\n".join((*value, *value.values()))
    except TypeError:
        return None


def _lines(value: Any) -> str:
    """Every text, key and long number of a value, a line each; walked without recursion."""
    if type(value) is str:
        return value
    if type(value) is dict and (text := _flat(value)) is not None:
        return text
    found: list[str] = []
    stack = [value]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is str:
            found.append(item)
        elif kind is dict or isinstance(item, Mapping):
            found.extend(item)
            stack.extend(item.values())
        elif kind is list or kind is tuple:
            stack.extend(item)
        elif (kind is int or kind is float) and (digits := _digits(item)):
            found.append(digits)
    return "\n".join(found)
