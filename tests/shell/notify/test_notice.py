"""What a notice says: hostile arguments are only text, in Slack and in a mail."""

from typing import Any

import pytest

from gated.core.tickets import Ticket
from gated.events import AnswerRule, Ask, CallId, TicketCall, TicketId
from gated.shell.notify.notice import Notice, as_json, as_mail, as_slack, notice

EVIL = "</code> <!channel> <https://evil.example|click> ``` *bold* \u202e\u200b\r\nBcc: eve@x.example"


def made(args: dict[str, Any], event: str = "opened", reason: str = EVIL) -> Notice:
    call = TicketCall(CallId("c1"), "pay", args, "d" * 64)
    rule = AnswerRule(approvers=("user:ana",), escalate_to=("group:bosses",))
    ask = Ask("s", "contracts", "contracts.require", reason)
    ticket = Ticket(TicketId("t1"), (call,), "d" * 64, (ask,), (rule,), 10**15, 10**15 + 900_000_000, 10**15, None, False, False)
    return notice("t1-1-0", event, 10**15, "th", "r", "agent", ticket, "https://gate.example/")


@pytest.mark.parametrize("event", ["opened", "expiring_soon", "escalated", "closed"])
def test_hostile_arguments_are_text_in_slack(event: str) -> None:
    said = as_slack(made({"note": EVIL}, event))
    for block in said["blocks"]:
        text = block.get("text", {})
        if text.get("type") == "mrkdwn":
            assert "<" not in text["text"]
            assert text["text"].count("```") == 2
        assert len(text.get("text", "")) <= 3000
    assert "<" not in said["text"]


def test_hostile_arguments_are_text_in_a_mail() -> None:
    mail = as_mail(made({"note": EVIL}), "Gate <gate@x.example>", ["ana@x.example"])
    assert mail["Bcc"] is None
    assert mail["To"] == "ana@x.example"
    content = mail.get_content()
    assert "\u202e" not in content
    assert "\u200b" not in content
    assert "\nBcc:" not in content
    assert mail["Message-ID"] == "<t1-1-0@x.example>"


def test_what_is_not_shown_is_counted() -> None:
    said = made({"text": "x" * 100_000})
    assert said.hidden_bytes == len('{"text":""}') + 100_000 - 1500
    assert "more bytes: look at the whole ticket" in as_mail(said, "g@x", ["a@x"]).get_content()
    assert len(as_slack(said)["blocks"][2]["text"]["text"]) < 3000


def test_what_slack_has_no_room_for_is_counted_too() -> None:
    """`<` takes four characters there: 825 of them were cut, and one in its middle, and nothing was said of it."""
    (code,) = [block["text"]["text"] for block in as_slack(made({"t": "<" * 1400}))["blocks"] if "&lt;" in str(block)]
    shown = code.count("&lt;")
    assert code == '```{"t":"' + shown * "&lt;" + "```" + code[code.rindex("\n") :]
    assert f"({1400 - shown + 2:,} more bytes: look at the whole ticket" in code
    assert len(code) <= 3000


def test_the_other_calls_of_a_batch_are_hidden_and_counted() -> None:
    calls = tuple(TicketCall(CallId(f"c{n}"), "pay", {"n": n}, "d" * 64) for n in range(3))
    ticket = Ticket(TicketId("t1"), calls, "d" * 64, (), (), 0, 1, 0, None, True, False)
    assert notice("t1-1-0", "opened", 0, "th", "r", "agent", ticket, None).hidden_bytes == 2 * len('{"n":0}')


def test_who_may_answer_and_until_when() -> None:
    lines = as_mail(made({}), "g@x", ["a@x"]).get_content()
    assert "may answer: user:ana\n" in lines
    assert "(15m)" in lines
    assert "group:bosses" in as_mail(made({}, "escalated"), "g@x", ["a@x"]).get_content()
    assert as_json(made({}))["link"] == "https://gate.example/tickets/t1"
