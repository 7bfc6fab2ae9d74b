"""The pages of runs: the list, one run, and search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from markupsafe import Markup
from starlette.responses import Response

from gated.console import drawings, story
from gated.console.desk import Visit
from gated.console.sight import sees_run, sees_ticket
from gated.console.threads import Thread
from gated.core.order.diagram import inline_svg
from gated.core.order.machines import Machine
from gated.core.policy import Policy
from gated.events import RunId, TicketId
from gated.ticket_views import OpenTicket
from gated.views import run_view

WINDOW: Final = 50
FOUND: Final = 50
ENTRIES: Final = 250  # of a story on one page; the newest are shown


async def runs(visit: Visit) -> Response:
    """The runs that a person may see, the last to change first."""
    return visit.show("runs.html", **await _list(visit))


async def run_rows(visit: Visit) -> Response:
    """Only the list, for a page that is open."""
    return visit.show("run_rows.html", **await _list(visit))


async def _list(visit: Visit) -> dict[str, Any]:
    past = visit.desk.past
    await past.fresh()
    page = page_of(visit.request.query_params.get("page"))
    found = await past.runs(visit.me, WINDOW + 1, page * WINDOW)
    return {"runs": found[:WINDOW], "page": page, "more": len(found) > WINDOW, "reading": not past.whole, "back_to": past.back_to}


def page_of(text: str | None) -> int:
    """The page that an address names, from 0."""
    return int(text) - 1 if text and text.isascii() and text.isdigit() and 0 < len(text) < 9 and int(text) else 0


async def run(visit: Visit) -> Response:
    """A run: what happened in it, what it has spent, its barriers and machines."""
    thread_id, run_id = visit.request.path_params["thread"], RunId(visit.request.path_params["run"])
    thread = await visit.desk.threads.look(thread_id)
    found = thread.state.runs.get(run_id)
    if found is None:
        return visit.lost()
    policy = await visit.desk.policies.get(found.policy)
    if not sees_run(visit.me, found, policy.approvals.groups):
        return visit.lost()
    return visit.show("run.html", **of_run(visit, thread, run_id, policy))


def of_run(visit: Visit, thread: Thread, run_id: RunId, policy: Policy) -> dict[str, Any]:
    """What the page of a run, and that of a ticket, show of it."""
    held, groups = thread.state.runs[run_id].tickets, policy.approvals.groups

    def hidden(ticket: str) -> bool:
        found = held.get(TicketId(ticket))
        return not (visit.me.auditor or (found is not None and sees_ticket(visit.me, found, groups)))

    entries = story.tell(thread.of(run_id), hidden)
    return {
        "run": run_view(thread.state, run_id, policy),
        "entries": entries[-ENTRIES:],
        "left_out": max(0, len(entries) - ENTRIES),
        "curves": curves(thread, run_id, {}),
        "machines": machines(thread, run_id, policy),
    }


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
    return await _found(visit, (await visit.form()).get("text", "").strip()[:200])


async def search_page(visit: Visit) -> Response:
    """Where nothing is looked for yet: an address that somebody kept, or came back to."""
    return await _found(visit, "")


async def _found(visit: Visit, text: str) -> Response:
    past = visit.desk.past
    await past.fresh()
    words = text.lower().split()
    every = visit.desk.board.visible(visit.me) if words else ()
    waiting = list(islice((line for line in every if _matches(line, words)), FOUND + 1))
    ended = await past.ended(visit.me, FOUND + 1, words) if words else []
    runs = await past.runs(visit.me, FOUND + 1, words=words) if words else []
    shown = [found[:FOUND] for found in (waiting, ended, runs)]
    total = sum(map(len, shown))
    return visit.show(
        "search.html",
        text=text,
        tickets=shown[0],
        past=shown[1],
        runs=shown[2],
        total=total,
        more=total < len(waiting) + len(ended) + len(runs),
        most=FOUND,
        reading=not past.whole,
        back_to=past.back_to,
    )


def _matches(line: OpenTicket, words: Sequence[str]) -> bool:
    texts = (line.ticket, line.run, line.agent, line.tool, line.preview, *(ask.reason for ask in line.asks))
    whole = " ".join(texts).lower()
    return all(word in whole for word in words)
