"""What the words of an expression tell before a parser sees it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.tokens import MAX_LENGTH, MAX_MACRO_DEPTH, MAX_NESTING, TokenError, read_tokens


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("tool", {("tool",)}),
        ("args.amount", {("args", "amount")}),
        ("args . amount", {("args", "amount")}),
        ("args // why\n.amount", {("args", "amount")}),
        ('run.counts["a-b"].x', {("run", "counts", "a-b", "x")}),
        ("run.counts[tool]", {("run", "counts"), ("tool",)}),
        ("args.exists(k, k == 'x')", {("args",), ("k",)}),
        ("args.list.size()", {("args", "list")}),
        ('args["a\\"b"]', {("args",)}),
        ('r"\\" == args.x', {("args", "x")}),
        ("'args.y' == args.x", {("args", "x")}),
        ("'''it's run.x''' == args.x", {("args", "x")}),
        ("1.5e3 < args.x", {("args", "x")}),
        ("args.`a-b`.c", {("args", "a-b", "c")}),
        ("args.", {("args",)}),
        ("// args.x", set()),
    ],
)
def test_paths(text: str, paths: set[tuple[str, ...]]) -> None:
    assert read_tokens(text).paths == paths


@pytest.mark.parametrize(
    ("text", "macros", "depth"),
    [
        ("a.all(x, x > 0)", 1, 1),
        ("a.all(x, x) && b.exists(y, y)", 2, 1),
        ("a.map(x, b.filter(y, y > x))", 2, 2),
        ("all(x)", 0, 0),
        ("a.all == 1", 0, 0),
        ("'a.all(x, y)'", 0, 0),
        ("a.all // c\n (x, x)", 1, 1),
    ],
)
def test_macros(text: str, macros: int, depth: int) -> None:
    tokens = read_tokens(text)
    assert (tokens.macros, tokens.macro_depth) == (macros, depth)


def test_literal_lists_and_sums_are_counted() -> None:
    tokens = read_tokens("([1, 2, 3] + a + b).all(x, x > 0)")
    assert (tokens.literal, tokens.sums) == (4, 3)  # the comma of the macro counts too: a bound, not a count


def test_caps_are_inclusive() -> None:
    assert read_tokens("a" * MAX_LENGTH).paths
    assert not read_tokens("(" * MAX_NESTING + "1" + ")" * MAX_NESTING).paths
    assert read_tokens("a.all(x, " * MAX_MACRO_DEPTH + "x" + ")" * MAX_MACRO_DEPTH).macro_depth == MAX_MACRO_DEPTH


@pytest.mark.parametrize(
    "text",
    [
        "a" * (MAX_LENGTH + 1),
        "(" * (MAX_NESTING + 1),
        "[" * 2000 + "]" * 2000,
        "a?" * (MAX_NESTING + 1),
        "a.all(x, " * (MAX_MACRO_DEPTH + 1) + "x" + ")" * (MAX_MACRO_DEPTH + 1),
    ],
)
def test_what_is_too_long_or_too_deep_is_refused(text: str) -> None:
    with pytest.raises(TokenError, match=r"at most|deeper"):
        read_tokens(text)


@given(st.text(alphabet="ab.('\"[]{}\\/\n r,?+1`", max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        tokens = read_tokens(text)
    except TokenError:
        return
    assert tokens.macros >= tokens.macro_depth
