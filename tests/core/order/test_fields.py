"""Field paths and the text of values."""

import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.order.fields import FieldError, compact, compile_field, render, resolve, strings

VALUE = {
    "a": {"b": {"c": 1}, "id": "x"},
    "d": {"id": "y"},
    "items": [{"name": "n0"}, {"name": "n1"}, 7],
    "grid": [[1, 2], [3]],
    "file-path": "f",
    "0": "zero",
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a.b.c", [1]),
        ("a.b", [{"c": 1}]),
        ("*.id", ["x", "y"]),
        ("items[0].name", ["n0"]),
        ("items[*].name", ["n0", "n1"]),
        ("items[2]", [7]),
        ("grid[*][0]", [1, 3]),
        ("grid[*][*]", [1, 2, 3]),
        ("file-path", ["f"]),
        ("0", ["zero"]),
        ("a.*.c", [1]),
        ("items[3]", []),
        ("items.*", []),
        ("a[*]", []),
        ("a[0]", []),
        ("items.name", []),
        ("a.b.c.d", []),
        ("file-path[0]", []),
        ("missing", []),
    ],
)
def test_what_a_path_leads_to(path: str, found: list[Any]) -> None:
    assert list(resolve(compile_field(path), VALUE)) == found
    assert list(resolve(compile_field(path), MappingProxyType(VALUE))) == found


@pytest.mark.parametrize(
    ("path", "at"),
    [("", 0), (".a", 0), ("a.", 1), ("a..b", 1), ("a.[0]", 1), ("a[", 1), ("a[x]", 1), ("a[-1]", 1), ("a b", 1), ("a[0]b", 4)],
)
def test_refused(path: str, at: int) -> None:
    with pytest.raises(FieldError, match="is no field path") as caught:
        compile_field(path)
    assert caught.value.at == at


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as is\n", "as is\n"),
        (None, ""),
        (True, "true"),
        (42, "42"),
        (1.5, "1.5"),
        (2**64, "18446744073709551616"),
        (-(10**40), "-1" + "0" * 40),
        ([1, None, "é"], '[1,null,"é"]'),
        ({"b": {"z": 1, "y": 2**70}, "a": []}, '{"a":[],"b":{"y":1180591620717411303424,"z":1}}'),
        (["\ud800"], '["\ud800"]'),
    ],
)
def test_text(value: Any, text: str) -> None:
    assert render(value) == text


def test_depth() -> None:
    value: Any = "leaf"
    for _ in range(64):
        value = {"k": [value]}
    assert list(resolve(compile_field("k[*]" + ".k[*]" * 63), value)) == ["leaf"]
    assert list(strings(value)).count("k") == 64


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=5)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3))


@given(JSON)
def test_compact_says_the_value_with_sorted_keys(value: Any) -> None:
    text = compact(value)
    assert json.loads(text) == value
    assert compact(json.loads(text)) == text


@given(JSON)
def test_every_string_is_found(value: Any) -> None:
    found = set(strings(value))
    assert all(json.dumps(text)[1:-1] in json.dumps(value) for text in found)
    for text in resolve(compile_field("*[*]"), value):
        assert not isinstance(text, str) or text in found
