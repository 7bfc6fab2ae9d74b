from __future__ import annotations

import pytest

from gated.core.scope.effort import Effort
from gated.core.scope.forbidden import Forbidden
from gated.core.scope.rules import ScopeError


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("secret", "a SeCrEt b"),
        ("STRASSE", "stra\u00dfe"),
        ("secret", "s%65cret"),
        ("secret", "%2573ecret"),
        ("secret", "%252573ecret"),
        ("secret", "se\u200bcret"),
        ("secret", "\uff53\uff45\uff43\uff52\uff45\uff54"),
        ("two\nlines", "two\nlines"),
        (".env", "%2Eenv"),
        ("/etc/shadow", "/etc/./x/..//shadow"),
        ("/etc/shadow", "\\ETC\\shadow"),
        ("/etc/shadow", "file:///etc/%73hadow"),
        ("/private/", "/users/u/Private"),
        ("evil.test", "http://EVIL%2etest/"),
        ("evil.test", "http://ev\til.test/"),
        ("evil.test", "\u24d4vil.test"),
        ("evil.test", "see //\u24d4vil.test/x"),
        ("evil.test/admin", "http://\u24d4vil.test/x/../admin"),
        ("http://169.254.169.254/latest", "http://[::ffff:a9fe:a9fe]/latest/x"),
        ("169.254.169.254", "db://2852039166/"),
        ("db://169.254.169.254/x", "db://2852039166/x"),
        ("169.254.169.254", "https://ok.test/?u=http%3A%2F%2F2852039166%2F"),
        ("0xa9fea9fe", "http://2852039166/"),
        ("[::1]", "http://[0:0::1]/"),
        ("b\u00fccher.example", "http://xn--bcher-kva.example/"),
        ("0.0.0.0", "http://0/"),
        ("0.0.0.0", "0x0"),
    ],
)
def test_found(pattern: str, text: str) -> None:
    hit = Forbidden(["other", pattern]).find(text, Effort())
    assert hit is not None
    assert hit.pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "text"), [("secret", "secre t"), ("0.0.0.0", "0"), ("169.254.169.254", "169 254"), ("10", "1.0")]
)
def test_not_found(pattern: str, text: str) -> None:
    assert Forbidden([pattern]).find(text, Effort()) is None


def test_plain_strings_are_searched_when_a_pattern_is_plain() -> None:
    assert not Forbidden(["ABC"]).allows_plain("xabcx")
    assert Forbidden(["ABC"]).allows_plain("xabx")
    assert Forbidden(["a.b"]).allows_plain("a b")
    assert not Forbidden([]).allows_plain("a.b")


def test_no_patterns_find_nothing() -> None:
    assert Forbidden([]).find("http://169.254.169.254/", Effort()) is None


def test_an_empty_pattern_is_an_error() -> None:
    with pytest.raises(ScopeError):
        Forbidden([""])
