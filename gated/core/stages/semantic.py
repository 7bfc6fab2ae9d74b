"""semantic: the last stage, for what rules cannot say. It reads scores that were recorded, it computes none.

Detectors (see `gated.shell.detectors`) give a call a score from 0 to 1, in whole millionths. They are asked only about calls
that every earlier stage lets pass, and what they said is part of the observation, so a replay reads it. A score at or over a
threshold asks or denies. A detector that gave no score (too late, failed, made no sense) never lets a call pass: it asks, or
denies where the policy says so.
What results of tools left behind is kept for the thread: how much one looked like injected instructions, and keyed
fingerprints of what sensitive tools returned. INVARIANT: never the results themselves, and never more than `MAX_MARKS`.
Codes: `semantic.unavailable` and `semantic.<detector>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from gated.core.call import Call
from gated.core.order.patterns import Pattern, compile_pattern
from gated.events import MILLION, Finding, Fingerprints, Reading, Score, Status
from gated.units import parse_duration

STAGE: Final = "semantic"

DetectorName = Literal["secrets", "exfiltration", "injection", "drift", "judge"]
DETECTORS: Final[tuple[DetectorName, ...]] = get_args(DetectorName)

MARK: Final = 5  # bytes of a fingerprint's mark
MAX_MARKS: Final = 8192  # of a thread; the oldest results are forgotten first
MAX_TIMEOUT: Final = 15_000_000  # µs; an input that is not acknowledged in time would come again
NOT_READ: Final = "nobody looked at the result"

Duration = str | int
Threshold = float | int | Literal["never"]


class ThresholdsEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`thresholds:` scores from which a call is asked about, or denied."""

    ask: Threshold = 0.6
    deny: Threshold = 0.9


class DetectorEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One detector; what it does not say is said by `semantic`. `tools` are patterns of the calls that it is asked about."""

    thresholds: ThresholdsEntry | None = None
    tools: tuple[str, ...] | None = None
    unavailable: Literal["ask", "deny"] | None = None
    timeout: Duration | None = None


class JudgeEntry(DetectorEntry, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The external judge: `nats`, a subject that is asked, or `http`, an address that is posted to.

    `token_from` names the variable of the daemon's environment that holds the bearer token for `http`.
    """

    nats: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$(?!\n)", max_length=200)] | None = None
    http: Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s#]*)?$(?!\n)", max_length=2000)] | None = None
    token_from: Annotated[str, Meta(pattern=r"^[A-Z_][A-Z0-9_]*$(?!\n)")] | None = None


class SemanticEntry(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`semantic:` of the policy. A detector is on where it is named."""

    thresholds: ThresholdsEntry = ThresholdsEntry()
    unavailable: Literal["ask", "deny"] = "ask"
    timeout: Duration = "2s"
    secrets: DetectorEntry | UnsetType = UNSET
    exfiltration: DetectorEntry | UnsetType = UNSET
    injection: DetectorEntry | UnsetType = UNSET
    drift: DetectorEntry | UnsetType = UNSET
    judge: JudgeEntry | UnsetType = UNSET


class Detector(Struct, frozen=True, gc=False):
    """A compiled detector: thresholds in millionths (None: never), `timeout` in µs, whom it is asked about."""

    name: DetectorName
    ask: int | None
    deny: int | None
    unavailable: Literal["ask", "deny"]
    timeout: int
    patterns: tuple[Pattern, ...] | None  # None: every call

    def concerns(self, tool: str, args: Mapping[str, Any]) -> bool:
        return self.patterns is None or any(pattern.matches_wide(tool, args) for pattern in self.patterns)


class SemanticRules(Struct, frozen=True, gc=False):
    detectors: tuple[Detector, ...]
    sensitive: frozenset[str]
    judge: JudgeEntry | None

    def named(self, name: DetectorName) -> Detector | None:
        return next((detector for detector in self.detectors if detector.name == name), None)


class Seen(Struct, frozen=True, gc=False):
    """What a thread's results left behind. `injection` is the highest score of one; the texts say why something is unknown."""

    injection: int = 0
    injection_unknown: str = ""
    fingerprints: tuple[Fingerprints, ...] = ()
    fingerprints_unknown: str = ""


# --- loading ---------------------------------------------------------------------------------------------------------


class SemanticError(ValueError):
    """`path` leads to the setting that is wrong."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


def compile_semantic(entry: SemanticEntry, outbound: Iterable[str], sensitive: Iterable[str]) -> SemanticRules:
    """Raises `SemanticError`. `outbound` tools are those that send data out, `sensitive` those whose results must not leave."""
    made: list[Detector] = []
    for name in DETECTORS:
        own = getattr(entry, name)
        if own is not UNSET:
            made.append(_compile(entry, name, own, tuple(outbound)))
    if not made:
        raise SemanticError(f"names no detector: give one of {', '.join(f'`{name}: {{}}`' for name in DETECTORS)}")
    judge = None if isinstance(entry.judge, UnsetType) else entry.judge
    if judge is not None and (judge.nats is None) is (judge.http is None):
        raise SemanticError("a judge has either `nats: SUBJECT` or `http: URL`", "judge")
    if judge is not None and judge.nats is not None and judge.token_from is not None:
        raise SemanticError("`token_from` is for a judge with `http`", "judge", "token_from")
    return SemanticRules(tuple(made), frozenset(sensitive), judge)


def _compile(entry: SemanticEntry, name: DetectorName, own: DetectorEntry, outbound: tuple[str, ...]) -> Detector:
    where: tuple[str, ...] = () if own.thresholds is None else (name,)
    limits = own.thresholds or entry.thresholds
    ask, deny = (_millionths(getattr(limits, key), (*where, "thresholds", key)) for key in ("ask", "deny"))
    if ask is not None and deny is not None and ask > deny:
        message = f"`ask: {limits.ask}` lies over `deny: {limits.deny}`: what is denied is not asked about"
        raise SemanticError(message, *where, "thresholds")
    return Detector(
        name,
        ask,
        deny,
        own.unavailable or entry.unavailable,
        _timeout(entry.timeout, "timeout") if own.timeout is None else _timeout(own.timeout, name, "timeout"),
        _patterns(name, own, outbound),
    )


def _millionths(value: Threshold, path: tuple[str, ...]) -> int | None:
    if value == "never":
        return None
    if isinstance(value, bool) or not 0 < value <= 1:
        raise SemanticError(f"a threshold is over 0 and at most 1, or `never`; not `{value}`", *path)
    millionths = Decimal(repr(value)) * MILLION
    if millionths != int(millionths):
        raise SemanticError(f"a threshold has at most six digits behind the point, as scores have; not `{value}`", *path)
    return int(millionths)


def _timeout(value: Duration, *path: str) -> int:
    try:
        us = parse_duration(value)
    except ValueError as error:
        raise SemanticError(str(error), *path) from error
    if not 0 < us <= MAX_TIMEOUT:
        raise SemanticError(f"a timeout is from 1s to {MAX_TIMEOUT // MILLION}s, not `{value}`", *path)
    return us


def _patterns(name: DetectorName, own: DetectorEntry, outbound: tuple[str, ...]) -> tuple[Pattern, ...] | None:
    """Absent: for exfiltration and injection the outbound tools, else every call."""
    if own.tools is None:
        return tuple(map(compile_pattern, outbound)) if name in ("exfiltration", "injection") else None
    found = []
    for position, text in enumerate(own.tools):
        try:
            found.append(compile_pattern(text))
        except ValueError as error:
            raise SemanticError(str(error), name, "tools", position) from error
    return tuple(found)


# --- deciding --------------------------------------------------------------------------------------------------------


def check(rules: SemanticRules, seen: Seen, call: Call) -> tuple[Finding, ...]:
    """At most two findings a detector: what its score says, and that (some of) it is not known."""
    found: list[Finding] = []
    for detector in rules.detectors:
        if detector.concerns(call.tool, call.args):
            for score in _SCORES[detector.name](detector.name, seen, call):
                finding = _finding(detector, score)
                if finding is not None:
                    found.append(finding)
    return tuple(found)


def _finding(detector: Detector, score: Score) -> Finding | None:
    name, value = detector.name, score.value
    if value is None or not 0 <= value <= MILLION:
        why = score.reason if value is None else f"its score {value} is out of range"
        reason = f"`{name}` gave no score: {why}"
        return Finding(STAGE, detector.unavailable, "semantic.unavailable", reason, detector=name)
    outcome: Literal["deny", "ask"]
    if detector.deny is not None and value >= detector.deny:
        outcome = "deny"
    elif detector.ask is not None and value >= detector.ask:
        outcome = "ask"
    else:
        return None
    reason = f"`{name}` gives this call a score of {value / MILLION:g}" + (f": {score.reason}" if score.reason else "")
    return Finding(STAGE, outcome, f"semantic.{name}", reason, detector=name, score=value / MILLION)


def _recorded(name: DetectorName, seen: Seen, call: Call) -> tuple[Score, ...]:
    score = None if call.scores is None else call.scores.get(name)
    return (Score(reason="it was not asked") if score is None else score,)


def _exfiltration(name: DetectorName, seen: Seen, call: Call) -> tuple[Score, ...]:
    """Where nothing sensitive was seen there is nothing to compare with, and nobody is asked."""
    unknown = (Score(reason=seen.fingerprints_unknown),) if seen.fingerprints_unknown else ()
    return (*(_recorded(name, seen, call) if seen.fingerprints else ()), *unknown)


def _injection(name: DetectorName, seen: Seen, call: Call) -> tuple[Score, ...]:
    unknown = (Score(reason=seen.injection_unknown),) if seen.injection_unknown else ()
    return (Score(seen.injection, "a result of this thread looks like instructions to the agent"), *unknown)


_SCORES: Final[Mapping[DetectorName, Callable[[DetectorName, Seen, Call], tuple[Score, ...]]]] = {
    "secrets": _recorded,
    "exfiltration": _exfiltration,
    "injection": _injection,
    "drift": _recorded,
    "judge": _recorded,
}


def unasked(
    rules: SemanticRules, seen: Seen, tool: str, args: Mapping[str, Any], scores: Mapping[str, Score] | None
) -> tuple[DetectorName, ...]:
    """The detectors whose word on a call is needed and not there."""
    given: Mapping[str, Score] = scores or {}
    return tuple(
        detector.name
        for detector in rules.detectors
        if detector.name != "injection"
        and detector.name not in given
        and (detector.name != "exfiltration" or seen.fingerprints)
        and detector.concerns(tool, args)
    )


def again(recorded: Mapping[str, Score] | None, fresh: Mapping[str, Score] | None) -> dict[str, Score] | None:
    """The scores of a call that waited: those that rest on its arguments alone stand, what others rest on may have changed."""
    still = {name: score for name, score in (recorded or {}).items() if name != "exfiltration"}
    return {**still, **(fresh or {})} or None


# --- results ---------------------------------------------------------------------------------------------------------


def unread(rules: SemanticRules, tool: str, content: Any, reading: Reading | None) -> tuple[DetectorName, ...]:
    """The detectors that must look at a result and have not."""
    if content is None:
        return ()
    given = reading or Reading()
    wanted: list[DetectorName] = ["exfiltration"] if given.fingerprints is None and _guarded(rules, tool) else []
    return (*wanted, *(("injection",) if given.injection is None and rules.named("injection") else ()))


def read(rules: SemanticRules, tool: str, status: Status, content: Any, reading: Reading | None) -> Reading | None:
    """What the record of an outcome says of its result: how it was read, and where it should have been and was not, that."""
    if content is None:
        return lost(rules, tool) if status == "success" else None
    missing = unread(rules, tool, content, reading)
    if not missing:
        return reading
    given = reading or Reading()
    return Reading(
        injection=Score(reason=NOT_READ) if "injection" in missing else given.injection,
        fingerprints=NOT_READ if "exfiltration" in missing else given.fingerprints,
    )


def lost(rules: SemanticRules, tool: str) -> Reading | None:
    """A result that nobody reported: what a sensitive tool returned may be anywhere."""
    return Reading(fingerprints=f"a result of `{tool}` was not reported") if _guarded(rules, tool) else None


def _guarded(rules: SemanticRules, tool: str) -> bool:
    return tool in rules.sensitive and rules.named("exfiltration") is not None


def remember(seen: Seen, reading: Reading) -> Seen:
    """The thread after a result was read."""
    injection, unknown = seen.injection, seen.injection_unknown
    if reading.injection is not None:
        value = reading.injection.value
        injection = max(injection, value or 0)
        unknown = (reading.injection.reason or NOT_READ) if value is None else unknown
    fingerprints, lost = seen.fingerprints, seen.fingerprints_unknown
    if isinstance(reading.fingerprints, Fingerprints):
        fingerprints = _bounded((*fingerprints, reading.fingerprints))
    elif reading.fingerprints is not None:
        lost = reading.fingerprints or NOT_READ
    return Seen(injection, unknown, fingerprints, lost)


def _bounded(fingerprints: tuple[Fingerprints, ...]) -> tuple[Fingerprints, ...]:
    total, kept = 0, list[Fingerprints]()
    for found in reversed(fingerprints):
        room = MAX_MARKS * MARK - total
        if room <= 0:
            break
        marks = found.marks[:room]
        total += len(marks)
        kept.append(found if len(marks) == len(found.marks) else Fingerprints(found.key, marks, found.gram, found.window))
    return tuple(reversed(kept))
