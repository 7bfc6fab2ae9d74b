"""Files that people write: what YAML 1.2 says, what is refused, and on which line everything stands."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gated.documents import Document, DocumentError, parse_document, reading
from gated.strict_json import Path


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of PyYAML's parsers: the one in C is missing on some systems."""
    monkeypatch.setattr(reading, "_LOADER", getattr(yaml, request.param))


def read(text: str | bytes, file: str = "policy.yaml") -> Document:
    return parse_document(text, file=file)


def mistake(text: str | bytes, file: str = "policy.yaml") -> str:
    with pytest.raises(DocumentError) as caught:
        read(text, file)
    return str(caught.value)


# --- YAML 1.2 --------------------------------------------------------------------------------------------------------

SCALARS = {
    "on": "on",
    "off": "off",
    "yes": "yes",
    "No": "No",
    "y": "y",
    "2026-11-30": "2026-11-30",
    "2026-11-30T10:00:00Z": "2026-11-30T10:00:00Z",
    "12:30:45": "12:30:45",
    "0": 0,
    "-0": 0,
    "17": 17,
    "+5": 5,
    "-5": -5,
    "007": 7,
    "0123": 123,
    "-01": -1,
    "0o17": "0o17",
    "0x1F": "0x1F",
    "0b11": "0b11",
    "1_000": "1_000",
    "1.5": 1.5,
    "2.50": 2.5,
    ".5": 0.5,
    "1.": 1.0,
    "1e3": 1000.0,
    "-1.5E-2": -0.015,
    "01.5": 1.5,
    "1.5.2": "1.5.2",
    "1e": "1e",
    "١٢": "١٢",
    "null": None,
    "Null": None,
    "~": None,
    "": None,
    "nUll": "nUll",
    "true": True,
    "True": True,
    "TRUE": True,
    "tRue": "tRue",
    "false": False,
    "False": False,
    "FALSE": False,
    "NaN": "NaN",
    "inf": "inf",
    "<<": "<<",
    "=": "=",
    "'1'": "1",
    '"true"': "true",
    '""': "",
    '"\\x41\\u00e9"': "Aé",
    "a#b": "a#b",
    "https://x.example:80/?a=b": "https://x.example:80/?a=b",
    "9" * 1000: int("9" * 1000),
}


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("text", SCALARS)
def test_scalars_are_those_of_the_core_schema(text: str) -> None:
    for data in (read(f"key: {text}\n").data["key"], read(f"- {text}\n").data[0]):
        assert type(data) is type(SCALARS[text])
        assert data == SCALARS[text]


def test_a_quoted_merge_key_is_text() -> None:
    assert read('"<<": 1').data == {"<<": 1}


def test_blocks_are_text() -> None:
    assert read("a: |\n  1\nb: >-\n  true\n  x\n").data == {"a": "1\n", "b": "true x"}


@pytest.mark.usefixtures("loader")
def test_keys_that_other_readers_turn_into_booleans_stay_text() -> None:
    assert read("on: 1\nyes: 2\nno: 3\n").data == {"on": 1, "yes": 2, "no": 3}


def test_nothing_is_an_empty_document() -> None:
    assert [read(text).data for text in ("", "# only words\n", "---\n", "\ufeff")] == [None] * 4


def test_the_version_directive_of_this_yaml_is_taken() -> None:
    assert read("%YAML 1.2\n---\na: 1\n").data == {"a": 1}


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: &x 2", "policy.yaml:2: anchor `&x`: anchors are not used here, write the value out"),
        ("a: 1\nb: *x", "policy.yaml:2: alias `*x`: aliases are not used here, write the value out"),
        ("a:\n  <<: {b: 1}", "policy.yaml:2: merge key `<<`: merge keys are not used here, write the values out"),
        ("a: !!str 1", "policy.yaml:1: tag `tag:yaml.org,2002:str`: tags are not used here"),
        ("a: !secret x", "policy.yaml:1: tag `!secret`: tags are not used here"),
        ("a: ! x", "policy.yaml:1: tag `!`: tags are not used here"),
        ("a: !x [1]", "policy.yaml:1: tag `!x`: tags are not used here"),
        ("!x a: 1", "policy.yaml:1: tag `!x`: tags are not used here"),
        ("a: 1\n---\nb: 2", "policy.yaml:2: a second document begins with `---`: a file holds one"),
        ("%YAML 1.1\n---\na: 1", "policy.yaml:1: directives (`%…`) are not used here: files are YAML 1.2"),
        ("%TAG !e! tag:x\n---\na: 1", "policy.yaml:1: directives (`%…`) are not used here: files are YAML 1.2"),
        ("a: 1\nb: 2\na: 3", "policy.yaml:3: duplicate key `a`: it stands on line 1 already"),
        ('a: {b: 1, "b": 2}', "policy.yaml:1: duplicate key `b`: it stands on line 1 already"),
        ("a:\n  1: x", "policy.yaml:2: the key `1` is not text: write it in quotes"),
        ("true: x", "policy.yaml:1: the key `true` is not text: write it in quotes"),
        ("~: x", "policy.yaml:1: the key `~` is not text: write it in quotes"),
        ("? [a]\n: b", "policy.yaml:1: a key is text, not a list or a mapping"),
        ("a: .nan", "policy.yaml:1: `.nan` is not a number that can be used here"),
        ("a:\n- -.Inf", "policy.yaml:2: `-.Inf` is not a number that can be used here"),
        ("a: 1e999", "policy.yaml:1: `1e999` is too large for a number"),
        ("a: " + "9" * 1001, "policy.yaml:1: `" + "9" * 40 + "…` has more than 1000 digits"),
        ("a: 1 # note\u2028forbidden: 2", "policy.yaml:1: the character U+2028 breaks lines"),
        ("a: 1\nb: x\x85y", "policy.yaml:2: the character U+0085 breaks lines"),
        ("é: 1\nb: x\x00y", "policy.yaml:2: the character U+0000 is not allowed"),
        ("a: 1\nb: \ud800", "policy.yaml:2: a lone surrogate is no text"),
        (b"a: 1\nb: \xff", "policy.yaml:2: the file is not UTF-8"),
        ("a: 1\n\tb: 2", "policy.yaml:2: "),
        ("a:\n\tb: 2", "policy.yaml:2: a tab: YAML is indented with spaces: `b: 2`"),
        ("a: [*]", "policy.yaml:1: a text that begins with `*` stands in quotes: `a: [*]`"),
        ("a: @x", "policy.yaml:1: a text that begins with `@` stands in quotes: `a: @x`"),
        ("ok: 1\na: &", "policy.yaml:2: a text that begins with `&` stands in quotes: `a: &`"),
        ("a: [1, 2\nb: 3", "policy.yaml:2: "),
        ("a: b: c", "policy.yaml:1: mapping values are not allowed here: keys stand below one another, and a text with `: ` in"),
        ("a: 'x", "policy.yaml:"),
        ("- a\nb: 1", "policy.yaml:2: "),
    ],
)
def test_what_is_refused_says_what_and_where(text: str | bytes, message: str) -> None:
    assert mistake(text).startswith(message)


@pytest.mark.usefixtures("loader")
def test_a_syntax_error_shows_the_line() -> None:
    assert mistake("ok: 1\nallowed_tools: [a, b\nmode: x\n").endswith(": `mode: x`")
    assert mistake("ok: 1\nx: @y\n").endswith(": `x: @y`")


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "a: " + "{b: " * 100_000,
        "- " * 5_000 + "x",
        "\n".join(" " * i + "a:" for i in range(2_000)),
        "[" * 65 + "]" * 65,
    ],
)
def test_deep_nesting_is_refused_without_recursion(text: str) -> None:
    assert "nest" in mistake(text)


@pytest.mark.usefixtures("loader")
def test_the_depth_limit_is_inclusive() -> None:
    assert read("[" * 64 + "]" * 64).data


def test_large_files_are_read_in_time() -> None:
    start = time.process_time()
    text = "agents:\n" + "".join(f"  a{i}:\n    allowed_tools: [x, y]\n" for i in range(5_000))
    assert len(read(text).data["agents"]) == 5_000
    assert time.process_time() - start < 20


# --- JSON ------------------------------------------------------------------------------------------------------------


def test_json_is_read_as_json() -> None:
    assert read(b"\xef\xbb\xbf{}", "p.json").data == {}
    text = '{"a": "\\ud83d\\ude00 \u2028", "n": [1.0, 12345678901234567890, null],\t"on": "0x1F"}'
    assert read(text, "p.json").data == {"a": "\U0001f600 \u2028", "n": [1.0, 12345678901234567890, None], "on": "0x1F"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "b": {"c": 1,\n "c": 2}}', "p.json:3: duplicate key `c`, at `b.c`"),
        ('{"a": 1,\n "b": NaN}', "p.json:2: `NaN` is not a JSON number, at `b`"),
        ('{"a": 1,\n "b": 1e999}', "p.json:2: `1e999` is too large for a number, at `b`"),
        ('{\n"a": "\\ud800"}', "p.json:2: a lone surrogate is no text, at `a`"),
        ("\n\na: 1", "p.json:3: not JSON: "),
        ("{'a': 1}", "p.json:1: not JSON: "),
        ('{"a": 1,}', "p.json:1: not JSON: "),
        ('{"a": 1} # note', "p.json:1: not JSON: "),
        ("", "p.json:1: not JSON: "),
        ("[" * 100_000, "p.json:1: nested deeper than 64"),
    ],
)
def test_what_is_no_json_is_refused(text: str, message: str) -> None:
    assert mistake(text, "p.json").startswith(message)


NOT_IN_YAML = "\x7f\x85\u2028\u2029\ufeff\ufffe\uffff"
common_text = st.text(st.characters(exclude_characters=NOT_IN_YAML, exclude_categories=("Cs", "Cc")), max_size=8)
numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | common_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(common_text, inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_yaml_and_json_read_the_same(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert repr(read(text).data) == repr(read(text, "p.json").data) == repr(value)


@given(st.one_of(st.text(max_size=30), st.text("{}[]:,-?&*!|>%@`'\"#~ \n\ta1.<", max_size=30), st.binary(max_size=30)))
def test_any_text_gives_a_document_or_an_error_with_a_line(text: str | bytes) -> None:
    for file in ("p.yaml", "p.json"):
        try:
            found: Any = read(text, file)
        except DocumentError as error:
            found = error
        known = isinstance(found, DocumentError) and str(found) == f"{file}:{found.line}: {found.message}"
        assert isinstance(found, Document) or (known and 1 <= found.line <= len(text) + 1)


# --- lines -----------------------------------------------------------------------------------------------------------

YAML = """\
version: 1
agents:
  ana:
    allowed_tools:
      - Read
      -
        Write
  bob: {checks: [dfa,
    order]}
note: |
  many
  lines
last:
  true
"""

LINES: list[tuple[Path, int]] = [
    ((), 1),
    (("version",), 1),
    (("agents",), 2),
    (("agents", "ana"), 3),
    (("agents", "ana", "allowed_tools", 0), 5),
    (("agents", "ana", "allowed_tools", 1), 7),
    (("agents", "bob", "checks"), 8),
    (("agents", "bob", "checks", 1), 9),
    (("note",), 10),
    (("last",), 13),
    (("agents", "ana", "nope", 3, "deeper"), 3),
    (("agents", "ana", "allowed_tools", 7), 4),
    (("nope",), 1),
]


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(("path", "line"), LINES)
def test_every_path_has_the_line_of_itself_or_of_its_nearest_ancestor(path: Path, line: int) -> None:
    document = read(YAML)
    assert (document.line(path), document.file_of(path)) == (line, "policy.yaml")


def places(value: Any, path: Path = ()) -> list[Path]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for step, item in inner for found in places(item, (*path, step)))]


@given(plain)
def test_lines_are_the_same_in_yaml_and_json(value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    as_yaml, as_json = read(text), read(text, "p.json")
    for path in places(value):
        assert as_yaml.line(path) == as_json.line(path)
