"""Canonical JSON: the vectors of RFC 8785, and the fast path against a slow one written from the RFC."""

from __future__ import annotations

import hashlib
import json
import struct
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gated.canonical import args_digest, encode, number

# RFC 8785, appendix B: the bits of a double, and its text
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_of_the_rfc(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert number(value) == text
    assert encode([value]) == f"[{text}]".encode()


def test_the_example_of_the_rfc() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": '\u20ac$\u000f\nA\'B"\\\\"/',
        "literals": [None, True, False],
    }
    text = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert encode(value) == text.encode()


def test_keys_are_sorted_by_utf16_code_units() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    ordered = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(encode(dict.fromkeys(keys, 0)))) == ordered


def test_control_characters_are_escaped_as_the_rfc_says() -> None:
    short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
    for code in (*range(0x20), 0x22, 0x5C, 0x7F, 0x2028, 0xFFFF):
        plain = f"\\u{code:04x}" if code < 0x20 else chr(code)
        assert encode(chr(code)) == f'"{short.get(chr(code), plain)}"'.encode()


# --- fast against slow -----------------------------------------------------------------------------------------------


def slow(value: Any) -> str:
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda item: [*memoryview(item[0].encode("utf-16-be")).cast("B")])
        return "{" + ",".join(f"{slow(key)}:{slow(item)}" for key, item in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(slow(item) for item in value) + "]"
    if isinstance(value, float):
        return slow_number(value)
    return json.dumps(value, ensure_ascii=False)


def slow_number(value: float) -> str:
    """ECMAScript's Number::toString by its definition: n, k and s of the shortest digits."""
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    s, k = "".join(map(str, digits)), len(digits)
    n = exponent + k
    if k <= n <= 21:
        text = s + "0" * (n - k)
    elif 0 < n <= 21:
        text = s[:n] + "." + s[n:]
    elif -6 < n <= 0:
        text = "0." + "0" * -n + s
    else:
        power = f"e{'+' if n > 0 else '-'}{abs(n - 1)}"
        text = s + power if k == 1 else s[0] + "." + s[1:] + power
    return "-" * sign + text


finite = st.floats(allow_nan=False, allow_infinity=False)
any_text = st.text(max_size=8) | st.text(st.sampled_from("aZ\x00\x7f\ud7ff\ue000\uffff\U00010000\U0010ffff"), max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(10**25), 10**25) | finite | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_fast_is_slow(value: Any) -> None:
    assert encode(value) == slow(value).encode()


@given(finite)
@example(1e-3)
@example(1e15)
@example(1e16)
@example(0.001000000000000001)
@example(999999999999999.9)
@example(2.0**-44)
@example(2.0**50 + 0.5)
def test_floats(value: float) -> None:
    assert encode(value) == slow_number(value).encode()
    assert float(encode(value)) == value


@given(values)
def test_what_is_read_back_is_written_the_same(value: Any) -> None:
    assert encode(json.loads(encode(value))) == encode(value)


@given(st.dictionaries(any_text, st.integers(), max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(value: dict[str, int], random: Any) -> None:
    shuffled = list(value.items())
    random.shuffle(shuffled)
    assert encode(dict(shuffled)) == encode(value)


@pytest.mark.parametrize("value", [2**53 + 1, 2**64, -(2**64) - 1, 10**1000])
def test_integers_keep_all_their_digits(value: int) -> None:
    assert encode([value]) == f"[{value}]".encode()


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


def test_what_is_json_by_nature_is_written_as_json() -> None:
    assert encode((1, "a")) == b'[1,"a"]'
    assert encode(MappingProxyType({"b": 1, "a": 2.0})) == b'{"a":2,"b":1}'
    assert encode({Colour.RED: Level.HIGH, "x": Colour.RED}) == b'{"red":3,"x":"red"}'


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -float("inf"), "\ud800", b"x", {1}, Decimal("1.5"), object(), ...],
)
def test_what_is_not_json_is_refused(value: Any) -> None:
    for holder in (value, [1, value], {"a": {"b": value}}):
        with pytest.raises(ValueError, match=r".+"):
            encode(holder)


def test_more_digits_than_python_writes_are_refused() -> None:
    with pytest.raises(ValueError, match="digits"):
        encode([10**5000])


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"a", "\udfff", ("a",)])
def test_keys_that_are_not_text_are_refused(key: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        encode({key: 1})


def test_too_deep_is_a_value_error() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deep"):
        encode(value)
    while value:  # taken apart here, since to free it whole would recurse
        value = value[0]


# --- the digest ------------------------------------------------------------------------------------------------------


def test_the_digest_is_that_of_tool_and_args() -> None:
    text = '{"args":{"a":1,"b":[true]},"tool":"Read"}'
    assert args_digest("Read", {"b": [True], "a": 1}) == hashlib.sha256(text.encode()).hexdigest()


def test_the_digest_is_frozen() -> None:
    # Old logs hold digests: these never change.
    assert args_digest("Read", {}) == "0f6e853222dfa7561c1577f816ef7cd6e39365e22ea05a3ba08e93d379c22c88"
    assert args_digest("t", {"x": 1.0, "\U0001f600": 2**70}) == "e4ca6a728837df5a07b45d65cdb057fd56529a094ed87953f15aaa65343f9266"


@given(st.dictionaries(any_text, values, max_size=3), st.dictionaries(any_text, values, max_size=3))
def test_different_arguments_have_different_digests(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (args_digest("t", one) == args_digest("t", other)) == (slow(one) == slow(other))
    assert args_digest("t", one) != args_digest("u", one)
