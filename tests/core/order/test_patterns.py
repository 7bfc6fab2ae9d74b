"""Tool-call patterns: the published cases, the three ways to match, what is refused, and attackers' arguments."""

import itertools
import json
import re
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.canonical import args_digest
from gated.core.order.patterns import PatternError, compile_conditions, compile_pattern

PUBLISHED = json.loads((Path(__file__).parents[2] / "scenarios" / "patterns.json").read_text())


@pytest.mark.parametrize("case", PUBLISHED["match"], ids=lambda case: f"{case['pattern']}-{case['match']}")
def test_published_matches(case: dict[str, Any]) -> None:
    pattern = compile_pattern(case["pattern"])
    assert pattern.matches(case["tool"], case["args"]) is case["match"]
    assert pattern.matches_wide(case["tool"], case["args"]) >= case["match"]


@pytest.mark.parametrize("text", PUBLISHED["errors"])
def test_published_errors(text: str) -> None:
    with pytest.raises(PatternError):
        compile_pattern(text)


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("Bash(npm *", 10, "does not end with the `)`"),
        ("T()", 1, "empty parentheses"),
        ("T(  )", 1, "empty parentheses"),
        ("/a", 0, "a regex name is written like"),
        ("//(x)", 0, "a regex name is written like"),
        ("/[bad/", 1, "`[bad` is no regex of RE2"),
        (r"/(a)\1/", 1, "is no regex of RE2"),
        ("/a(?=b)/", 1, "is no regex of RE2"),
        ("/((a{100}){100}){100}/", 1, "is no regex of RE2"),
        ("/a/(b)/(c)", 6, "`/(` stands here twice"),
        ("Bash)", 0, "`Bash)` is neither"),
        ("{rm,dd}", 0, "`{rm,dd}` is neither"),
        ("B\u0430sh", 0, "is neither"),
        ("B\u0430sh*", 0, "is neither"),
        ("a b", 0, "is neither"),
        ("x" * 129, 0, "is neither"),
        ("x[a", 1, "a `[` is not closed"),
        ("T(x[a)", 3, "a `[` is not closed"),
        ("T(f ~ )", 5, "a double-quoted value is missing"),
        ("T(f = x)", 6, "a double-quoted value is missing"),
        ('T(f ~ "x)', 6, "a double-quoted value is missing or not closed"),
        ('T(f ~~ "x")', 5, "a double-quoted value is missing"),
        ('T(f ~ "x" g = "y")', 10, "a comma is missing"),
        ('T(f ~ "x", )', 10, 'a condition is `field OP "value"`'),
        ('T(f ~ "x", g)', 10, 'a condition is `field OP "value"`'),
        ('T(a = "x", b..c = "x")', 12, "`b..c` is no field path"),
        ('T(f ~ "ab[")', 9, "a `[` is not closed"),
        ('T(f =~ "(")', 8, "`(` is no regex of RE2"),
        ('T(f !=~ "(")', 9, "`(` is no regex of RE2"),
    ],
)
def test_refused(text: str, at: int, what: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PatternError, match=re.escape(f"`{text}` at character {at}: ") + ".*" + re.escape(what)) as caught:
        compile_pattern(text)
    assert caught.value.at == at
    assert capfd.readouterr() == ("", "")  # RE2 would log to stderr


ARGS = {"file_path": "src/a.rs", "n": 7, "list": ["x", {"id": "v"}], "none": None}


@pytest.mark.parametrize(
    ("text", "tool", "args", "exact", "wide", "allowed"),
    [
        ("Bash", "BASH", {}, False, True, False),
        ("Bash", "Bash2", {}, False, False, False),
        ("Bash(*)", "Bash", {"a": 1, "b": 2}, True, True, True),
        ("Bash( npm * )", "Bash", {"c": "npm i"}, True, True, True),
        ("Bash(rm *)", "Bash", {"c": "rm x"}, True, True, True),
        ("Bash(rm *)", "Bash", {"c": "rm x", "junk": 1}, False, True, False),
        ("Bash(rm *)", "bash", {"a": [{"b": {"c": "RM x"}}], "junk": 1}, False, True, False),
        ("Bash(rm *)", "Bash", {"rm x": 1, "junk": 1}, False, True, False),
        ("Bash(*rm *)", "Bash", {"c": "rm x", "junk": 1}, True, True, False),
        ('Bash(*"C":"rm*)', "Bash", {"c": "rm", "junk": 1}, False, True, False),
        ("Bash(42)", "Bash", {"n": 42}, True, True, True),
        ("Bash(42)", "Bash", {"n": 42, "junk": 1}, False, True, False),
        ("Bash([[]1,2])", "Bash", {"n": [1, 2], "junk": None}, False, True, False),
        ("Bash(ls)", "Bash", {}, False, False, False),
        ("Bash([{][}])", "Bash", {}, True, True, False),
        ("Bash(X[=]1 *)", "Bash", {"c": "X=1 make"}, True, True, True),
        ("mcp__?b*", "MCP__Ab", {}, False, True, False),
        ("mcp__[A-C]", "mcp__B", {}, True, True, True),
        ("mcp__[A-C]", "mcp__b", {}, False, True, False),
        ("*", "admin/delete", {}, True, True, True),
        ("a{b,c}*", "acx", {}, True, True, True),
        ("/read_.*/", "rm_read_x", {}, False, False, False),
        ("/read_.*/", "READ_x", {}, False, True, False),
        ("/[^a-z]+/", "AB", {}, True, True, True),
        ("/a|ab/", "ab", {}, True, True, True),
        ("/x/(rm *)", "x", {"c": "rm y"}, True, True, True),
        ('/x/(c ~ "a/(b)")', "x", {"c": "a/(b)"}, True, True, True),
        ("/a[/](b)/(c)", "a/b", {"x": "c"}, True, True, True),
        ('T(file_path ~ "SRC/**")', "T", ARGS, False, True, False),
        ('T(file_path = "SRC/a.rs")', "T", ARGS, False, True, False),
        ('T(file_path =~ "^SRC")', "T", ARGS, False, True, False),
        ('T(file_path =~ "[^a-z/.]")', "T", {"file_path": "A"}, True, True, True),
        ('T(env = "prod")', "T", {"env": ["prod"]}, False, True, False),
        ('T(env = "prod")', "T", {"env": {"a": [["PROD"]]}}, False, True, False),
        ('T(env = "prod")', "T", {"env": {"prod": 1}}, False, True, False),
        ('T(env = "5")', "T", {"env": [5]}, False, True, False),
        ('T(env = "prod")', "T", {"env": "dev", "other": ["prod"]}, False, False, False),
        ('T(env[*] ~ "pr*")', "T", {"env": [["prod"]]}, False, True, False),
        ('T(env != "prod")', "T", {"env": ["prod"]}, True, True, True),
        ('T(file_path !~ "SRC/**")', "T", ARGS, True, True, True),
        ('T(file_path != "SRC/a.rs")', "T", ARGS, True, True, True),
        ('T(file_path !=~ "^SRC")', "T", ARGS, True, True, True),
        ('T(file_path !~ "src/*")', "t", ARGS, False, False, False),
        ('T(missing !~ "x")', "T", ARGS, False, False, False),
        ('T(missing != "")', "T", ARGS, False, False, False),
        ('T(list[*].id = "V")', "T", ARGS, False, True, False),
        ('T(list[*] != "x")', "T", ARGS, True, True, True),
        ('T(list = "[\\"x\\",{\\"id\\":\\"v\\"}]")', "T", ARGS, True, True, True),
        ('T(n = "7", none = "")', "T", ARGS, True, True, True),
        ('T(f = "a\\\\b\\d\\n")', "T", {"f": "a\\b\\d\\n"}, True, True, True),
        ('T(f ~ "a,b\\")")', "T", {"f": 'a,b")'}, True, True, True),
        ('T(f =~ "^a$")', "T", {"f": "a\n"}, False, False, False),
        ('T(n ~ "1*")', "T", {"n": 10**40}, True, True, True),
        ("T(*1*)", "T", {"n": 10**40, "f": 1.5}, True, True, False),
        ('T(n = "1.5")', "T", {"n": 1.5}, True, True, True),
        ('T(n = "1")', "T", {"n": 1.0}, False, True, False),
        ('T(n = "1")', "T", {"n": [{"x": 1e0}]}, False, True, False),
        ('T(n = "1")', "T", {"n": "1.0"}, False, False, False),
        ('T(n = "1.0")', "T", {"n": 1}, False, True, False),
        ('T(n = "-0.50e1")', "T", {"n": -5}, False, True, False),
        ('T(n = "1e400")', "T", {"n": 1e300}, False, False, False),
        ('T(n = "1_0.0")', "T", {"n": 10}, False, False, False),
        ('T(n ~ "10??")', "T", {"n": 1e3}, False, True, False),
        ('T(n = "1e+22")', "T", {"n": 1e22}, False, True, False),
        ("T(1)", "T", {"n": 1.0, "junk": 1}, False, True, False),
        ('T(n = "[1]")', "T", {"n": [1.0]}, False, True, False),
        ("T([[]1])", "T", {"n": [1.0]}, False, True, False),
        ('T(n = "1")', "T", {"n": float("nan")}, False, False, False),
        ('T(n != "1")', "T", {"n": 1.0}, True, True, True),
        ('T(n != "1.0")', "T", {"n": 1.0}, False, False, False),
        ('T(n = "false")', "T", {"n": False}, True, True, True),
        ('T(s = "STRASSE")', "T", {"s": "straße"}, False, True, False),
    ],
)
def test_three_ways(text: str, tool: str, args: dict[str, Any], exact: bool, wide: bool, allowed: bool) -> None:
    pattern = compile_pattern(text)
    found = pattern.matches(tool, args), pattern.matches_wide(tool, args), pattern.matches_allowed(tool, args)
    assert found == (exact, wide, allowed)


def test_specificity() -> None:
    rising = [
        "/B.*/",
        '/B.*/(f = "x")',
        "B*",
        "B*(x)",
        "Bash",
        "Bash(x)",
        'Bash(f =~ "x")',
        'Bash(f ~ "x")',
        'Bash(f = "x")',
        'Bash(f =~ "x", g =~ "y")',
        'Bash(f =~ "x", g ~ "y")',
        'Bash(f = "x", g =~ "y")',
        'Bash(g = "x", f !~ "y")',
    ]
    ranks = [compile_pattern(text).specificity for text in rising]
    assert ranks == sorted(set(ranks))
    assert compile_pattern("Bash(*)").specificity == compile_pattern("Bash").specificity


@pytest.mark.parametrize(
    ("text", "exact_tool", "needs_args"),
    [("Bash", "Bash", False), ("Bash(*)", "Bash", False), ("Bash(x)", "Bash", True), ("B*", None, False), ("/B/", None, False)],
)
def test_what_indexes_read(text: str, exact_tool: str | None, needs_args: bool) -> None:
    pattern = compile_pattern(text)
    assert (pattern.text, pattern.exact_tool, pattern.needs_args) == (text, exact_tool, needs_args)
    assert pattern.matches_name("B" if exact_tool is None else "Bash")
    assert not pattern.matches_name("bash")


@pytest.mark.parametrize(
    ("text", "facts", "holds"),
    [
        ('complete = "true"', {"complete": True}, True),
        ('complete = "true"', {"complete": False}, False),
        ('complete = "true"', {}, False),
        (' a ~ "x*" , b.c != "y" ', {"a": "xy", "b": {"c": "z"}}, True),
        (' a ~ "x*" , b.c != "y" ', {"a": "xy", "b": {"c": "y"}}, False),
        ('a = "X"', {"a": "x"}, False),
    ],
)
def test_conditions(text: str, facts: dict[str, Any], holds: bool) -> None:
    assert compile_conditions(text).holds(facts) is holds


@pytest.mark.parametrize("text", ["", " ", "complete", "complete = true", "*", 'a = "b" )', 'T(a = "b")'])
def test_conditions_refused(text: str) -> None:
    with pytest.raises(PatternError):
        compile_conditions(text)


@pytest.mark.parametrize(
    ("text", "tool", "args", "lines"),
    [
        ("Bash", "bash", {}, ["name: `bash` matches only widely", "arguments: any match"]),
        (
            "Bash(rm *)",
            "Bash",
            {"c": "rm x", "j": "\u202e"},
            ["name: `Bash` matches", 'arguments: the primary argument `{"c":"rm x","j":"\\u202e"}` matches only widely'],
        ),
        (
            'T(a ~ "x*", b = "y", c[*] = "z")',
            "U",
            {"a": "x" * 500, "c": []},
            [
                "name: `U` does not match",
                f'a ~ "x*": `{"x" * 200}` matches',
                'b = "y": does not match, for the arguments have no such field',
                'c[*] = "z": does not match, for the arguments have no such field',
            ],
        ),
        (
            'T(a[*] = "x", b[*] = "x", c[*] = "x")',  # of many values the one that decides is shown
            "T",
            {"a": ["w", "X", "x"], "b": ["w", "X"], "c": ["w", "v"]},
            [
                "name: `T` matches",
                'a[*] = "x": `x` matches',
                'b[*] = "x": `X` matches only widely',
                'c[*] = "x": `w` does not match',
            ],
        ),
    ],
)
def test_explain(text: str, tool: str, args: dict[str, Any], lines: list[str]) -> None:
    assert compile_pattern(text).explain(tool, args) == lines


# --- properties ------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["T", "t", "T*", "[!A-S]", "?", "/T|U/", "/[^a-z]/"])
VALUES = st.sampled_from(["", "a*", "*A", "?", "[!a]*", "{a,ß}*", "ss", "1", "[[]*", "true", "[{]*", "[A-_]*"])
REGEXES = st.sampled_from(["", "a", "^A$", "[^a-z]", "(a|aa)+$", "ß", "\\\\d"])
FIELDS = st.sampled_from(["a", "b", "a.b", "*", "a[*]", "a[0]", "*.b", "b[*].a"])
CONDITIONS = st.one_of(
    st.tuples(FIELDS, st.sampled_from(["~", "=", "!~", "!="]), VALUES),
    st.tuples(FIELDS, st.sampled_from(["=~", "!=~"]), REGEXES),
).map(lambda parts: '{} {} "{}"'.format(*parts))
INSIDES = st.one_of(
    st.just(""),
    st.just("(*)"),
    VALUES.filter(bool).map("({})".format),
    st.lists(CONDITIONS, min_size=1, max_size=2).map(lambda all_: f"({', '.join(all_)})"),
)
PATTERNS = st.tuples(NAMES, INSIDES).map("".join)
SCALARS = st.none() | st.booleans() | st.integers(-1, 2**70) | st.floats(-2, 2) | st.text("aAßsS1\n/", max_size=3)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
ARGUMENTS = st.dictionaries(st.sampled_from("abA"), JSON, max_size=3)
TOOLS = st.sampled_from(["T", "t", "U", "a", "TT"])


@given(PATTERNS, TOOLS, ARGUMENTS)
def test_allowed_implies_exact_implies_wide(text: str, tool: str, args: dict[str, Any]) -> None:
    pattern = compile_pattern(text)
    assert pattern.matches_allowed(tool, args) <= pattern.matches(tool, args) <= pattern.matches_wide(tool, args)


@given(VALUES.filter(bool), ARGUMENTS, JSON)
def test_neither_junk_nor_a_capital_shakes_a_restriction_off(glob: str, args: dict[str, Any], junk: Any) -> None:
    pattern = compile_pattern(f"T({glob})")
    if len(args) == 1 and pattern.matches("T", args):
        assert pattern.matches_wide("t", {**args, "junk": junk})
        assert pattern.matches_wide("t", {"other": junk, **args})


@given(PATTERNS | st.sampled_from(['T(a = "1.0")', 'T(*.b = "2e0")', "T(1)"]), ARGUMENTS)
def test_a_point_behind_a_whole_number_shakes_no_restriction_off(text: str, args: dict[str, Any]) -> None:
    pattern, whole = compile_pattern(text), written_whole(args)
    assert args_digest("T", whole) == args_digest("T", args)
    if "!" not in text and pattern.matches_wide("T", whole):
        assert pattern.positional or pattern.matches_wide("T", args)


def written_whole(value: Any) -> Any:
    """With `1` for `1.0`."""
    if isinstance(value, dict):
        return {key: written_whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [written_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@given(ARGUMENTS, JSON)
def test_junk_gives_a_grant_nothing(args: dict[str, Any], junk: Any) -> None:
    if args:
        assert not compile_pattern("T(**)").matches_allowed("T", {**args, "junk": junk})


@given(st.text('T(f~=!"*[]{}/, \\)a.', max_size=20))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    try:
        pattern = compile_pattern(text)
    except PatternError as error:
        offset = error.at
    else:
        offset = 0
        assert pattern.matches("T", {"f": "a"}) <= pattern.matches_wide("T", {"f": "a"})
    assert 0 <= offset <= len(text)


@pytest.mark.parametrize(
    "text", ['T(f =~ "(a|aa)+$")', 'T(f ~ "*a*a*a*a*b")', "T(*a*a*a*a*b)", 'T(f =~ "(.*)*b$")', 'T(*[*].x[*] = "b")']
)
def test_a_mebibyte_from_an_attacker(text: str) -> None:
    args = {"f": "a" * (1 << 20) + "c", "g": [{"x": ["y"] * 100}] * 100}
    pattern = compile_pattern(text)
    start = process_time()
    assert not pattern.matches("T", args)
    assert not pattern.matches_wide("T", args)
    assert process_time() - start < 2  # backtracking would take longer than the universe is old; the rest is a busy machine


HEADS = ["T", "t", "U", "*", "**", "T*", "/T|U/", "/.*/"]
PARENTHESES = [
    "",
    "(*)",
    "(x)",
    '(a ~ "*")',
    '(a ~ "x*")',
    '(a = "x")',
    '(a !~ "*")',
    '(a[*] ~ "*")',
    '(b = "x", a = "x")',
    '(a ~ "")',
]
GIVEN: list[dict[str, Any]] = [
    {},
    {"a": "x"},
    {"a": ""},
    {"a": ["x"]},
    {"a": []},
    {"b": "x", "a": "x"},
    {"b": "x"},
    {"c": "x"},
]


def test_what_is_said_to_take_all_of_another_s_calls_does() -> None:
    patterns = [compile_pattern(name + inside) for name in HEADS for inside in PARENTHESES]
    said = [(mine, other) for mine in patterns for other in patterns if mine.takes_all(other)]
    assert len(said) > 500
    for mine, other in said:
        for tool, args in itertools.product(("T", "t", "U", "Tx"), GIVEN):
            assert mine.matches(tool, args) or not other.matches(tool, args), (mine.text, other.text, tool, args)
