"""Inputs on a subject that no run can have: whoever spoke is told so, on a subject in which the id does not appear."""

from __future__ import annotations

import hashlib

import structlog

from gated import ingress, wire
from gated.core.order.templates import escape_text
from gated.events import CallRefused, DeadlineReached, MessageRefused, RunId, ThreadId
from gated.shell.bus import Input
from gated.shell.said import TIMER, Said, Settled

SHOWN = 80  # characters of an id that is none

log = structlog.get_logger("gated.runs")


def misaddressed(item: Input, prefix: str) -> Said:
    """What was said for no run. Of a subject that does not even name its sender there is only a line in the log."""
    found = wire.parse_bad_ids(item.subject, prefix)
    if found is None:
        log.warning("input on a subject outside the contract", subject=escape_text(item.subject))
        return Said(ThreadId(""), RunId(""), DeadlineReached(TIMER, 0), 0, 0, item.ack, None)
    origin, bad = found
    what = " and ".join(f"`{escape_text(text, SHOWN)}`" for text in bad)
    reason = f"{what} cannot be the id of a thread or a run: use {ingress.ID_WORDS}"
    digest = hashlib.sha256(item.data).hexdigest()
    refused = MessageRefused(origin.sender, "ingress.id", reason, digest, len(item.data))
    return Said(origin.thread, origin.run, refused, item.at, 0, item.ack, item.message_id)


def settled(said: Said) -> Settled:
    """Nothing is decided or recorded."""
    refused, by = said.observation, said.observation.by
    replies = (CallRefused(code=refused.code, reason=refused.reason),) if isinstance(refused, MessageRefused) else ()
    return Settled(said, None, (), replies, by.name if by.role == "agent" else "", "")
