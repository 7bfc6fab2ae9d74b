"""The board of `gated tickets watch`: what its keys do, and that what it shows is what is there."""

from typing import Any

import pytest
from rich.console import Console

from gated.cli import ticket_text, watch
from gated.cli.board import Board, Wish


def line(number: int, **more: Any) -> dict[str, Any]:
    return {
        "ticket": f"t{number}",
        "thread": "r",
        "run": "r",
        "agent": "payer",
        "tool": "refund",
        "calls": 1,
        "preview": f'{{"amount":{number}}}',
        "args_bytes": len(f'{{"amount":{number}}}'),
        "hidden_bytes": 0,
        "asks": [{"code": "privilege.approval_required", "reason": "`refund` needs an approval"}],
        "rules": [{"approvers": ["group:leads"], "excluded": ["payer"]}],
        "answers": [],
        "escalated": False,
        "soon": False,
        "opened_at": "2026-01-02T03:04:05.000000Z",
        "expires_at": "2099-01-02T03:04:05.000000Z",
        **more,
    }


def full(number: int, args: Any = None, **more: Any) -> dict[str, Any]:
    calls = [{"call": "c", "tool": "refund", "args": args or {"amount": number}, "args_sha256": "ab" * 32}]
    return {**line(number, **more), "calls": calls}


def board(count: int = 3) -> Board:
    made = Board("ana")
    for number in range(count):
        made.put(line(number))
    return made


def text(made: Board, width: int = 80, rows: int = 24) -> str:
    console = Console(width=width, height=rows, force_terminal=False)
    with console.capture() as captured:
        console.print(made.screen(width, rows))
    return captured.get()


def press(made: Board, *keys: str) -> list[Wish]:
    return [wish for key in keys if (wish := made.press(key)) is not None]


def test_what_opens_stands_where_it_expires_and_what_was_chosen_stays_so() -> None:
    made = Board("ana")
    for number, expires in ((1, "2099-01-02"), (2, "2099-01-03"), (3, "2099-01-01")):
        made.put(line(number, expires_at=f"{expires}T03:04:05.000000Z"))
        assert made.selected() == line(1, expires_at="2099-01-02T03:04:05.000000Z")
    assert list(made.lines) == ["t3", "t1", "t2"]
    (wish,) = press(made, "down", "enter")
    assert wish.line["ticket"] == "t2"


def test_a_ticket_is_approved_only_from_its_own_page() -> None:
    made = board()
    (wish,) = press(made, "down", "a")
    assert (wish.kind, wish.line["ticket"]) == ("open", "t1")
    made.show(full(1))
    assert press(made, "a") == []  # it was not drawn yet
    text(made)
    (wish,) = press(made, "a")
    assert (wish.kind, wish.line["ticket"]) == ("approve", "t1")


@pytest.mark.parametrize("keys", [["pagedown"] * 14, [" "] * 14, ["down"] * 242, ["end"]])
def test_what_does_not_fit_is_approved_only_once_its_end_was_on_the_screen(keys: list[str]) -> None:
    """Found in a terminal: 3,000 lines below were never looked at."""
    made = board()
    made.show(full(0, {"body": "A" * 20_000, "last": 1}))
    assert "more lines" in text(made)
    assert press(made, "a") == []
    assert "lines below were not on the screen yet" in text(made)
    for key in keys[:-1]:
        made.press(key)
        text(made)
    assert press(made, "a") == []
    text(made)
    made.press(keys[-1])
    text(made)
    assert press(made, "a") == [Wish("approve", made.page or {})]
    made.show(full(1, {"body": "A" * 20_000}))
    text(made)
    assert press(made, "a") == []


def test_rejecting_takes_a_note_and_can_be_thought_over() -> None:
    made = board()
    assert press(made, "r", *"noq", "escape") == []
    (wish,) = press(made, "j", "r", *"no q!?", "backspace", "enter")
    assert (wish.kind, wish.line["ticket"], wish.note) == ("reject", "t1", "no q!")
    assert press(made, "q")[0].kind == "quit"


def test_the_choice_stays_with_its_ticket_and_moves_on_where_it_is_gone() -> None:
    made = board()
    press(made, "down")
    made.drop("t0", "is approved")
    assert made.chosen == "t1"
    made.drop("t1", "is rejected, by bob")
    assert made.chosen == "t2"
    made.drop("t2", "is expired")
    assert made.selected() is None
    assert press(made, "down", "enter", "a", "r") == []
    assert "no tickets wait" in text(made)


def test_whoever_looks_at_a_ticket_that_ends_is_told_and_cannot_answer_it() -> None:
    made = board()
    made.show(full(0))
    press(made, "r", "x")
    made.drop("t0", "is approved, by bob")
    assert "t0 is approved, by bob" in text(made)
    assert press(made, "enter")[0].kind == "open"


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_longer_than_the_terminal_and_no_screen_higher(width: int) -> None:
    made = board(300)
    press(made, *["pagedown"] * 7)
    made_list = text(made, width)
    made.show(full(70, {"rows": ["x" * 70] * 50}))
    for shown in (made_list, text(made, width)):
        lines = shown.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= width
    assert "more lines" in text(made, width)
    press(made, *["pagedown"] * 20)
    assert "more lines" not in text(made, width)


def test_what_agents_wrote_is_shown_as_text_and_what_is_hidden_is_counted() -> None:
    hostile = full(1, {"to": "[red]x[/] \u202e \x1b[2J"}, task="[b]t[/b]")
    assert "[red]x[/] \\u202e \\u001b[2J" in "\n".join(Console().render_str(part).plain for part in ticket_text.whole(hostile))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(ticket_text.listing([line(1, preview="{…", args_bytes=5000, hidden_bytes=4996)]))
    assert "+4,996 bytes" in captured.get()


def test_a_line_for_everything_counts_what_is_hidden_too(capsys: pytest.CaptureFixture[str]) -> None:
    watch._print(line(1, event="opened", preview="{…", args_bytes=5000, hidden_bytes=4996), json_lines=False)
    assert "refund {… +4,996 bytes  " in capsys.readouterr().out


def test_without_a_connection_it_says_so() -> None:
    made = board()
    made.away = True
    assert "no connection, this is how it was" in text(made)


def test_a_ticket_of_which_nobody_could_be_told_says_so() -> None:
    silent = full(1, undelivered=["ops", "mail"])
    assert "nobody could be told over[/]  ops, mail" in "\n".join(ticket_text.whole(silent))
    assert ticket_text.why(silent).startswith("(undelivered) ")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"anyone": True, "excluded": ["payer"]}, "anyone may answer (not payer)"),
        ({"approvers": ["group:leads", "user:cy"], "quorum": 2}, "2 of group:leads, user:cy"),
        ({"stages": [["group:leads"], ["group:finance"]]}, "in turn group:leads, then group:finance"),
        ({"approvers": ["user:pat"], "excluded": ["pat"], "self_approval": True}, "user:pat"),
        ({"approvers": ["user:a"], "escalate_to": ["group:b"]}, "user:a, or group:b"),
    ],
)
def test_who_may_answer_in_words(rule: dict[str, Any], words: str) -> None:
    assert ticket_text.who(line(1, rules=[rule], escalated=True)) == words


BY_ANA = {"answer": {"by": "ana"}}
REFUND = {"call": "c1", "tool": "refund"}


@pytest.mark.parametrize(
    ("state", "details", "words"),
    [
        ("pending", BY_ANA, "is answered by ana and still waits: others must answer too"),
        ("rejected", BY_ANA | {"verdicts": [REFUND | {"decision": "deny"}]}, "is rejected by ana: the agent is told"),
        ("approved", BY_ANA | {"verdicts": [REFUND | {"decision": "allow"}]}, "is approved by ana: `refund` may run now"),
        (
            "superseded",
            BY_ANA | {"verdicts": [REFUND | {"decision": "allow", "edited": True}]},
            "is edited by ana: `refund` may run now with the edited arguments",
        ),
        (
            "approved",
            BY_ANA | {"verdicts": [REFUND | {"decision": "allow", "execute": False}]},
            "is approved by ana: `refund` does not run, the agent gets the result that was given",
        ),
        (
            "approved",
            BY_ANA | {"verdicts": [REFUND | {"decision": "deny", "reason": "Step budget exhausted: 6/6"}]},
            "is approved by ana: `refund` is denied all the same: Step budget exhausted: 6/6",
        ),
        (
            "approved",
            BY_ANA | {"verdicts": [REFUND | {"decision": "suspend", "ticket": "t1.2"}]},
            "is approved by ana: `refund` still waits, for ticket t1.2",
        ),
        ("expired", {}, "is expired: nobody answered in time, so it is denied"),
        ("cancelled", {}, "is cancelled: its run has ended"),
        ("approved", BY_ANA, "is approved by ana"),
    ],
)
def test_what_an_answer_came_to_in_words(state: str, details: dict[str, Any], words: str) -> None:
    assert ticket_text.became({"ticket": "t1", "state": state, "details": details}) == words
