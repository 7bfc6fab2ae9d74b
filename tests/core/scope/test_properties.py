"""What must hold for every input, with respellings made from grammars."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from gated.core.scope import DataScope, Resources, Scope, compile_scope
from gated.core.scope.resources import compile_selectors
from gated.core.scope.rules import Kind

TOOLS = {"t": Resources(args={"u": "url", "h": "host", "p": "path", "n.*": "none", "l[*].p": "path", "d": "table"})}

# Everything that could let a request through, so that only the forbidden pattern can stop it.
WIDE_OPEN = compile_scope(
    DataScope(
        allowed_api_endpoints=[
            *("http://169.254.169.254", "https://169.254.169.254", "169.254.169.254", "http://[::ffff:a9fe:a9fe]"),
            *("http://[64:ff9b::a9fe:a9fe]", "http://[::a9fe:a9fe]", "http://[2002:a9fe:a9fe::]", "https://ok.test"),
            *("ftp://169.254.169.254", "ws://169.254.169.254"),
        ],
        allowed_paths=["/"],
        base_path="/",
    ),
    TOOLS,
)

OCTETS = (169, 254, 169, 254)
NUMBER_FORMS = (
    str,
    lambda n: f"0{n:o}",
    lambda n: f"00000{n:o}",
    lambda n: f"0x{n:x}",
    lambda n: f"0X{n:X}",
    lambda n: f"0x00{n:x}",
)


@st.composite
def ipv4_spelling(draw: st.DrawFn) -> str:
    parts = draw(st.integers(1, 4))
    numbers = [*OCTETS[: parts - 1], int.from_bytes(bytes(OCTETS[parts - 1 :]), "big")]
    text = ".".join(draw(st.sampled_from(NUMBER_FORMS))(number) for number in numbers)
    return text + (draw(st.sampled_from(["", "."])) if parts > 1 else "")


IPV6 = st.sampled_from(
    [
        *("::ffff:a9fe:a9fe", "::ffff:169.254.169.254", "0:0:0:0:0:FFFF:A9FE:A9FE", "::a9fe:a9fe", "::169.254.169.254"),
        *("64:ff9b::a9fe:a9fe", "64:ff9b::169.254.169.254", "2002:a9fe:a9fe::", "2002:A9FE:a9fe::1", "::ffff:0:a9fe:a9fe"),
        *("fe80::5efe:a9fe:a9fe", "2001:0:a9fe:a9fe::1", "64:ff9b:1::a9fe:a9fe"),
    ]
).map(lambda text: f"[{text}]")


@st.composite
def disguise(draw: st.DrawFn, host: str) -> str:
    """Characters that URL parsers or IDNA undo, each drawn apart."""
    if host.startswith("["):
        return host
    out = []
    for character in host:
        options = [character] * 6
        if character.isascii():
            options += [f"%{ord(character):02x}", f"%{ord(character):02X}", chr(ord(character) + 0xFEE0)]
            options += [f"{character}\u00ad", f"\u200b{character}", f"{character}\ufe0f"]
        if character == ".":
            options += ["\u3002", "\uff61", "\uff0e"]
        if character in "123456789":
            options.append(chr(0x2460 + int(character) - 1))
        out.append(draw(st.sampled_from(options)))
    return "".join(out)


HOSTS = st.one_of(ipv4_spelling(), IPV6).flatmap(disguise)
WRAPPERS = st.sampled_from(
    [
        *(
            "http://{}/",
            "http:/{}/",
            "http:{}",
            "HTTP://{}:80/x?y#z",
            "http:///{}/",
            "http:\\\\{}\\",
            "https://u:p@{}/",
            "ws://{}",
        ),
        *(
            "//{}/",
            "\\\\{}\\share",
            " http://{}/ ",
            "ht\ttp://{}/",
            "http\n://{}",
            "http:/\t/{}/",
            "see http://{}/ now",
            "ftp://{}/",
        ),
        *(
            "https://ok.test/?u=http://{}/",
            "https://ok.test/?u=http:{}&v=1",
            "https://ok.test/#//{}",
            "x://{}/",
            "(http://{})",
        ),
        *("https://ok.test/?u=http%3A%2F%2F{}%2F", "\u200bhttp://{}/", '{{"url": "http://{}/"}}', "http://{}"),
    ]
)
PLACES = st.sampled_from(["u", "h", "p", "d", "x"])


def put(place: str, text: str) -> list[dict[str, Any]]:
    return [
        {place: text},
        {place: [text]},
        {place: {text: 1}},
        {text: 1},
        {place: {"k": [{"k": text}]}},
        {"l": [{"p": text}]},
    ]


@given(HOSTS, WRAPPERS, PLACES)
def test_no_respelling_of_a_forbidden_host_in_a_url_is_allowed(host: str, wrapper: str, place: str) -> None:
    for args in put(place, wrapper.format(host)):
        assert WIDE_OPEN.check("t", args).denied is not None, args


@given(HOSTS, PLACES)
def test_no_respelling_of_a_forbidden_bare_host_is_allowed(host: str, place: str) -> None:
    for text in (host, host.strip("[]"), f"{host}:80", f" {host}\n"):
        for args in put(place, text):
            assert WIDE_OPEN.check("t", args).denied is not None, args


PIECES = st.lists(
    st.sampled_from(
        [
            *(
                "/",
                "\\",
                ".",
                "..",
                "../",
                "a",
                "w",
                "/w",
                "/w/",
                "etc",
                " ",
                "~",
                "$H",
                "C:",
                "%2e",
                "%2f",
                "%5c",
                "%25",
                "%252e",
            ),
            *(
                "%2e%2e%2f",
                "\u200b",
                "\uff0e",
                "\uff0f",
                "\u3002",
                "\u2025",
                "\uff052e",
                "\n",
                "\x00",
                "%00",
                "//",
                "http:",
                "%c0%ae",
                "-evil",
            ),
        ]
    ),
    max_size=10,
).map("".join)


def lands_in(path: str, root: str) -> bool:
    """The slow, obvious reading: walk from the root name by name."""
    at: list[str] = []
    for name in path.replace("\\", "/").split("/"):
        if name == ".." and at:
            at.pop()
        elif name not in ("", ".", ".."):
            at.append(name)
    return at[:1] == [root]


@given(PIECES, st.sampled_from(["p", "x"]))
def test_a_path_is_allowed_only_if_its_decoded_normal_form_is_inside(path: str, place: str) -> None:
    scope = compile_scope(DataScope(allowed_paths=["/w"], base_path="/w", forbidden_patterns=[]), TOOLS)
    finding = scope.check("t", {place: path})
    if finding.denied is None and (place == "p" or finding.lexical):
        decoded = unquote(path)
        for form in (path, path.strip(), decoded, decoded.strip(), decoded.replace("\u200b", "").replace("\uff0e", ".")):
            located = form if form.startswith(("/", "\\")) else f"/w/{form}"
            assert lands_in(located, "w")
            assert not re.match(r"[/\\]{2}|\s*~|[A-Za-z]:", form)
        assert not re.search(r"%[0-9a-fA-F]{2}", decoded)
        assert not re.search(r"[\x00-\x1f$]", decoded)
        assert finding.lexical


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | PIECES | HOSTS | WRAPPERS
KEYS = st.sampled_from(["u", "h", "p", "n", "l", "d", "k"]) | st.text(max_size=5)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)
ARGS = st.dictionaries(KEYS, JSON, max_size=4)
PATTERNS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=4).filter(str.strip), max_size=3)
LENIENT = DataScope(
    allowed_databases=["a"], allowed_api_endpoints=["ok.test"], allowed_paths=["/"], base_path="/", forbidden_patterns=[]
)


def with_patterns(patterns: list[str]) -> DataScope:
    return DataScope(
        allowed_databases=["a"],
        allowed_api_endpoints=["ok.test"],
        allowed_paths=["/"],
        base_path="/",
        forbidden_patterns=patterns,
    )


@given(ARGS)
def test_never_raises_and_says_what_it_denies(args: dict[str, Any]) -> None:
    for scope in (None, LENIENT):
        finding = compile_scope(scope, TOOLS).check("t", args)
        if finding.denied is not None:
            assert not finding.lexical
            assert len(finding.denied) < 3000
            assert not re.search("[\x00-\x1f\x7f\u202e\ud800-\udfff]", finding.denied)


@given(ARGS, PATTERNS, PATTERNS)
def test_one_more_forbidden_pattern_never_allows_more(args: dict[str, Any], some: list[str], more: list[str]) -> None:
    if compile_scope(with_patterns(some + more), TOOLS).check("t", args).denied is None:
        assert compile_scope(with_patterns(some), TOOLS).check("t", args).denied is None


@given(ARGS, PATTERNS)
def test_a_pattern_in_any_undeclared_string_denies(args: dict[str, Any], patterns: list[str]) -> None:
    scope = compile_scope(with_patterns(patterns), {})

    def holds(value: Any) -> bool:
        if isinstance(value, str):
            return any(pattern.casefold() in value.casefold() for pattern in patterns)
        if isinstance(value, dict):
            return any(holds(key) or holds(child) for key, child in value.items())
        return isinstance(value, list) and any(map(holds, value))

    if holds(args):
        assert scope.check("t", args).denied is not None


@given(ARGS)
def test_more_allowed_never_denies_more(args: dict[str, Any]) -> None:
    if compile_scope(None, TOOLS).check("t", args).denied is None:
        wider = DataScope(allowed_databases=["a"], allowed_api_endpoints=["ok.test"], allowed_paths=["/"], base_path="/")
        assert compile_scope(wider, TOOLS).check("t", args).denied is None


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(child) for child in value] if isinstance(value, list) else value


@given(ARGS)
def test_the_order_of_keys_changes_nothing(args: dict[str, Any]) -> None:
    scope = compile_scope(None, TOOLS)
    assert scope.check("t", args) == scope.check("t", reordered(args))


@given(ARGS)
def test_what_is_declared_none_is_never_looked_at(args: dict[str, Any]) -> None:
    scope = compile_scope(None, {"t": Resources(args={"n": "none"})})
    assert scope.check("t", {"n": args}).denied is None


@given(ARGS)
def test_resolving_never_allows_more(args: dict[str, Any]) -> None:
    rules = DataScope(allowed_paths=["/w"], base_path="/w", resolve=True)
    strict = compile_scope(rules, TOOLS)
    honest = {path: path for path in strict.paths_to_resolve("t", args)}
    plain = compile_scope(DataScope(allowed_paths=["/w"], base_path="/w"), TOOLS).check("t", args)
    assert (strict.check("t", args, honest).denied is None) == (plain.denied is None)
    if strict.check("t", args).denied is None:
        assert plain.denied is None


class Walked(Scope):
    """The scope without its short way: every call is walked."""

    def _allow_plainly(self, kinds: Mapping[str, Kind] | None, args: Mapping[str, Any]) -> None:
        return None


SHALLOW = {"t": compile_selectors("t", {"p": "path", "u": "url", "n": "none"})}
NAMES = st.sampled_from(["w", "src", ".env", "..", ".", "a.b", "-x", "_", "10", "0x7f", "169.254.169.254", "cafe", "w2", "", "~"])
PLAIN_PATHS = st.builds(str.__add__, st.sampled_from(["", "/", "./", "/w/"]), st.lists(NAMES, max_size=4).map("/".join))
SHALLOW_ARGS = st.dictionaries(
    st.sampled_from(["p", "n", "x", "file", "a/b"]), PLAIN_PATHS | st.integers() | st.lists(PLAIN_PATHS, max_size=1), max_size=3
)


@given(
    SHALLOW_ARGS,
    st.sampled_from([["/"], ["/w"], ["/w/src"], []]),
    st.sampled_from([None, "/w", "/w/src"]),
    st.sampled_from([[], ["169.254.169.254"], ["/src/"], ["ENV"], ["w/src"], ["127.0.0.0"]]),
)
def test_the_short_way_allows_nothing_that_the_walk_does_not(
    args: dict[str, Any], allowed: list[str], base: str | None, forbidden: list[str]
) -> None:
    rules = DataScope(allowed_paths=allowed, base_path=base, forbidden_patterns=forbidden)
    assert Scope(rules, SHALLOW).check("t", args) == Walked(rules, SHALLOW).check("t", args)
