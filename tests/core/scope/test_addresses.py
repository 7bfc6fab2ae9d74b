from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.scope.addresses import (
    LONGEST_WIDE_HOST,
    embedded_ipv4,
    host_forms,
    hosts_in,
    is_spelled_address,
    names_of,
    parse_host,
)
from gated.core.scope.effort import Effort

METADATA = "169.254.169.254"


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("E.Test", "e.test"),
        ("e.test.", "e.test"),
        ("e.test..", "e.test."),
        ("e.test:8080", "e.test"),
        ("b\u00fccher.example", "xn--bcher-kva.example"),
        ("\u24d4.test", "e.test"),
        ("0x7f.1", "127.0.0.1"),
        ("[0:0::1]:80", "[::1]"),
        ("e test", None),
        ("", None),
        ("1.2.3.4.5", None),
        ("e.test:99999", None),
        ("[::1%eth0]", None),
        ("\u00e9" * (LONGEST_WIDE_HOST + 1), None),
    ],
)
def test_parse_host(text: str, host: str | None) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize(
    "text",
    [
        *("2852039166", "0xa9fea9fe", "0XA9FEA9FE", "025177524776", "169.254.43518", "169.16689662", "0251.0376.0251.0376"),
        *("0xa9.0xfe.0xa9.0xfe", "169.254.169.254.", "0000000251.254.169.254", "2852039166:80", "0xa9fea9fe:8080"),
        *("::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "[::ffff:a9fe:a9fe]", "[::ffff:a9fe:a9fe]:80", "::a9fe:a9fe"),
        *("64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:0:a9fe:a9fe", "64:ff9b:1::a9fe:a9fe"),
        *("2001:0:0:0:0:0:5601:5601", "2001:0:a9fe:a9fe::", "fe80::5efe:a9fe:a9fe", "fe80::200:5efe:a9fe:a9fe"),
        *(
            "::ffff:a9fe:a9fe%eth0",
            "[::ffff:a9fe:a9fe%25eth0]",
            "\u2460\u2465\u2468.254.169.254",
            "169\u3002254\u3002169\u3002254",
        ),
        *(
            "root@2852039166",
            "2852039166/latest",
            "u:p@0xa9fea9fe:80?x",
            "::ffff:a9fe:a9fe/x",
            "0169.0254.0169.0254",
            "169.254.169.0254:80",
            "x//2852039166",
            "http:2852039166",
            "http:/0xa9fea9fe/",
            "see https://u:p@2852039166:80/x now",
            "\\\\2852039166\\s",
        ),
        *(
            "?u=http://2852039166&v=1",
            "(http://2852039166)",
            "//a@2852039166@b",
            "//[::ffff:a9fe:a9fe]:80/",
            "{//2852039166}",
        ),
    ],
)
def test_hosts_in_finds_the_metadata_address(text: str) -> None:
    assert METADATA in list(hosts_in(text, Effort()))


@pytest.mark.parametrize("text", ["24", "1700000", "00000005", "12:30", "12:30:45", "00:11:22:33:44:55", "//24", "a.b", "", "//"])
def test_a_number_is_just_a_number(text: str) -> None:
    assert list(hosts_in(text, Effort())) == []
    assert not is_spelled_address(text)


def test_a_number_that_is_certainly_a_host_is_an_address() -> None:
    assert host_forms("24") == ("0.0.0.24",)
    assert host_forms("a b") == ()


@pytest.mark.parametrize("text", ["1.2", "0x1", "[::1]", "::", "fe80::1", "0x7f.1:80", "\u2460.\u2461"])
def test_spelled_addresses(text: str) -> None:
    assert is_spelled_address(text)


@given(st.ip_addresses(v=4))
def test_every_fixed_embedding_is_undone(address: ipaddress.IPv4Address) -> None:
    four = address.packed
    spellings = [
        b"\x00" * 10 + b"\xff\xff" + four,
        b"\x00" * 12 + four,
        b"\x00" * 8 + b"\xff\xff\x00\x00" + four,
        b"\x00\x64\xff\x9b" + b"\x00" * 8 + four,
        b"\x00\x64\xff\x9b\x00\x01" + four[:2] + b"\x00" + four[2:] + b"\x00" * 5,
        b"\x00\x64\xff\x9b\x00\x01" + b"\x07" + four[:1] + b"\x00" + four[1:] + b"\x00" * 4,
        b"\x00\x64\xff\x9b\x00\x01" + b"\x07\x07\x00" + four + b"\x00" * 3,
        b"\x00\x64\xff\x9b\x00\x01" + b"\x00" * 6 + four,
        b"\x20\x02" + four + b"\x00" * 10,
        b"\x20\x01\x00\x00" + four + b"\x00" * 8,
        b"\x20\x01\x00\x00" + b"\x01\x02\x03\x04" + b"\x00" * 4 + bytes(byte ^ 255 for byte in four),
        b"\xfe\x80" + b"\x00" * 6 + b"\x00\x00\x5e\xfe" + four,
        b"\x20\x01\x0d\xb8" + b"\x00" * 4 + b"\x02\x00\x5e\xfe" + four,
    ]
    for packed in spellings:
        assert str(address) in embedded_ipv4(packed)
        host = parse_host(f"[{ipaddress.IPv6Address(packed)}]")
        assert host is not None
        assert str(address) in names_of(host)


def test_an_ordinary_address_embeds_nothing() -> None:
    assert embedded_ipv4(ipaddress.IPv6Address("2001:db8::a9fe:a9fe").packed) == ()
    assert names_of("e.test") == ("e.test",)
