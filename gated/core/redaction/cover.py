"""What one observation leaves in the log, with everything taken out that must not be written.

An observation is looked at before it is decided: the core decides on what was said, the record keeps what may be kept. What the
decisions derive from it (reasons, keys, the texts of reminders) is covered before it is applied, so that the state is a fold of
the log; a value that must be read again later (a waiting call's arguments, an edit's) is sealed beside its redaction.
INVARIANT: an observation with nothing to redact is recorded as it is, and costs one pass over its texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from gated.core.order import fields
from gated.core.order.templates import MAX_RENDERED, escape_text
from gated.core.redaction.redactor import MANY, MOST, Redactor, Taken, Where, mark, place
from gated.core.redaction.rules import Limit
from gated.core.redaction.vault import Vault
from gated.events import (
    AbortRequested,
    Admission,
    CallDecided,
    Decision,
    ErasureRequested,
    IntentsReceived,
    MessageRefused,
    Observation,
    OutcomeReported,
    ResolutionReceived,
    RunStarted,
    TicketCall,
    TicketOpened,
    Touch,
    Wanted,
)

MACHINE_KEY: Final = "<machine key>"
QUOTED: Final = 1000  # characters of a redacted value that a text made of it may hold
_PLAIN: Final = re.compile(r"[A-Za-z0-9@.+_:/=-]*")
SHORTEST: Final = 4  # characters of a redacted value that are looked for in the texts made of it

# The fields of decisions that hold text made of what an agent or a person said. (Keys of machines are covered as they are made.)
_TEXTS: Final = frozenset(("reason", "emits", "warning", "content", "summary", "resource", "note", "message", "task", "labels"))

Made = TypeVar("Made", bound=Decision)


class Seen(NamedTuple):
    """An observation: as it is decided, as it is recorded, and its cover where something was taken out."""

    decided: Observation
    recorded: Observation
    cover: Cover | None


class Cover:
    """Takes out of decisions what an observation (or a sealed call that was opened) brought in."""

    def __init__(self, redactor: Redactor, vault: Vault) -> None:
        self._redactor, self._vault = redactor, vault
        self.places: list[str] = []
        self._limit = Limit()
        self._known: list[tuple[Any, str | None, Any]] = []
        self._taken: list[Taken] = []  # whose spellings are not among the terms yet
        self._terms: dict[str, str] = {}  # text that must not be written -> what found it

    # --- values ------------------------------------------------------------------------------------------------------

    def value(self, value: Any, tool: str | None, where: Where = ()) -> Any:
        """A value as it may be written, from now on also in texts. The same value again (a call's, in its ticket) is known."""
        for known, of, made in self._known:
            if known is value and of == tool:
                return made
        made, taken = self._redactor.redact(value, tool, self._vault, where, self._limit)
        if taken:
            self._known.append((value, tool, made))
        self._taken += taken
        self.places += [place(item.where) for item in taken if where] if len(taken) <= MOST else [place(where)]
        return made

    def _spellings(self) -> dict[str, str]:
        """Of all that was taken out; worked out when there is a text that might hold it."""
        for item in self._taken:
            for text in _renderings(item.value):
                if len(text) >= SHORTEST:
                    self._terms.setdefault(text, item.kind)
        self._taken.clear()
        return self._terms

    def note_key(self) -> None:
        """A machine's key was made writable: the record is not to be decided again without the vault."""
        if MACHINE_KEY not in self.places:
            self.places.append(MACHINE_KEY)

    def words(self, text: str, where: Where) -> str:
        """A person's or an agent's words."""
        made = self._redactor.text(text, self._vault)
        if made != text:
            self.places.append(place(where))
        return made

    def score(self, reason: str, detector: str, index: int) -> str:
        """Why a detector gave its score, which may quote what it looked at."""
        made = self.text(reason)
        if made != reason:
            self.places.append(place(("calls", index, "scores", detector)))
        return made

    # --- texts made of values ----------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        if len(self._taken) + len(self._terms) > MOST:
            return mark(MANY, text, self._vault)
        terms = self._spellings()
        found = sorted((term for term in terms if term in text), key=len, reverse=True)
        if found:  # in one pass, so that no mark is taken for a term
            text = re.sub("|".join(map(re.escape, found)), lambda m: mark(terms[m.group()], m.group(), self._vault), text)
        return self._redactor.text(text, self._vault)

    def decision(self, decision: Made) -> Made:
        """A decision as it may be written."""
        if isinstance(decision, CallDecided):
            decision = self._verdict(decision)  # type: ignore[assignment]
        elif isinstance(decision, TicketOpened):
            decision = replace(decision, calls=tuple(map(self._call, decision.calls)))
        return msgspec.convert(_mapped(msgspec.to_builtins(decision), self.text), type(decision))

    def _verdict(self, decided: CallDecided) -> CallDecided:
        said = {"args": decided.args, "result": decided.result}
        kept = {name: self.value(value, decided.tool) for name, value in said.items()}
        if kept != said:
            decided = replace(decided, **kept, sealed=self._vault.seal(said))
        if decided.admission is None or decided.admission.args is None:
            return decided
        return replace(decided, admission=self._admission(decided.admission, decided.tool))

    def _admission(self, admission: Admission, tool: str) -> Admission:
        args = self.value(admission.args, tool)
        return admission if args == admission.args else replace(admission, args=args, sealed=self._vault.seal(admission.args))

    def _call(self, call: TicketCall) -> TicketCall:
        args = self.value(call.args, call.tool)
        return call if args == call.args else replace(call, args=args, sealed=self._vault.seal(call.args))


def _renderings(value: Any) -> dict[str, None]:
    """A value, as far as anybody quotes it, in the spellings in which rules do."""
    text = fields.render(value)[:QUOTED]
    if isinstance(value, float):  # a key has it without its point
        return dict.fromkeys((text, str(value), *fields.digested(value)))
    if _PLAIN.fullmatch(text):
        return dict.fromkeys((text, text.casefold(), text[:MAX_RENDERED]))
    inner = fields.compact(text)[1:-1]
    spellings = (text, inner, unquote(text), repr(text)[1:-1])
    short = (escape_text(spelling, limit) for spelling in spellings for limit in (len(spelling), MAX_RENDERED))
    return dict.fromkeys(form for spelling in (*spellings, *short) for form in (spelling, spelling.strip(), spelling.casefold()))


def _mapped(value: Any, cover: Callable[[str], str], texts: bool = False) -> Any:
    """Plain data with every text of the fields that hold such covered."""
    if isinstance(value, str):
        return cover(value) if texts else value
    if isinstance(value, dict):
        return {key: _mapped(item, cover, texts or key in _TEXTS) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, cover, texts) for item in value]
    return value


# --- looking at an observation ---------------------------------------------------------------------------------------


def is_clear(said: Observation, redactor: Redactor) -> bool:
    """Whether nothing has to be taken out: quick for the usual intent and outcome, and never a false yes."""
    if not redactor.active:
        return True
    if isinstance(said, IntentsReceived):
        for wanted in said.calls:  # half the price of any() over a generator
            if wanted.why is not None or redactor.suspects(wanted.args) or (wanted.scores and _quotes(wanted, redactor)):
                return False
        return True
    if isinstance(said, OutcomeReported):
        return not redactor.suspects(_reported(said))
    return False


def expected(observations: Iterable[Observation]) -> Iterator[Any]:
    """The values that `is_clear` asks a redactor about, for `Redactor.expect`."""
    for said in observations:
        if isinstance(said, IntentsReceived):
            for wanted in said.calls:
                yield wanted.args
        elif isinstance(said, OutcomeReported):
            yield _reported(said)


def _reported(said: OutcomeReported) -> Any:
    return (said.content, said.facts) if said.facts else said.content


def _quotes(wanted: Wanted, redactor: Redactor) -> bool:
    """Whether why a detector gave its score may hold something; most give no reason."""
    reasons = [score.reason for score in (wanted.scores or {}).values() if score.reason]
    return bool(reasons) and redactor.suspects(reasons)


def look(observation: Observation, tool: str | None, redactor: Redactor, vault: Vault) -> Seen:
    """What of an observation must not be written. `tool` is the one that an outcome or an answer is about."""
    cover = Cover(redactor, vault)
    decided, recorded = _looked(observation, tool, redactor, vault, cover)
    return Seen(decided, recorded, cover if cover.places else None)


def _looked(
    said: Observation, tool: str | None, redactor: Redactor, vault: Vault, cover: Cover
) -> tuple[Observation, Observation]:
    match said:
        case IntentsReceived():
            return _intents(said, redactor, vault, cover)
        case OutcomeReported():
            content, facts = cover.value(said.content, tool, ("content",)), cover.value(said.facts, tool, ("facts",))
            return said, replace(said, content=content, facts=facts) if cover.places else said
        case ResolutionReceived():
            return _resolution(said, tool, vault, cover)
        case RunStarted():
            task = None if said.task is None else cover.words(said.task, ("task",))
            labels = {name: cover.words(text, ("labels", name)) for name, text in said.labels.items()}
            kept = replace(said, task=task, labels=labels) if cover.places else said
            return kept, kept
        case ErasureRequested():
            named = replace(said, subject=cover.words(said.subject, ("subject",)), reason=cover.words(said.reason, ("reason",)))
            return named, named
        case AbortRequested() | MessageRefused():
            kept_words = replace(said, reason=cover.words(said.reason, ("reason",)))
            return kept_words, kept_words
        case _:
            return said, said


def _intents(said: IntentsReceived, redactor: Redactor, vault: Vault, cover: Cover) -> tuple[Observation, Observation]:
    decided, recorded = list(said.calls), list(said.calls)
    for index, wanted in enumerate(said.calls):
        if wanted.refused is None:
            args = cover.value(wanted.args, wanted.tool, ("calls", index, "args"))
            if args is not wanted.args:
                decided[index] = replace(wanted, args_sha256=vault.args_digest(wanted.tool, wanted.args))
                recorded[index] = replace(decided[index], args=args, links=_links(wanted.links, cover))
            if wanted.scores:
                scores = {name: replace(s, reason=cover.score(s.reason, name, index)) for name, s in wanted.scores.items()}
                recorded[index] = replace(recorded[index], scores=scores)
        elif wanted.why is not None:
            decided[index] = recorded[index] = replace(wanted, why=cover.words(wanted.why, ("calls", index, "why")))
    if not cover.places:
        return said, said
    return replace(said, calls=tuple(decided)), replace(said, calls=tuple(recorded))


def _resolution(said: ResolutionReceived, tool: str | None, vault: Vault, cover: Cover) -> tuple[Observation, Observation]:
    args = None if said.args is None else cover.value(said.args, tool, ("args",))
    result = cover.value(said.result, tool, ("result",)) if said.answers else said.result
    decided = replace(said, note=cover.words(said.note, ("note",)))
    if said.args is not None and args is not said.args:
        decided = replace(decided, args_sha256_edited=vault.args_digest(tool or "", said.args))
    if cover.places and said.content_sha256 is not None:
        decided = replace(decided, content_sha256=vault.digest(said.content_sha256))
    links = {call: _links(found, cover) or {} for call, found in said.links.items()} if cover.places else said.links
    return decided, replace(decided, args=args, result=result, links=links)


def _links(found: Mapping[str, str] | None, cover: Cover) -> dict[str, str] | None:
    """Paths are made of arguments."""
    return None if found is None else {cover.text(path): cover.text(real) for path, real in found.items()}


def keys(touches: tuple[Touch, ...], redactor: Redactor, vault: Vault) -> tuple[Touch, ...]:
    """The instances a call bears on, under keys that may be written. INVARIANT: equal keys of a machine stay equal.

    So a key is redacted by what it is, never by what else its call holds.
    """
    if not any(redactor.may_redact_key(touch.machine, touch.key) for touch in touches):
        return touches
    return tuple(replace(touch, key=redactor.key(touch.machine, touch.key, vault)) for touch in touches)


def revealed(decided: CallDecided, vault: Vault) -> CallDecided:
    """A verdict as its agent is to get it. Raises `Unreadable` where it was sealed under another key."""
    if decided.sealed is None:
        return decided
    said = vault.open(decided.sealed)
    return replace(decided, args=said["args"], result=said["result"], sealed=None)


def restored(edited: Any, redacted: Any, original: Any) -> Any:
    """Edited arguments with what the editor was not shown put back, wherever a redaction was left as it was."""
    known: dict[str, Any] = {}
    _pair(redacted, original, known)
    return _filled(edited, known)


def _pair(redacted: Any, original: Any, known: dict[str, Any]) -> None:
    if isinstance(redacted, Mapping) and redacted.keys() == {"redacted", "sha256"}:
        known[f"{redacted['redacted']} {redacted['sha256']}"] = original
    elif isinstance(redacted, Mapping) and isinstance(original, Mapping):
        for key in redacted.keys() & original.keys():
            _pair(redacted[key], original[key], known)
    elif isinstance(redacted, list) and isinstance(original, list):
        for hidden, item in zip(redacted, original, strict=False):
            _pair(hidden, item, known)


def _filled(value: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {"redacted", "sha256"}:
            return known.get(f"{value['redacted']} {value['sha256']}", value)
        return {key: _filled(item, known) for key, item in value.items()}
    return [_filled(item, known) for item in value] if isinstance(value, list) else value
