"""Injected instructions: what in a result speaks to the agent instead of telling it something.

A table of phrases with weights, tried on the result as it is written and on what it says once it is decoded. The phrases that
are found add up like independent witnesses: 1 - (1 - w1)(1 - w2)… It is a heuristic that knows the usual forms of English and a
few of other languages. A result it finds harmless may be harmful; what an agent may do must not rest on it alone.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import re2

from gated.events import MILLION, Score
from gated.shell.detectors.texts import TooLong, forms

MAX_RESULT: Final = 1_048_576  # characters, decoded ones included


class Phrase(NamedTuple):
    """`weight` in millionths; `what` is said to people, who are not shown the text itself."""

    what: str
    weight: int
    regex: str


_TALK: Final = r"(?:ai|assistant|agent|language model|llm|chat ?bot|copilot|claude|gpt|gemini)"
_ACT: Final = (
    r"(?:send|e-?mail|forward|transfer|pay|wire|delete|remove|invite|post|upload|call|run|execute|invoke|fetch|visit|open|share|"
    r"book|buy|change|reset|grant|approve|reply|write|read|click)"
)
_RULES: Final = r"(?:instructions?|prompts?|rules?|guidelines?|directions?|polic(?:y|ies)|orders?|messages?|constraints?)"

_ROLE: Final = r"(?:system|developer)"

PHRASES: Final = (
    Phrase(
        "earlier instructions are to be ignored",
        900_000,
        r"\b(?:ignore|disregard|forget|override|bypass|set aside|do not follow)\b.{0,30}"
        rf"\b(?:previous|prior|above|earlier|preceding|all|any|your|the|other|existing)\b.{{0,30}}\b{_RULES}",
    ),
    Phrase(
        "earlier instructions are to be ignored",
        900_000,
        r"\b(?:ignorier\w*|vergiss|missachte)\b.{0,40}\b(?:anweisung|regel|vorgabe)"
        r"|\b(?:ignore[zr]?|oublie[zr]?)\b.{0,40}\b(?:consignes|instructions|règles)"
        r"|\b(?:ignora|olvida|descarta)\b.{0,40}\b(?:instrucciones|reglas|istruzioni|regole)",
    ),
    Phrase(
        "marks of a prompt",
        800_000,
        r"<\|?/?(?:im_start|im_end|system|endoftext|eot_id|start_header_id)\|?>|\[/?inst\]|<</?sys>>",
    ),
    Phrase(
        "marks of a prompt",
        600_000,
        rf"(?:^|\n|\s)(?:#{{1,4}}\s*|\*\*)?{_ROLE}(?: prompt| message| note)?(?:\*\*)?\s*:\s",
    ),
    Phrase(
        "new instructions",
        600_000,
        rf"\b(?:new|updated|revised|real|actual|additional|important|urgent)\s+(?:system\s+)?{_RULES}\s*[:.]",
    ),
    Phrase(
        "new instructions",
        600_000,
        rf"<(?:important|instructions?|information)>|\bimportant (?:message|notice|note|{_RULES}) (?:to|for) ",
    ),
    Phrase(
        "a new role",
        600_000,
        r"\byou are (?:now|no longer)\b|\bfrom now on,? you\b|\b(?:act|behave) as (?:if|though|an?)\b|\bpretend (?:to be|you)",
    ),
    Phrase(
        "the agent is told to act",
        700_000,
        rf"\b{_TALK}s?\b.{{0,40}}\b(?:must|should|shall|please|needs? to|has to|have to|is to|are to|will now)\b"
        rf".{{0,60}}\b{_ACT}\b",
    ),
    Phrase(
        "the agent is told to act",
        600_000,
        rf"\b(?:dear|hey|hello|attention|note to(?: the| any)?|message (?:to|for)(?: the)?)\s+{_TALK}\b",
    ),
    Phrase(
        "the agent is told to act",
        500_000,
        rf"\byou (?:must|have to|need to|are required to|should (?:now|first|immediately))\b.{{0,60}}\b{_ACT}\b",
    ),
    Phrase(
        "something is to be done first",
        500_000,
        r"\b(?:before|after)\s+(?:you\s+)?(?:answer|continu|respond|proceed|solv|do|complet|finish|summari)\w*"
        rf".{{0,80}}\b{_ACT}\b",
    ),
    Phrase(
        "a tool is named for use",
        500_000,
        r"\b(?:call|use|invoke|run|execute)\s+(?:the\s+)?[`'\"]?[a-z][a-z0-9]*(?:_[a-z0-9]+)+",
    ),
    Phrase(
        "something is to be kept from the user",
        700_000,
        r"\b(?:do not|don't|never|without)\s+(?:tell|inform|mention|reveal|notify|alert|ask|show|warn)\w*\b"
        r".{0,40}\b(?:users?|humans?|anyone|owners?|them|this)\b",
    ),
    Phrase(
        "data is to be sent somewhere",
        600_000,
        r"\b(?:send|forward|post|upload|e-?mail|transmit|exfiltrate|copy|leak)\b.{0,60}"
        r"\b(?:passwords?|credentials?|api keys?|secrets?|tokens?|conversation|contents?|everything|files?|data|history|inbox)\b"
        r".{0,60}(?:https?://|\S@\S)",
    ),
    Phrase("instructions in a comment", 600_000, rf"<!--.{{0,400}}\b(?:{_RULES}|{_TALK})\b.{{0,400}}-->"),
    Phrase("text that people do not see", 800_000, "[\U000e0020-\U000e007e]{4,}"),
    Phrase(
        "text that people do not see",
        500_000,
        r"display\s*:\s*none|font-size\s*:\s*0|visibility\s*:\s*hidden|color\s*:\s*(?:white|#fff)",
    ),
)


def _compile() -> Any:
    options = re2.Options()
    options.case_sensitive = False
    options.dot_nl = True
    options.log_errors = False
    options.max_mem = 64 << 20
    found = re2.Set.SearchSet(options)
    for phrase in PHRASES:
        found.Add(phrase.regex)
    found.Compile()
    return found


_SET: Final = _compile()


def read(result: Any) -> Score:
    """How much a result looks like instructions to the agent."""
    try:
        texts = forms(result, MAX_RESULT)
    except TooLong as error:
        return Score(reason=str(error))
    found = sorted({position for form in texts for position in _matches(form.text)})
    harmless = MILLION
    weights: dict[str, int] = {}
    for position in found:
        phrase = PHRASES[position]
        weights[phrase.what] = max(weights.get(phrase.what, 0), phrase.weight)
    for weight in weights.values():
        harmless = harmless * (MILLION - weight) // MILLION
    return Score(MILLION - harmless, "; ".join(weights))


def _matches(text: str) -> list[int]:
    return list(_SET.Match(text.encode("utf-8", "replace").decode()) or ())
