"""Secrets in arguments: the rules that redaction finds them by (the formats that detect-secrets knows, and keys and words that
name one), tried on the arguments as they are written and on what they say once they are decoded.

What is a secret by its form (a token, a private key, a login in a URL) scores 0.95; what only stands where a secret would
(`password: …`), 0.7.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import re2

from gated.core.redaction import secrets
from gated.events import Score
from gated.shell.detectors.texts import TooLong, forms

MAX_ARGUMENTS: Final = 1_048_576  # characters, decoded ones included
BY_FORM: Final = 950_000
BY_NAME: Final = 700_000
_OF_A_LIST: Final = re.compile(r"(?i)(?:\w*[_.\- ])?(?:page|next|prev\w*|continuation|cursor|sync|resume)\w*?[_.\- ]?token")
HEADER: Final = r"(?i)\b(?:bearer|basic)[ \t]+[a-z0-9._~+/=-]*[0-9][a-z0-9._~+/=-]{7,}"  # not the words `basic information`


def score(arguments: Mapping[str, Any]) -> Score:
    """How sure it is that the arguments hold a secret."""
    try:
        texts = forms(arguments, MAX_ARGUMENTS)
    except TooLong as error:
        return Score(reason=str(error))
    by_form, by_name = _compiled()
    for form in texts:
        if by_form.Match(_encodable(form.text)):
            return Score(BY_FORM, "a credential stands in the arguments" + (form.how and f" ({form.how})"))
    if _named(arguments) or any(by_name.Match(_encodable(form.text)) for form in texts):
        return Score(BY_NAME, "something stands in the arguments where a credential would")
    return Score(0)


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _named(value: Any) -> bool:
    """Whether a key says that its value is a secret."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            if any(isinstance(inner, str) and inner and _tells(str(key)) for key, inner in item.items()):
                return True
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)
    return False


def _tells(key: str) -> bool:
    return secrets.is_telling(key) and _OF_A_LIST.fullmatch(key) is None


@cache
def _compiled() -> tuple[Any, Any]:
    """All forms of secrets, and all words that name one, each as one automaton."""
    return _set([rule.regex for rule in secrets.formats()]), _set([secrets.ASSIGNED, HEADER])


def _set(expressions: list[str]) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 64 << 20
    found = re2.Set.SearchSet(options)
    for expression in expressions:
        found.Add(expression)
    found.Compile()
    return found
