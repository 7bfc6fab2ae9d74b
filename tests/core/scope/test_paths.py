from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.scope.effort import LONGEST
from gated.core.scope.paths import Paths, normal, readings
from gated.core.scope.rules import ScopeError

PATHS = Paths(["/workspace"], "/workspace")


@pytest.mark.parametrize(
    "path",
    [
        *("", ".", "a", "src/main.rs", "/workspace", "/workspace/", "//workspace"[1:], "/workspace/./src/../src/main.rs"),
        *(
            "/workspace//a",
            "\\workspace\\a",
            "a%20b",
            "100%",
            "a/..",
            "./...",
            "a..b",
            "..a",
            "r\u00e9sum\u00e9.txt",
            "a b/c",
            "a~",
            "12:30",
        ),
        *(
            "/workspace/~a",
            "/workspace/http://x",
            "../workspace/a",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "/../workspace/a",
            "a;b",
            "{a,b}*",
            "**/*.{ts,tsx}",
            "{.a,..b}",
            "x{1..3}",
        ),
    ],
)
def test_inside(path: str) -> None:
    assert PATHS.refuse(path) is None


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/workspace/a/../../etc/./passwd", "/etc/passwd"),
        ("/workspace-evil/x", "/workspace-evil/x"),
        ("/Workspace/x", "/Workspace/x"),
        ("../outside", "/outside"),
        ("/../../etc", "/etc"),
        ("\\workspace\\..\\etc", "/etc"),
        ("a\\..\\..\\etc", "/etc"),
        ("%2e%2e/etc", "/etc"),
        ("..%2fetc", "/etc"),
        ("%2fetc", "/etc"),
        (" /etc", "/etc"),
        ("%20/etc", "/etc"),
        ("a/.. /../etc", "/etc"),
        ("\uff0e\uff0e/etc", "/etc"),
        ("\u2025/etc", "/etc"),
        (".\u200b./etc", "/etc"),
        ("..\uff0fetc", "/etc"),
        ("..\u2215etc", "/etc"),
        ("\u200b/etc", "/etc"),
    ],
)
def test_outside_by_where_it_leads(path: str, shown: str) -> None:
    refusal = PATHS.refuse(path)
    assert refusal is not None
    assert refusal.shown == shown
    assert "outside the allowed paths" in refusal.why


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("%252e%252e/etc", "still escaped"),
        ("/workspace/%2525", "still escaped"),
        ("/workspace/%u002e%u002e/x", "still escaped"),
        ("/workspace/%c0%ae%c0%ae/x", "still escaped"),
        ("/workspace/\uff05252e", "still escaped"),
        ("~", "`~`"),
        ("~/x", "`~`"),
        (" ~/x", "`~`"),
        ("%7e/x", "`~`"),
        ("~root/x", "`~`"),
        ("$HOME/x", "variable"),
        ("/workspace/${HOME}", "variable"),
        ("/workspace/$(id)", "variable"),
        ("/workspace/.$1./x", "variable"),
        ("%TEMP%\\x", "variable"),
        ("/workspace/%24HOME", "variable"),
        ("/workspace/{a,../../etc}", "braces"),
        ("{/etc/passwd,a}", "braces"),
        ("{a,~}", "braces"),
        ("/workspace/{.../}{.../}/etc", "braces"),
        ("/workspace/{-..0..1}", "braces"),
        ("{.,a}{.,b}/etc", "braces"),
        ("%7b..,a}", "braces"),
        ("C:\\x", "drive letter"),
        ("c:x", "drive letter"),
        ("C%3a/x", "drive letter"),
        ("http://e.test/", "scheme"),
        ("file:///workspace/a", "scheme"),
        ("notes:today", "scheme"),
        ("//workspace/a", "two slashes"),
        ("\\\\workspace\\a", "two slashes"),
        ("/\\workspace/a", "two slashes"),
        ("\\/workspace/a", "two slashes"),
        ("%2f/workspace/a", "two slashes"),
        (" //workspace/a", "two slashes"),
        ("/workspace/a\x00", "control"),
        ("/workspace/a\n", "control"),
        ("/workspace/a%00.txt", "control"),
        ("/workspace/\x85", "control"),
        ("/workspace/\u2028", "control"),
        ("a" * (LONGEST + 1), "longer"),
    ],
)
def test_outside_every_scope(path: str, why: str) -> None:
    refusal = Paths(["/"], "/workspace").refuse(path)
    assert refusal is not None
    assert why in refusal.why


def test_who_trims_and_does_not_unescape_reads_another_path() -> None:
    refusal = PATHS.refuse("\u200b/%2e%2e//workspace")
    assert refusal == ("/%2e%2e/workspace", "is outside the allowed paths")
    assert Paths(["/"], "/workspace").refuse("\u200b/%2e%2e//workspace") is None


def test_a_relative_path_needs_a_base() -> None:
    refusal = Paths(["/"], None).refuse("a")
    assert refusal is not None
    assert "base_path" in refusal.why


def test_the_root_holds_everything_absolute() -> None:
    assert Paths(["/"], None).refuse("/etc/passwd") is None


def test_allowed_paths_are_normalised_and_may_start_from_the_base() -> None:
    paths = Paths(["./src/../lib/", "/data//x/"], "/w/.")
    assert paths.holds("/w/lib/a")
    assert paths.holds("/data/x")
    assert not paths.holds("/w/src")


@pytest.mark.parametrize("path", ["~/x", "$HOME", "C:/x", "//x", "/a%2fb", "/a\n", "file:///a"])
@pytest.mark.parametrize("key", ["allowed_paths", "base_path"])
def test_bad_folders(path: str, key: str) -> None:
    with pytest.raises(ScopeError, match=f"{key}: `"):
        Paths([path], None) if key == "allowed_paths" else Paths([], path)


@given(st.lists(st.sampled_from(["a", "b", ".", "..", "", "c.d"])))
def test_normal_agrees_with_posix(names: list[str]) -> None:
    path = "/" + "/".join(names)
    assert normal(path) == "/" + posixpath.normpath(path).lstrip("/")


@given(st.text())
def test_normal_is_idempotent_and_absolute(path: str) -> None:
    once = normal(path)
    assert normal(once) == once
    assert once.startswith("/")
    assert not {"..", "."} & set(once.split("/"))


@given(st.text())
def test_what_is_written_is_always_among_the_readings(path: str) -> None:
    assert readings(path)[0] == path
