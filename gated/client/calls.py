"""One call as agents and the gate speak of it: the wish, its permission, its outcome; and which call the running code is in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from msgspec import Struct

from gated import canonical, ingress, strict_json, wire
from gated.client.errors import Refused
from gated.client.reminders import message_of
from gated.events import Reminder
from gated.wire import Origin, Verdict, WantedCall

MAX_CONTENT: Final = 131_072  # characters that are reported of a result that is too long or no JSON

_INSIDE: ContextVar[tuple[Origin, Verdict] | None] = ContextVar("gated_inside", default=None)


class Call(NamedTuple):
    """One call of a batch, or one to go on with. `args` are a JSON object; an `id` is made up where none is given."""

    tool: str
    args: Mapping[str, Any] = {}
    cost_usd: float | None = None
    id: str | None = None
    parent: str | None = None


class Admitted(NamedTuple):
    """Permission for one call: the tool may run once, with exactly `args`. Without `execute`, `result` is a person's answer."""

    call: str
    args: Mapping[str, Any]
    execute: bool
    result: Any
    verdict: Verdict


class Outcome(Struct, frozen=True):
    """The gate's acknowledgement of an outcome. `ungated`: the call never had an allow verdict."""

    call: str
    reminders: tuple[Reminder, ...] = ()
    ungated: bool = False

    def messages(self) -> list[dict[str, str]]:
        """The reminders as messages of a chat, `{role, content}`; `remind` puts them into one, each in its place."""
        return [message_of(reminder) for reminder in self.reminders]


def wanted(call: Call, origin: Origin) -> WantedCall:
    """The call as it goes over the wire. Raises `Refused` for what would arrive there as something else than it is here."""
    digest(call.tool, call.args)
    if ingress.TOOL.fullmatch(call.tool) is None:
        raise Refused("ingress.tool_name", f"`{call.tool}` cannot be the name of a tool: use 1-128 of A-Z a-z 0-9 _ . : / -")
    own = uuid.uuid4().hex if call.id is None else id_of(call.id)
    return WantedCall(
        id=own, tool=call.tool, args=dict(call.args), parent=call.parent or parent(origin), cost_usd=cost_of(call.cost_usd)
    )


def cost_of(cost_usd: float | None) -> float | None:
    """Raises `Refused` for what is no amount: JSON would make nothing of NaN, which is no estimate."""
    if cost_usd is not None and not 0 <= cost_usd < float("inf"):
        raise Refused("ingress.cost", f"cost_usd is {cost_usd}: it must be a number of US dollars")
    return cost_usd


def digest(tool: str, args: Mapping[str, Any]) -> str:
    """Raises `Refused` for arguments that are not JSON: NaN, dates, keys that are no text."""
    try:
        return canonical.args_digest(tool, args)
    except ValueError as error:
        raise Refused("ingress.args", f"the arguments of `{tool}` are not JSON: {error}") from error


def id_of(call: object) -> str:
    """Raises `Refused` where it is no id."""
    if not ingress.is_id(call):
        raise Refused("ingress.id", f"`{call}` cannot be the id of a call: use 1-128 of A-Z a-z 0-9 _ -")
    return str(call)


def content_of(result: Any) -> Any:
    """A tool's result as an outcome carries it: JSON as it is, anything else as text, the beginning of what is long."""
    try:
        data = wire.encode(wire.Outcome(call="c", status="success", content=result))
        if len(data) <= wire.MAX_PAYLOAD // 2:
            strict_json.parse(data)
            return result
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # not JSON, or more of it than the gate takes
    text = str(result).encode(errors="replace").decode()
    return text if len(text) <= MAX_CONTENT else f"{text[:MAX_CONTENT]}… ({len(text) - MAX_CONTENT} characters more)"


# --- nesting ---------------------------------------------------------------------------------------------------------


@contextmanager
def inside(origin: Origin, verdict: Verdict) -> Iterator[None]:
    """The code of the block is a tool's: calls of the same run that it asks for are nested in the verdict's."""
    token = _INSIDE.set((origin, verdict))
    try:
        yield
    finally:
        _INSIDE.reset(token)


def parent(origin: Origin) -> str | None:
    found = _INSIDE.get()
    return found[1].call if found is not None and found[0] == origin else None


def current_call() -> str | None:
    """The id of the call that the running tool is: a key under which it can do its work once, also after a crash."""
    verdict = current_verdict()
    return None if verdict is None else verdict.call


def current_verdict() -> Verdict | None:
    """The verdict that the running tool runs by; its `token` is what a tool elsewhere may want to see."""
    found = _INSIDE.get()
    return None if found is None else found[1]
