"""Rules for secrets: the token formats that detect-secrets knows, and what is said to be a secret where it stands.

Of the library only the regular expressions are used, compiled by RE2: its guesses by entropy would take every digest for a
secret, and what it verifies by asking the network is no part of a decision. Look-arounds, which RE2 does not have, are
dropped: a redaction that takes a neighbouring character too is no loss.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from gated.core.redaction.rules import Rule

NOT_SECRETS: Final = ("ip_public",)  # plugins of the library that find something else

_WORDS: Final = (
    r"pass(?:word|wd|phrase|code)|pwd|secret|credentials?|api[_-]?keys?|apikey|access[_-]?key|private[_-]?key|secret[_-]?key|"
    r"auth(?:entication)?[_-]?key|encryption[_-]?key|signing[_-]?key|client[_-]?secret|connection[_-]?string|"
    r"(?:(?:access|auth|refresh|id|session|bearer|api|csrf|bot)[_-]?)?token"
)
ASSIGNED: Final = rf"(?i)(?:{_WORDS})[\"']?\s*(?:=>|:=|[:=])\s*[\"']?[^\s\"',;&{{}}\[\]]{{4,}}"
_SCHEMES: Final = r"(?i)\b(?:bearer|basic|digest|apikey)[ \t]+[A-Za-z0-9._~+/=\-]{6,}"
_LONE_JWT: Final = r"\beyJ[A-Za-z0-9_\-]{8,}"
_URL_LOGIN: Final = r"(?i)\b[a-z][a-z0-9+.\-]*://[^\s/?#@:]*:[^\s/?#@]+@"
_KEY_BLOCK: Final = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[^-]*(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----)?"

_TELLING: Final = re.compile(rf"(?:.*[_.\- ])?(?:{_WORDS}|authorization|(?:set-)?cookie)", re.IGNORECASE | re.ASCII)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
TELLING_LINE: Final = rf"(?im)^.*(?:{_WORDS}|authorization|cookie)$"


def is_telling(key: str) -> bool:
    """Whether a key's value is a secret by its name: `password`, `clientSecret`, `x-api-key`."""
    return len(key) <= 128 and _TELLING.fullmatch(_CAMEL.sub("_", key)) is not None


@cache
def rules() -> tuple[Rule, ...]:
    return (Rule(ASSIGNED), Rule(_SCHEMES), *formats())


@cache
def formats() -> tuple[Rule, ...]:
    """What is a secret by its own form, whatever stands before it."""
    return tuple(map(Rule, (_LONE_JWT, _URL_LOGIN, _KEY_BLOCK, *_library())))


def _library() -> Iterator[str]:
    """The expressions of the library's plugins, in the order of their names."""
    from detect_secrets import plugins
    from detect_secrets.plugins.base import RegexBasedDetector

    for found in sorted(pkgutil.iter_modules(plugins.__path__), key=lambda module: module.name):
        if found.name in NOT_SECRETS:
            continue
        module = importlib.import_module(f"{plugins.__name__}.{found.name}")
        for kind in vars(module).values():
            mine = isinstance(kind, type) and issubclass(kind, RegexBasedDetector) and kind is not RegexBasedDetector
            for expression in kind.denylist if mine and kind.__module__ == module.__name__ else ():
                yield _to_re2(expression)


_LOOK_AROUND: Final = re.compile(
    r"\(\?:\(\?<=\\W\)\|\(\?<=\^\)\)|\(\?<?!(?:\\.|\[[^\]]*\]|[^()\\])*\)|\(\?<?=(?:\\.|\[[^\]]*\]|[^()\\])*\)"
)
_REPEATED: Final = re.compile(r"\{(\d+),(\d{4,})\}")  # RE2 repeats at most 1,000 times


def _to_re2(expression: re.Pattern[str]) -> str:
    text = _LOOK_AROUND.sub("", expression.pattern)
    text = _REPEATED.sub(r"{\1,}", text)
    if expression.flags & re.VERBOSE:
        text = re.sub(r"(?<!\\)#.*|(?<!\\)\s+", "", text)
    return f"(?i:{text})" if expression.flags & re.IGNORECASE else text
