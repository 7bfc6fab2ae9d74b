"""Who must answer, as the page of a ticket says it."""

import pytest

from gated.console.tickets_pages import rule_in_words
from gated.core.tickets import Ticket
from gated.events import AnswerRule, TicketId

TICKET = Ticket(TicketId("t"), (), "", (), (), 0, 0, 0, None, False, False)
GROUPS = {"leads": frozenset({"ana", "bob"})}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (AnswerRule(("user:bob",), excluded=("eve",)), "bob. Not eve, whose call it is"),
        (AnswerRule(("group:leads",)), "One of leads (ana, bob)"),
        (AnswerRule(("user:bob", "group:leads")), "One of bob or leads (ana, bob)"),
        (AnswerRule(("group:leads",), quorum=2), "2 of leads (ana, bob)"),
        (AnswerRule(stages=(("user:bob",), ("group:leads",))), "In turn: bob, then one of leads (ana, bob)"),
        (AnswerRule(anyone=True), "Any approver"),
        (AnswerRule(("user:bob",), escalate_to=("user:dee",)), "bob; later also dee"),
    ],
)
def test_a_rule_reads_as_a_person_would_say_it(rule: AnswerRule, words: str) -> None:
    assert rule_in_words(rule, TICKET, GROUPS) == words
