"""What the detectors find, in whatever spelling, and what they leave alone."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.redaction.detectors import DetectorName, finder
from gated.core.redaction.personal import is_card, is_iban
from gated.core.redaction.redactor import AHEAD, FEW, SHORT, RedactEntry, Redactor, compile_redactor
from gated.core.redaction.rules import Limit
from gated.core.redaction.secrets import is_telling, rules

EVERYTHING = finder(get_args(DetectorName))

FOUND = {
    "secrets": [
        "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        "curl -H 'authorization: basic dXNlcjpwYXNz'",
        "postgres://u:pw@h",
        "postgres://u:pw@h/db?sslmode=on",
        "password=hunter22",
        'password: "correct horse"',
        "PGPASSWORD=s3cretvalue psql",
        "export API_KEY=abcd1234",
        "https://example.com/cb?access_token=abcd1234&x=1",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "a1B2" * 9,
        "glpat-" + "x" * 20,
        "xoxb-123456789012-abcdefghijkl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----",
        "eyJhbGciOiJIUzI1NiJ9",
        "password%3Dhunter22",
    ],
    "email": [
        "ana@x.example",
        "write to <ana.b+c@mail.example.org>, please",
        "ana%40x.example",
        "\uff41\uff4e\uff41\uff20x.example",
    ],
    "card": [
        "4111111111111111",
        "4111 1111 1111 1111",
        "4111-1111-1111-1111",
        "4111.1111.1111.1111",
        "\uff14\uff11\uff11\uff11 1111 1111 1111",
    ],
    "ssn": ["123 45 6789", "123-45-6789", "123.45.6789", "SSN 123456789", "ssn: 123456789"],
    "iban": ["DE89370400440532013000", "DE89 3704 0044 0532 0130 00", "GB82-WEST-1234-5698-7654-32"],
    "phone": ["+49 30 12345678", "+1 (555) 123-4567", "(555) 123-4567", "555.123.4567", "555-123-4567", "0049 30 1234567"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in FOUND.items() for text in texts])
def test_found(kind: str, text: str) -> None:
    assert EVERYTHING.kind_of(text) == kind
    assert EVERYTHING.suspects(f"before\n{text}\nafter")
    assert EVERYTHING.kind_of(f"before {text} after") == kind


@pytest.mark.parametrize(
    "text",
    [
        "late orders 17",
        "my password is not written here",
        "the token count was 55",
        "src/module/file_name.py",
        "2026-11-30T08:12:11.123456Z",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "4111111111111112",  # the check digit is another
        "0000 0000 0000 0000",
        "000-12-3456",
        "DE00 3704 1044 0532 0130 11",
        "order 123456789",
        "@mention and a@b",
        "https://api.internal.example.com/v1/orders?page=2",
        "[redacted email 1a2b3c4d5e6f]",
        "select * from secret_table",
    ],
)
def test_left_alone(text: str) -> None:
    assert EVERYTHING.kind_of(text) is None
    assert EVERYTHING.spans(text, 9) == []


TEXTS = st.sampled_from([text for texts in FOUND.values() for text in texts]) | st.text(max_size=20) | st.just("AKCa1B2c3D4e5F6")


@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=4))
def test_what_is_expected_is_answered_as_it_is_without(coming: list[str], asked: list[str]) -> None:
    plainly, expecting = (compile_redactor(RedactEntry(detectors=get_args(DetectorName)), {}) for _ in range(2))
    calls = [{"text": text} for text in coming]
    expecting.expect(iter(calls))
    for call in (*calls, *({"text": text} for text in (*coming, *asked))):
        assert expecting.suspects(call) == plainly.suspects(call)


def looking() -> tuple[Redactor, list[str]]:
    """A redactor that finds nothing, and the texts that it looks at."""
    redactor, looks = compile_redactor(RedactEntry(), {}), list[str]()

    class Looks:
        def suspects(self, text: str) -> bool:
            looks.append(text)
            return False

    redactor.finder = Looks()  # type: ignore[assignment]
    return redactor, looks


def test_what_is_expected_is_looked_at_together() -> None:
    redactor, looks = looking()
    calls = [{"path": f"src/f{number}.py"} for number in range(3)]
    redactor.expect(iter(calls))
    assert not any(map(redactor.suspects, calls))
    assert looks == ["path\nsrc/f0.py\npath\nsrc/f1.py\npath\nsrc/f2.py"]


class Parts(dict[str, Any]):
    """A map that counts how often its values are looked at."""

    walked = 0

    def values(self) -> Any:
        self.walked += 1
        return super().values()


@pytest.mark.parametrize(
    "large",
    [
        {"text": "x" * (SHORT + 1)},
        {f"n{number}": "x" for number in range(SHORT)},
        {"numbers": list(range(FEW))},
        {"lists": [[number] for number in range(FEW // 2)]},
        {"k" * SHORT: "x"},
    ],
    ids=["text", "keys", "numbers", "lists", "key"],
)
def test_what_is_large_is_not_looked_at_ahead(large: dict[str, Any]) -> None:
    redactor, looks = looking()
    small, inner = {"path": "a"}, Parts(path="b")
    redactor.expect(iter([large, {"large": [*range(FEW), inner]}, small]))
    assert not redactor.suspects(small)
    assert (looks, inner.walked) == (["path\na"], 0)
    assert not redactor.suspects(large)
    assert len(looks) == 2, "by itself"


def test_no_more_than_so_much_is_looked_at_ahead_however_much_comes() -> None:
    redactor, looks = looking()
    calls = [{"text": "x" * 100} for _ in range(AHEAD // 100)]
    left = iter(calls)
    redactor.expect(left)
    assert not redactor.suspects(calls[0])
    assert len(looks) == 1
    assert len(looks[0]) <= AHEAD
    assert len(list(left)) > len(calls) / 3
    assert not redactor.suspects(calls[-1])
    assert looks[1:] == ["text\n" + "x" * 100], "by itself"


def test_only_what_is_asked_for() -> None:
    assert finder(("card",)).kind_of("ana@x.example") is None
    assert not finder(()).suspects("password=hunter22")
    assert finder(()).spans("password=hunter22", 9) == []


def test_spans_are_in_order_and_apart() -> None:
    text = "from ana@x.example to bob@y.example with password=hunter22"
    assert [text[s.start : s.end] for s in EVERYTHING.spans(text, 9) or ()] == [
        "ana@x.example",
        "bob@y.example",
        "password=hunter22",
    ]


def test_spans_are_counted_no_farther_than_is_asked() -> None:
    text = "ana@x.example " * 3
    assert (EVERYTHING.spans(text, 2), len(EVERYTHING.spans(text, 3) or ())) == (None, 3)


@pytest.mark.parametrize(
    ("key", "telling"),
    [
        ("password", True),
        ("dbPassword", True),
        ("x-api-key", True),
        ("client_secret", True),
        ("Authorization", True),
        ("refresh_token", True),
        ("max_tokens", False),
        ("author", False),
        ("secretary", False),
        ("key", False),
    ],
)
def test_keys_that_tell_of_a_secret(key: str, telling: bool) -> None:
    assert is_telling(key) is telling


def test_the_rules_of_the_library_are_all_there() -> None:
    """Each compiles in RE2 (else making a finder raises); a new version of the library that has fewer is noticed here."""
    assert len(rules()) >= 40


@pytest.mark.parametrize("length", [1000, 1_000_000])
def test_a_long_text_is_read_in_one_pass(length: int) -> None:
    text = "a@" * (length // 2)
    assert not EVERYTHING.kind_of(text)


def test_check_digits() -> None:
    assert is_card("5555 5555 5555 4444", Limit())
    assert not is_card("5555 5555 5555 4445", Limit())
    assert is_iban("FR14 2004 1010 0505 0001 3M02 606", Limit())
    assert not is_iban("FR14 2004 1010 0505 0001 3M02 607", Limit())


def test_a_number_is_found_behind_others() -> None:
    assert EVERYTHING.kind_of("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 4111 1111 1111 1111 17") == "card"
    assert EVERYTHING.kind_of("ref AB12 and DE89 3704 0044 0532 0130 00 please") == "iban"


def test_a_message_cannot_buy_time() -> None:
    """What is left unchecked counts as found."""
    limit = Limit(100)
    assert finder(("card",)).kind_of("1 " * 10_000, limit) == "card"
    assert limit.left < 0
    assert finder(("card",)).kind_of("2 " * 50, limit) == "card"
