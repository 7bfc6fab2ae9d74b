"""What one message can make redaction do is bounded, and beyond the bound whatever is not looked at is taken out."""

from typing import Any
from unicodedata import combining, normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.redaction.recorded import POLICY, Gate
from gated.core.redaction.cover import restored
from gated.core.redaction.detectors import finder
from gated.core.redaction.forms import compatible, forms
from gated.core.redaction.redactor import MOST
from gated.core.redaction.rules import ESCAPES, SEARCH, Limit
from gated.events import AbortRequested, CallDecided, CallId, IntentsReceived, OutcomeReported, Sender, TicketOpened

ALL = finder(("secrets", "email", "card", "ssn", "iban", "phone"))


def longest(text: str) -> int:
    """The most marks that one character has, and so what it costs to put them in order."""
    most = run = 0
    for character in text:
        run = run + 1 if combining(character) else 0
        most = max(most, run)
    return most


@pytest.mark.parametrize("marks", ["\u0315\u0300", "\u0344", "\u0300", "\u1dce\u0315\u0334"])
def test_no_character_keeps_marks_without_end(marks: str) -> None:
    assert longest(compatible("a" + marks * 5000)) <= 90
    assert longest(forms("password=abcd" + marks * 5000)[-1]) <= 90


@given(st.text(max_size=60))
def test_what_people_write_is_made_plain_as_unicode_says(text: str) -> None:
    if longest(normalize("NFKD", text)) <= 20 and "\ufdfa" not in text and "\ufdfb" not in text:
        assert compatible(text) == normalize("NFKC", text)


def test_a_secret_among_marks_is_still_found() -> None:
    noise = "\u0315\u0300" * 20_000
    gate = Gate()
    gate.ask(
        "c1", "look", text=f"{noise} password=hunter22 {noise}", wide="\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44=hunter33"
    )
    assert "hunter22" not in gate.text()
    assert "hunter33" not in gate.text()


@pytest.mark.parametrize("secret", ["ana%40x.example", "%70assword%3Dhunter22"])
def test_escapes_beyond_the_limit_are_taken_out_unread(secret: str) -> None:
    gate = Gate()
    gate.ask("c1", "look", noise="%41" * ESCAPES, text=secret, q="plain", c="100%")
    args = gate.body().observation.calls[0].args  # type: ignore[union-attr]
    assert secret not in gate.text()
    assert args["q"] == "plain"
    assert "redacted" in args["c"], "nobody looked"


def test_numbers_beyond_the_limit_are_taken_for_what_they_look_like() -> None:
    limit = Limit(left=SEARCH + 5)
    assert ALL.kind_of("4111 1111 1111 1112", limit) is None, "no card, by its check digit"
    assert ALL.kind_of("4111 1111 1111 1112", limit) == "card"
    assert ALL.kind_of("in plain words", limit) is None


def test_the_calls_of_one_message_share_the_limit() -> None:
    gate = Gate()
    args = {"noise": "%41" * (ESCAPES // 2 + 1)}
    gate.ask("w", "look")
    wanted = gate.body().observation.calls[0]  # type: ignore[union-attr]
    calls = tuple(_with(wanted, f"c{number}", args) for number in range(2))
    gate.say(IntentsReceived(Sender("agent", "a"), calls))
    first, second = gate.body().observation.calls  # type: ignore[union-attr]
    assert (first.args == args, "redacted" in second.args["noise"]) == (True, True)


def _with(wanted: Any, call: str, args: dict[str, Any]) -> Any:
    return type(wanted)(id=CallId(call), tool="look", args=args)


def test_of_too_many_secrets_the_whole_is_taken_out() -> None:
    gate = Gate()
    secrets = {f"n{number}": f"password=hunter{number:05}" for number in range(MOST + 1)}
    decided = gate.ask("c1", "pay", **secrets, to="ana@x.example")
    body = gate.body()
    assert body.observation.calls[0].args.keys() == {"redacted", "sha256"}  # type: ignore[union-attr]
    assert body.redacted == ("calls[0].args",)
    assert decided.decision == "suspend"
    opened = next(d for d in body.decisions if isinstance(d, TicketOpened))
    shown = opened.calls[0].args
    assert restored(shown, shown, {**secrets}) == secrets
    gate.say(OutcomeReported(Sender("agent", "a"), CallId("c1"), "error", content=secrets, facts=secrets))
    assert "hunter" not in gate.text()
    gate.restart()


def test_texts_made_of_too_much_are_left_out_as_well() -> None:
    gate = Gate(POLICY.replace('fields: [note, "send(body)"]', "fields: [list, to]"))
    gate.ask("c0", "send", to="the whole of it", list=[])
    gate.say(OutcomeReported(Sender("agent", "a"), CallId("c0"), "success"))
    gate.ask("c1", "send", to="the whole of it", list=[f"password=hunter{number:05}" for number in range(MOST + 1)])
    verdict = next(d for d in gate.body().decisions if isinstance(d, CallDecided))
    assert verdict.decision == "deny"
    assert "the whole of it" not in gate.text()


def test_words_with_more_secrets_than_are_taken_out_are_left_out_whole() -> None:
    """Each was cut out of the whole text by itself: the reason of an abort could hold up a gate for a minute."""
    gate = Gate()
    gate.ask("c1", "send", to="x")
    gate.say(AbortRequested(Sender("agent", "a"), "http://ana:hunter22@x " * 40_000))
    assert "hunter" not in gate.text()
    said = gate.body().observation
    assert isinstance(said, AbortRequested)
    assert said.reason.startswith("[redacted many ")
    gate.restart()
