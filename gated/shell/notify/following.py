"""Notices from a log that somebody else writes: a cluster's, or the file of a daemon that was started without them.

It only reads, so that a ticket whose people could not be told does not say so; the program does, in its own log.
"""

from __future__ import annotations

import structlog

from gated.core.policy import Policy
from gated.core.state import ThreadState
from gated.errors import GatedError
from gated.events import Body, NoticeReported, ThreadId
from gated.shell.loading import state_at_end
from gated.shell.log import ReadableLog
from gated.shell.notify.notifier import Cursor, Notifier
from gated.shell.notify.settings import NotifySettings, Subject
from gated.shell.policies import load_stored

log = structlog.get_logger("gated.notify")


class NotifyError(GatedError):
    """The channels cannot be served from here."""


class Past:
    """The states of threads as a log has them, and the policies that they need, read when they are asked for."""

    def __init__(self, event_log: ReadableLog) -> None:
        self._log = event_log
        self._known: dict[str, Policy] = {}

    def policy(self, digest: str) -> Policy | None:
        """One of those that were needed so far."""
        return self._known.get(digest)

    async def look(self, thread: ThreadId) -> ThreadState:
        """The state of a thread at the end of its records."""
        return await state_at_end(self._log, thread, self._know, lambda: self._known)

    async def _know(self, digest: str) -> None:
        if digest and digest not in self._known:
            text = await self._log.policy(digest)
            if text is not None:
                self._known[digest] = load_stored(text, digest, lenient=True)


def follower(settings: NotifySettings, event_log: ReadableLog, cursor: Cursor) -> Notifier:
    """A notifier on a log that it only reads. Raises `NotifyError` for channels on the bus, `NotifyMissing`."""
    on_bus = [channel.name for channel in settings.channels if isinstance(channel.way, Subject)]
    if on_bus:
        raise NotifyError(
            f"the channel `{on_bus[0]}` speaks on the bus, which only a gate with `--notify` can: leave it out here"
        )
    past = Past(event_log)
    return Notifier(settings, event_log, cursor, past.look, _tell, _nowhere, past.policy)


def _tell(body: Body, said: NoticeReported) -> None:
    if said.error:
        log.error("nobody could be told of a ticket", ticket=said.ticket, channel=said.channel, error=said.error)


async def _nowhere(subject: str, data: bytes) -> None:
    raise NotifyError(f"there is no bus to speak on `{subject}`")
