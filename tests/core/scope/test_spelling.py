from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.scope.effort import Effort
from gated.core.scope.forbidden import spellings
from gated.core.scope.resources import look_of
from gated.core.scope.spelling import SHOWN_LENGTH, badly_escaped, is_plain, may_be_plain, readings, shown, tidy, unescape

PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))


@pytest.mark.parametrize(
    ("text", "tidied"),
    [
        (" a b\t", "a b"),
        ("\x00a\u200bb\u00ad\ufe0f", "ab"),
        ("a\nb", "a\nb"),
        ("\uff41\uff0e\uff42\u3002\uff43\uff61\uff44", "a.b.c.d"),
        ("\u2025\uff0f\uff3c\uff05", "../\\%"),
        ("\uff5e\uff1a\uff04", "\uff5e\uff1a\uff04"),
        ("\u00a0\u00e9\u3000", "\u00e9"),
    ],
)
def test_tidy(text: str, tidied: str) -> None:
    assert tidy(text) == tidied


def test_readings_unescape_layer_by_layer() -> None:
    assert readings("%25252e", 1, Effort()) == ["%25252e", "%252e"]
    assert readings("%25252e", 3, Effort()) == ["%25252e", "%252e", "%2e", "."]
    assert readings("100%", 3, Effort()) == ["100%"]
    assert readings("\uff052e", 1, Effort()) == ["%2e", "."]


def test_escapes_that_are_no_text_are_noticed() -> None:
    assert badly_escaped("%c0%ae", unescape("%c0%ae"))
    assert not badly_escaped("%c3%a9", unescape("%c3%a9"))
    assert not badly_escaped("\ufffd%20", unescape("\ufffd%20"))


def test_shown_is_capped_and_escaped() -> None:
    assert shown("a`\x1b\u202e\ud800\u00e9") == "a\\u0060\\u001b\\u202e\\ud800\u00e9"
    assert len(shown("a" * 1000)) == SHOWN_LENGTH
    assert shown("a" * SHOWN_LENGTH) == "a" * SHOWN_LENGTH


@pytest.mark.parametrize("text", ["", "orders", "SELECT a FROM b", "\u00fcn\u00efcode"[1:2], "1234567", "x@y", "{'a': 1}"[:4]])
def test_plain(text: str) -> None:
    assert is_plain(text) == text.isascii()


@pytest.mark.parametrize(
    "text", ["a.b", "a/b", "a\\b", "a:b", "~a", "$a", "a%", "a\n", "\u00e9", "0x1", " 0X1", "16777216", "  12345678"]
)
def test_not_plain(text: str) -> None:
    assert not is_plain(text)


@given(PRINTABLE)
def test_a_plain_string_looks_like_nothing_and_has_one_spelling(text: str) -> None:
    if is_plain(text):
        assert look_of(text, Effort()) is None
        assert {form.strip() for form in spellings(text, Effort())} == {text.strip()}


@given(PRINTABLE, PRINTABLE)
def test_a_pattern_inside_a_plain_string_may_be_plain(before: str, pattern: str) -> None:
    if is_plain(before + pattern):
        assert may_be_plain(pattern)
        assert may_be_plain(pattern.casefold())
