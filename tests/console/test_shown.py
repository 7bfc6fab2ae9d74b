"""Arguments as people read them: nothing invisible, nothing that is markup, and every byte accounted for."""

import html
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated import canonical
from gated.console.shown import DIFF_LINES, LINES, LONG, Shown, diff, editable, plain, show
from gated.core.order.templates import UNSAFE
from gated.units import some

CHARACTERS = st.one_of(
    st.characters(codec="utf-8"), st.sampled_from("\u202e\u2066\u200b\ufeff\x00\x1b\x7f\u00ad\n\t\r\"\\<>&'`\U000e0041")
)
TEXTS = st.text(CHARACTERS, max_size=40)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


def text_of(lines: Any) -> str:
    """What a browser would show of lines of HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", "\n".join(lines)))


@given(VALUES)
def test_no_character_is_invisible_and_the_full_view_is_the_value(value: Any) -> None:
    found = show(value, full=True)
    text = text_of(found.lines)
    assert UNSAFE.search(text.replace("\n", "")) is None
    assert found.hidden == 0
    assert found.total == len(canonical.encode(value))
    # breaks after \n are for the eye; without them and the indentation it is JSON of the very value
    joined = re.sub(r"\\n\n", r"\\n", text)
    read = json.loads(joined)
    assert canonical.encode(read) == canonical.encode(value)


@given(VALUES)
def test_only_our_tags_are_markup(value: Any) -> None:
    allowed = r'<bdi class="[ksnl]">|</bdi>|<span class="(esc|nl|cont|more)">|</span>'
    for line in show(value, full=False).lines:
        assert "<" not in re.sub(allowed, "", line)


@given(TEXTS)
def test_a_reason_is_text(text: str) -> None:
    made = plain(text)
    assert "<" not in re.sub(r'<span class="esc">|</span>|<code>|</code>', "", made)
    assert UNSAFE.search(text_of([made]).replace("\n", "")) is None


@given(VALUES)
def test_what_is_edited_means_the_same_when_it_is_read_back(value: Any) -> None:
    text = editable(value)
    assert UNSAFE.search(text.replace("\n", "")) is None
    assert canonical.encode(json.loads(text)) == canonical.encode(value)


@pytest.mark.parametrize("size", [LONG - 3, LONG - 2, LONG - 1, LONG, 5000])
def test_a_long_text_is_cut_and_says_how_much_is_hidden(size: int) -> None:
    found = show({"body": "é" * size}, full=False)
    shown = text_of(found.lines).count("é")
    whole = size + 2 <= LONG
    assert shown == (size if whole else LONG - 1)
    assert found.hidden == (0 if whole else 2 * (size - shown) + 1)  # the closing quote too
    if found.hidden:
        assert f"{some(found.hidden, 'byte')} hidden" in text_of(found.lines)


@given(st.integers(1, 400))
def test_many_lines_are_cut_and_counted(count: int) -> None:
    value = {"items": [f"item {n:070}" for n in range(count)]}
    found: Shown = show(value, full=False)
    assert len(found.lines) == min(LINES, count + 4)
    assert (found.hidden > 0) == (count + 4 > LINES)
    assert found.hidden < found.total
    assert show(value, full=True).hidden == 0


def test_small_parts_stand_on_one_line() -> None:
    lines = show({"rows": [{"id": 1, "to": "ana"}, [1, None], [], {"deep": [1]}]}, full=False).lines
    assert [text_of([line]) for line in lines] == [
        "{",
        '  "rows": [',
        '    {"id": 1, "to": "ana"},',
        "    [1, null],",
        "    [],",
        "    {",
        '      "deep": [1]',
        "    }",
        "  ]",
        "}",
    ]


def test_a_deceptive_memo_is_spelt_out() -> None:
    (_, line, _) = show({"memo": "pay \u202e0001\u202c to\u200b bob"}, full=False).lines
    assert text_of([line]).strip() == r'"memo": "pay \u202e0001\u202c to\u200b bob"'
    assert line.count('<span class="esc">') == 3


# --- differences ---------------------------------------------------------------------------------------------------------


@given(VALUES, VALUES)
def test_equal_values_have_no_difference_and_others_have_one(old: Any, new: Any) -> None:
    signs = {line.sign for line in diff(old, new)}
    if canonical.encode(old) == canonical.encode(new) and json.dumps(old) == json.dumps(new):
        assert not signs & {"+", "-"}
    for line in diff(old, new):
        assert UNSAFE.search(text_of([line.text]).replace("\n", "")) is None


def test_a_difference_marks_the_whole_word_that_changed() -> None:
    lines = diff({"amount": 200, "to": "ana"}, {"amount": 50, "to": "ana"})
    assert [(line.sign, text_of([line.text]).strip()) for line in lines] == [
        (" ", "{"),
        ("-", '"amount": 200,'),
        ("+", '"amount": 50,'),
        (" ", '"to": "ana"'),
        (" ", "}"),
    ]
    assert "<mark>200</mark>" in lines[1].text
    assert "<mark>50</mark>" in lines[2].text


def test_a_change_inside_of_a_long_text_is_shown_with_what_is_around_it() -> None:
    old = "word " * 20_000
    new = old[:50_000] + "WORD " + old[50_005:]
    minus, plus = (line for line in diff({"body": old}, {"body": new}) if line.sign in "+-")
    assert "<mark>WORD</mark>" in plus.text
    assert len(minus.text) < 800


def test_values_that_are_too_large_to_compare_say_so() -> None:
    (line,) = diff(list(range(DIFF_LINES + 1)), list(range(DIFF_LINES + 1)))
    assert "too many lines" in line.text


def test_a_line_within_a_text_is_marked_so_that_it_cannot_pass_for_one_of_ours() -> None:
    (_, line, _) = show({"note": 'x\n  "amount": 1'}, full=True).lines
    assert line.count('\n<span class="cont"></span>') == line.count("\n") == 1
