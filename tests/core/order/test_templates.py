"""Key templates, the texts of reasons and reminders, and the normal forms of keys."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.order.templates import MAX_RENDERED, NORMALIZERS, TemplateError, compile_template, escape_text

KEYS = json.loads((Path(__file__).parents[2] / "scenarios" / "keys.json").read_text())


@pytest.mark.parametrize(("template", "args", "key"), KEYS["templates"])
def test_published_templates(template: str, args: dict[str, Any], key: str | None) -> None:
    assert compile_template(template).render_key(args) == key


@pytest.mark.parametrize("template", KEYS["template_errors"])
def test_published_errors(template: str) -> None:
    with pytest.raises(TemplateError):
        compile_template(template)


@pytest.mark.parametrize(("normalizer", "key", "normal"), KEYS["normalizers"])
def test_published_normalizers(normalizer: str, key: str, normal: str) -> None:
    assert NORMALIZERS[normalizer](key) == normal


@pytest.mark.parametrize(
    ("template", "args", "key"),
    [
        ("{n}", {"n": None}, ""),
        ("{n}", {"n": 42}, "42"),
        ("{n}", {"n": 42.0}, "42"),
        ("{n.m}:{n}", {"n": {"m": -0.0}}, '0:{"m":0}'),
        ("{n}", {"n": 1.5}, "1.5"),
        ("{n}", {"n": {"b": 1, "a": [True]}}, '{"a":[true],"b":1}'),
        ("{a}:{b}", {"a": "x", "b": "y"}, "x:y"),
        ("{a}:{b}", {"a": "x"}, None),
        ("{a}", {"a": "{b}", "b": "no second round"}, "{b}"),
        ("{a}", {"a": "k" * 1000 + "\n"}, "k" * 1000 + "\n"),
        ("line\n{a}", {"a": 1}, "line\n1"),
    ],
)
def test_keys(template: str, args: dict[str, Any], key: str | None) -> None:
    assert compile_template(template).render_key(args) == key


@pytest.mark.parametrize(
    ("template", "at", "what"),
    [
        ("a{file", 1, "is not closed"),
        ("file}", 4, "closes nothing"),
        ("ab{}", 2, "empty braces"),
        ("{{a}}", 0, "is not closed"),
        ("{a}}", 3, "closes nothing"),
        ("x{a b}", 3, "is no field path"),
        ("x{.a}", 2, "is no field path"),
        ("{items[*].name}", 1, "leads to many values"),
        ("{*}", 1, "leads to many values"),
    ],
)
def test_refused(template: str, at: int, what: str) -> None:
    with pytest.raises(TemplateError, match=rf" at character {at}: .*{what}") as caught:
        compile_template(template)
    assert caught.value.at == at


def test_fields_are_as_written() -> None:
    assert compile_template("{a.b} and {items[0]}").fields == ("a.b", "items[0]")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"p": "a.rs"}, "Read a.rs before {q[0].x}."),
        ({}, "Read {p} before {q[0].x}."),
        ({"p": None, "q": [{"x": [1, "\n"]}]}, 'Read  before [1,"\\n"].'),
        ({"p": "x\n\x1b[31m\u202egpj\u200b"}, "Read x\\x0a\\x1b[31m\\u202egpj\\u200b before {q[0].x}."),
        ({"p": "{q[0].x}", "q": [{"x": "y"}]}, "Read {q[0].x} before y."),
    ],
)
def test_texts(args: dict[str, Any], text: str) -> None:
    assert compile_template("Read {p} before {q[0].x}.").render_text(args) == text


def test_each_value_is_capped_and_the_author_s_text_is_not() -> None:
    template = compile_template("w" * 300 + "{a}|{b}")
    assert template.render_text({"a": "x" * 201, "b": "y" * (1 << 20)}) == "w" * 300 + "x" * 200 + "|" + "y" * 200


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("déjà vu 日本 \\ \U0001f600", "déjà vu 日本 \\ \U0001f600"),
        ("\r\t\x7f\x85", "\\x0d\\x09\\x7f\\x85"),
        ("\u2066a\u2069\u061c\ufeff", "\\u2066a\\u2069\\u061c\\ufeff"),
        ("a\ufe01b\U000e0141\U000e0041", "a\\ufe01b\\U000e0141\\U000e0041"),
        ("\u3164\uffa0\u115f\u034f", "\\u3164\\uffa0\\u115f\\u034f"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert escape_text(text) == shown


@given(st.text(max_size=300))
def test_escaped_text_is_one_line_of_utf8(text: str) -> None:
    shown = escape_text(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert len(shown) <= MAX_RENDERED * len("\\U000e0001")
    assert escape_text(shown, len(shown)) == shown


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("./a/../b.rs", "b.rs"),
        ("/a/../../b", "/b"),
        ("/..", "/"),
        ("a/..", "."),
        ("a/../..", ".."),
        ("../../x/..", "../.."),
        ("a//b/", "a/b"),
        ("..\\..\\x", "../../x"),
        ("C:\\x\\.\\y", "C:/x/y"),
        ("a/.../b", "a/.../b"),
    ],
)
def test_paths(path: str, normal: str) -> None:
    assert NORMALIZERS["path"](path) == normal


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("http://EXAMPLE.com", "http://example.com/"),
        ("http://example.com:80/#", "http://example.com/"),
        ("http://0xa9fea9fe/a b", "http://169.254.169.254/a%20b"),
        ("https://e.test/%2e%2e/x?q#f#g", "https://e.test/x?q"),
        ("http://[::FFFF:a9fe:a9fe]/", "http://[::ffff:a9fe:a9fe]/"),
        ("\thttp://e.test\n", "http://e.test/"),
        ("http://", "http://"),
        (" \ud800 ", "\ud800"),
    ],
)
def test_urls(url: str, normal: str) -> None:
    assert NORMALIZERS["url"](url) == normal


URLISH = st.text(max_size=20) | st.text(alphabet="htp:/.#?@%2e[]\\ aA0", max_size=25).map("http://".__add__)


@pytest.mark.parametrize("name", sorted(NORMALIZERS))
@given(key=st.text(alphabet="./\\aA \n~", max_size=15) | URLISH)
def test_normal_forms_are_stable(name: str, key: str) -> None:
    normalize = NORMALIZERS[name]
    assert normalize(normalize(key)) == normalize(key)
