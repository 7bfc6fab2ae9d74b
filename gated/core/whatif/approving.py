"""Whether people's approval of a call would have let it run under another policy."""

from __future__ import annotations

from msgspec.structs import replace

from gated.core import tickets, trial, waiting
from gated.core.turn import Turn
from gated.core.verdicts import Judged
from gated.events import ResolutionReceived, TicketOpened


def why_void(
    turn: Turn, judged: Judged, ticket: TicketOpened, said: ResolutionReceived, asked: frozenset[str] | None
) -> str | None:
    """None: it holds. `ticket` has all its answers; of those to an edit only the editor's counts, who alone saw its arguments.

    `asked` are the sources of what the people were asked about, None where that is all that is asked about now.
    """
    if judged.decided.decision == "deny":
        return f"the call would be denied: {judged.decided.reason}"
    if judged.decided.decision == "allow":
        return None  # nobody need be asked
    opened = waiting.ticket_for(turn, (judged,), atomic=False)
    expires_at = ticket.opened_at + opened.expires_at - opened.opened_at
    if any(answer.at > expires_at for answer in ticket.answers):
        return "the ticket would have expired before this answer"
    if said.answers and not all(rule.may_answer for rule in opened.rules):
        return "nobody could have answered for the tool"
    answers = ticket.answers if said.args is None else ticket.answers[-1:]
    answered = tickets.open_ticket(replace(opened, opened_at=ticket.opened_at, answers=answers))
    if not tickets.satisfied(answered, turn.policy.approvals.groups):
        return "who approved it could not have done so alone"
    if asked is not None and not trial.sources(judged) <= asked:
        return f"people would be asked again: {judged.decided.reason}"
    return None
