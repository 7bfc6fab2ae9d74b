"""Random data scopes and arguments: hosts, URLs, paths and tables in many spellings."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from oracle.dice import Dice, Doc, pool

SCHEMES = ("http://", "https://", "HTTPS://", "http:/", "https:", "ftp://", "file:///", "x://", "ht\ttp://", "https%3A//")
HOSTS = (
    "e.test",
    "E.Test",
    "api.e.test",
    "e.test.evil.test",
    "plain.test",
    "e.test.",
    "e%2etest",
    "e\uff0etest",
    "localhost",
    "169.254.169.254",
    "169.254.169.254.",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "\uff11\uff16\uff19.254.169.254",
    "[::ffff:a9fe:a9fe]",
    "[::a9fe:a9fe]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a9fe:a9fe::]",
    "::ffff:169.254.169.254",
    "[::1]",
    "10.0.0.1",
    "24",
    "0x18",
)
USERS = ("", "", "", "", "", "", "x@", "@", "e.test@", "e.test%20@", "e.test:p@")
PORTS = ("", "", "", ":80", ":443", ":8443")
TAILS = (
    "",
    "/",
    "/v1",
    "/v1/",
    "/v1/x",
    "/v1x",
    "/v1/../x",
    "/v1/%2e%2e/x",
    "/v1%2fx",
    "/v1/a%5cb",
    "\\x",
    "?q=1",
    "#v1",
    "/x y",
)
ROOTS = ("", "", "/", "./", "../", "//", "\\", "\\\\", "/\\", "~/", "$HOME/", "$5/", "C:/", "C:", " /", "\n/", "\u200b/", "%2f")
PARTS = (
    "w",
    "w",
    "w",
    "etc",
    "..",
    ".",
    "a b",
    "%2e%2e",
    "%252e",
    "w-evil",
    "x.y",
    "W",
    "a\x01b",
    "..%2f",
    "~",
    "\uff0e\uff0e",
    "",
)
TABLES = ("db.t", "db.u", "DB.t", "hr.t", "db.a.b", "db", "other.any", "db.t ", "d-b.t", "db.", "a$.t")
TEXTS = (
    "hello",
    "see 1.2 now",
    "ana@ours.example",
    "a:b",
    "12:30",
    "1.5",
    "",
    "v1.2",
    "e.g.",
    "secret",
    "SECRET-1",
    "%",
    "a%20b.c",
    "Q: why?",
)
PATTERNS: tuple[list[str], ...] = (
    [],
    ["secret"],
    ["169.254.169.254"],
    ["169.254.169.254", "Secret"],
    ["10.0.0.1"],
    ["/w/etc"],
    ["E.TEST"],
)
ENDPOINTS = (
    "https://e.test",
    "https://e.test/v1",
    "e.test",
    "plain.test",
    "http://e.test:8443",
    "http://169.254.169.254",
    "https://E.test/v1/",
    "http://[64:ff9b::a9fe:a9fe]",
)


def text(dice: Dice) -> str:
    kind = dice.pick(("url", "url", "host", "path", "path", "table", "text"))
    if kind == "url":
        return dice.pick(SCHEMES) + dice.pick(USERS) + dice.pick(HOSTS) + dice.pick(PORTS) + dice.pick(TAILS)
    if kind == "host":
        return dice.pick(HOSTS) + dice.pick(("", "", "", "", ":80", "/v1", "#x", " "))
    if kind == "path":
        return dice.pick(ROOTS) + dice.pick(("/", "/", "/", "\\", "//")).join(
            dice.pick(PARTS) for _ in range(dice.pick((1, 2, 3)))
        )
    return dice.pick(TABLES if kind == "table" else TEXTS)


def rules(dice: Dice) -> Doc:
    made: Doc = {}
    if dice.one_in(2):
        made["allowed_api_endpoints"] = dice.some(ENDPOINTS, 1, 3)
    if dice.one_in(2):
        made["allowed_paths"] = dice.pick((["/w"], ["/w", "/etc/w"], ["/"]))
        dice.maybe(made, 2, base_path=["/w", "/"])
    if dice.one_in(3):
        made["allowed_databases"] = ["db", "other"]
        dice.maybe(made, 2, allowed_tables=[{"db": ["t"]}, {"db": []}])
    dice.maybe(made, 2, forbidden_patterns=PATTERNS)
    return made


def selectors(dice: Dice) -> Doc:
    kinds = ("path", "url", "host", "table", "none")
    found = dice.some(("v", "v.x", "v[*]", "v[0].x", "*", "n"), 0, 2)
    return {selector: dice.pick(kinds) for selector in found}


def arguments(dice: Dice) -> Doc:
    made: Any = text(dice)
    if dice.one_in(3):
        made = dice.pick(
            ({"x": made}, [made], [{"x": made}], {made: 1}, {"x": {"y": [made, text(dice)]}}, {"x": None, "y": made})
        )
    return {"v": made, **({"n": dice.pick((text(dice), 2852039166, 1.5, None, True))} if dice.one_in(4) else {})}


@lru_cache
def _pools() -> tuple[list[Doc], list[Doc], list[Doc]]:
    return pool(rules, 300), pool(selectors, 200), pool(arguments, 5000)


@st.composite
def scopes(draw: st.DrawFn) -> tuple[Doc, Doc, Doc]:
    """`data_scope`, the tool's `resources.args`, and the arguments of a call."""
    scope, selected, args = _pools()
    return draw(st.sampled_from(scope)), draw(st.sampled_from(selected)), draw(st.sampled_from(args))


def thrown_scope(seed: int) -> tuple[Doc, Doc, Doc]:
    """The same from dice alone."""
    dice = Dice(seed)
    return rules(dice), selectors(dice), arguments(dice)


def policy_with(scope: Doc, selected: Doc) -> Doc:
    """A policy whose agent `a` may call `f` within the scope."""
    tools = {"f": {"resources": {"args": selected}}} if selected else {}
    agent = {"allowed_tools": ["f"], "checks": ["privilege"], "data_scope": scope}
    return {"version": 1, "agents": {"a": agent}, "tools": tools}
