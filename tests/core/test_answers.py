"""What people's answers lead to, where a scenario cannot say it."""

from gated.core.decide import step
from gated.core.policy import load_text
from gated.core.state import ThreadState
from gated.core.turn import Registry
from gated.events import (
    CallId,
    CallRefused,
    IntentsReceived,
    ResolutionReceived,
    RunId,
    Sender,
    ThreadId,
    TicketAnswered,
    TicketOpened,
    Wanted,
)

POLICY = """
version: 1
agents: {a: {allowed_tools: [wire], approval_required: [wire]}}
semantic: {judge: {nats: judge, tools: [wire]}}
approvals:
  default: {approvers: [user:ana], may_answer: true}
  rules: [{on: 'wire(much = "yes")', approvers: [user:ana], quorum: 2}]
"""


def test_detectors_are_asked_about_an_edit_before_its_result_is_turned_away() -> None:
    """Whether others must be asked may hang on what they say."""
    policy = load_text(POLICY, "policy.yaml")
    registry, run = Registry(policy, {policy.digest: policy}), RunId("r")
    asked = step(
        registry, ThreadState(ThreadId("t")), run, IntentsReceived(Sender("agent", "a"), (Wanted(CallId("c"), "wire"),)), 1
    )
    opened = next(d for d in asked.decisions if isinstance(d, TicketOpened))

    def edit(much: str) -> ResolutionReceived:
        ana = Sender("approver", "ana")
        more = {"args": {"much": much}, "result": "by hand", "answers": True}
        return ResolutionReceived(ana, opened.ticket, "approve", "d", opened.args_sha256, **more)  # type: ignore[arg-type]

    turned_away = step(registry, asked.state, run, edit("yes"), 2)
    assert [(d.code, d.ticket) for d in turned_away.decisions if isinstance(d, CallRefused)] == [
        ("approvals.may_not_answer", opened.ticket)
    ]
    assert [(u.call, u.value, u.detectors) for u in turned_away.unscored] == [("c", {"much": "yes"}, ("judge",))]
    assert turned_away.state.runs[run].tickets[opened.ticket].state == "pending"

    taken = step(registry, asked.state, run, edit("no"), 2)
    assert [d.state for d in taken.decisions if isinstance(d, TicketAnswered)] == ["superseded"]
    assert {u.call for u in taken.unscored} == {"c"}
