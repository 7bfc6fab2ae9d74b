"""Fingerprints: every copy that is long enough is found, in every form; what is only alike is not; no mark gives it away."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.stages.semantic import MARK
from gated.events import Fingerprints
from gated.shell.detectors import fingerprints
from gated.shell.detectors.fingerprints import GRAM, LONG_GRAM, MAX_MARKS, WINDOW, Fingerprinter
from gated.shell.detectors.texts import TooLong, forms, leaves, plain

PRINTER = Fingerprinter(b"k" * 32)
LETTER = "Dear Ana, the merger with Northwind closes on 14 March at 12.50 a share; keep it quiet until the board has met."
PART = LETTER[14:80]


def taken(result: Any, printer: Fingerprinter = PRINTER) -> Fingerprints:
    found = printer.take(result)
    assert isinstance(found, Fingerprints)
    return found


def score(arguments: Any, result: Any = LETTER) -> float:
    found = PRINTER.compare(arguments, [taken(result)])
    assert found.value is not None, found.reason
    return found.value / 1e6


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


FORMS: dict[str, Any] = {
    "verbatim": {"body": PART},
    "inside other text": {"body": f"Hello Eve! {PART} Yours, A."},
    "another case and spacing": {"body": " ".join(PART.upper())},
    "as an object key": {PART: True},
    "deep down": {"a": [{"b": {"c": [1, PART]}}]},
    "base64": {"data": b64(PART)},
    "base64 without padding": {"data": b64(PART).rstrip("=")},
    "base64 for URLs, in a URL": {"url": "https://evil.example/c?d=" + base64.urlsafe_b64encode(PART.encode()).decode()},
    "base64 after letters that shift it": {"data": "xyzw1" + b64(PART)},
    "base64 in lines": {"data": "\n".join(b64(PART)[i : i + 20] for i in range(0, 200, 20))},
    "base64 of base64": {"data": b64(b64(PART))},
    "hexadecimal": {"data": PART.encode().hex()},
    "hexadecimal with separators": {"data": PART.encode().hex(":").upper()},
    "hexadecimal escapes": {"data": "".join(f"\\x{byte:02x}" for byte in PART.encode())},
    "percent-encoded": {"url": "https://evil.example/?q=" + quote(PART)},
    "percent-encoded throughout": {"q": "".join(f"%{byte:02X}" for byte in PART.encode())},
    "reversed": {"data": PART[::-1]},
    "reversed base64": {"data": b64(PART)[::-1]},
    "base64 of the reversed": {"data": b64(PART[::-1])},
    "base64 of hexadecimal": {"data": b64(PART.encode().hex())},
    "JSON inside a text": {"data": json.dumps({"mail": PART})},
    "split across two arguments": {"a": PART[:33], "b": PART[33:]},
    "split, the second half first": {"a": PART[33:], "b": PART[:33]},
    "base64, split": {"a": b64(PART)[:43], "b": b64(PART)[43:]},
    "hexadecimal, split": {"a": PART.encode().hex()[:61], "b": PART.encode().hex()[61:]},
    "reversed, split": {"a": PART[::-1][:33], "b": PART[::-1][33:]},
    "split into many": {f"p{n}": PART[n * 6 : n * 6 + 6] for n in range(11)},
}


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_is_found_in_every_form(form: str) -> None:
    assert score(FORMS[form]) >= 0.9


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"to": "ana@ours.example", "body": "Dear Ana, thank you for dinner, see you at the office; keep well until then."},
        {"n": 14, "price": 12.5, "flag": True, "none": None},
        {"body": "Northwind"},
        {"body": "x" * 10_000},
        {"data": b64("a picture of a cat that somebody has sent, with a caption and nothing else in it")},
        {"data": bytes(range(256)).hex()},
    ],
)
def test_what_is_only_alike_is_let_pass(arguments: dict[str, Any]) -> None:
    assert score(arguments) < 0.6


def test_numbers_weigh_more_than_letters() -> None:
    mail = "Your card is 4111 1111 1111 1111, the account DE89 3704 0044 0532 0130 00."
    assert score({"n": "4111-1111-1111-1111"}, mail) >= 0.6
    assert score({"n": 4111111111111111}, mail) >= 0.6
    assert score({"iban": "DE89370400440532013000"}, mail) >= 0.8
    assert score({"note": "your card is the account"}, mail) < 0.6


def test_cells_of_a_table_are_read_across() -> None:
    rows = [{"name": "Ana Lopez", "born": "1984-02-11", "id": "X99-1"}, {"name": "Bo Li", "born": "1990-11-30", "id": "Y12-7"}]
    assert score({"body": "Ana Lopez 1984-02-11 X99-1, Bo Li 1990-11-30 Y12-7"}, rows) == 0  # keys stand between in the result
    assert score({"body": json.dumps(rows)}, rows) >= 0.9


ALPHABET = st.characters(codec="utf-8", categories=["L", "N"])
WORDS = st.text(ALPHABET, min_size=60, max_size=300)


@given(WORDS, st.data())
def test_every_copy_as_long_as_a_gram_and_the_window_shares_a_mark(text: str, data: st.DataObject) -> None:
    normal = plain(text)
    size = GRAM + WINDOW - 1
    if len(normal) < size:
        return
    marks = taken(text).marks
    at = data.draw(st.integers(0, len(normal) - size))
    copied = normal[at : at + size]
    own = {PRINTER._mark(copied[n : n + GRAM]) for n in range(WINDOW)}
    assert own & {marks[n : n + MARK] for n in range(0, len(marks), MARK)}


@given(st.text(max_size=400), st.text(max_size=400))
def test_comparing_never_raises_and_a_score_is_a_score(result: str, arguments: str) -> None:
    found = PRINTER.compare({"a": arguments, "b": result}, [taken({"r": result})])
    assert found.value is not None
    assert 0 <= found.value <= 1_000_000


def test_a_long_result_has_no_more_marks_than_a_short_one_and_long_copies_are_found() -> None:
    words = [f"{'abcdefghij'[n % 10]}{n * 7919 % 99991}word" for n in range(20_000)]
    text = " ".join(words)
    found = taken(text)
    assert len(found.marks) <= MAX_MARKS * MARK
    assert (found.gram, found.window > WINDOW) == (LONG_GRAM, True)
    copied = PRINTER.compare({"body": text[5000:9000]}, [found])
    assert copied.value == 1_000_000
    other = PRINTER.compare({"body": " ".join(f"other{n * 104729 % 99991}thing" for n in range(500))}, [found])
    assert other.value is not None
    assert other.value < 600_000


def test_what_is_too_long_is_said_to_be() -> None:
    assert PRINTER.take("x1" * fingerprints.MAX_RESULT) == "a result has over 262144 letters and digits, too many to fingerprint"
    found = PRINTER.compare({"body": "word " * 300_000}, [taken(LETTER)])
    assert found.value is None
    assert "characters to look at" in found.reason


def test_marks_of_another_key_are_not_compared() -> None:
    other = Fingerprinter(b"j" * 32)
    found = PRINTER.compare({"body": PART}, [taken(LETTER, other)])
    assert (found.value, found.reason) == (None, "the fingerprints of earlier results were made under another key")
    assert not set(_marks(taken(LETTER))) & set(_marks(taken(LETTER, other)))


def _marks(found: Fingerprints) -> list[bytes]:
    return [found.marks[n : n + MARK] for n in range(0, len(found.marks), MARK)]


def test_marks_are_sorted_so_that_they_do_not_say_in_which_order_they_stood() -> None:
    assert _marks(taken(LETTER)) == sorted(_marks(taken(LETTER)))


def test_leaves_are_every_scalar_and_key_in_order() -> None:
    value = {"a": [1, {"b": "x"}], "c": None, "d": True, "e": 2.5}
    assert list(leaves(value)) == ["a", "1", "b", "x", "c", "d", "e", "2.5"]
    assert list(leaves(value, keys=False)) == ["1", "x", "2.5"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=30), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_forms_of_any_value(value: Any) -> None:
    assert all(isinstance(form.text, str) for form in forms(value, 10_000_000))


def test_forms_end_where_they_are_too_many() -> None:
    with pytest.raises(TooLong):
        forms({"a": "b" * 200}, 100)
