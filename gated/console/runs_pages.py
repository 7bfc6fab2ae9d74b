"""The pages of runs: the list, one run, and search."""

from __future__ import annotations

from typing import Any, Final

from markupsafe import Markup
from starlette.responses import Response

from gated.console import drawings, story
from gated.console.desk import Visit
from gated.console.threads import Thread
from gated.core.order.diagram import inline_svg
from gated.core.order.machines import Machine
from gated.core.policy import Policy
from gated.events import RunId
from gated.views import run_view

WINDOW: Final = 50
FOUND: Final = 50
ENTRIES: Final = 250  # of a story on one page; the newest are shown


async def runs(visit: Visit) -> Response:
    """The runs that a person may see, the last to change first."""
    await visit.desk.recent.fresh()
    return visit.show("runs.html", **_list(visit))


async def run_rows(visit: Visit) -> Response:
    """Only the list, for a page that is open."""
    await visit.desk.recent.fresh()
    return visit.show("run_rows.html", **_list(visit))


def _list(visit: Visit) -> dict[str, Any]:
    found = visit.desk.recent.visible_runs(visit.me)
    page = page_of(visit.request.query_params.get("page"), len(found))
    shown = found[page * WINDOW : (page + 1) * WINDOW]
    return {"runs": shown, "total": len(found), "page": page, "pages": 1 + max(0, len(found) - 1) // WINDOW}


def page_of(text: str | None, total: int) -> int:
    """A page that there is, from 0."""
    last = max(0, total - 1) // WINDOW
    return min(int(text) - 1, last) if text and text.isascii() and text.isdigit() and 0 < len(text) < 9 and text != "0" else 0


async def run(visit: Visit) -> Response:
    """A run: what happened in it, what it has spent, its barriers and machines."""
    thread_id, run_id = visit.request.path_params["thread"], RunId(visit.request.path_params["run"])
    if not await visit.desk.recent.shows_run(visit.me, thread_id, run_id):
        return visit.lost()
    thread = await visit.desk.threads.look(thread_id)
    if run_id not in thread.state.runs:
        return visit.lost()
    policy = await visit.desk.policies.get(thread.state.runs[run_id].policy)
    return visit.show("run.html", **of_run(visit, thread, run_id, policy))


def of_run(visit: Visit, thread: Thread, run_id: RunId, policy: Policy) -> dict[str, Any]:
    """What the page of a run, and that of a ticket, show of it."""
    entries = story.tell(thread.of(run_id), lambda ticket: hides(visit, ticket))
    return {
        "run": run_view(thread.state, run_id, policy),
        "entries": entries[-ENTRIES:],
        "left_out": max(0, len(entries) - ENTRIES),
        "curves": curves(thread, run_id, {}),
        "machines": machines(thread, run_id, policy),
    }


def hides(visit: Visit, ticket: str) -> bool:
    """Whether a ticket is not this person's to see."""
    past = visit.desk.recent.tickets.get(ticket)
    if past is not None:
        return not visit.desk.recent.may_see_ticket(visit.me, past)
    line = visit.desk.board.find(ticket)
    return not visit.me.auditor and (line is None or not visit.desk.board.sees(visit.me, line))


def curves(thread: Thread, run_id: RunId, after: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """Each barrier of a run, drawn; `after` are its values now and after a call, where one is asked about."""
    moments = thread.curves.get(run_id, [])
    found = []
    for name in moments[-1].values if moments else ():
        past = [moment.values[name] for moment in moments if name in moment.values]
        now, then = after.get(name, (past[-1], None))
        found.append(
            {"name": name, "now": now, "after": then, "left": min(now, now if then is None else then) < 0}
            | {"drawing": drawings.curve(name, [*past, now], then)}
        )
    return found


def machines(thread: Thread, run_id: RunId, policy: Policy) -> list[dict[str, Any]]:
    """Each machine of a run's agent: its instances by key, and its drawing with their states marked."""
    states = thread.state.order.view(run_id)
    profile = policy.profile(thread.state.runs[run_id].agent)
    return [
        {"name": machine.name, "keys": states.get(machine.name, {}), "drawing": _drawn(machine, number, states)}
        for number, machine in enumerate(profile.machines.machines)
    ]


def _drawn(machine: Machine, number: int, states: dict[str, dict[str, str]]) -> Markup:
    now = set(states.get(machine.name, {}).values()) or {machine.initial}
    return Markup(inline_svg(machine, f"m{number}", now))  # it escapes what it writes


async def search(visit: Visit) -> Response:
    """Runs and tickets by a text of theirs. It comes as a form, so that no address holds what was looked for."""
    form = await visit.form()
    await visit.desk.recent.fresh()
    text = form.get("text", "").strip()[:200]
    words = text.lower().split()

    def matches(*fields: str | None) -> bool:
        whole = " ".join(field for field in fields if field).lower()
        return bool(words) and all(word in whole for word in words)

    found_runs = [
        line
        for line in visit.desk.recent.visible_runs(visit.me)
        if matches(line.run, line.thread, line.agent, line.task, line.status)
    ]
    open_ones = [
        line
        for line in visit.desk.board.visible(visit.me)
        if matches(line.ticket, line.run, line.agent, line.tool, line.preview, *(ask.reason for ask in line.asks))
    ]
    past = [
        line
        for line in reversed(visit.desk.recent.tickets.values())
        if line.state != "pending"
        and matches(line.ticket, line.run, line.agent, line.tool, line.preview, line.state)
        and visit.desk.recent.may_see_ticket(visit.me, line)
    ]
    return visit.show(
        "search.html",
        text=text,
        runs=found_runs[:FOUND],
        tickets=open_ones[:FOUND],
        past=past[:FOUND],
        total=len(found_runs) + len(open_ones) + len(past),
    )
