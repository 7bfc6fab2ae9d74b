"""The pages of tickets: the list, and one ticket with all that deciding it needs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from gated.console import forms, shown
from gated.console.desk import Visit
from gated.console.runs_pages import WINDOW, curves, machines, of_run, page_of
from gated.console.sight import sees_ticket
from gated.console.threads import Thread
from gated.core import tickets
from gated.core.policy import Policy
from gated.core.state import RunState
from gated.core.tickets import Ticket
from gated.events import Answer, AnswerRule, CallDecided, IntentsReceived, RunId, TicketAnswered, TicketId, TicketOpened
from gated.views import barriers_after

LARGE: Final = 50_000  # bytes of arguments from which they are laid out in a thread


class Case(Struct, frozen=True):
    """A ticket that a person may see, with all that the console knows of it. `opened` still has the arguments."""

    thread: Thread
    run_id: RunId
    run: RunState
    policy: Policy
    ticket: Ticket
    opened: TicketOpened

    @property
    def path(self) -> str:
        return f"/tickets/{self.thread.state.thread}/{self.run_id}/{self.ticket.id}"

    @property
    def groups(self) -> tickets.Groups:
        return self.policy.approvals.groups

    def decided(self) -> list[CallDecided]:
        """Every verdict that speaks of the ticket, in order."""
        bodies = self.thread.of(self.run_id)
        return [d for b in bodies for d in b.decisions if isinstance(d, CallDecided) and d.ticket == self.ticket.id]

    def followed_by(self) -> TicketId | None:
        """The ticket that the same call waits on now, where answering this one led to further asks."""
        call = self.opened.calls[0].call
        waits = (t.id for t in self.run.tickets.open.values() if any(each.call == call for each in t.calls))
        return next((ticket for ticket in waits if ticket != self.ticket.id), None)

    def asked(self) -> dict[str, Any] | None:
        """What the agent asked for at first, where an edit has changed it."""
        call = self.opened.calls[0].call
        for body in self.thread.of(self.run_id) if self.ticket.edited else ():
            if isinstance(body.observation, IntentsReceived):
                for wanted in body.observation.calls:
                    if wanted.id == call:
                        return wanted.args
        return None

    def became(self) -> dict[str, Any] | None:
        """What an edit made of the arguments, where it superseded this ticket."""
        for body in self.thread.of(self.run_id) if self.ticket.state == "superseded" else ():
            if any(
                isinstance(d, TicketAnswered) and (d.ticket, d.state) == (self.ticket.id, "superseded") for d in body.decisions
            ):
                opened = [d.calls[0].args for d in body.decisions if isinstance(d, TicketOpened)]
                decided = [d.args for d in body.decisions if isinstance(d, CallDecided) and d.args is not None]
                return next(iter([*opened, *decided]), None)
        return None

    def changes(self) -> list[shown.DiffLine]:
        """What an edit has changed: on the ticket that it superseded, and on the one that it led to."""
        args = self.opened.calls[0].args
        asked, became = self.asked(), self.became()
        if became is not None:
            return shown.diff(args, became)
        return shown.diff(asked, args) if asked is not None else []


async def find(visit: Visit) -> Case | None:
    """The ticket that the address names, if it is this person's to see."""
    named = visit.request.path_params
    thread = await visit.desk.threads.look(named["thread"])
    run_id, id_ = RunId(named["run"]), TicketId(named["ticket"])
    run = thread.state.runs.get(run_id)
    ticket = None if run is None else run.tickets.get(id_)
    if run is None or ticket is None:
        return None
    policy = await visit.desk.policies.get(run.policy)
    if not sees_ticket(visit.me, ticket, policy.approvals.groups):
        return None
    every = [d for b in thread.of(run_id) for d in b.decisions if isinstance(d, TicketOpened) and d.ticket == id_]
    return Case(thread, run_id, run, policy, ticket, every[-1]) if every else None


# --- the list ------------------------------------------------------------------------------------------------------------


async def listed(visit: Visit) -> Response:
    return visit.show("tickets.html", **_list(visit))


async def rows(visit: Visit) -> Response:
    """Only the list, for a page that is open."""
    return visit.show("ticket_rows.html", **_list(visit))


def _list(visit: Visit) -> dict[str, Any]:
    board = visit.desk.board
    found = board.visible(visit.me)
    pages = 1 + max(0, len(found) - 1) // WINDOW
    page = min(page_of(visit.request.query_params.get("page")), pages - 1)  # the list may have become shorter
    window = found.window(page * WINDOW, (page + 1) * WINDOW)
    return {"tickets": window, "total": len(found), "page": page, "pages": pages, "ready": board.ready}


async def ended(visit: Visit) -> Response:
    """The tickets that ended, the last to end first."""
    past = visit.desk.past
    await past.fresh()
    page = page_of(visit.request.query_params.get("page"))
    found = await past.ended(visit.me, WINDOW + 1, skip=page * WINDOW)
    more = {"page": page, "more": len(found) > WINDOW, "reading": not past.whole, "back_to": past.back_to}
    return visit.show("ended.html", past=found[:WINDOW], **more)


async def by_id(visit: Visit) -> Response:
    """A ticket by its id alone, as notices name it."""
    await visit.desk.past.fresh()
    id_, desk, me = visit.request.path_params["ticket"], visit.desk, visit.me
    ended = desk.board.ended(id_)
    line = desk.board.find(id_) or (ended.line if ended is not None else None)
    if line is not None and desk.board.sees(me, line):
        return visit.go(f"/tickets/{line.thread}/{line.run}/{id_}")
    place = await desk.past.place(me, id_)
    return visit.lost() if place is None else visit.go(f"/tickets/{place[0]}/{place[1]}/{id_}")


# --- one ticket ----------------------------------------------------------------------------------------------------------


async def ticket(visit: Visit) -> Response:
    return await _ticket(visit, full=False)


async def full(visit: Visit) -> Response:
    """The ticket with every byte of its arguments: whoever opened it may approve."""
    return await _ticket(visit, full=True)


async def _ticket(visit: Visit, *, full: bool) -> Response:
    case = await find(visit)
    if case is None:
        return visit.lost()
    if full:
        visit.here.saw(case.ticket.id, case.ticket.args_sha256)
    return visit.show("ticket.html", **await _about(visit, case, full=full))


async def _about(visit: Visit, case: Case, *, full: bool) -> dict[str, Any]:
    await visit.desk.past.fresh()
    ticket, opened = case.ticket, case.opened
    laid = [await lay_out(call.args, full=full) for call in opened.calls]
    hidden = sum(item.hidden for item in laid)
    pending = ticket.state == "pending"
    mine = pending and tickets.may_answer(ticket, visit.me.name, visit.now, case.groups)
    after = barriers_after(case.thread.state, case.run_id, case.policy, opened.calls[0]) if pending and not ticket.atomic else {}
    answered = any(answer.by == visit.me.name for answer in ticket.answers)
    decided = case.decided()
    return {
        **of_run(visit, case.thread, case.run_id, case.policy),
        "case": case,
        "ticket": ticket,
        "calls": [{"call": call, "shown": item} for call, item in zip(opened.calls, laid, strict=True)],
        "hidden": hidden,
        "full": full,
        "redacted": sum(len(forms.redacted(call.args)) for call in opened.calls),
        "seen": not hidden or visit.here.has_seen(ticket.id, ticket.args_sha256),
        "pending": pending,
        "mine": mine,
        "answered": answered,
        "counts": not answered or any(rule.stages for rule in ticket.rules),  # another yes of the same person
        "decision_id": uuid.uuid4().hex,
        "rules": dict.fromkeys(rule_in_words(rule, ticket, case.groups) for rule in ticket.rules),
        "findings": _findings(case, decided),
        "followed_by": case.followed_by(),
        "may_answer_for": pending and all(rule.may_answer for rule in ticket.rules) and not ticket.atomic,
        "last": mine and _is_last(visit, case),
        "final": next((d for d in reversed(decided) if d.decision != "suspend"), None),
        "changes": case.changes(),
        "curves": curves(case.thread, case.run_id, after),
        "machines": machines(case.thread, case.run_id, case.policy),
        "similar": await visit.desk.past.similar(
            visit.me, opened.calls[0].tool, case.run.agent, ticket.args_sha256, but=ticket.id
        ),
    }


def _is_last(visit: Visit, case: Case) -> bool:
    """Whether nobody else need answer this ticket after a yes of this person: only then may it hold a result."""
    yes = Answer(visit.me.name, "approve", "", visit.now)
    return tickets.satisfied(replace(case.ticket, answers=(*case.ticket.answers, yes)), case.groups)


async def lay_out(value: Any, *, full: bool) -> shown.Shown:
    """Arguments as lines; large ones are not laid out where all else waits for it."""
    if full and len(str(value)) > LARGE:
        return await anyio.to_thread.run_sync(lambda: shown.show(value, full=True))
    return shown.show(value, full=full)


def _findings(case: Case, decided: Sequence[CallDecided]) -> list[dict[str, Any]]:
    """What every stage found, the asks first; of a batch, what its asks say."""
    suspended = next((d for d in decided if d.decision == "suspend"), None)
    if suspended is not None and suspended.findings and not case.ticket.atomic:
        order = {"ask": 0, "deny": 1, "warn": 2}
        return [
            {"outcome": f.outcome, "stage": f.stage, "code": f.code, "reason": f.reason, "observed": not f.authoritative}
            | {"about": [text for text in (f.machine, f.key, f.contract, f.pattern, f.resource) if text]}
            for f in sorted(suspended.findings, key=lambda f: order[f.outcome])
        ]
    return [
        {"outcome": "ask", "stage": a.stage, "code": a.code, "reason": a.reason, "observed": False}
        | {"about": [text for text in (a.call, a.machine, a.key) if text]}
        for a in case.ticket.asks
    ]


def rule_in_words(rule: AnswerRule, ticket: Ticket, groups: tickets.Groups) -> str:
    """Who must answer, as a sentence."""

    def people(names: Sequence[str]) -> str:
        return " or ".join(_who(name, groups) for name in names)

    def one_of(names: Sequence[str], words: str = "one of") -> str:
        return people(names) if len(names) == 1 and names[0].startswith("user:") else f"{words} {people(names)}"

    if rule.stages:
        told = "In turn: " + ", then ".join(one_of(stage) for stage in rule.stages)
    elif rule.anyone:
        told = "Any approver" if rule.quorum == 1 else f"Any {rule.quorum} approvers"
    else:
        told = one_of(rule.approvers, "One of") if rule.quorum == 1 else f"{rule.quorum} of {people(rule.approvers)}"
    if rule.escalate_to:
        told += f"; {'now' if ticket.escalated else 'later'} also {people(rule.escalate_to)}"
    if rule.excluded:
        told += ". Also their own calls" if rule.self_approval else f". Not {' or '.join(rule.excluded)}, whose call it is"
    return told


def _who(name: str, groups: tickets.Groups) -> str:
    kind, _, who = name.partition(":")
    return f"{who} ({', '.join(sorted(groups.get(who, ()))) or 'nobody'})" if kind == "group" else who
