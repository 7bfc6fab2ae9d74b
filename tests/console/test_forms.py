"""A form of a tool's schema gives back what was typed, and what was not touched exactly as it was."""

import html
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.test_shown import TEXTS, VALUES
from gated import canonical
from gated.console.forms import ABSENT, WHOLE, Field, Misread, fields, read, redacted

KINDS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "boolean"},
    {"enum": ["a", "b", 3, None]},
    {"type": "array", "items": {"type": "string"}},
    {"type": ["string", "null"]},
    {},
]
SCHEMAS = st.dictionaries(TEXTS, st.sampled_from(KINDS), max_size=6).map(lambda p: {"type": "object", "properties": p})


def sent(made: list[Field]) -> dict[str, str]:
    """What a browser sends for a form that nobody touched, as the server reads it."""
    return {field.id: field.text for field in made}


@given(SCHEMAS, st.dictionaries(TEXTS, VALUES, max_size=6))
def test_an_untouched_form_gives_back_the_very_arguments(schema: dict[str, Any], args: dict[str, Any]) -> None:
    made = fields(schema, args)
    if made:
        found = read(made, args, sent(made))
        assert canonical.encode(found) == canonical.encode(args)
        assert repr(found) == repr({**args})  # 1 and 1.0 stay what they were


def test_each_kind_of_property_has_its_field() -> None:
    properties = dict(zip("abcdefgh", KINDS, strict=True))
    args = {"a": "text", "b": 1, "c": 1.5, "d": True, "e": "a", "f": [], "g": None, "h": 0, "more": {}}
    made = fields({"properties": properties}, args)
    kinds = ["text", "integer", "number", "choice", "choice", "json", "json", "json", "json"]
    assert [field.kind for field in made] == kinds


def test_a_text_that_a_field_would_change_is_edited_as_json() -> None:
    schema = {"properties": {"a": {"type": "string"}}}
    for text, kind in (("a\tb", "json"), ("a\r\nb", "json"), ("\u202e", "json"), ("a\nb", "lines"), ("a" * 200, "lines")):
        (field,) = fields(schema, {"a": text})
        assert field.kind == kind
        assert read([field], {"a": text}, {"f0": field.text}) == {"a": text}


def test_what_was_typed_becomes_a_value_of_its_kind() -> None:
    schema = {"properties": {"n": {"type": "integer"}, "t": {"type": "string"}, "x": {}, "b": {"type": "boolean"}}}
    args = {"n": 1, "t": "old", "x": [1], "b": True}
    made = fields(schema, args)
    big = "9" * 40
    found = read(made, args, {"f0": big, "f1": "absent", "f2": '{"y": 2}', "f3": "false"})
    assert found == {"n": int(big), "t": "absent", "x": {"y": 2}, "b": False}


def test_optional_fields_are_left_out_and_put_in() -> None:
    schema = {"properties": {"a": {"type": "string"}, "b": {"enum": ["x"]}, "c": {"type": "string"}}, "required": ["c"]}
    made = fields(schema, {"a": "1", "b": "x", "c": "2"})
    assert read(made, {"a": "1", "b": "x", "c": "2"}, {"f0": "1", "f0.out": "1", "f1": ABSENT, "f2": "2"}) == {"c": "2"}
    made = fields(schema, {"c": "2"})
    assert read(made, {"c": "2"}, {"f0": "", "f1": ABSENT, "f2": "2"}) == {"c": "2"}
    assert read(made, {"c": "2"}, {"f0": "new", "f1": '"x"', "f2": "2"}) == {"a": "new", "b": "x", "c": "2"}


@pytest.mark.parametrize(
    ("schema", "typed", "why"),
    [
        ({"type": "integer"}, "1.0", "not a whole number"),
        ({"type": "integer"}, "true", "not a whole number"),
        ({"type": "number"}, "NaN", "not a number"),
        ({"type": "boolean"}, '"true"', "none of the choices"),
        ({"enum": ["a"]}, '"b"', "none of the choices"),
        ({}, '{"a": 1, "a": 2}', "not JSON"),
        ({}, "{", "not JSON"),
    ],
)
def test_what_is_no_value_is_said_at_its_field(schema: dict[str, Any], typed: str, why: str) -> None:
    with pytest.raises(Misread, match=why) as caught:
        read(fields({"properties": {"a": schema}}, {}), {}, {"f0": typed})
    assert list(caught.value.errors) == ["f0"]


@pytest.mark.parametrize("schema", [None, True, {}, {"type": "object"}, {"properties": []}, {"properties": "x"}, {"anyOf": []}])
def test_without_a_plain_schema_the_arguments_are_one_piece(schema: Any) -> None:
    assert fields(schema, {"a": 1}) == []
    assert read([], {"a": 1}, {WHOLE: '{"a": 2}'}) == {"a": 2}
    with pytest.raises(Misread, match="a JSON object"):
        read([], {}, {WHOLE: "[1]"})


def test_what_the_log_put_in_the_place_of_a_secret_is_found() -> None:
    mark = {"redacted": "card", "sha256": "0" * 64}
    assert redacted({"a": [{"b": mark}], "c": "x", "d": mark}) == ["a[0].b", "d"]
    assert redacted(mark) == ["the arguments"]
    assert redacted({"redacted": "x"}) == []


def test_hints_say_what_the_schema_wants() -> None:
    schema = {"properties": {"n": {"type": "integer", "minimum": 1, "maximum": 5, "description": "how <many>"}}}
    (field,) = fields(schema, {"n": 2})
    assert (field.about, field.hint) == ("how <many>", "at least 1, at most 5")
    assert html.escape(field.about) != field.about
    assert re.fullmatch(r"f\d+", field.id)
