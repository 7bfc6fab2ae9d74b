"""What tool-order machines have to say to the model, as a part of its chat.

A chat is a list of `{role, content}`. Each of the four targets has its place in it: `system` stands behind the system messages
that a chat begins with, `session` and `conversation` are turns at its end, `suffix_system` comes last of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gated.events import Reminder

MOST: Final = 64  # reminders that a run keeps for whoever takes them

_SYSTEM: Final = frozenset({"system", "suffix_system"})


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
