from __future__ import annotations

from typing import Any

import pytest

from gated.core.scope.effort import Effort
from gated.core.scope.resources import (
    Item,
    Selector,
    compile_selectors,
    items,
    joined,
    look_of,
    place,
)
from gated.core.scope.rules import Kind, ScopeError


def found(selectors: dict[str, Kind], args: dict[str, Any]) -> dict[str, tuple[str, Kind | None]]:
    root = compile_selectors("t", selectors)
    return {f"{place(item.where)}={item.text}": (item.text, item.kind) for item in items(root, args, lambda _: False)}


def kinds(selectors: dict[str, Kind], args: dict[str, Any]) -> dict[str, Kind | None]:
    return {key: kind for key, (_, kind) in found(selectors, args).items() if "<key>" not in key}


@pytest.mark.parametrize(
    ("selectors", "args", "expected"),
    [
        ({"u": "url"}, {"u": "x", "v": "y"}, {"u=x": "url", "v=y": None}),
        ({"o.x": "path"}, {"o": {"x": "a", "y": "b"}}, {"o.x=a": "path", "o.y=b": None}),
        ({"o": "path", "o.x": "none"}, {"o": {"x": "a", "y": "b"}}, {"o.y=b": "path"}),
        ({"o": "none", "o.x": "path"}, {"o": {"x": "a", "y": "b"}}, {"o.x=a": "path"}),
        ({"o[*].p": "path"}, {"o": [{"p": "a"}, {"p": ["b"]}]}, {"o[0].p=a": "path", "o[1].p[0]=b": "path"}),
        ({"o[1]": "path"}, {"o": ["a", "b"]}, {"o[0]=a": None, "o[1]=b": "path"}),
        ({"o[*]": "url", "o[1]": "path"}, {"o": ["a", "b"]}, {"o[0]=a": "url", "o[1]=b": "path"}),
        (
            {"*.id": "table"},
            {"a": {"id": "x"}, "b": {"id": "y", "z": "w"}},
            {"a.id=x": "table", "b.id=y": "table", "b.z=w": None},
        ),
        ({"*.id": "table", "a": "path"}, {"a": {"id": "x", "z": "w"}}, {"a.id=x": "table", "a.z=w": "path"}),
        ({"*.id": "table", "a.*": "path"}, {"a": {"id": "x"}}, {"a.id=x": "path"}),
        ({"*": "none"}, {"a": "x", "b": {"c": ["y"]}}, {}),
        (
            {"n": "path"},
            {"n": [1, 1.5, True, False, None]},
            {"n[0]=1": "path", "n[1]=1.5": "path", "n[2]=true": "path", "n[3]=false": "path"},
        ),
        ({}, {"n": [1, None, True, "a"]}, {"n[3]=a": None}),
        ({"o[*]": "path"}, {"o": {"0": "a"}}, {"o.0=a": None}),
        ({"o.*": "path"}, {"o": ["a"]}, {"o[0]=a": None}),
        ({"o": "path"}, {"o": {}}, {}),
    ],
)
def test_selectors(selectors: dict[str, Kind], args: dict[str, Any], expected: dict[str, Kind | None]) -> None:
    assert kinds(selectors, args) == expected


def test_keys_are_of_the_object_they_stand_in() -> None:
    seen = found({"o": "path", "o.x": "none"}, {"o": {"x": {"k": 1}, "y": 2}})
    assert seen["<key>=o"] == ("o", None)
    assert seen["o.<key>=x"] == ("x", "path")
    assert seen["o.<key>=y"] == ("y", "path")
    assert "o.x.<key>=k" not in seen


def test_a_huge_number_is_rendered_too() -> None:
    [(text, kind)] = [value for key, value in found({"n": "path"}, {"n": 10**5000}).items() if "<key>" not in key]
    assert (text[:2], kind) == ("0x", "path")


def test_what_passes_is_not_an_item() -> None:
    assert [item.text for item in items(None, {"a": "x", "b": ["y", {"z": "x"}]}, lambda text: text in "abxz")] == ["y"]


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a[", "a[]", "a[x]", "a]b", "a[-1]", "[*", "a[0]b"])
def test_bad_selectors(text: str) -> None:
    with pytest.raises(ScopeError, match="is no selector"):
        compile_selectors("t", {text: "path"})


def path_item(text: str, cover: Selector) -> Item:
    return Item(text, cover, None)


def test_relative_paths_are_joined_across_selectors_only() -> None:
    one, two = Selector(), Selector()
    same = [path_item("a", one), path_item("b", one)]
    assert list(joined(same)) == []
    texts = [item.text for item in joined([*same, path_item("/d/", two), path_item("\\e\\", two)])]
    assert texts == ["/d/a", "\\e/a", "/d/b", "\\e/b"]


@pytest.mark.parametrize(
    "text", ["/a", "~", "$5", "./a", ".\\a", "..", "a/..", "../", "\\", "c:x", "a:b c", "C:", "\t/a", "%2e%2e/a", "a/ .. /b"]
)
def test_path_looks(text: str) -> None:
    assert look_of(text, Effort()) == "path"


@pytest.mark.parametrize(
    "text",
    [
        "a.b",
        ".",
        "a.b%20",
        "a\u3002b",
        "a.b\uff20",
        "xy://y",
        "say x://y z",
        "http:",
        "WSS:x",
        "h\nttp:x",
        "0x10",
        "::1",
        "127.1",
        " a.b ",
    ],
)
def test_name_looks(text: str) -> None:
    assert look_of(text, Effort()) == "name"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a b.c",
        "a@b.c",
        "a/b",
        "24",
        "2852039166",
        "12:30",
        "note: x",
        "Q: x",
        "C++",
        "..." + " x",
        "50%",
        "mailto:a@b.c",
    ],
)
def test_no_looks(text: str) -> None:
    assert look_of(text, Effort()) is None
