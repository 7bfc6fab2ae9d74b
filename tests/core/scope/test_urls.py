from __future__ import annotations

import pytest

from gated.core.scope.rules import ScopeError
from gated.core.scope.urls import Endpoint, Endpoints, hides_a_step, is_url_like, normal_url, parse, read_endpoint


def test_parse_takes_a_url_apart() -> None:
    url = parse("HTTPS://U:P@E.Test.:443/a/../b%2e/%2e%2E/c?q#f")
    assert url is not None
    assert url[:4] == ("https", "e.test", "", "/c")
    assert url.user_info
    assert url.text == "https://e.test./c?q#f"


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port"),
    [
        ("http:/2852039166/", "http", "169.254.169.254", ""),
        ("http:2852039166", "http", "169.254.169.254", ""),
        ("http://[::FFFF:1.2.3.4]:8080/", "http", "[::ffff:102:304]", "8080"),
        ("ftp://e.test:21/", "ftp", "e.test", ""),
        ("db://e.test:5432/x", "db", "e.test", "5432"),
        ("mailto:a", "mailto", "", ""),
        ("blob:http://e.test/", "blob", "", ""),
        ("file:///a", "file", "", ""),
    ],
)
def test_hosts_and_ports(text: str, scheme: str, host: str, port: str) -> None:
    url = parse(text)
    assert url is not None
    assert (url.scheme, url.host, url.port) == (scheme, host, port)


@pytest.mark.parametrize("text", ["", "e.test", "http://", "http://a b/", "http://\ud800/", "http://" + "\u00e9" * 256, "\u00e9"])
def test_no_url(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    "text", ["http://@e.test/", "http:x@e.test", "http:/\t/u@e.test/", "http://u:@e.test", "http://a@b@e.test"]
)
def test_user_info_even_if_empty(text: str) -> None:
    url = parse(text)
    assert url is not None
    assert url.user_info


def test_an_at_sign_elsewhere_is_no_user_info() -> None:
    for text in ("http://e.test/@x", "http://e.test?@x", "http://e.test#@x"):
        url = parse(text)
        assert url is not None
        assert not url.user_info


def test_no_password_is_shown() -> None:
    assert normal_url("https://u:secret@e.test/x") == "https://e.test/x"
    assert normal_url("https://u:secret@e.test:99999/x") == "https://e.test:99999/x"


def test_url_like() -> None:
    assert is_url_like("see a://b")
    assert is_url_like(" HTTP:x")
    assert not is_url_like("note: x")


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/%2e%2e/x", "/v1/%2E/x", "/v1/.%2e/x", "/v1/a%2fb", "/v1/a%5Cb", "/v1/%252e%252e/x", "/v1/a%25252fb"),
        *("/v1/..;/x", "/v1/..;a=b/x", "/v1/.;/x", "/v1/..%3b/x"),
    ],
)
def test_hidden_steps(path: str) -> None:
    written = f"https://e.test{path}?q=%2f"
    assert hides_a_step(written)
    assert Endpoints(["https://e.test/v1"]).refuse_url(f"https://e.test/v1{path}") is not None


@pytest.mark.parametrize("path", ["/v1/a%20b", "/v1/a%2eb", "/v1/../x", "/v1/a;b/c", "/v1/...;x", "/?q=%2f", "/#%2e%2e"])
def test_no_hidden_steps(path: str) -> None:
    assert not hides_a_step(f"https://e.test{path}")


@pytest.mark.parametrize(
    ("entry", "endpoint"),
    [
        ("https://E.test", Endpoint("https", "e.test", "", "")),
        ("https://e.test:443/", Endpoint("https", "e.test", "", "")),
        ("http://e.test:8080/v1/", Endpoint("http", "e.test", "8080", "/v1")),
        ("db://e.test:5432", Endpoint("db", "e.test", "5432", "")),
        ("E.test.", Endpoint(None, "e.test", "", "")),
        ("[::1]", Endpoint(None, "[::1]", "", "")),
        ("0x7f000001", Endpoint(None, "127.0.0.1", "", "")),
    ],
)
def test_entries(entry: str, endpoint: Endpoint) -> None:
    assert read_endpoint(entry) == endpoint


@pytest.mark.parametrize(
    "entry",
    [
        *("", " ", "e.test:8080", "e.test/v1", "localhost:80", "*.e.test", "https://*.e.test", "https://u@e.test", "a b"),
        *(
            "https://e.test?x",
            "https://e.test#x",
            "file:///a",
            "https://e.test/%2e%2e/x",
            "https:e.test",
            "e.test\n",
            "\\\\e",
        ),
        *("https://", "https://e.test:99999", "//e.test", "u@e.test"),
    ],
)
def test_bad_entries(entry: str) -> None:
    with pytest.raises(ScopeError, match="allowed_api_endpoints: `"):
        read_endpoint(entry)


def test_an_entry_that_is_an_address_has_no_subdomains() -> None:
    endpoints = Endpoints(["http://1.2.3.4", "http://[::1]"])
    assert endpoints.refuse_url("http://1.2.3.4/") is None
    assert endpoints.refuse_url("http://16909060/") is None
    assert endpoints.refuse_url("http://[0::1]/") is None
    assert endpoints.refuse_url("http://x.1.2.3.4/") is not None
    assert endpoints.refuse_url("http://[::ffff:1.2.3.4]/") is not None


@pytest.mark.parametrize("host", ["e.test", "E.TEST.", "a.e.test", "e.test:443", "e.test:0443", "e.test:", " e.test "])
def test_bare_hosts(host: str) -> None:
    assert Endpoints(["https://e.test"]).refuse_host(host) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "test",
        "xe.test",
        "e.test:80",
        "e.test:443:443",
        "e.test@x",
        "x@e.test",
        "e.test/",
        "e.te\tst",
        "e.test%2f",
        "e.test\x00",
        "\x80e.test",
        "e.test\x7f",
    ],
)
def test_other_bare_hosts(host: str) -> None:
    assert Endpoints(["https://e.test"]).refuse_host(host) is not None


def test_bare_ipv6_hosts() -> None:
    endpoints = Endpoints(["[::1]"])
    for host in ("::1", "[::1]", "[::1]:80", "0:0::1"):
        assert endpoints.refuse_host(host) is None
    for host in ("[::1]:81", "::2", "1::"):
        assert endpoints.refuse_host(host) is not None


def test_an_opaque_host_is_compared_exactly() -> None:
    endpoints = Endpoints(["db://e.test:5432"])
    assert endpoints.refuse_url("db://e.test:5432/x") is None
    assert endpoints.refuse_url("db://E.test:5432/x") is not None
    assert endpoints.refuse_url("db://e.test/x") is not None
