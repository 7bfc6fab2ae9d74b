"""The users of a NATS server and what each may do: identity is the subject token that these permissions fix.

An agent publishes on its own `…agent.<name>` inputs and reads its own answers; nobody but the daemon reads inputs, and no one
who acts may act in another's name. Every user has its own inbox prefix, so that replies cannot be overheard.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from gated import wire

UserRole = Literal["daemon", "agent", "approver", "operator", "runner", "auditor"]


class User(Struct, frozen=True):
    """`password` is what the configuration holds: a bcrypt hash, or a `$VARIABLE` of the environment."""

    role: UserRole
    name: str
    password: str

    @property
    def login(self) -> str:
        return "daemon" if self.role == "daemon" else f"{self.role}:{self.name}"


def inbox_prefix(role: str, name: str) -> str:
    """The inbox of a user; a subscription to any other inbox is refused."""
    return "_INBOX.daemon" if role == "daemon" else f"_INBOX.{role}.{name}"


def permissions(user: User, prefix: str = wire.PREFIX) -> Mapping[str, list[str]]:
    """What a user may publish and subscribe to."""
    own = f"{inbox_prefix(user.role, user.name)}.>"
    api = [f"{prefix}.api.>", "$SRV.>"]
    if user.role == "daemon":
        return {
            "publish": [
                f"{prefix}.out.>",
                f"{prefix}.tickets.>",
                f"{prefix}.events.>",
                "$JS.API.>",
                "$JS.ACK.>",
                "_INBOX.>",
            ],
            "subscribe": [own, *api],
        }
    publish = [f"{prefix}.api.>"] if user.role == "auditor" else [f"{prefix}.in.*.*.{user.role}.{user.name}", f"{prefix}.api.>"]
    subscribe = {
        "agent": [f"{prefix}.out.*.*.agent.{user.name}"],
        "approver": [f"{prefix}.tickets.>", f"{prefix}.out.*.*.approver.{user.name}"],
        "operator": [f"{prefix}.tickets.>", f"{prefix}.out.*.*.operator.{user.name}"],
        "runner": [f"{prefix}.out.*.*.runner.{user.name}"],
        "auditor": [f"{prefix}.events.>", f"{prefix}.tickets.>"],
    }[user.role]
    return {"publish": publish, "subscribe": [own, *subscribe]}


def users_block(users: Iterable[User], prefix: str = wire.PREFIX) -> str:
    """The `authorization` block of a server's configuration."""
    lines = ["authorization {", "  users: ["]
    for user in users:
        allowed = permissions(user, prefix)
        password = (
            user.password if user.password.startswith("$") and not user.password.startswith("$2") else json.dumps(user.password)
        )
        lines += [
            f"    {{ user: {json.dumps(user.login)}, password: {password},",
            "      permissions: {",
            f"        publish: {{ allow: {json.dumps(allowed['publish'])} }},",
            f"        subscribe: {{ allow: {json.dumps(allowed['subscribe'])} }} }} }}",
        ]
    return "\n".join([*lines, "  ]", "}", ""])
