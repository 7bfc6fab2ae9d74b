"""The data-scope section, sentence by sentence, as tables: scope, resources of the tool, arguments -> the outcome."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gated.core.scope import DataScope, Resources, Scope, ScopeError, ScopeFinding, SelectorError, compile_scope

ANALYST = DataScope(
    allowed_databases=["analytics"],
    allowed_tables={"analytics": ["orders", "customers"]},
    allowed_api_endpoints=["https://api.internal.example.com"],
    allowed_paths=["/workspace"],
    base_path="/workspace",
)
OPEN = DataScope(
    allowed_api_endpoints=["http://169.254.169.254", "http://[64:ff9b::a9fe:a9fe]", "https://ok.test:8443"],
)
NET = DataScope(
    allowed_api_endpoints=["https://e.test/v1", "plain.test"],
    allowed_paths=["/w"],
    base_path="/w",
    allowed_databases=["db"],
)
TOOLS = {
    "fetch": Resources(args={"url": "url"}),
    "Read": Resources(args={"file_path": "path"}),
    "f": Resources(args={"o": "path", "o.x": "none", "u": "url", "p": "path", "h": "host", "t": "table"}),
    "edit": Resources(args={"operations[*].path": "path"}),
    "chat.reply": Resources(args={"text": "none"}),
    "glob": Resources(args={"path": "path", "pattern": "path"}),
}


def check(scope: DataScope | None, tool: str, args: dict[str, Any]) -> ScopeFinding:
    return compile_scope(scope, TOOLS).check(tool, args)


ALLOWED: list[tuple[DataScope | None, str, dict[str, Any]]] = [
    # tables
    (ANALYST, "query_metrics", {"table": "analytics.orders"}),
    (NET, "query", {"table": "db.anything-at_all$"}),
    (NET, "f", {"t": "db.a"}),
    # an empty scope denies only what looks like a resource
    (None, "query_metrics", {"table": "orders"}),
    (None, "send_email", {"to": "ana@ours.example", "body": "Version 1.2 is out."}),
    (None, "search", {"id": "24", "since": "1700000000"}),
    (None, "search", {"rate": 1.5, "n": 2852039166, "deep": [None, True, {"k": [1.25]}]}),
    (None, "search", {"at": "12:30", "took": "12:30:45", "mac": "00:11:22:33:44:55", "share": "50%", "tag": "a/b"}),
    (
        None,
        "search",
        {"q": "a question: yes or no?", "answer": "A: yes", "price": "5 $", "emoji": "\U0001f469\u200d\U0001f4bb done"},
    ),
    # endpoints and hosts under them, compared parsed
    (ANALYST, "fetch", {"url": "https://api.internal.example.com/v1/users?x=1"}),
    (ANALYST, "fetch", {"url": "HTTPS://API.internal.example.com:443/v1"}),
    (ANALYST, "fetch", {"url": "https://api.internal.example.com./"}),
    (ANALYST, "fetch", {"url": "https://\uff41\uff50\uff49\u3002internal.example.com/"}),
    (ANALYST, "fetch", {"url": "https://eu.api.internal.example.com/"}),
    (ANALYST, "fetch", {"url": ["https://api.internal.example.com/a", "https://api.internal.example.com/b"]}),
    (ANALYST, "fetch", {"url": None}),
    (ANALYST, "search", {"u": "https://api.internal.example.com/"}),
    (ANALYST, "search", {"host": "api.internal.example.com"}),
    (ANALYST, "search", {"host": "API.internal.example.com.:443"}),
    (OPEN, "fetch", {"url": "https://ok.test:8443/x"}),
    (NET, "f", {"u": "https://e.test/v1/x"}),
    (NET, "f", {"u": "https://e.test/v1"}),
    (NET, "f", {"u": "https://e.test/v2/../v1/a%20b"}),
    (NET, "f", {"u": "https://plain.test/"}),
    (NET, "f", {"u": "http://sub.plain.test/group%2Fproject"}),
    (NET, "f", {"h": "plain.test"}),
    (NET, "f", {"h": "plain.test:80"}),
    (NET, "f", {"h": "e.test"}),
    # selectors
    (NET, "f", {"o": {"x": "/etc/passwd", "y": "a"}}),
    (NET, "f", {"o": {"x": {"http://evil.test/": ["/etc"]}}}),
    (ANALYST, "edit", {"operations": [{"mode": "Line", "path": "/workspace/a"}, {"path": "b"}]}),
    (ANALYST, "chat.reply", {"text": "memory"}),
    (ANALYST, "chat.reply", {"text": "see http://169.254.169.254/ and /etc/passwd"}),
]

DENIED: list[tuple[DataScope | None, str, dict[str, Any], str]] = [
    (ANALYST, "query_metrics", {"table": "analytics.salaries"}, "`analytics.salaries`"),
    (ANALYST, "query_metrics", {"table": "hr.orders"}, "`hr.orders`"),
    (ANALYST, "query_metrics", {"table": "Analytics.orders"}, "`Analytics.orders`"),
    (ANALYST, "query_metrics", {"table": "analytics.orders\n"}, "analytics.orders"),
    (NET, "g", {"p": "db.a.b"}, "`db.a.b`"),
    (NET, "f", {"t": "orders"}, "`database.table`"),
    (NET, "f", {"t": "db.a b"}, "`database.table`"),
    (NET, "f", {"t": 1.5}, "`1.5`"),
    (None, "query_metrics", {"table": "analytics.orders"}, "(argument `table`)"),
    (None, "search", {"filters": [{"source": "hr.salaries"}]}, "(argument `filters[0].source`)"),
    # the looks, one by one
    (None, "g", {"x": " hr.salaries\u200b "}, "hr.salaries"),
    (None, "g", {"x": "hr%2Esalaries"}, "hr%2Esalaries"),
    (None, "g", {"x": "hr.salaries%20"}, "hr.salaries%20"),
    (None, "g", {"x": "hr\u3002salaries"}, "looks like a resource"),
    (None, "g", {"x": "hr\uff0esalaries"}, "looks like a resource"),
    (None, "g", {"x": "/etc/passwd"}, "`/etc/passwd`"),
    (None, "g", {"x": "\n/etc/passwd"}, "control character"),
    (None, "g", {"x": "%2fetc%2fpasswd"}, "path"),
    (None, "g", {"x": "~"}, "`~`"),
    (None, "g", {"x": "~root"}, "`~`"),
    (None, "g", {"x": "./a"}, "base_path"),
    (None, "g", {"x": "../a"}, "base_path"),
    (None, "g", {"x": "\\etc"}, "`/etc`"),
    (None, "g", {"x": "C:\\Windows"}, "drive letter"),
    (None, "g", {"x": "c:secret"}, "drive letter"),
    (None, "g", {"x": "a/../../etc"}, "base_path"),
    (None, "g", {"x": "a\\..\\b"}, "base_path"),
    (None, "g", {"x": ".\u200b./.\u200b./etc"}, "base_path"),
    (None, "g", {"x": "\u2025/etc"}, "base_path"),
    (None, "g", {"x": "%c0%ae%c0%ae/etc"}, "escaped"),
    (None, "g", {"x": "$HOME"}, "variable"),
    (None, "g", {"x": "see gopher://internal"}, "URL"),
    (None, "g", {"x": "https:evil"}, "endpoint"),
    (None, "g", {"x": "ht\ntps:evil"}, "looks like a resource"),
    (None, "g", {"x": "file:etc"}, "endpoint"),
    (None, "g", {"x": "0x7f000001"}, "looks like a resource"),
    (None, "g", {"x": "0X7F000001"}, "looks like a resource"),
    (None, "g", {"x": "[::1]"}, "looks like a resource"),
    (None, "g", {"x": "fe80::1"}, "looks like a resource"),
    (None, "g", {"x": "\u2460.\u2461"}, "looks like a resource"),
    (None, "g", {"hr.salaries": 1}, "(argument `<key>`)"),
    (None, "g", {"m": {"/etc": 1}}, "(argument `m.<key>`)"),
    # endpoints
    (ANALYST, "fetch", {"url": "https://api.internal.example.com.evil.test/"}, "endpoint"),
    (ANALYST, "fetch", {"url": "https://evil.test/?q=.api.internal.example.com"}, "endpoint"),
    (ANALYST, "fetch", {"url": "https://api.internal.example.com@evil.test/"}, "user-info"),
    (ANALYST, "fetch", {"url": "http://api.internal.example.com/"}, "endpoint"),
    (ANALYST, "fetch", {"url": "https://evilapi.internal.example.com/"}, "endpoint"),
    (ANALYST, "fetch", {"url": "https://api.internal.example.com:444/"}, "endpoint"),
    (ANALYST, "fetch", {"url": "https://api.internal.example.com../"}, "endpoint"),
    (ANALYST, "fetch", {"url": "wss://api.internal.example.com/"}, "endpoint"),
    (ANALYST, "fetch", {"url": "blob:https://api.internal.example.com/"}, "endpoint"),
    (ANALYST, "fetch", {"url": "api.internal.example.com"}, "does not parse"),
    (ANALYST, "fetch", {"url": "//api.internal.example.com/"}, "does not parse"),
    (ANALYST, "fetch", {"url": ""}, "does not parse"),
    (ANALYST, "fetch", {"url": 5}, "does not parse"),
    (ANALYST, "fetch", {"url": True}, "does not parse"),
    (ANALYST, "fetch", {"url": {"https://api.internal.example.com/": "evil.test"}}, "does not parse"),
    (ANALYST, "search", {"host": "api.internal.example.com:8443"}, "looks like a resource"),
    (ANALYST, "search", {"host": "api.internal.example.com/x"}, "looks like a resource"),
    (ANALYST, "search", {"host": "api.internal.example.com?x"}, "looks like a resource"),
    (ANALYST, "search", {"host": "api.internal.example.com#x"}, "looks like a resource"),
    (ANALYST, "search", {"host": "//api.internal.example.com"}, "two slashes"),
    (OPEN, "fetch", {"url": "http://ok.test:8443/x"}, "endpoint"),
    (OPEN, "fetch", {"url": "https://ok.test/x"}, "endpoint"),
    (OPEN, "f", {"h": "ok.test"}, "allowed host"),
    (NET, "f", {"u": "https://e.test/v1x"}, "endpoint"),
    (NET, "f", {"u": "https://e.test/V1/x"}, "endpoint"),
    (NET, "f", {"u": "https://plain.test:8443/"}, "endpoint"),
    (NET, "f", {"u": "ftp://plain.test/"}, "endpoint"),
    (NET, "f", {"h": "plain.test:8443"}, "allowed host"),
    (NET, "f", {"h": "e.test:80"}, "allowed host"),
    (NET, "f", {"h": "x@plain.test"}, "bare host"),
    (NET, "f", {"h": "plain.test\t"}, "bare host"),
    (NET, "f", {"h": "https://plain.test"}, "bare host"),
    (NET, "f", {"h": 24}, "`0.0.0.24`"),
    # selectors and nesting
    (NET, "f", {"o": {"y": "/etc/passwd"}}, "`/etc/passwd` (argument `o.y`)"),
    (NET, "f", {"o": {"/etc/passwd": 1}}, "`/etc/passwd` (argument `o.<key>`)"),
    (ANALYST, "Read", {"file_path": ["/etc/passwd"]}, "`/etc/passwd`"),
    (ANALYST, "edit", {"operations": [{"mode": "Line", "path": "/etc/shadow"}]}, "(argument `operations[0].path`)"),
    (ANALYST, "edit", {"operations": {"path": "/etc/shadow"}}, "`/etc/shadow`"),
    # what looks like nothing and reaches something
    (ANALYST, "search", {"f": "/etc/passwd"}, "`/etc/passwd`"),
    (ANALYST, "search", {"u": "http:/2852039166/"}, "169.254.169.254"),
    (ANALYST, "search", {"m": {"http://169.254.169.254/": 1}}, "169.254.169.254"),
    (ANALYST, "search", {"q": "2852039166"}, "169.254.169.254"),
    (ANALYST, "search", {"q": "2852039166:80"}, "169.254.169.254"),
    # an undeclared value is a path only if it begins like one
    (ANALYST, "search", {"f": "src/main.rs"}, "looks like a resource"),
    (ANALYST, "search", {"f": "README.md"}, "looks like a resource"),
]


@pytest.mark.parametrize(("scope", "tool", "args"), ALLOWED, ids=lambda value: ascii(value) if isinstance(value, dict) else "")
def test_allowed(scope: DataScope | None, tool: str, args: dict[str, Any]) -> None:
    assert check(scope, tool, args).denied is None


@pytest.mark.parametrize(
    ("scope", "tool", "args", "reason"), DENIED, ids=lambda value: ascii(value) if isinstance(value, dict) else ""
)
def test_denied(scope: DataScope | None, tool: str, args: dict[str, Any], reason: str) -> None:
    finding = check(scope, tool, args)
    assert finding.denied is not None
    assert reason in finding.denied
    assert finding.resource is not None


def test_any_checks_nothing() -> None:
    assert compile_scope("any", TOOLS).check("f", {"p": "http://169.254.169.254/"}) == ScopeFinding(None)


def test_an_absent_scope_is_an_empty_one() -> None:
    assert check(None, "g", {"x": "/a"}) == check(DataScope(), "g", {"x": "/a"})


def test_forbidden_wins_over_an_allowed_endpoint_in_every_spelling() -> None:
    for url in ("http://169.254.169.254/", "http://0xa9fea9fe/", "http://[64:ff9b::a9fe:a9fe]/", "http://169.254.169.254./"):
        finding = check(OPEN, "fetch", {"url": url})
        assert finding.denied is not None
        assert "forbidden" in finding.denied


@pytest.mark.parametrize(
    "host",
    [
        *("2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "[::ffff:169.254.169.254]"),
        *("[::ffff:a9fe:a9fe]", "[::169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]"),
        *("[::ffff:0:a9fe:a9fe]", "0.0.0.0", "[::]", "[fec0::1]"),
    ],
)
def test_pain_metadata_and_loopback_through_another_spelling(host: str) -> None:
    for args in ({"url": f"http://{host}/"}, {"q": f"http://{host}/"}, {"q": [{f"http://{host}/": 1}]}):
        assert check(ANALYST, "fetch", args).denied is not None


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com:password@malicious.com",
        "https://example.com%20@malicious.com",
        "https://example.com%3A@malicious.com",
        "https://example.com%3Ap@malicious.com",
        "http://example.com\\@evil.test/",
        "https://example.com\t/",
        "https://example.com/\r\n",
        "https://@example.com/",
        "https://:@example.com/",
        "https:me@example.com/",
        "https:\\\\example.com/",
        "https://example.com/\x7f",
    ],
)
def test_pain_user_info_and_what_parsers_read_differently(url: str) -> None:
    finding = compile_scope(DataScope(allowed_api_endpoints=["example.com"]), TOOLS).check("fetch", {"url": url})
    assert finding.denied is not None
    assert "password" not in finding.denied


def test_pain_pattern_is_joined_to_path() -> None:
    scope = compile_scope(
        DataScope(allowed_paths=["/Users/u"], base_path="/Users/u/deep/er", forbidden_patterns=["/Users/u/Private/"]), TOOLS
    )
    assert scope.check("glob", {"path": "/Users/u", "pattern": "*"}).denied is None
    for path, pattern in (
        ("/Users/u/Private", "*"),
        ("/Users/u", "Private/*"),
        ("/Users/u/x/", "../private/**"),
        ("/Users/u", "../v/*"),
        ("/Users/u", "%2e%2e/v/*"),
    ):
        assert scope.check("glob", {"path": path, "pattern": pattern}).denied is not None


def test_joining_is_bounded() -> None:
    scope = compile_scope(ANALYST, {"t": Resources(args={"a": "path", "b": "path"})})
    many = ["x"] * 101
    assert scope.check("t", {"a": many, "b": many[1:]}).denied is not None
    assert scope.check("t", {"a": many[:100], "b": "y"}).denied is None


def test_pain_a_folder_above_a_forbidden_name_is_not_that_name() -> None:
    """A forbidden pattern denies a name. What a recursive tool meets below a folder is not in its arguments."""
    scope = compile_scope(DataScope(allowed_paths=["/w"], base_path="/w", forbidden_patterns=["/w/.env"]), TOOLS)
    assert scope.check("Read", {"file_path": "."}).denied is None
    assert scope.check("Read", {"file_path": "./.env"}).denied is not None


def test_an_allow_that_rests_on_a_path_says_so() -> None:
    assert check(ANALYST, "Read", {"file_path": "src/main.rs"}) == ScopeFinding(None, lexical=True)
    assert check(ANALYST, "g", {"f": "/workspace/a"}) == ScopeFinding(None, lexical=True)
    assert check(ANALYST, "g", {"f": "https://api.internal.example.com/a/../b"}) == ScopeFinding(None)


def test_forbidden_patterns_reach_every_string_and_key_but_none() -> None:
    scope = compile_scope(DataScope(forbidden_patterns=["Top Secret"], allowed_databases=["db"]), TOOLS)
    for args in ({"q": "very TOP secret"}, {"q": [{"top secret": 1}]}, {"top SECRET": None}, {"q": "top%20secret"}):
        finding = scope.check("g", args)
        assert finding.denied is not None
        assert "`Top Secret`" in finding.denied
    assert scope.check("chat.reply", {"text": "top secret"}).denied is None
    assert scope.check("f", {"t": "db.top"}).denied is None


def test_a_declared_host_is_an_address_however_small_its_number() -> None:
    scope = compile_scope(DataScope(forbidden_patterns=["0.0.0.0"], allowed_api_endpoints=["0.0.0.0"]), TOOLS)
    for args in ({"h": 0}, {"h": "0"}, {"h": " 0 "}):
        finding = scope.check("f", args)
        assert finding.denied is not None
        assert "forbidden" in finding.denied
    assert scope.check("f", {"n": "0"}).denied is None


def test_a_pattern_that_ends_with_a_slash_matches_the_folder_itself() -> None:
    scope = compile_scope(DataScope(allowed_paths=["/w"], base_path="/w", forbidden_patterns=["/w/private/"]), TOOLS)
    assert scope.check("f", {"p": "private"}).denied is not None
    assert scope.check("f", {"p": "private.txt"}).denied is None


def test_a_url_with_dots_is_refused_as_a_url() -> None:
    finding = check(ANALYST, "g", {"x": "https://evil.test/a/../b"})
    assert finding.denied is not None
    assert "`https://evil.test/b` (argument `x`) is not inside an allowed endpoint" in finding.denied


def test_the_given_patterns_replace_the_default() -> None:
    scope = DataScope(forbidden_patterns=[], allowed_api_endpoints=["http://169.254.169.254"])
    assert check(scope, "fetch", {"url": "http://169.254.169.254/"}).denied is None


def test_a_reason_is_capped_and_cannot_act_on_a_terminal() -> None:
    finding = check(None, "g", {"k\u202e`\x1b" * 200: {"/\u202e`\x1b[2J" + "a" * 5000: 1}})
    assert finding.denied is not None
    assert len(finding.denied) < 3000
    assert not any(character in finding.denied for character in "\u202e\x1b")
    assert finding.denied.count("`") == 4


def test_the_first_denial_does_not_depend_on_the_order_of_keys() -> None:
    first = check(None, "g", {"b": "/b", "a": [{"z": "/z", "y": "/y"}]})
    second = check(None, "g", {"a": [{"y": "/y", "z": "/z"}], "b": "/b"})
    assert first == second


def test_depth_and_breadth() -> None:
    deep: dict[str, Any] = {"k": "/etc"}
    for _ in range(2000):
        deep = {"k": [deep]}
    assert check(ANALYST, "g", deep).denied is not None
    wide: list[Any] = ["plain"] * 10_000
    assert check(ANALYST, "g", {"w": wide}).denied is None
    assert check(ANALYST, "g", {"w": [*wide, "/etc"]}).denied is not None


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "unit",
    ["/", "//a", "//[::1]", "%25", "%", "http:", "\u00e9", "@", " /", "[::", ":", "../", "0", "a.", "\u0301\u0323", "\t"],
)
def test_the_cost_is_linear(unit: str) -> None:
    """Half a megabyte of what makes careless expressions and parsers quadratic: hours, if one of ours were."""
    text = unit * (500_000 // len(unit))
    scope = compile_scope(ANALYST, TOOLS)
    for args in ({"q": text}, {"u": text}, {"q": f"http://{text}"}, {"h": text}, {"p": text[:4000]}):
        scope.check("f", args)


class TestResolve:
    scope = compile_scope(DataScope(allowed_paths=["/w"], base_path="/w", resolve=True, forbidden_patterns=["/w/private"]), TOOLS)

    def test_asks_for_the_paths_inside_with_their_dots(self) -> None:
        args = {"p": ["a/./link/../b", "/etc/passwd"], "u": "https://x.test/", "q": "/w/c", "n": "plain"}
        assert sorted(self.scope.paths_to_resolve("f", args)) == ["/w/a/./link/../b", "/w/c"]

    def test_every_reading_of_a_path_is_resolved(self) -> None:
        assert self.scope.paths_to_resolve("f", {"p": "a%20b"}) == ("/w/a%20b", "/w/a b")

    def test_allows_by_what_was_recorded_and_is_not_lexical(self) -> None:
        assert self.scope.check("f", {"p": "a"}, {"/w/a": "/w/real/a"}) == ScopeFinding(None)

    @pytest.mark.parametrize(
        ("resolved", "reason"),
        [
            (None, "no recorded resolution"),
            ({}, "no recorded resolution"),
            ({"/w/a": "relative"}, "no recorded resolution"),
            ({"/w/a": "/outside/a"}, "`/outside/a`"),
            ({"/w/a": "/w/../outside"}, "`/outside`"),
            ({"/w/a": "/w-evil"}, "symbolic link"),
            ({"/w/a": "/w/private/a"}, "forbidden"),
        ],
    )
    def test_denies_otherwise(self, resolved: dict[str, str] | None, reason: str) -> None:
        finding = self.scope.check("f", {"p": "a"}, resolved)
        assert finding.denied is not None
        assert reason in finding.denied

    def test_a_record_widens_nothing(self) -> None:
        assert self.scope.check("f", {"p": "/etc/a"}, {"/etc/a": "/w/a"}).denied is not None

    def test_nothing_is_asked_where_nothing_is_resolved(self) -> None:
        assert compile_scope(ANALYST, TOOLS).paths_to_resolve("Read", {"file_path": "a"}) == ()
        assert compile_scope("any", TOOLS).paths_to_resolve("Read", {"file_path": "a"}) == ()

    def test_too_many_to_join_ask_for_nothing(self) -> None:
        many = ["x"] * 101
        assert self.scope.paths_to_resolve("f", {"p": many, "o": many}) == ()


def decode(text: str) -> DataScope:
    return msgspec.json.decode(text, type=DataScope)


def test_the_rules_are_read_from_the_policy_file() -> None:
    assert decode("{}") == DataScope()
    assert decode("{}").forbidden_patterns == ["169.254.169.254"]
    assert decode('{"allowed_tables": {"a": ["b"]}}').allowed_tables == {"a": ["b"]}
    assert msgspec.json.decode('{"args": {"a.b": "path"}}', type=Resources).args == {"a.b": "path"}
    for text, kind in (('{"alowed_paths": []}', DataScope), ('{"args": {"a": "file"}}', Resources), ('{"a": 1}', Resources)):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(text, type=kind)


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        (DataScope(allowed_api_endpoints=["e.test:8443"]), "`e.test:8443` is neither a host nor a URL"),
        (DataScope(allowed_api_endpoints=["*.e.test"]), "subdomains are included"),
        (DataScope(allowed_paths=["src"]), "`src` is relative"),
        (DataScope(base_path="src"), "base_path: `src`"),
        (DataScope(allowed_databases=["a.b"]), "allowed_databases: `a.b`"),
        (DataScope(allowed_databases=["a"], allowed_tables={"a": ["b c"]}), "allowed_tables.a: `b c`"),
        (DataScope(allowed_tables={"a": []}), "`a` is not in `allowed_databases`"),
        (DataScope(forbidden_patterns=[" "]), "forbidden_patterns"),
    ],
)
def test_what_could_never_mean_what_it_says_is_an_error(scope: DataScope, said: str) -> None:
    with pytest.raises(ScopeError) as error:
        compile_scope(scope, {})
    assert said in str(error.value)


def test_a_bad_selector_names_its_tool() -> None:
    with pytest.raises(SelectorError, match=r"`a\.\.b` is no selector") as caught:
        compile_scope(None, {"f": Resources(args={"a..b": "path"})})
    assert caught.value.path == ("tools", "f", "resources", "args", "a..b")


def test_a_compiled_scope_is_reused() -> None:
    scope: Scope = compile_scope(ANALYST, TOOLS)
    first = scope.check("Read", {"file_path": "../x"})
    assert scope.check("Read", {"file_path": "x"}).denied is None
    assert scope.check("Read", {"file_path": "../x"}) == first
