"""The users of a NATS server and what each may do: identity is the subject token that these permissions fix.

INVARIANT: an input's last two tokens are the role and the name of who published it; nobody but the daemon reads inputs, and
every user has an inbox of its own, so that nobody overhears another's replies. The console is no exception: its own user only
reads, and for each person who logs in to it it connects once more, as that person.
NATS has no wildcard for a part of a token, so an agent cannot be kept to threads that begin with a text: it may be kept to
threads that are listed (`threads`). It hears the answers to its own name on every thread then, which are its own.

`python -m gated.shell.nats_config daemon agent:NAME approver:NAME` writes the users of a server of yours. It holds no
secrets: passwords are variables of the server's environment.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, get_args

from msgspec import Struct

from gated import ingress, wire
from gated.errors import GatedError

UserRole = Literal["daemon", "console", "agent", "approver", "operator", "runner", "auditor", "judge"]

READING: Final = (
    "health",
    "policy.show",
    "runs.show",
    "can_i",
    "tickets.list",
    "tickets.page",
    "tickets.show",
    "log.*",
)  # of the API
NAMELESS: Final = ("daemon", "console")
_VARIABLE: Final = re.compile(r"\$[A-Z][A-Z0-9_]*")


class UserError(GatedError, ValueError):
    """A user that must not get into a server's configuration: who and why."""


class User(Struct, frozen=True):
    """`password` is what the configuration holds: a password, a bcrypt hash, or a `$VARIABLE` of the environment.

    `threads` keeps an agent to these threads; none means any. Raises `UserError` for a name that is no id (a `>` or `*`
    in a subject would be everybody).
    """

    role: UserRole
    name: str
    password: str
    threads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in get_args(UserRole):
            raise UserError(f"`{self.role}` is no role: one of {', '.join(get_args(UserRole))}")
        if self.role in NAMELESS and self.name:
            raise UserError(f"the {self.role} has no name, not `{self.name}`: there is one of it")
        if self.role not in NAMELESS and not ingress.is_id(self.name):
            raise UserError(f"`{self.name}` cannot be the name of a bus user ({self.role}): use 1-128 of A-Z a-z 0-9 _ -")
        if self.threads and self.role != "agent":
            raise UserError(f"only agents can be kept to threads, not `{self.login}`")
        for thread in self.threads:
            if not ingress.is_id(thread):
                raise UserError(f"`{thread}` is no thread to keep `{self.login}` to: use 1-128 of A-Z a-z 0-9 _ -")

    @property
    def login(self) -> str:
        return login(self.role, self.name)


class May(NamedTuple):
    """Subjects with `{gated}`, `{stream}`, `{name}` and `{thread}` still to be filled in."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


_MAY: Final[Mapping[UserRole, May]] = {
    "daemon": May(
        (
            "{gated}.out.>",
            "{gated}.tickets.>",
            "{gated}.events.>",
            "{gated}.notices.>",
            "{gated}.checkpoints",
            "{gated}.write.>",
            "{gated}.cluster.>",
            "{gated}.judge.>",
            "$JS.API.>",
            "$JS.ACK.>",
            "_INBOX.>",
        ),
        ("{gated}.api.>", "$SRV.>", "{gated}.cluster.>", "{gated}.tickets.>"),
    ),
    "console": May(tuple(f"{{gated}}.api.{verb}" for verb in READING), ("{gated}.tickets.>",)),
    # an agent asks how the gate is, and nothing about the runs and tickets of others
    "agent": May(("{gated}.in.{thread}.*.agent.{name}", "{gated}.api.health"), ("{gated}.out.*.*.agent.{name}",)),
    "runner": May(("{gated}.in.*.*.runner.{name}", "{gated}.api.health"), ("{gated}.out.*.*.runner.{name}",)),
    "approver": May(
        ("{gated}.in.*.*.approver.{name}", *(f"{{gated}}.api.{verb}" for verb in ("health", "policy.*", "runs.*", "tickets.*"))),
        ("{gated}.tickets.>", "{gated}.notices.>", "{gated}.out.*.*.approver.{name}"),
    ),
    "operator": May(
        ("{gated}.in.*.*.operator.{name}", "{gated}.api.>"), ("{gated}.tickets.>", "{gated}.out.*.*.operator.{name}")
    ),
    "auditor": May(
        (
            *(f"{{gated}}.api.{verb}" for verb in READING),
            # a cluster's log itself: what reads it asks for nothing else
            *(f"$JS.API.{verb}.{{stream}}" for verb in ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")),
        ),
        ("{gated}.events.>", "{gated}.tickets.>", "{gated}.notices.>", "{gated}.checkpoints"),
    ),
    # what it is asked about a call, it may answer to whoever asked, and nothing else
    "judge": May(("_INBOX.daemon.>",), ("{gated}.judge.{name}",)),
}


def login(role: UserRole, name: str) -> str:
    return role if role in NAMELESS else f"{role}:{name}"


def inbox_prefix(role: str, name: str) -> str:
    """The inbox of a user; a subscription to any other inbox is refused."""
    return f"_INBOX.{role}" if role in NAMELESS else f"_INBOX.{role}.{name}"


def checked_prefix(prefix: str) -> str:
    """The same. Raises `UserError`: of any other form no input is known on its subject, and nobody would be answered."""
    if not ingress.is_id(prefix):
        raise UserError(f"`{prefix}` cannot be the prefix of subjects: use 1-128 of A-Z a-z 0-9 _ -")
    return prefix


def permissions(user: User, prefix: str = wire.PREFIX) -> Mapping[str, list[str]]:
    """What a user may publish and subscribe to. Raises `UserError` for a prefix that is no single token."""
    checked_prefix(prefix)
    may = _MAY[user.role]

    def filled(subjects: Iterable[str]) -> list[str]:
        threads = user.threads or ("*",)
        every = (
            s.format(gated=prefix, stream=f"{prefix.upper()}_LOG", name=user.name, thread=thread)
            for s in subjects
            for thread in threads
        )
        return list(dict.fromkeys(every))

    return {
        "publish": filled(may.publish),
        "subscribe": [f"{inbox_prefix(user.role, user.name)}.>", *filled(may.subscribe)],
    }


def users_block(users: Iterable[User], prefix: str = wire.PREFIX) -> str:
    """The `users` of an account or of `authorization`, in the server's configuration language."""
    return "\n".join(["users: [", *(_user_text(user, permissions(user, prefix)) for user in users), "]", ""])


def _user_text(user: User, may: Mapping[str, list[str]]) -> str:
    # a variable must stand unquoted, everything else must not: a bcrypt hash begins with `$` too
    password = user.password if _VARIABLE.fullmatch(user.password) else json.dumps(user.password, ensure_ascii=False)
    publish, subscribe = (_list_text(may[key]) for key in ("publish", "subscribe"))
    return (
        f'  {{ user: "{user.login}", password: {password}, permissions: {{\n'
        f"      publish: {{ allow: {publish} }}\n      subscribe: {{ allow: {subscribe} }} }} }}"
    )


def _list_text(subjects: Iterable[str]) -> str:
    return json.dumps(list(subjects))


def variable(role: UserRole, name: str) -> str:
    """The variable of the environment that holds a user's password: `$GATED_AGENT_BILLING_BOT`."""
    return "$GATED_" + re.sub(r"[^A-Z0-9]", "_", "_".join(filter(None, (role, name))).upper())


def users_file(logins: Iterable[str], prefix: str = wire.PREFIX) -> str:
    """A file to include in an account, with a user for every login (`daemon`, `agent:NAME`, …). Raises `UserError`."""
    users: dict[str, User] = {}
    for text in logins:
        role, _, name = text.partition(":")
        user = User(role, name, variable(role, name))  # type: ignore[arg-type]
        other = users.setdefault(user.password, user)
        if other.login != user.login:
            raise UserError(f"`{other.login}` and `{user.login}` would share the variable {user.password}: rename one of them")
    wanted = " ".join(user.login for user in users.values())
    return f"# written by `python -m gated.shell.nats_config {wanted}`\n{users_block(users.values(), prefix)}"


if __name__ == "__main__":
    try:
        sys.stdout.write(users_file(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"error: {error}")
