"""What tool-order machines have to say to the model, as a part of its chat.

A chat is a list of `{role, content}`. Each of the four targets has its place in it: `system` stands behind the system messages
that a chat begins with, `session` and `conversation` are turns at its end, `suffix_system` comes last of all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gated.events import Reminder
from gated.wire import ReminderMessage

MOST: Final = 64  # of a run that are kept for whoever takes them

_SYSTEM: Final = frozenset({"system", "suffix_system"})


class Inbox:
    """What machines have had to say of one run, and nobody has taken: the newest reminders.

    They come with the end of a call, whoever told the gate of it: this agent, a tool runner, a person who answered for the tool,
    the clock. A daemon that died may say it again.
    """

    def __init__(self) -> None:
        self._kept: deque[Reminder] = deque(maxlen=MOST)
        self._heard: deque[tuple[int, str]] = deque(maxlen=MOST)

    def hear(self, said: ReminderMessage) -> None:
        end = (said.seq, said.call)
        if said.reminders and end not in self._heard:
            self._heard.append(end)
            self._kept.extend(said.reminders)

    def take(self) -> tuple[Reminder, ...]:
        taken = tuple(self._kept)
        self._kept.clear()
        return taken


def message_of(reminder: Reminder) -> dict[str, str]:
    return {"role": "system" if reminder.target in _SYSTEM else reminder.role, "content": reminder.content}


def remind(chat: Sequence[Mapping[str, Any]], reminders: Iterable[Reminder]) -> list[dict[str, Any]]:
    """A copy of the chat with the reminders in their places."""
    given = list(reminders)

    def of(*targets: str) -> list[dict[str, Any]]:
        return [dict(message_of(reminder)) for reminder in given if reminder.target in targets]

    head = next((index for index, message in enumerate(chat) if message.get("role") != "system"), len(chat))
    turns = [dict(message) for message in chat]
    return [*turns[:head], *of("system"), *turns[head:], *of("session", "conversation"), *of("suffix_system")]
