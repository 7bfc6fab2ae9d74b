"""Globs: the documented forms, faults that are refused, and agreement with a slow obvious reading under attack."""

import re
from contextlib import suppress
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.order.globs import MAX_NESTING, GlobError, compile_glob, fold, is_glob


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("", [""], ["a"]),
        ("*", ["", "a/b", "a\nb"], []),
        ("**", ["", "a/b", "a\nb"], []),
        ("ls", ["ls"], ["ls ", "LS", "als"]),
        ("rm *", ["rm ", "rm -rf /\n"], ["rm", "xrm "]),
        ("*.rs", [".rs", "a/b.rs"], ["a.rs\n", "a.r"]),
        ("aa*aa", ["aaaa", "aa\naa"], ["aaa", "aa"]),
        ("*a*b*", ["ab", "xaybz"], ["ba", "a"]),
        ("a*b*c", ["abc", "axxbxxc"], ["acb", "ac"]),
        ("ab*bc*cd", ["abbccd"], ["abcd", "abccd"]),
        ("src/**/*.rs", ["src/main.rs", "src/a/b/lib.rs"], ["tests/t.rs", "srcmain.rs", "src.rs"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a/xb", "ab"]),
        ("a/**/**/b", ["a/b", "a/x/b"], ["ab", "a/xb"]),
        ("**/b", ["b", "a/b", "/b"], ["ab"]),
        ("**/*.py", ["x.py", "a/x.py"], ["x.pyc"]),
        ("a/**", ["a/", "a/b", "a/b/c"], ["a", "ab"]),
        ("x**/b", ["x/b", "xy/b"], ["xb"]),
        ("a?c", ["abc", "a\nc"], ["a/c", "ac", "abbc"]),
        ("*?", ["a", "ab", "/a"], ["", "a/"]),
        ("f[a-c0]", ["fa", "fc", "f0"], ["fd", "f", "faa"]),
        ("[!a-c]x", ["dx", "Ax"], ["ax", "x"]),
        ("[]]", ["]"], ["[", ""]),
        ("[!]]", ["a"], ["]"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[-a]", ["a", "-"], ["b"]),
        ("[*?]", ["*", "?"], ["a"]),
        ("[/**/]b", ["/b", "*b"], ["b"]),
        ("[a^&|~[]", ["^", "&", "|", "~", "["], ["b"]),
        ("[\\d]", ["\\", "d"], ["1"]),
        ("x[ab]*[cd]y[ef]*z", ["xacyez", "xb--dyf--z"], ["xacyz", "xcyez"]),
        ("{a,b}", ["a", "b"], ["", "ab", "{a,b}"]),
        ("*.{js,ts{,x}}", ["a.js", "a.ts", "a.tsx"], ["a.t", "a.jsx"]),
        ("{[,],x}", [",", "x"], ["[", "[,]"]),
        ("{a,**/}b", ["ab", "b", "x/b"], ["xb"]),
        ("{}x", ["x"], []),
        ("a,b[}]", ["a,b}"], ["a"]),
        ("(.+)$^|\\", ["(.+)$^|\\"], ["x"]),
    ],
)
def test_forms(glob: str, yes: list[str], no: list[str]) -> None:
    compiled = compile_glob(glob)
    assert [text for text in yes if not compiled.matches(text)] == []
    assert [text for text in no if compiled.matches(text)] == []


@pytest.mark.parametrize(
    ("glob", "at", "what"),
    [
        ("a[b", 1, "is not closed"),
        ("a[]", 1, "is not closed"),
        ("a[!]", 1, "is not closed"),
        ("a{b,c", 1, "is not closed"),
        ("a{b,{c}", 1, "is not closed"),
        ("a,b}", 3, "closes nothing"),
        ("x[z-a]", 1, "runs backwards"),
        ("x[^a]", 1, "how a set is negated"),
        ("{a,b}" * 9, 45, "alternatives"),
        ("{" + "a," * 300 + "}", 0, "alternatives"),
        ("a/**/" * 9 + "b", 0, "alternatives"),
        ("{" * (MAX_NESTING + 1), MAX_NESTING, "nest deeper"),
        ("{" * 100_000, MAX_NESTING, "nest deeper"),
    ],
)
def test_refused(glob: str, at: int, what: str) -> None:
    with pytest.raises(GlobError, match=re.escape(f" at character {at}: ") + f".*{what}") as caught:
        compile_glob(glob)
    assert caught.value.at == at


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("RM *", ["rm -rf", "Rm x"], ["xrm "]),
        ("straße", ["STRASSE", "Straße"], ["strase"]),
        ("?A", ["ßa", "xa", "xA"], ["/a"]),
        ("[A-_]x", ["aX", "_x", "Bx"], ["0x"]),
        ("[!A-Z]x", ["ax", "0X"], ["AX"]),
        ("K*", ["\u212a9"], ["q"]),
    ],
)
def test_folding(glob: str, yes: list[str], no: list[str]) -> None:
    compiled = compile_glob(glob, fold=True)
    assert [text for text in yes if not compiled.matches(text)] == []
    assert [text for text in no if compiled.matches(text)] == []


@pytest.mark.parametrize(("text", "glob"), [("Bash", False), ("a{b,c}", False), ("a*", True), ("a?", True), ("[ab]", True)])
def test_what_is_a_glob(text: str, glob: bool) -> None:
    assert is_glob(text) is glob


# --- properties ------------------------------------------------------------------------------------------------------

ATOMS = st.sampled_from(["a", "b", "A", "/", "\n", "ß", "*", "**", "**/", "?", "[ab]", "[!a/]", "[A-b]", "{a,b*}", "{,/**/}"])
GLOBS = st.lists(ATOMS, max_size=7).map("".join)
TEXTS = st.text(alphabet="abAB/\nßs", max_size=9)


def naive(glob: str, text: str) -> bool:
    """The definition, one character at a time, with all the backtracking there is."""
    brace = re.search(r"\{([^{}]*)\}", glob)
    if brace:
        return any(naive(glob[: brace.start()] + option + glob[brace.end() :], text) for option in brace[1].split(","))
    return _naive(glob, 0, text)


def _naive(glob: str, at: int, text: str) -> bool:
    if at == len(glob):
        return not text
    if glob.startswith("**/", at) and (at == 0 or glob[at - 1] == "/") and _naive(glob, at + 3, text):
        return True
    if glob.startswith("**/", at) and (at == 0 or glob[at - 1] == "/"):
        return any(_naive(glob, at + 3, text[end + 1 :]) for end, char in enumerate(text) if char == "/")
    if glob[at] == "*":
        return any(_naive(glob, at + 1, text[skip:]) for skip in range(len(text) + 1))
    if not text:
        return False
    if glob[at] == "[":
        end = glob.index("]", at)
        return re.fullmatch(glob[at : end + 1].replace("[!", "[^"), text[0]) is not None and _naive(glob, end + 1, text[1:])
    return (text[0] != "/" if glob[at] == "?" else text[0] == glob[at]) and _naive(glob, at + 1, text[1:])


@given(GLOBS, TEXTS)
def test_agrees_with_the_definition(glob: str, text: str) -> None:
    assert compile_glob(glob).matches(text) is naive(glob, text)


MATCHING = st.lists(
    st.sampled_from([("a", "a"), ("ß", "ß"), ("*", "b\nA"), ("*", ""), ("?", "ß"), ("[ab]", "b"), ("[!A]", "a"), ("{a,B}", "B")]),
    max_size=8,  # nine braces of two would be more alternatives than a glob may have
)


@given(MATCHING)
def test_folding_matches_whatever_exact_does(pairs: list[tuple[str, str]]) -> None:
    glob, text = "".join(glob for glob, _ in pairs), "".join(text for _, text in pairs)
    assert compile_glob(glob).matches(text)
    assert compile_glob(glob, fold=True).matches(text)
    if "?" not in glob and "[!" not in glob:
        assert compile_glob(glob, fold=True).matches(text.upper())


@given(st.text(alphabet="{}[],*?!^-a/", max_size=30))
def test_any_glob_compiles_or_is_refused(glob: str) -> None:
    with suppress(GlobError):  # anything else it raised would fail
        assert compile_glob(glob, fold=True).matches("a") in (True, False)


@pytest.mark.parametrize("glob", ["*a" * 40 + "b", "*a?" * 40 + "b", "**/a" * 3 + "b", "*" * 1000 + "b", "*[ab]" * 40 + "c"])
@pytest.mark.parametrize("fold", [False, True])
def test_a_mebibyte_is_matched_without_backtracking(glob: str, fold: bool) -> None:
    compiled, text = compile_glob(glob, fold=fold), "a" * (1 << 20)
    start = process_time()
    assert not compiled.matches(text)
    assert process_time() - start < 2  # exponential or quadratic would be minutes; the rest is a busy machine


@pytest.mark.parametrize("times", [1, 20_000])
@pytest.mark.parametrize("text", ["Stra\u00dfe ", "STRASSE ", "\u00c9t\u00e9 ", "Plain "])
def test_texts_of_any_length_are_folded_alike(text: str, times: int) -> None:
    assert fold(text * times) == (text * times).casefold()
