"""What is said of a ticket, in each form: JSON for programs, a Slack message, a mail.

Whatever an agent wrote is shown as text: control, bidi and zero-width characters are written out, markup means nothing, and
nothing is longer than its place. Only what the log holds is said, so what is redacted there is redacted here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from itertools import accumulate
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct, to_builtins

from gated.core.order.templates import escape_text
from gated.core.tickets import Ticket
from gated.events import AnswerRule, Ask
from gated.ticket_views import preview_of
from gated.units import SECOND, format_duration, rfc3339, some

PREVIEW: Final = 1500  # characters of the arguments
REASON: Final = 300
HEADER, SECTION, CODE = 150, 3000, 2700  # characters that Slack takes in a header, a section, and what is left of one for code

TITLES: Final = {
    "opened": "waits for an approval",
    "expiring_soon": "expires soon, unanswered",
    "escalated": "was escalated: nobody answered in time",
    "closed": "is closed",
}


class Notice(Struct, frozen=True):
    """One event of one ticket. `id` is the same at every attempt; times in µs."""

    id: str
    event: str
    at: int
    ticket: str
    thread: str
    run: str
    agent: str
    tool: str
    calls: int
    preview: str
    hidden_bytes: int
    args_sha256: str
    asks: tuple[Ask, ...]
    rules: tuple[AnswerRule, ...]
    state: str
    opened_at: int
    expires_at: int
    answered_by: tuple[str, ...] = ()
    link: str | None = None


def notice(id: str, event: str, at: int, thread: str, run: str, agent: str, ticket: Ticket, console: str | None) -> Notice:
    preview = preview_of(ticket, PREVIEW)
    return Notice(
        id=id,
        event=event,
        at=at,
        ticket=ticket.id,
        thread=thread,
        run=run,
        agent=agent,
        tool=ticket.calls[0].tool,
        calls=len(ticket.calls),
        preview=preview.text,
        hidden_bytes=preview.hidden,
        args_sha256=ticket.args_sha256,
        asks=ticket.asks,
        rules=ticket.rules,
        state=ticket.state,
        opened_at=ticket.opened_at,
        expires_at=ticket.expires_at,
        answered_by=tuple(dict.fromkeys(answer.by for answer in ticket.answers)),
        link=None if console is None else f"{console.rstrip('/')}/tickets/{quote(ticket.id)}",
    )


def as_json(made: Notice) -> dict[str, Any]:
    """For programs. Times as RFC 3339."""
    times = {name: rfc3339(getattr(made, name)) for name in ("at", "opened_at", "expires_at")}
    return {"type": "ticket", **to_builtins(made), **times}


def headline(made: Notice) -> str:
    what = f"{made.tool}" + (f" and {made.calls - 1} more" if made.calls > 1 else "")
    title = f"is {made.state}" if made.event == "closed" else TITLES[made.event]
    return f"{what} of agent {made.agent} {title}"


def lines(made: Notice) -> list[str]:
    """The facts, a line each."""
    found = [f"why: {escape_text(ask.reason, REASON)}" for ask in made.asks]
    if made.event == "closed":
        found.append(f"answered by: {', '.join(made.answered_by) or 'nobody'}")
    else:
        left = format_duration(max(0, made.expires_at - made.at))
        found.append(f"answer until: {rfc3339(made.expires_at)[:19].replace('T', ' ')} UTC ({left})")
        found.append(f"may answer: {_approvers(made)}")
    found.append(f"run: {made.run}")
    found.append(f"ticket: {made.ticket}")
    return found


def _approvers(made: Notice) -> str:
    named = [name for rule in made.rules for name in (*rule.approvers, *(n for stage in rule.stages for n in stage))]
    named += [name for rule in made.rules for name in rule.escalate_to if made.event == "escalated"]
    return ", ".join(dict.fromkeys(named)) or "every approver"


# --- Slack -----------------------------------------------------------------------------------------------------------


def as_slack(made: Notice) -> dict[str, Any]:
    """A message that Slack's incoming webhooks take, and others after it. Blocks of plain text: nothing in them is markup."""
    head = headline(made)
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": head[:HEADER]}},
        {"type": "section", "text": {"type": "plain_text", "text": "\n".join(lines(made))[:SECTION]}},
    ]
    if made.event != "closed":
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": _code(made)}})
    if made.link is not None:
        button = {"type": "button", "text": {"type": "plain_text", "text": "Open the ticket"}, "url": made.link}
        blocks.append({"type": "actions", "elements": [button]})
    return {"text": _bare(head), "blocks": blocks}


def _bare(text: str) -> str:
    """Slack's three special characters written out: no mention, no link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(made: Notice) -> str:
    fits = sum(grown <= CODE for grown in accumulate(len(_bare(character)) for character in made.preview))
    shown, rest = made.preview[:fits], made.preview[fits:]
    return "```" + _bare(shown).replace("```", "'''") + "```" + _hidden(made.hidden_bytes + len(rest.encode()))


def _hidden(count: int) -> str:
    return f"\n({some(count, 'more byte')}: look at the whole ticket before you answer)" if count else ""


# --- mail ------------------------------------------------------------------------------------------------------------


def as_mail(made: Notice, sender: str, to: list[str]) -> EmailMessage:
    """A plain text mail; the mails of one ticket are one conversation."""
    domain = sender.rpartition("@")[2].rstrip(">") or "localhost"
    message = EmailMessage()
    message["From"], message["To"] = sender, ", ".join(to)
    message["Subject"] = escape_text(f"[gated] {headline(made)}", 150)
    message["Date"] = format_datetime(datetime.fromtimestamp(made.at / SECOND, UTC))
    message["Message-ID"] = f"<{made.id}@{domain}>"
    if made.event != "opened":
        message["References"] = f"<{made.ticket}@{domain}>"
    message["Auto-Submitted"] = "auto-generated"
    body = [headline(made), "", *lines(made)]
    if made.event != "closed":
        body += ["", made.preview + _hidden(made.hidden_bytes)]
    if made.link is not None:
        body += ["", made.link]
    message.set_content("\n".join(body) + "\n")
    return message
