"""What `gated.api.<verb>` is asked: one struct a verb, read as strictly as the inputs are.

A field that a verb does not have is refused with those that it has: passed over, it would be answered as if it had counted.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from gated import strict_json
from gated.ingress import Digest, MessageId, Unreadable, unfit
from gated.wire.inbound import MOST_QUESTIONS

NOT_THERE: Final = "404"  # the code of the answer where what is asked about does not exist
MOST_TICKETS: Final = 500  # that one question names
Position = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # of a record or a ticket; 0 is before the first

Q = TypeVar("Q", bound=Struct)


class Bare(Struct, frozen=True, forbid_unknown_fields=True):
    """`health`, `log.head`, `tickets.list`, `cluster.status`: nothing more to say."""


class PolicyShow(Struct, frozen=True, forbid_unknown_fields=True):
    """By digest; without one, the policy that holds."""

    policy: Digest | None = None


class RunsShow(Struct, frozen=True, forbid_unknown_fields=True):
    thread: MessageId
    run: MessageId


class RunsCanI(Struct, frozen=True, forbid_unknown_fields=True):
    """As the agent's own `can_i`, of any run."""

    thread: MessageId
    run: MessageId
    calls: Annotated[list[Any], Meta(max_length=MOST_QUESTIONS)] = []


class TicketsPage(Struct, frozen=True, forbid_unknown_fields=True):
    after: Position = 0


class TicketsShow(Struct, frozen=True, forbid_unknown_fields=True):
    tickets: Annotated[list[str], Meta(max_length=MOST_TICKETS)]
    closed: bool = False  # those that closed lately, too


class LogRead(Struct, frozen=True, forbid_unknown_fields=True):
    """Of all threads; `until` 0 is the end."""

    after: Position = 0
    until: Position = 0


class LogThread(Struct, frozen=True, forbid_unknown_fields=True):
    thread: MessageId
    after: Position = 0


class ClusterDrain(Struct, frozen=True, forbid_unknown_fields=True):
    worker: str
    undo: bool = False


def read_question(kind: type[Q], data: bytes) -> Q:
    """What is asked; an empty message asks with no field given. Raises `Unreadable`."""
    text = data or b"{}"
    try:
        strict_json.parse(text)
        return msgspec.json.decode(text, type=kind)
    except strict_json.BadJson as error:
        raise Unreadable(f"ingress.{error.code}", str(error)) from error
    except msgspec.MsgspecError as error:
        raise _with_fields(kind, unfit(str(error))) from error


def _with_fields(kind: type[Struct], error: Unreadable) -> Unreadable:
    names = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
    return Unreadable(error.code, f"{error.reason}; {f'the question has {names}' if names else 'the question has no fields'}")
