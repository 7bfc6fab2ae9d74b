"""Answering a ticket: approve, reject, edit, remember. Every answer says what the person saw, and is theirs on the bus.

INVARIANT: what hides bytes of its arguments is not approved before this session opened the full view. An edit is shown as a
difference before it is sent, and is not sent where it misses the tool's schema, since the gate's refusal would be final.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import anyio
from starlette.responses import Response

from gated import canonical, ingress, strict_json, wire
from gated.console import forms, shown
from gated.console.desk import Visit
from gated.console.line import NoAnswer, Told
from gated.console.sight import sees_run
from gated.console.tickets_pages import Case, find
from gated.core import tickets
from gated.core.order.patterns import PatternError, compile_pattern
from gated.events import RunId
from gated.units import rfc3339

MOST_NOTE = 4000
FORGET_SECONDS = 5.0


async def approve(visit: Visit) -> Response:
    form = await visit.form()
    case = await find(visit)
    if case is None:
        return visit.lost()
    if _unseen(visit, case):
        return _first_look(visit, case)
    remember, problem = _remember(form, case)
    if problem:
        visit.here.tell("no", problem)
        return visit.go(case.path)
    return await _say(visit, case, form, "approve", remember=remember)


async def reject(visit: Visit) -> Response:
    form = await visit.form()
    case = await find(visit)
    return visit.lost() if case is None else await _say(visit, case, form, "reject")


async def result(visit: Visit) -> Response:
    """The person's word instead of the tool's: it is not run, and the machines advance as if it had been."""
    form = await visit.form()
    case = await find(visit)
    if case is None:
        return visit.lost()
    if _unseen(visit, case):
        return _first_look(visit, case)
    try:
        value = strict_json.parse_value(form.get("result", "").encode())
    except strict_json.BadJson as error:
        visit.here.tell("no", f"The result is not JSON: {error}. A text stands in quotes.")
        return visit.go(case.path)
    return await _say(visit, case, form, "approve", result=value)


async def forget(visit: Visit) -> Response:
    """Withdraw a remembered answer of a run that the person may see."""
    form = await visit.form()
    thread, run = visit.request.path_params["thread"], visit.request.path_params["run"]
    if not await _may_see(visit, thread, RunId(run)):
        return visit.lost()
    remembered = form.get("remembered", "")
    await visit.desk.lines.forget(visit.me.name, thread, run, remembered)
    with anyio.move_on_after(FORGET_SECONDS):
        while remembered in await _standing(visit, thread, run):  # noqa: ASYNC110 (the log tells, nobody else does)
            await anyio.sleep(0.05)
        visit.here.tell("done", "Withdrawn: the next such call is asked about again.")
        return visit.go(f"/runs/{thread}/{run}")
    visit.here.tell("no", "The gate has not taken it yet. Look again in a moment.")
    return visit.go(f"/runs/{thread}/{run}")


async def _may_see(visit: Visit, thread: str, run: RunId) -> bool:
    found = (await visit.desk.threads.look(thread)).state.runs.get(run)
    if found is None:
        return False
    policy = await visit.desk.policies.get(found.policy)
    return sees_run(visit.me, found, policy.approvals.groups)


async def _standing(visit: Visit, thread: str, run: str) -> set[str]:
    """What is remembered for a run, by id."""
    state = (await visit.desk.threads.look(thread)).state
    found = state.runs.get(RunId(run))
    return {item.id for item in (*state.remembered, *(found.remembered if found is not None else ()))}


def _unseen(visit: Visit, case: Case) -> bool:
    """Whether the ticket's page hides bytes and this session has not opened the full view of these arguments."""
    hidden = any(shown.show(call.args, full=False).hidden for call in case.opened.calls)
    return hidden and not visit.here.has_seen(case.ticket.id, case.ticket.args_sha256)


def _first_look(visit: Visit, case: Case) -> Response:
    visit.here.tell("no", "Parts of the arguments are hidden here. Open the full view first, then decide.")
    return visit.go(case.path)


def _remember(form: Mapping[str, str], case: Case) -> tuple[Any, str]:
    """The wish as the wire takes it, and what is wrong with it."""
    scope = form.get("remember", "once")
    if scope in ("once", "call"):
        return scope, ""
    if scope not in ("run", "thread"):
        return "once", "There is no such way to remember an answer."
    pattern, call = form.get("pattern", "").strip(), case.opened.calls[0]
    try:
        fits = compile_pattern(pattern).matches(call.tool, call.args) or bool(forms.redacted(call.args))  # the gate knows
    except PatternError as error:
        return "once", f"The pattern is not one: {error}"
    if not fits:
        return "once", f"The pattern {pattern} does not match this call, so it cannot be remembered with it."
    return wire.RememberPattern(pattern=pattern, scope="run" if scope == "run" else "thread"), ""


async def _say(visit: Visit, case: Case, form: Mapping[str, str], decision: Any, **more: Any) -> Response:
    """Send the answer and say what became of it, on the ticket's page."""
    decision_id = form.get("decision_id", "")
    said = wire.Resolution(
        ticket=case.ticket.id,
        decision=decision,
        decision_id=decision_id if ingress.is_id(decision_id) else uuid.uuid4().hex,
        args_sha256=form.get("digest", ""),
        note=form.get("note", "").strip()[:MOST_NOTE],
        **more,
    )
    try:
        told = await visit.desk.lines.answer(visit.me.name, case.thread.state.thread, case.run_id, said)
    except NoAnswer as error:
        visit.here.tell("no", f"{str(error)[0].upper()}{str(error)[1:]}.")
        return visit.go(case.path)
    visit.here.tell(*await _outcome(visit, case, told))
    return visit.go(case.path)


async def _outcome(visit: Visit, case: Case, told: Told) -> tuple[str, str]:
    """What the gate said, in words."""
    words = {
        "approved": "Approved.",
        "rejected": "Rejected. The agent is told.",
        "superseded": "Your edit was taken.",
        "pending": "Your answer counts. Others must still answer.",
    }
    if told.state in ("approved", "superseded") and (denied := await _denied(visit)) is not None:
        return ("no", f"You {'approved' if told.state == 'approved' else 'edited'} it, and it was denied all the same: {denied}.")
    if told.state:
        return ("done", words.get(told.state, f"The ticket is {told.state}."))
    now = await find(visit)
    if told.code == "approvals.already_decided" and now is not None:
        return ("no", f"Your answer came too late and changed nothing: {how_it_ended(now.ticket)}.")
    return ("no", f"Your answer was not taken ({told.code}): {told.reason}.")


async def _denied(visit: Visit) -> str | None:
    """Why the call was denied after its approval: it is decided anew, on the state and the policy of now."""
    case = await find(visit)
    last = case.decided()[-1] if case is not None and case.decided() else None
    return last.reason if last is not None and last.decision == "deny" else None


def how_it_ended(ticket: tickets.Ticket) -> str:
    """`approved by ana at 08:31:02 UTC`."""
    when = rfc3339(ticket.closed_at)[11:19] if ticket.closed_at else "an unknown time"
    people = ", ".join(dict.fromkeys(answer.by for answer in ticket.answers))
    return f"the ticket was {ticket.state}{f' by {people}' if people else ''} at {when} UTC"


# --- editing -------------------------------------------------------------------------------------------------------------


def _schema(case: Case) -> Any:
    tool = case.policy.entry.tools.get(case.opened.calls[0].tool)
    return tool.json_schema if tool is not None else None


def _closed_to(visit: Visit, case: Case) -> Response | None:
    """Why this person cannot edit here, as the answer to the request."""
    mine = tickets.may_answer(case.ticket, visit.me.name, visit.now, case.groups)
    if case.ticket.state != "pending" or case.ticket.atomic or not mine:
        visit.here.tell("no", "This ticket is not open for an edit of yours.")
        return visit.go(case.path)
    return _first_look(visit, case) if _unseen(visit, case) else None


async def edit_page(visit: Visit) -> Response:
    """The form, made from the tool's schema, or the arguments as JSON."""
    case = await find(visit)
    if case is None:
        return visit.lost()
    return _closed_to(visit, case) or _form(visit, case, {}, {})


def _form(visit: Visit, case: Case, typed: Mapping[str, str], errors: Mapping[str, str]) -> Response:
    args = case.opened.calls[0].args
    made = forms.fields(_schema(case), args)
    values = {field.id: typed.get(field.id, field.text) for field in made}
    return visit.show(
        "edit.html",
        400 if errors else 200,
        case=case,
        fields=made,
        values=values,
        left_out={field.id for field in made if typed.get(f"{field.id}.out")},
        whole_text=typed.get(forms.WHOLE, shown.editable(args)),
        has_schema=_schema(case) is not None,
        errors=errors,
        note=typed.get("note", ""),
        absent=forms.ABSENT,
    )


async def edit(visit: Visit) -> Response:
    """Read the form; where all is well, show what changes, to be confirmed."""
    typed = await visit.form()
    case = await find(visit)
    if case is None:
        return visit.lost()
    if (closed := _closed_to(visit, case)) is not None:
        return closed
    old = case.opened.calls[0]
    try:
        args = forms.read(forms.fields(_schema(case), old.args), old.args, typed)
    except forms.Misread as error:
        return _form(visit, case, typed, error.errors)
    if canonical.args_digest(old.tool, args) == old.args_sha256:
        return _form(visit, case, typed, {"": "Nothing is changed: approve the call as it is, or change an argument."})
    if places := forms.redacted(args):
        why = (
            f"{', '.join(places)} is redacted here, and would be sent as it is shown: give its value, or leave the call as it is."
        )
        return _form(visit, case, typed, {"": why})
    schema = case.policy.schemas.get(old.tool)
    if schema is not None and (misfit := schema.misfit(args)) is not None:
        return _form(visit, case, typed, {"": f"The tool's schema does not take it: {misfit}"})
    visit.here.draft = {"ticket": case.ticket.id, "args": args, "key": uuid.uuid4().hex}
    return visit.show(
        "review.html",
        case=case,
        changes=shown.diff(old.args, args),
        key=visit.here.draft["key"],
        note=typed.get("note", ""),
    )


async def confirm(visit: Visit) -> Response:
    """Send the edit that was shown."""
    form = await visit.form()
    case = await find(visit)
    if case is None:
        return visit.lost()
    draft = visit.here.draft
    if draft.get("ticket") != case.ticket.id or draft.get("key") != form.get("decision_id"):
        visit.here.tell("no", "That edit is not at hand any more: another one was begun. Nothing was sent.")
        return visit.go(case.path)
    return await _say(visit, case, form, "approve", args=draft["args"])
