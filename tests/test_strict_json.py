"""Strict JSON against a slow parser that follows the grammar letter by letter, and the inputs that kill other parsers."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gated import strict_json
from gated.strict_json import DEFAULT, MAX_DIGITS, BadJson, Limits, Path, parse, parse_value, path_text, plainly, walk


def refusal(data: bytes, limits: Limits = DEFAULT) -> BadJson:
    with pytest.raises(BadJson) as caught:
        parse(data, limits)
    return caught.value


# --- the slow parser -------------------------------------------------------------------------------------------------


class Refused(Exception):
    pass


class Slow:
    """RFC 8259 by recursive descent, with this project's refusals. No regard for speed."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self.limits, self.values, self.at = limits, 0, 0
        try:
            self.text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused from error

    def whole(self) -> Any:
        value = self.value(0)
        self.space()
        self.demand(self.at == len(self.text))
        return value

    def demand(self, holds: bool) -> None:
        if not holds:
            raise Refused

    def space(self) -> None:
        while self.text[self.at : self.at + 1] in (" ", "\t", "\n", "\r"):
            self.at += 1

    def next_is(self, text: str) -> bool:
        self.space()
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def value(self, depth: int) -> Any:
        self.values += 1
        self.demand(self.values <= self.limits.values)
        for word, meaning in (("null", None), ("true", True), ("false", False)):
            if self.next_is(word):
                return meaning
        if self.next_is('"'):
            return self.string()
        if self.next_is("["):
            return self.array(depth + 1)
        if self.next_is("{"):
            return self.object(depth + 1)
        return self.number()

    def array(self, depth: int) -> list[Any]:
        self.demand(depth <= self.limits.depth)
        found: list[Any] = []
        if self.next_is("]"):
            return found
        while True:
            found.append(self.value(depth))
            if self.next_is("]"):
                return found
            self.demand(self.next_is(","))

    def object(self, depth: int) -> dict[str, Any]:
        self.demand(depth <= self.limits.depth)
        found: dict[str, Any] = {}
        if self.next_is("}"):
            return found
        while True:
            self.demand(self.next_is('"'))
            key = self.string()
            self.demand(key not in found and len(key.encode()) <= self.limits.key and self.next_is(":"))
            found[key] = self.value(depth)
            if self.next_is("}"):
                return found
            self.demand(self.next_is(","))

    def string(self) -> str:
        units: list[str] = []
        while True:
            self.demand(self.at < len(self.text))
            letter = self.text[self.at]
            self.at += 1
            if letter == '"':
                break
            self.demand(letter >= " ")
            units.append(self.escape() if letter == "\\" else letter)
        joined = "".join(units).encode("utf-16-le", "surrogatepass")  # pairs of escapes become one character
        try:
            return joined.decode("utf-16-le")
        except UnicodeDecodeError as error:
            raise Refused from error

    def escape(self) -> str:
        letter = self.text[self.at : self.at + 1]
        self.at += 1
        if letter == "u":
            digits = self.text[self.at : self.at + 4]
            self.demand(re.fullmatch("[0-9a-fA-F]{4}", digits) is not None)
            self.at += 4
            return chr(int(digits, 16))
        plain = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
        self.demand(letter in plain)
        return plain[letter]

    def number(self) -> int | float:
        match = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?").match(self.text, self.at)
        self.demand(match is not None)
        assert match is not None
        self.at = match.end()
        self.demand(all(len(run) <= MAX_DIGITS for run in re.findall("[0-9]+", match[0])))
        if match[2] is None and match[3] is None:
            return int(match[0])
        value = float(match[0])
        self.demand(value not in (float("inf"), float("-inf")))
        return value


def slowly(data: bytes, limits: Limits) -> Any:
    try:
        if len(data) > limits.payload:
            raise Refused
        return Slow(data, limits).whole()
    except Refused:
        return Refused


def quickly(data: bytes, limits: Limits) -> Any:
    try:
        return parse_value(data, limits)
    except BadJson:
        return Refused


# --- inputs ----------------------------------------------------------------------------------------------------------

gaps = st.sampled_from(["", "", "", " ", "\n", "\t\r "])
letters = st.sampled_from(
    [
        "a",
        "b",
        ":",
        ",",
        " :",
        "{",
        "[",
        "}",
        "é",
        "\U0001f600",
        "\\n",
        '\\"',
        "\\\\",
        "\\u0061",
        "\\ud83d\\ude00",
        '\\":',
        "\u2028",
    ]
)
torn = st.sampled_from(["\\ud800", "\\udc00", "\\ud800a", "\\udc00\\ud800", "\n", "\\x", "\\"])
texts = st.lists(letters, max_size=5).map("".join)
keys = st.one_of(st.sampled_from(["a", "b", "\\u0061", "\\u0062"]), texts)
odd_numbers = ["-0", "-0.0", "1e999", "-1E+400", "1e-400", "01", "1.", ".5", "1e", "+1", "NaN", "-Infinity", "1.0", "2.5e3"]
digits = st.integers(0, 10**40).map(str)
numbers = st.one_of(
    digits,
    st.sampled_from(odd_numbers),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.builds("{}.{}e{}".format, digits, digits, st.integers(-330, 330)),
)
leaves = st.one_of(
    st.sampled_from(["null", "true", "false", "nul"]), numbers, texts.map('"{}"'.format), st.builds('"{}{}"'.format, texts, torn)
)


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.builds('{}"{}"{}:{}{}'.format, gaps, keys, gaps, gaps, inner)
    return st.lists(member, max_size=4).map(lambda members: "{" + ",".join(members) + "}")


def arrays(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(st.builds("{}{}{}".format, gaps, inner, gaps), max_size=4).map(lambda items: "[" + ",".join(items) + "]")


nearly_json = st.recursive(leaves, lambda inner: st.one_of(objects(inner), arrays(inner)), max_leaves=8).map(str.encode)
small_limits = st.builds(
    Limits, payload=st.integers(20, 300), depth=st.integers(1, 4), values=st.integers(1, 12), key=st.integers(1, 9)
)
limits_drawn = st.one_of(st.just(DEFAULT), small_limits)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Nearly JSON with a few bytes cut out, doubled or put in."""
    data = draw(nearly_json)
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 3)))
        put = draw(st.sampled_from([b"", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"\xff", b"\xed\xa0\x80", b" "]))
        data = data[:start] + put + data[end:]
    return data


# --- the fast parser against the slow one ----------------------------------------------------------------------------


@given(st.one_of(nearly_json, damaged(), st.binary(max_size=12)), limits_drawn)
@example(b'{"a":"\\\\","a":"\\""}', DEFAULT)
@example(b'{"a" : ":", "a": "x:y"}', DEFAULT)
@example(b'{"a":{"b":1},"a":{"b":2}}', DEFAULT)
@example(b'{"a":"","\\u0061":"\\""}', DEFAULT)
@example(b'{"a":1,"a":"\\"\\""}', DEFAULT)
@example(b'{"a":1,"a":"::"}', DEFAULT)
@example(b'{"a":"\\":"}', DEFAULT)
@example(b"[0,0]", Limits(values=2))
@example(b"[[],[],[]]", Limits(values=3))
def test_it_takes_exactly_what_the_slow_parser_takes(data: bytes, limits: Limits) -> None:
    assert repr(quickly(data, limits)) == repr(slowly(data, limits))


@given(damaged())
def test_any_bytes_give_an_object_or_a_typed_refusal(data: bytes) -> None:
    try:
        found: Any = parse(data)
    except BadJson as error:
        found = error
    assert isinstance(found, dict) or (found.code in ("shape", "args", "too_large") and str(found))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, st.sampled_from([None, 1]), st.booleans())
def test_what_other_encoders_write_is_read_back(value: Any, indent: int | None, escape: bool) -> None:
    assert repr(parse_value(json.dumps(value, indent=indent, ensure_ascii=escape).encode())) == repr(value)


def paths_of(value: Any, path: Path = ()) -> list[Path]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for step, item in inner for found in paths_of(item, (*path, step)))]


@given(json_values)
def test_walk_meets_every_value_in_order(value: Any) -> None:
    data = json.dumps(value).encode()
    assert [token.path for token in walk(data, 64) if not token.is_key] == paths_of(value)
    for token in walk(data, 64):
        assert data[token.start :].startswith(token.text)


@given(st.text(max_size=20))
@example(',"a"')
@example('}],"a"')
def test_walk_ends_on_anything(text: str) -> None:
    assert len(list(walk(text.encode(), 64))) <= len(text)


# --- codes and places ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code", "path"),
    [
        (b"", "shape", ()),
        (b"[1]", "shape", ()),
        (b"null", "shape", ()),
        (b'{"a":1,}', "shape", ("a",)),
        (b'{"a":{"b":[1,2', "shape", ("a", "b", 1)),
        (b'{"a":1} {}', "shape", ()),
        (b"\xef\xbb\xbf{}", "shape", ()),
        (b'{"a":1,"b":2,"a":3}', "shape", ("a",)),
        (b'{"a":1,"\\u0061":3}', "shape", ("a",)),
        (b'{"args":{"x":1,"x":1}}', "args", ("args", "x")),
        (b'{"calls":[{"args":{"amount":NaN}}]}', "args", ("calls", 0, "args", "amount")),
        (b'{"a":[1,Infinity]}', "args", ("a", 1)),
        (b'{"a":-Infinity}', "args", ("a",)),
        (b'{"a":{"b":1e999}}', "args", ("a", "b")),
        (b'{"a":-1e999}', "args", ("a",)),
        (b'{"a":"\\ud800"}', "args", ("a",)),
        (b'{"a":"\\ud800\\ud800 \\udc00"}', "args", ("a",)),
        (b'{"\\udc00":1}', "args", ("\udc00",)),
        (b'{"a":{"b":"\xff"}}', "args", ("a", "b")),
        (b'{"a":"\xed\xa0\x80"}', "args", ("a",)),
        (b'{"' + b"k" * 1025 + b'":1}', "args", ("k" * 1025,)),
        (b'{"a":' + b"9" * 5000 + b"}", "args", ("a",)),
        (b'{"a":0.' + b"9" * 5000 + b"}", "args", ("a",)),
        (b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "args", ("a", *[0] * 63)),
        (b'{"a":[' + b"1," * 10_000 + b"1]}", "too_large", ("a", 9998)),
    ],
)
def test_refusals_have_a_code_and_a_place(data: bytes, code: str, path: Path) -> None:
    error = refusal(data)
    assert (error.code, error.path) == (code, path)


def test_a_message_says_what_and_where() -> None:
    error = refusal(b'{"calls":[{"args":{"a b":NaN}}]}')
    assert str(error) == '`NaN` is not a JSON number, at `calls[0].args["a b"]`'
    assert error.position == 25


def test_a_payload_over_the_limit_is_refused_unread() -> None:
    error = refusal(b'{"a":"' + b"x" * 1_200_000 + b'"}')
    assert error.code == "too_large"
    assert "1200008 bytes, at most 1048576" in str(error)


def test_a_limit_is_inclusive() -> None:
    assert parse(b'{"' + b"k" * 1024 + b'":1}')
    assert parse(b'{"' + "é".encode() * 512 + b'":1}')
    assert refusal(b'{"' + "é".encode() * 513 + b'":1}').code == "args"
    assert parse(b'{"a":' + b"[" * 63 + b"]" * 63 + b"}")
    assert len(parse(b'{"a":[' + b"1," * 9_997 + b"1]}")["a"]) == 9_998
    assert refusal(b'{"a":[' + b"1," * 9_998 + b"1]}").code == "too_large"
    assert parse(b'{"a":"' + b"x" * (1_048_576 - 8) + b'"}')


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**64, -(2**64), 10**30 + 7, int("9" * MAX_DIGITS)])
def test_integers_keep_all_their_digits(number: int) -> None:
    value = parse(b'{"n":%d}' % number)["n"]
    assert type(value) is int
    assert value == number


def test_one_digit_more_than_the_cap_is_refused() -> None:
    assert refusal(b'{"n":' + b"9" * (MAX_DIGITS + 1) + b"}").code == "args"


def test_many_digits_in_a_text_are_no_number() -> None:
    assert parse(b'{"pi":"' + b"3" * 5000 + b'"}')["pi"] == "3" * 5000


def test_paths_are_short_and_quoted_where_needed() -> None:
    assert path_text(("calls", 0, "args", "file_path")) == "calls[0].args.file_path"
    assert path_text(("a.b", "c\n")) == '["a.b"]["c\\n"]'
    assert path_text(()) == ""
    assert len(path_text(("k" * 5000,))) == 80


# --- deadly inputs ---------------------------------------------------------------------------------------------------

MIB = 1_048_576
DEADLY = {
    "100,000 arrays": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "100,000 arrays unclosed": b"[" * 100_000,
    "bad UTF-8 behind 100,000 arrays": b"[" * 100_000 + b"\xff",
    "bad grammar behind 100,000 arrays": b"[" * 100_000 + b"]" * 100_000 + b"]",
    "100,000 objects": b'{"a":' * 100_000,
    "a million digits": b'{"a":' + b"1" * 1_000_000 + b"}",
    "a million digits after the point": b'{"a":1.' + b"1" * 1_000_000 + b"}",
    "an exponent of a million digits": b'{"a":1e' + b"1" * 1_000_000 + b"}",
    "escaped quotes without an end": b'"\\' * (MIB // 2),
    "empty strings without commas": b'""' * (MIB // 2),
    "open strings": b'"\\"' * (MIB // 3),
    "backslashes": b"\\" * MIB,
    "colons": b":" * MIB,
    "commas": b'{"a":[' + b"," * 1_000_000,
    "white space": b" " * MIB,
    "500,000 values": b'{"a":[' + b"1," * 500_000 + b"1]}",
    "lone surrogate behind many pairs": b'{"a":"' + b"\\ud83d\\ude00" * 80_000 + b'\\ud800"}',
    "duplicate behind a long text": b'{"a":"' + b"\\n" * 500_000 + b'","a":1}',
    "a control character at the end": b'{"a":"' + b"x" * 1_000_000 + b'\n"}',
}


@pytest.mark.parametrize("name", DEADLY)
def test_deadly_inputs_are_refused_in_time(name: str) -> None:
    start = time.process_time()
    assert refusal(DEADLY[name]).code in ("shape", "args", "too_large")
    assert time.process_time() - start < 3  # what is quadratic takes minutes


def test_runs_of_digits_just_under_the_cap_cost_no_square() -> None:
    start = time.process_time()
    assert parse(b'{"a":"' + (b"1" * MAX_DIGITS + b"x") * 1000 + b'"}')
    assert time.process_time() - start < 3


def test_a_proof_that_fails_without_a_found_fault_still_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "walk", lambda data, depth, most=None: iter(()))
    error = refusal(b'{"a":1,"a":2}')
    assert (error.code, str(error)) == ("shape", "not JSON that can be taken")


@given(
    value=st.dictionaries(
        st.text(max_size=5), st.recursive(st.integers() | st.floats() | st.text(max_size=5), st.lists), max_size=4
    )
)
def test_what_is_taken_plainly_is_what_parsing_gives(value: dict[str, object]) -> None:
    for data in (
        json.dumps(value).encode(),
        json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace"),
    ):
        taken = plainly(data, msgspec.json.decode)
        if taken is not None:
            assert parse(data) == taken


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'{"a": 1}',
        b'{"a":NaN}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xff"}',
        b'{"a":' + b"[" * 64 + b"]" * 64 + b"}",
        b"",
        b"{",
    ],
)
def test_what_is_not_plain_is_left_to_parsing(data: bytes) -> None:
    assert plainly(data, msgspec.json.decode) is None
    assert plainly(b'{"a":1}', msgspec.json.decode) == {"a": 1}
